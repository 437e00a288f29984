package attachment

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/testing/excuse"
)

// leader is the shell in small: lagging caches, answers to its own writes, one step
// at a time, and requests whose answers get lost.
type leader struct {
	*world
	// seen is the version that each cache shows.
	seenAttachments, seenNodes, seenPods int
	// Answers to own writes, which the caches may not have reached.
	attachments map[string]toyAttachment
	nodes       map[NodeName]toyNode
	deleted     map[string]bool // UIDs

	since    int            // version when it began to lead
	doubtful map[string]int // UID -> version of a delete without answer
	// given is the ledger: what nodes hold without an object.
	given map[NodeName]Attachment
	// created is, by node, until when a create without an answer may be carried out.
	created map[NodeName]time.Time
	// looks is when each kubelet was first looked at, by Node UID, since when it has not listed the volume, and until when.
	looks map[string][2]time.Time
	// unsure holds, by node, the version that a write without answer was bound to.
	unsure map[NodeName]int

	steps    []Step
	decided  map[NodeName]toyNode // what the decision knew
	wanted   map[NodeName]bool    // by the last decision
	answered map[NodeName]bool
	reliable bool                 // answers no longer get lost
	bound    map[NodeName]toyNode // of a late request: what its sender knew
	forces   map[NodeName]bool    // of a late request: where a policy permitted its sender a forced detach
}

func newLeader(w *world) *leader {
	// The barrier: every cache shows at least what was there when the lease was won.
	l := &leader{
		given: map[NodeName]Attachment{}, created: map[NodeName]time.Time{}, looks: map[string][2]time.Time{},
		world: w, seenAttachments: w.version, seenNodes: w.version, seenPods: w.version, since: w.version,
		attachments: map[string]toyAttachment{}, nodes: map[NodeName]toyNode{}, deleted: map[string]bool{},
		doubtful: map[string]int{}, unsure: map[NodeName]int{}, answered: map[NodeName]bool{},
	}
	for name, n := range w.now.nodes {
		_, attached := w.now.attachments["csi-"+string(name)]
		// The VolumeAttachment is not left for a new leader to read, and what the node says of itself counts only beside a pod.
		if w.ctl != nil && !attached && (!n.Reported || !w.now.pods[name]) && n.writes() && w.excuse(excuse.RemovedByHand) {
			n = n.abandoned()
			w.now.nodes[name] = n
		}
		if n.Exists == Yes && n.Reported && !attached && n.InUse == Yes && w.now.pods[name] {
			l.adopt(name, n)
		}
	}
	return l
}

// adopt takes a report for what the node was given.
func (l *leader) adopt(name NodeName, n toyNode) {
	m := n.Machine
	if n.InUse != Yes && !n.DetachRequested.IsZero() { // it was given to an earlier Node object
		m = Machine{}
	}
	l.give(name, m)
	a := l.given[name]
	a.InDoubt = true
	l.given[name] = a
}

func (l *leader) give(name NodeName, m Machine) {
	l.given[name] = Attachment{Node: name, Implied: true, Computed: true, Confirmed: Yes, Machine: m}
}

// changedBetween looks for Nodes that listed the volume, or took it off their list, between two versions.
func (l *leader) changedBetween(before, after int) {
	for v := before; v < after; v++ {
		for name, was := range l.history[v-1].nodes {
			is := l.history[v].nodes[name]
			if was.InUse != is.InUse {
				delete(l.looks, is.Machine.NodeUID)
			}
		}
	}
}

// lost looks what went from the cache between two versions: an attachment that is gone
// while its node reports the volume was removed by another writer.
func (l *leader) lost(before, after int) {
	for name, a := range l.history[before-1].attachments {
		n := l.known(a.Node)
		if _, there := l.history[after-1].attachments[name]; !there && a.Computed && n.Exists == Yes && n.Reported {
			l.give(a.Node, a.Machine)
		}
	}
	for name := range l.given {
		if _, there := l.history[after-1].attachments["csi-"+string(name)]; there || l.known(name).Exists == No {
			delete(l.given, name)
		}
	}
}

// catchUp moves one cache on.
func (l *leader) catchUp() {
	before, nodes := l.seenAttachments, l.seenNodes
	for _, seen := range []*int{&l.seenAttachments, &l.seenNodes, &l.seenPods} {
		if behind := l.version - *seen; behind > 0 && l.chance(60) {
			*seen += 1 + l.rng.IntN(behind)
		}
	}
	l.changedBetween(nodes, l.seenNodes)
	l.lost(before, l.seenAttachments)
}

func (l *leader) catchUpFully() {
	before, nodes := l.seenAttachments, l.seenNodes
	l.seenAttachments, l.seenNodes, l.seenPods = l.version, l.version, l.version
	l.changedBetween(nodes, l.version)
	l.lost(before, l.version)
}

// die leaves the next request in flight.
func (l *leader) die() {
	if len(l.steps) > 0 && l.chance(70) && !isLocal(l.steps[0]) {
		l.delay(l.steps[0])
	}
}

// delay leaves a request in flight. It is bound to what its sender knew.
func (l *leader) delay(step Step) {
	known, forces := map[NodeName]toyNode{}, map[NodeName]bool{}
	for name := range l.now.nodes {
		known[name], forces[name] = l.known(name), l.mayForce(name)
	}
	until := l.clock.Add(requestLife)
	l.late = append(l.late, func() {
		if !l.clock.Before(until) {
			return // the API server has ended it
		}
		sender := *l
		sender.bound, sender.forces = known, forces
		sender.request(step, true)
	})
}

// known is the newest version of a node that the leader has seen.
func (l *leader) known(name NodeName) toyNode {
	if l.bound != nil {
		return l.bound[name]
	}
	if ours, ok := l.nodes[name]; ok && ours.version > l.seenNodes {
		return ours
	}
	return l.history[l.seenNodes-1].nodes[name]
}

func (l *leader) observe() (Desired, Observed) {
	seen := Observed{Nodes: map[NodeName]Node{}}
	found := maps.Clone(l.history[l.seenAttachments-1].attachments)
	for name, ours := range l.attachments {
		if atoi(ours.ResourceVersion) > l.seenAttachments {
			found[name] = ours
		} else {
			delete(l.attachments, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		a := found[name].Attachment
		a.Deleting = a.Deleting || l.deleted[a.UID]
		version := atoi(a.ResourceVersion)
		doubt, ok := l.doubtful[a.UID]
		a.DeleteMayBeUnderway = version <= l.since || ok && doubt == version
		seen.Attachments = append(seen.Attachments, a)
	}
	for name := range l.now.nodes {
		n := l.known(name)
		n.Checked = l.answered[name]
		if at, ok := l.looks[n.Machine.NodeUID]; ok {
			n.QuietSince, n.QuietUntil, n.NextKubeletCheck = at[0], at[1], at[1].Add(SyncWindow/3)
		}
		unsure, ok := l.unsure[name]
		n.WriteMayBeUnderway = n.Exists == Yes && (n.version <= l.since || ok && unsure == n.version)
		seen.Nodes[name] = n.Node
		if a, ok := l.given[name]; ok && found["csi-"+string(name)].Name == "" {
			a.DetachRequested = n.DetachRequested
			seen.Attachments = append(seen.Attachments, a)
		}
		if until, ok := l.created[name]; ok {
			seen.Pending = append(seen.Pending, Pending{name, until})
		}
	}
	want := Desired{Shared: decision.Known(l.shared)}
	if l.history[l.seenPods-1].flipped {
		return want, seen
	}
	for name := range l.history[l.seenPods-1].pods {
		want.Wants = append(want.Wants, Want{Node: name, PersistentVolume: "pv", Since: t0})
	}
	return want, seen
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

// step takes one step of the last decision, or decides.
func (l *leader) step() {
	if len(l.steps) == 0 {
		for name := range l.wanted { // what that decision asked for was carried out
			delete(l.asked, name)
		}
		clear(l.answered)
		l.decide()
		return
	}
	step := l.steps[0]
	l.steps = l.steps[1:]
	if _, ok := step.(Wait); ok {
		return
	}
	switch fate := l.rng.IntN(100); {
	case isLocal(step):
		if again, _ := l.request(step, false); again {
			l.decide()
		}
	case fate < 5 && !l.reliable: // the answer is lost, the request is not
		l.request(step, false)
		l.unknown(step)
	case fate < 10 && !l.reliable: // the request is slow, and its sender has timed out
		l.delay(step)
		l.unknown(step)
	default:
		if again, ok := l.request(step, false); !ok {
			l.steps, l.wanted = nil, nil
		} else if again {
			l.decide()
		}
	}
}

// isLocal is a step that no answer can get lost of.
func isLocal(step Step) bool {
	switch s := step.(type) {
	case Detach:
		return s.Attachment.Name == ""
	case ForceDetach:
		return s.Attachment.Name == ""
	case CheckKubelet:
		return true
	}
	return false
}

func (l *leader) unknown(step Step) {
	l.steps, l.wanted = nil, nil
	switch s := step.(type) {
	case Attach:
		l.created[s.Node] = l.clock.Add(requestLife)
	case Detach:
		l.doubtful[s.Attachment.UID] = atoi(s.Attachment.ResourceVersion)
	case Report:
		l.unsure[s.Node] = l.known(s.Node).version
	case AnnotateNode:
		l.unsure[s.Node] = l.known(s.Node).version
	case ForceDetach:
		l.doubtful[s.Attachment.UID] = atoi(s.Attachment.ResourceVersion)
	}
}

func (l *leader) decide() {
	want, seen := l.observe()
	wanted := map[NodeName]bool{}
	for _, x := range want.Wants {
		wanted[x.Node] = true
	}
	for _, name := range toyNodes {
		if _, ok := l.asked[name]; !ok && !wanted[name] {
			l.asked[name] = l.clock
		}
	}
	l.wanted, l.decided = wanted, map[NodeName]toyNode{}
	for name := range l.now.nodes {
		l.decided[name] = l.known(name)
	}
	l.steps = Decide(l.clock, want, seen, l.policy).Steps
}

// request is the API server's side of a step. A late one is carried out after its sender timed out or died, so its answer has no
// receiver.
func (l *leader) request(step Step, late bool) (again, ok bool) {
	switch s := step.(type) {
	case Attach:
		return l.attach(s, late)
	case Report:
		return l.report(s, late)
	case WithdrawReport:
		return l.withdraw(s, late)
	case CheckKubelet:
		l.checkKubelet(s)
		return true, true
	case Detach:
		if s.Attachment.Name == "" {
			return true, l.forgo(s.Node, nil)
		}
		return false, l.delete(s.Attachment, nil, late)
	case ForceDetach:
		if s.Attachment.Name == "" {
			return true, l.forgo(s.Node, s.Authority)
		}
		return false, l.delete(s.Attachment, s.Authority, late)
	case AnnotateNode:
		return l.noteNode(s, late)
	case AnnotateAttachment:
		a, found := l.now.attachments[s.Attachment.Name]
		if !found || a.Ref != s.Attachment {
			return false, false
		}
		a.DetachRequested, a.Machine, a.lateNote = s.DetachRequested, s.Machine, late
		l.setAttachment(a, "note on %s %v", a.Name, s)
		if !late {
			l.attachments[a.Name] = l.now.attachments[a.Name]
		}
	}
	return false, true
}

func (l *leader) attach(s Attach, late bool) (again, ok bool) {
	name := "csi-" + string(s.Node)
	if there, found := l.now.attachments[name]; found {
		if !late {
			l.attachments[name] = there
		}
		return true, true
	}
	for _, other := range l.now.attachments {
		if !l.shared && !late && !other.touched && other.Node != s.Node && !l.fromLateRequest(other) {
			l.breaks("S1: attached to %s while %s exists", s.Node, other.Name)
		}
	}
	a := toyAttachment{made: l.version, touched: late}
	a.Ref = Ref{Name: name, UID: fmt.Sprintf("%s-%d", name, l.version)}
	a.Node, a.PersistentVolume, a.Machine, a.Computed, a.Created = s.Node, s.PersistentVolume, s.Machine, true, l.clock
	if l.own {
		a.Confirmed = Yes
	}
	l.setAttachment(a, "attach to %s (late %v)", s.Node, late)
	if !late {
		l.attachments[name] = l.now.attachments[name]
	}
	return false, true
}

// fromLateRequest reports whether the attachment came from a request that arrived after its sender had timed out: the attacher's
// part of S1 has to deal with it.
func (l *leader) fromLateRequest(a toyAttachment) bool { return a.touched }

func (l *leader) report(s Report, late bool) (again, ok bool) {
	n, base, conflict := l.base(s.Node, s.NodeUID, late)
	if conflict {
		return false, false
	}
	if base != nil {
		return true, true
	}
	a, found := l.now.attachments[s.Attachment.Name]
	if !late && found && a.UID == s.Attachment.UID && (a.Confirmed != Yes || a.Deleting) && !a.touched {
		l.breaks("S9: reported %s which is not confirmed, or being deleted", a.Name)
	}
	n.Reported = true
	l.setNode(s.Node, n, "report on %s (late %v)", s.Node, late)
	if !late {
		l.nodes[s.Node] = l.now.nodes[s.Node]
	}
	return false, true
}

// checkKubelet is a look at a kubelet's lease. One that is Ready for SyncWindow lists what
// it has mounted and a pod wants, and has unmounted the rest.
func (l *leader) checkKubelet(s CheckKubelet) {
	at, looked := l.looks[s.NodeUID]
	switch n := l.now.nodes[s.Node]; {
	case n.Machine.NodeUID != s.NodeUID || n.Exists != Yes:
		delete(l.looks, s.NodeUID)
		l.nodes[s.Node] = n
	case !looked || !n.on || n.Healthy != Yes:
		l.looks[s.NodeUID] = [2]time.Time{l.clock, l.clock}
	default:
		for l.clock.Sub(at[0]) >= SyncWindow && n.mounted && n.InUse != Yes {
			if l.now.pods[s.Node] {
				n.InUse = Yes
				l.setNode(s.Node, n, "kubelet %s: lists what it has", s.Node)
				l.nodes[s.Node] = l.now.nodes[s.Node]
			} else {
				l.kubelet(s.Node)
			}
			n = l.now.nodes[s.Node]
		}
		l.looks[s.NodeUID] = [2]time.Time{at[0], l.clock}
	}
}

// requestLife is how long a request may be late.
const requestLife = time.Minute

// forgo is the end of an attachment without an object.
func (l *leader) forgo(name NodeName, by Authority) bool {
	delete(l.given, name)
	n := l.now.nodes[name]
	switch {
	case !n.writes():
	case by == nil:
		l.breaks("S2: taken from %s, which has it mounted", name)
	case !l.allowedThen(by, name):
		l.breaks("S2: taken from %s by %v, which does not hold", name, by)
	default:
		n = n.abandoned()
		l.now.nodes[name] = n
	}
	return true
}

// base gives the Node that a write is bound to: the newest that the leader knows. If the API server has another, a late write fails
// and a timely one is decided again.
func (l *leader) base(name NodeName, uid string, late bool) (n toyNode, newer *toyNode, conflict bool) {
	n = l.now.nodes[name]
	if l.known(name).version == n.version && n.Exists == Yes && n.Machine.NodeUID == uid {
		return n, nil, false
	}
	if late {
		return n, nil, true
	}
	l.nodes[name] = n
	return n, &n, false
}

func (l *leader) withdraw(s WithdrawReport, late bool) (again, ok bool) {
	n, newer, conflict := l.base(s.Node, s.NodeUID, late)
	if conflict {
		return false, false
	}
	if newer != nil { // the answer to a live read
		l.answered[s.Node] = !n.Reported
		return true, true
	}
	if n.Facts() != s.Expect {
		return true, true
	}
	// A kubelet that lists a volume waits for it, or has it. Without an attachment it cannot mount it.
	_, attached := l.now.attachments["csi-"+string(s.Node)]
	inUse := n.InUse == Yes && (n.writes() || attached && l.confirmed(s.Node))
	if n.Reported && inUse && !l.mayForce(s.Node) {
		l.breaks("S2: withdrawn from %s, which lists it in use", s.Node)
	}
	if n.Reported || s.NewVersion {
		n.Reported = false
		l.setNode(s.Node, n, "withdraw on %s (late %v)", s.Node, late)
	}
	if !late {
		l.nodes[s.Node] = l.now.nodes[s.Node]
		l.answered[s.Node] = true
	}
	return true, true
}

// noteNode stores the time of a request on the Node.
func (l *leader) noteNode(s AnnotateNode, late bool) (again, ok bool) {
	if l.known(s.Node).Exists == No {
		return false, true
	}
	n, newer, conflict := l.base(s.Node, s.NodeUID, late)
	if conflict || newer != nil {
		return newer != nil, !conflict
	}
	n.DetachRequested, n.lateNote = s.DetachRequested, late
	l.setNode(s.Node, n, "note on node %s %v (late %v)", s.Node, s.DetachRequested, late)
	if !late {
		l.nodes[s.Node] = l.now.nodes[s.Node]
	}
	return false, true
}

func (l *leader) delete(r Ref, by Authority, late bool) bool {
	a, found := l.now.attachments[r.Name]
	if !found {
		return true
	}
	if a.Ref != r {
		return false // S6
	}
	n := l.now.nodes[a.Node]
	switch {
	case !n.writes():
	case n.unrecorded == a.UID && l.excuse(excuse.UnrecordedBoot):
		l.now.nodes[a.Node] = n.abandoned()
	case by == nil:
		l.breaks("S2: %s deleted while %s has it mounted (late %v)", a.Name, a.Node, late)
	case !l.allowed(by, a.Node):
		l.breaks("S2: %s deleted by %v, which does not hold (late %v)", a.Name, by, late)
	default:
		n = n.abandoned()
		l.now.nodes[a.Node] = n
	}
	if n.Reported {
		l.breaks("S3: %s deleted while %s reports it (late %v)", a.Name, a.Node, late)
	}
	if l.own {
		l.remove(a, "detach %s (by %v, late %v)", a.Name, by, late)
	} else {
		a.Deleting = true
		l.setAttachment(a, "detach %s (by %v, late %v)", a.Name, by, late)
	}
	if !late {
		l.deleted[a.UID] = true
	}
	return true
}

// allowed judges an authority by what its sender knew of the node: the delete is bound
// to the version of the attachment, not to that of the Node.
func (l *leader) allowed(by Authority, name NodeName) bool {
	n := l.known(name)
	ghost := l.now.nodes[name].ghost
	switch by.(type) {
	case UnmountTimeout:
		return l.timedOut(name) && (n.Healthy == No || ghost)
	case DeletedNode:
		return l.policy.DeletedNode == DeletedNodeDetach && (n.Exists == No || ghost)
	}
	return n.OutOfService && n.Healthy == No
}

// allowedThen judges it by what was known when the step was decided. No write that could fail follows.
func (l *leader) allowedThen(by Authority, name NodeName) bool {
	then := *l
	then.bound = l.decided
	return then.allowed(by, name)
}

// timedOut goes by the oracle's own clock.
func (l *leader) timedOut(name NodeName) bool {
	at, ok := l.asked[name]
	if n := l.now.nodes[name]; n.ghost && (!ok || n.left.Before(at)) { // the pods there now run on another machine
		at, ok = n.left, true
	}
	passed := func(at time.Time) bool {
		return l.policy.UnmountTimeout > 0 && !l.clock.Before(at.Add(l.policy.UnmountTimeout))
	}
	noted := l.lateNote(name)
	return ok && passed(at) || !noted.IsZero() && passed(noted) && l.excuse(excuse.LateNote)
}

// lateNote is the time of a request that was noted by a write whose sender had timed out, so that no leader may have seen it.
func (l *leader) lateNote(name NodeName) time.Time {
	if a := l.now.attachments["csi-"+string(name)]; a.lateNote {
		return a.DetachRequested
	}
	if n := l.now.nodes[name]; n.lateNote {
		return n.DetachRequested
	}
	return time.Time{}
}

// mayForce reports whether any policy does.
func (l *leader) mayForce(name NodeName) bool {
	return l.forces[name] || l.allowed(OutOfServiceTaint{}, name) || l.allowed(UnmountTimeout{}, name) || l.allowed(DeletedNode{}, name)
}

// walk runs one seed to its end and returns what broke.
func walk(seed uint64) *world {
	w := newWorld(seed)
	for range 400 {
		w.step()
		if w.broken != "" {
			return w
		}
	}
	w.heal()
	w.ctl.reliable = true
	for range 400 {
		w.clock = w.clock.Add(time.Second)
		w.ctl.catchUpFully()
		w.ctl.step()
		w.attacher()
		w.kubelet(w.pickNode())
		if w.broken != "" {
			return w
		}
	}
	if missing := w.settled(); missing != "" {
		w.breaks("liveness: %s", missing)
	}
	return w
}

// TestWalk walks a toy cluster through seeded trouble and checks S1, S2, S3 and S9
// after each action, and that all ends well. BELAY_SEED=N walks one seed and shows
// it; BELAY_SEEDS=N walks that many, from BELAY_SEED on if both are set.
func TestWalk(t *testing.T) {
	first, count := uint64(0), uint64(500)
	if s := os.Getenv("BELAY_SEED"); s != "" {
		first, count = uint64(atoi(s)), 1
	}
	if s := os.Getenv("BELAY_SEEDS"); s != "" {
		count = uint64(atoi(s))
	}
	happened, forced, excused := map[string]int{}, map[string]int{}, map[excuse.Name]int{}
	for seed := first; seed < first+count; seed++ {
		w := walk(seed)
		for name, n := range w.excused {
			excused[name] += n
		}
		for _, line := range w.log {
			if words := strings.Fields(line); len(words) > 1 {
				happened[words[1]]++
			}
			for _, by := range []Authority{OutOfServiceTaint{}, UnmountTimeout{}, DeletedNode{}} {
				if strings.Contains(line, "(by "+by.String()+",") {
					forced[by.String()]++
				}
			}
		}
		if w.broken != "" {
			t.Fatalf("seed %d: %s\nreplay with BELAY_SEED=%d\n%s", seed, w.broken, seed, strings.Join(w.log[max(0, len(w.log)-60):], "\n"))
		}
		if count == 1 {
			t.Log(strings.Join(w.log, "\n"))
		}
	}
	t.Logf("seeds %d to %d: %v, forced %v, excused %v", first, first+count-1, happened, forced, excused)
	if count >= 500 && len(forced) < 3 {
		t.Errorf("not every policy forced a detach: %v", forced)
	}
}
