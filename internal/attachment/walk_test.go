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
	// unsure holds, by node, the version that a write without answer was bound to.
	unsure map[NodeName]int

	steps    []Step
	answered map[NodeName]bool
	reliable bool                 // answers no longer get lost
	bound    map[NodeName]toyNode // of a late request: what its sender knew
}

func newLeader(w *world) *leader {
	// The barrier: every cache shows at least what was there when the lease was won.
	return &leader{
		world: w, seenAttachments: w.version, seenNodes: w.version, seenPods: w.version, since: w.version,
		attachments: map[string]toyAttachment{}, nodes: map[NodeName]toyNode{}, deleted: map[string]bool{},
		doubtful: map[string]int{}, unsure: map[NodeName]int{}, answered: map[NodeName]bool{},
	}
}

// catchUp moves one cache on.
func (l *leader) catchUp() {
	for _, seen := range []*int{&l.seenAttachments, &l.seenNodes, &l.seenPods} {
		if behind := l.version - *seen; behind > 0 && l.chance(60) {
			*seen += 1 + l.rng.IntN(behind)
		}
	}
}

func (l *leader) catchUpFully() {
	l.seenAttachments, l.seenNodes, l.seenPods = l.version, l.version, l.version
}

// die leaves the next request on its way.
func (l *leader) die() {
	if len(l.steps) > 0 && l.chance(70) {
		l.delay(l.steps[0])
	}
}

// delay puts a request on its way. It is bound to what its sender knew.
func (l *leader) delay(step Step) {
	known := map[NodeName]toyNode{}
	for name := range l.now.nodes {
		known[name] = l.known(name)
	}
	l.late = append(l.late, func() {
		sender := *l
		sender.bound = known
		sender.request(step, true)
	})
}

// known is the newest version of a node that the leader has heard of.
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
		if n.haunted && n.Exists == Yes && n.InUse == No {
			n.InUse = Unknown
		}
		unsure, ok := l.unsure[name]
		n.WriteMayBeUnderway = n.Exists == Yes && (n.version <= l.since || ok && unsure == n.version)
		seen.Nodes[name] = n.Node
	}
	want := Desired{Shared: Known(l.shared), Unattached: l.noVA}
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
		clear(l.answered)
		l.decide()
		return
	}
	step := l.steps[0]
	l.steps = l.steps[1:]
	if _, ok := step.(Hold); ok {
		return
	}
	switch fate := l.rng.IntN(100); {
	case fate < 5 && !l.reliable: // the answer is lost, the request is not
		l.request(step, false)
		l.unknown(step)
	case fate < 10 && !l.reliable: // the request is slow, and we gave up on it
		l.delay(step)
		l.unknown(step)
	default:
		if again, ok := l.request(step, false); !ok {
			l.steps = nil
		} else if again {
			l.decide()
		}
	}
}

func (l *leader) unknown(step Step) {
	l.steps = nil
	switch s := step.(type) {
	case Detach:
		l.doubtful[s.Attachment.UID] = atoi(s.Attachment.ResourceVersion)
	case Report:
		l.unsure[s.Node] = l.known(s.Node).version
	case NoteNode:
		l.unsure[s.Node] = l.known(s.Node).version
	case ForceDetach:
		l.doubtful[s.Attachment.UID] = atoi(s.Attachment.ResourceVersion)
	}
}

func (l *leader) decide() {
	want, seen := l.observe()
	l.steps = Decide(l.clock, want, seen, l.policy).Steps
}

// request is the API server's side of a step. A late one is carried out after its
// sender gave up or died, so its answer changes nothing for anybody.
func (l *leader) request(step Step, late bool) (again, ok bool) {
	switch s := step.(type) {
	case Attach:
		return l.attach(s, late)
	case Report:
		return l.report(s, late)
	case WithdrawReport:
		return l.withdraw(s, late)
	case Detach:
		return false, l.delete(s.Attachment, nil, late)
	case ForceDetach:
		return false, l.delete(s.Attachment, s.Authority, late)
	case NoteNode:
		return l.noteNode(s, late)
	case Note:
		a, found := l.now.attachments[s.Attachment.Name]
		if !found || a.Ref != s.Attachment {
			return false, false
		}
		a.DetachRequested, a.Machine = s.DetachRequested, s.Machine
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
	l.setAttachment(a, "attach to %s (late %v)", s.Node, late)
	if !late {
		l.attachments[name] = l.now.attachments[name]
	}
	return false, true
}

// fromLateRequest tells whether the attachment came from a request that arrived
// after its sender gave up: the attacher's part of S1 has to deal with it.
func (l *leader) fromLateRequest(a toyAttachment) bool { return a.touched }

func (l *leader) report(s Report, late bool) (again, ok bool) {
	n, base, conflict := l.base(s.Node, s.NodeUID, late)
	if conflict {
		return false, false
	}
	if base != nil {
		return true, true
	}
	if l.noVA {
		n.DetachRequested = time.Time{}
		l.writeOff(s.Node)
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

// writeOff marks the machines whose Node is gone for so long, as the sender knew, that
// a report to another node no longer minds them.
func (l *leader) writeOff(except NodeName) {
	for name, n := range l.now.nodes {
		known, timeout := l.known(name), l.policy.UnmountTimeout
		if name == except || known.Exists != No {
			continue
		}
		if l.policy.DeletedNode == DeletedNodeDetach || timeout > 0 && !l.clock.Before(known.left.Add(timeout)) {
			n.givenUp = n.mounted
			l.now.nodes[name] = n
		}
	}
}

// base gives the Node that a write is bound to: the newest that the leader knows. If
// the API server has another, a late write fails and a timely one is decided anew.
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
	if !l.policy.MayWithdraw(l.clock, n.Node, s.DetachRequested) {
		return true, true
	}
	if n.Reported || s.NewVersion {
		n.givenUp = n.givenUp || l.noVA && n.mounted && n.Reported && n.InUse != No
		n.Reported = false
		if n.InUse == No {
			n.DetachRequested = time.Time{}
		}
		l.setNode(s.Node, n, "withdraw on %s (late %v)", s.Node, late)
	}
	if !late {
		l.nodes[s.Node] = l.now.nodes[s.Node]
		l.answered[s.Node] = true
	}
	return true, true
}

// noteNode stores the time of a request on the Node.
func (l *leader) noteNode(s NoteNode, late bool) (again, ok bool) {
	n, newer, conflict := l.base(s.Node, s.NodeUID, late)
	if conflict || newer != nil {
		return newer != nil, !conflict
	}
	n.DetachRequested = s.DetachRequested
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
	case !n.mounted || l.meddled() || n.givenUp:
	case by == nil:
		l.breaks("S2: %s deleted while %s has it mounted (late %v)", a.Name, a.Node, late)
	case !l.allowed(by, a):
		l.breaks("S2: %s deleted by %v, which does not hold (late %v)", a.Name, by, late)
	default:
		n.givenUp = true
		l.now.nodes[a.Node] = n
	}
	if n.Reported && !l.meddled() {
		l.breaks("S3: %s deleted while %s reports it (late %v)", a.Name, a.Node, late)
	}
	a.Deleting = true
	l.setAttachment(a, "detach %s (by %v, late %v)", a.Name, by, late)
	if !late {
		l.deleted[a.UID] = true
	}
	return true
}

// allowed judges an authority by what its sender knew of the node: the delete is bound
// to the version of the attachment, not to that of the Node.
func (l *leader) allowed(by Authority, a toyAttachment) bool {
	n := l.known(a.Node)
	switch by.(type) {
	case UnmountTimeout:
		due := a.DetachRequested.Add(l.policy.UnmountTimeout)
		return l.policy.UnmountTimeout > 0 && !a.DetachRequested.IsZero() && !l.clock.Before(due) && n.Healthy == No
	case DeletedNode:
		return l.policy.DeletedNode == DeletedNodeDetach && n.Exists == No
	}
	return n.OutOfService
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
// it; BELAY_SEEDS=N walks that many.
func TestWalk(t *testing.T) {
	first, count := uint64(0), uint64(500)
	if s := os.Getenv("BELAY_SEED"); s != "" {
		first, count = uint64(atoi(s)), 1
	} else if s := os.Getenv("BELAY_SEEDS"); s != "" {
		count = uint64(atoi(s))
	}
	happened, forced := map[string]int{}, map[string]int{}
	for seed := first; seed < first+count; seed++ {
		w := walk(seed)
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
	t.Logf("seeds %d to %d: %v, forced %v", first, first+count-1, happened, forced)
	if count >= 500 && len(forced) < 3 {
		t.Errorf("not every policy forced a detach: %v", forced)
	}
}
