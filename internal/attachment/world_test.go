package attachment

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/testing/excuse"
)

// world is a toy cluster with one volume: an API server with versions, an attacher,
// kubelets, people, and the controller with caches that lag. Every action is atomic;
// which comes next is drawn from the seed.
type world struct {
	rng     *rand.Rand
	policy  Policy
	shared  bool
	own     bool // a volume that the node connects by itself: its VolumeAttachment has no attacher
	version int
	clock   time.Time

	now     state
	history []state // one per version; the caches show one of them per kind

	late []func() // requests that are still in flight
	log  []string
	ctl  *leader

	// asked is since when a leader, by what its caches showed, has wanted the volume off a
	// node: the oracle's own clock for the unmount timeout.
	asked map[NodeName]time.Time

	excused map[excuse.Name]int

	broken string // the first invariant that did not hold
}

// state is what the API server and the machines hold at one version.
type state struct {
	attachments map[string]toyAttachment
	nodes       map[NodeName]toyNode
	pods        map[NodeName]bool // nodes with a pod that wants the volume
	flipped     bool              // the driver says that nothing needs to be attached
}

type toyAttachment struct {
	Attachment
	published bool // at the storage; uncertain counts
	made      int
	lateNote  bool // the time of a request was written by a sender that had timed out
	touched   bool // another client interfered: what follows is not the controller's doing
}

type toyNode struct {
	Node
	version  int
	lateNote bool // as of a toyAttachment
	// The machine behind the object.
	on      bool // power
	mounted bool
	// givenUp is set when a policy took the volume from a machine that had it mounted:
	// what that machine does is the policy's doing, until it unmounts or boots.
	givenUp bool
	// taken is set with it, and stays when the machine is given the volume again under the same mount.
	taken bool
	// hardware is the SystemUUID that a client left off the Node, and that the kubelet adds when the machine boots.
	hardware string
	// hidden: the kubelet restarted while the Node did not report what is mounted. It lists that only as long as a pod wants it.
	hidden bool
	// ghost is set when another machine came under this name while the one before, cut
	// off, has the volume mounted.
	ghost bool
	left  time.Time // when the Node object went
	// unrecorded is the UID of the attachment whose record did not fit the node's boot when the Node object went.
	unrecorded string
}

// abandoned is the node once what its machines have mounted is no longer the plane's concern.
func (n toyNode) abandoned() toyNode {
	n.givenUp, n.ghost, n.taken = n.mounted, false, n.mounted
	return n
}

// writes reports whether a machine of this name may write, by no policy's doing.
func (n toyNode) writes() bool { return (n.mounted || n.ghost) && !n.givenUp }

func (s state) clone() state {
	return state{attachments: maps.Clone(s.attachments), nodes: maps.Clone(s.nodes), pods: maps.Clone(s.pods), flipped: s.flipped}
}

var toyNodes = []NodeName{"a", "b", "c"}

// byHand is the name of an attachment that a person makes.
const byHand = "by-hand"

func newWorld(seed uint64) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 1)), clock: t0, asked: map[NodeName]time.Time{}, excused: map[excuse.Name]int{},
		now: state{attachments: map[string]toyAttachment{}, nodes: map[NodeName]toyNode{}, pods: map[NodeName]bool{}},
	}
	w.shared = w.rng.IntN(4) == 0
	w.own = w.rng.IntN(4) == 0
	w.policy.OutOfService = true
	if w.chance(50) {
		w.policy.UnmountTimeout = time.Minute
	}
	if w.chance(25) {
		w.policy.DeletedNode = DeletedNodeDetach
	}
	for _, name := range toyNodes {
		w.now.nodes[name] = toyNode{Node: node(name, healthy), on: true}
	}
	w.commit("start")
	w.ctl = newLeader(w)
	return w
}

// commit makes the present a version that caches can show.
func (w *world) commit(format string, args ...any) {
	w.version++
	w.clock = w.clock.Add(time.Second)
	w.history = append(w.history, w.now.clone())
	w.log = append(w.log, fmt.Sprintf("%4d ", w.version)+fmt.Sprintf(format, args...))
}

func (w *world) breaks(format string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(format, args...)
		w.log = append(w.log, "     BROKEN "+w.broken)
	}
}

// excuse notes that something is permitted that docs/not-guaranteed.md lists as not guaranteed.
func (w *world) excuse(name excuse.Name) bool {
	w.excused[name]++
	return true
}

func (w *world) chance(percent int) bool { return w.rng.IntN(100) < percent }

func (w *world) pickNode() NodeName { return toyNodes[w.rng.IntN(len(toyNodes))] }

// setNode stores a node under a new version.
func (w *world) setNode(name NodeName, n toyNode, format string, args ...any) {
	n.version = w.version + 1
	w.now.nodes[name] = n
	w.commit(format, args...)
}

func (w *world) setAttachment(a toyAttachment, format string, args ...any) {
	a.ResourceVersion = fmt.Sprint(w.version + 1)
	w.now.attachments[a.Name] = a
	w.commit(format, args...)
}

// step lets one of the parts act.
func (w *world) step() {
	switch n := w.rng.IntN(100); {
	case n < 40:
		w.ctl.step()
	case n < 50:
		w.ctl.catchUp()
	case n < 65:
		w.attacher()
	case n < 83:
		w.kubelet(w.pickNode())
	case n < 89:
		w.user(w.pickNode())
	case n < 93:
		w.trouble(w.pickNode())
	case n < 96 && len(w.late) > 0:
		w.arrive()
	case n == 97:
		w.clock = w.clock.Add(w.policy.UnmountTimeout * time.Duration(w.rng.IntN(100)) / 100)
		w.log = append(w.log, "     time passes")
	case n >= 98:
		w.log = append(w.log, "     the leader dies")
		w.ctl.die()
		w.ctl = newLeader(w)
	}
}

// arrive carries out one request that was in flight.
func (w *world) arrive() {
	i := w.rng.IntN(len(w.late))
	request := w.late[i]
	w.late = slices.Delete(w.late, i, i+1)
	w.log = append(w.log, "     a late request arrives")
	request()
}

// attacher publishes what is alone, and takes off what is being deleted.
func (w *world) attacher() {
	for _, name := range slices.Sorted(maps.Keys(w.now.attachments)) {
		a := w.now.attachments[name]
		switch {
		case a.Deleting && (w.own || w.chance(50)):
			delete(w.now.attachments, name)
			if n := w.now.nodes[a.Node]; a.touched && n.Exists != Yes {
				w.now.nodes[a.Node] = w.bothRemoved(n)
			}
			w.commit("attacher: %s unpublished and gone", name)
			return
		case a.Deleting || a.Confirmed == Yes || !w.chance(60):
			continue
		case !w.shared && w.notFirst(a):
			continue
		}
		w.checkPublish(a)
		a.published = true
		if n := w.now.nodes[a.Node]; n.givenUp && (n.InUse == Yes || !w.excuse(excuse.HiddenMount)) {
			n.givenUp = false // it is its own again
			w.now.nodes[a.Node] = n
		}
		if w.chance(20) {
			a.AttachError = "no answer"
			w.setAttachment(a, "attacher: %s failed, uncertain", name)
		} else {
			a.Confirmed, a.AttachError = Yes, ""
			w.setAttachment(a, "attacher: %s published", name)
		}
		return
	}
}

// notFirst is the attacher's part of S1: an attachment waits for those before it.
func (w *world) notFirst(a toyAttachment) bool {
	for _, other := range w.now.attachments {
		if other.Name != a.Name && other.made < a.made {
			return true
		}
	}
	return false
}

func (w *world) checkPublish(a toyAttachment) {
	for _, other := range w.now.attachments {
		if !w.shared && other.Node != a.Node && other.published {
			w.breaks("S1: published to %s while it is at %s", a.Node, other.Node)
		}
	}
	switch { // it was attached beside what nothing records any more
	case a.Name == byHand && w.excuse(excuse.AttachedByHand), a.touched && w.excuse(excuse.LateCreate):
		return
	}
	for name, n := range w.now.nodes {
		if !w.shared && name != a.Node && n.writes() {
			w.breaks("S1: published to %s while %s has it mounted", a.Node, name)
		}
	}
}

// kubelet follows upstream's order: claim in volumesInUse, then read the Node, then
// mount; unmount, then drop the claim.
func (w *world) kubelet(name NodeName) {
	n := w.now.nodes[name]
	if n.Exists != Yes || !n.on || n.OutOfService {
		return
	}
	wanted := w.now.pods[name]
	switch {
	case wanted && n.InUse != Yes && (!w.now.flipped || n.mounted):
		n.InUse = Yes
		n.givenUp = n.givenUp && (w.own && !n.Reported || !w.confirmed(name)) // it may be its own again
		w.setNode(name, n, "kubelet %s: claims", name)
	case wanted && n.InUse == Yes && !n.mounted && n.Reported && !w.now.flipped && w.confirmed(name):
		w.checkMount(name)
		n.mounted, n.hidden = true, false
		w.now.nodes[name] = n
		w.commit("kubelet %s: mounts", name)
	case !wanted && n.mounted && n.hidden && n.InUse == Yes: // only its pods kept it in the list
		n.InUse = No
		w.setNode(name, n, "kubelet %s: drops its claim, and has it mounted", name)
	case !wanted && n.mounted:
		n.mounted, n.givenUp, n.taken, n.hidden = false, false, false, false
		w.now.nodes[name] = n
		w.commit("kubelet %s: unmounts", name)
	case !wanted && n.InUse == Yes:
		n.InUse = No
		w.setNode(name, n, "kubelet %s: drops its claim", name)
	}
}

// confirmed is kubelet's own look at the attachment before it mounts.
func (w *world) confirmed(name NodeName) bool {
	if w.own {
		return true
	}
	a, ok := w.now.attachments["csi-"+string(name)]
	return ok && a.Confirmed == Yes && !a.Deleting
}

func (w *world) checkMount(name NodeName) {
	if w.own {
		w.checkSecondMount(name)
		return
	}
	for _, a := range w.now.attachments {
		if a.Node == name && a.published && !a.Deleting || a.touched {
			return
		}
	}
	w.breaks("S9: %s mounts what no attachment stands behind", name)
}

// checkSecondMount is S1 for a volume that a node connects because of the report alone.
func (w *world) checkSecondMount(name NodeName) {
	for other, n := range w.now.nodes {
		if other == name || !n.writes() || w.shared {
			continue
		}
		w.breaks("S1: %s mounts it while %s has it mounted", name, other)
	}
}

// user makes pods come and go.
func (w *world) user(name NodeName) {
	n := w.now.nodes[name]
	switch {
	case w.now.pods[name]:
		delete(w.now.pods, name)
		w.commit("pod on %s ends", name)
	case n.Exists == Yes && n.on && !n.OutOfService:
		w.now.pods[name] = true
		w.commit("pod comes to %s", name)
	}
}

// trouble is what befalls nodes and what people do.
func (w *world) trouble(name NodeName) {
	n := w.now.nodes[name]
	switch w.rng.IntN(9) {
	case 0: // kubelet restarts
		if n.Exists == Yes && n.on && n.mounted && !n.Reported {
			n.InUse, n.hidden = No, true
			if n.taken && !n.givenUp && w.excuse(excuse.HiddenMount) {
				n = n.abandoned()
			}
			w.setNode(name, n, "kubelet %s: restarts and overlooks its mount", name)
		}
	case 1: // power cut, and a person says so
		if n.Exists == Yes && !n.OutOfService {
			n.on, n.mounted, n.taken, n.hidden, n.OutOfService, n.Healthy = false, false, false, false, true, No
			delete(w.now.pods, name)
			w.setNode(name, n, "%s is off and out of service", name)
		}
	case 2: // back
		if n.Exists == Yes && n.OutOfService {
			n.on, n.OutOfService, n.InUse, n.Healthy = true, false, No, Yes
			n.Machine.BootID += "+"
			n.Machine.SystemUUID = cmp.Or(n.Machine.SystemUUID, n.hardware)
			w.setNode(name, n, "%s boots", name)
		}
	case 3: // the Node object goes, the machine does not notice
		if n.Exists == Yes && !n.OutOfService {
			w.leave(name, n)
		}
	case 4: // and comes back
		if n.Exists == No {
			n.Exists, n.Managed, n.InUse, n.Created = Yes, true, No, w.clock
			n.Healthy, n.DetachRequested = Yes, time.Time{}
			n.Machine.NodeUID += "+"
			switch {
			case w.chance(25):
				n.ghost, n.mounted, n.givenUp = n.ghost || n.mounted && !n.givenUp, false, false
				n.taken, n.hidden = false, false
				n.Machine.SystemUUID = cmp.Or(n.Machine.SystemUUID, n.hardware) + "+"
				n.Machine.BootID += "+"
				w.setNode(name, n, "node %s registers again, another machine", name)
			case w.chance(20):
				n.hardware = cmp.Or(n.Machine.SystemUUID, n.hardware)
				n.Machine.BootID, n.Machine.SystemUUID = "", ""
				w.setNode(name, n, "node %s registers again, unknown machine", name)
			default:
				w.setNode(name, n, "node %s registers again", name)
			}
		}
	case 5:
		w.meddle(name)
	case 6: // its heartbeat is lost, or found again
		if n.Exists == Yes && n.on {
			n.Healthy = Yes + No - n.Healthy
			w.setNode(name, n, "%s is healthy: %v", name, n.Healthy)
		}
	case 7: // its kubelet stops and its containers still run; or kubelet resumes
		if n.Exists == Yes && !n.OutOfService {
			n.on = !n.on
			n.Healthy = decision.Known(n.on)
			w.setNode(name, n, "kubelet %s runs: %v", name, n.on)
		}
	case 8:
		if !w.own {
			w.now.flipped = !w.now.flipped
			w.commit("the driver needs no attach: %v", w.now.flipped)
		}
	}
}

// leave deletes the Node object; the machine does not notice.
func (w *world) leave(name NodeName, n toyNode) {
	delete(w.now.pods, name)
	gone := toyNode{
		Node: Node{Exists: No, InUse: n.InUse, Machine: n.Machine, Created: n.Created, Healthy: No},
		on:   n.on, mounted: n.mounted, givenUp: n.givenUp, ghost: n.ghost, left: w.clock, unrecorded: w.unrecorded(name), taken: n.taken, hidden: n.hidden, hardware: n.hardware,
	}
	if n.ghost && !n.mounted { // the machine that has it mounted left before
		gone.left = n.left
	}
	if _, attached := w.now.attachments["csi-"+string(name)]; !attached {
		gone = w.bothRemoved(gone)
	}
	w.setNode(name, gone, "node %s is deleted", name)
}

// bothRemoved is a node whose object and attachment were both removed, with which a person states that the machine is gone.
func (w *world) bothRemoved(n toyNode) toyNode {
	if n.writes() && w.excuse(excuse.BothRemoved) {
		return n.abandoned()
	}
	return n
}

// unrecorded is the UID of the attachment that does not record the node's present boot, or nothing. A Node that is deleted between its
// boot and that record cannot be distinguished from one that booted after it was deleted.
func (w *world) unrecorded(name NodeName) string {
	a, ok := w.now.attachments["csi-"+string(name)]
	if !ok || a.Machine.NodeUID != w.now.nodes[name].Machine.NodeUID || a.Machine == w.now.nodes[name].Machine {
		return ""
	}
	return a.UID
}

// meddle is a person with kubectl.
func (w *world) meddle(name NodeName) {
	a, ok := w.now.attachments["csi-"+string(name)]
	switch {
	case ok && w.own && w.chance(30):
		w.remove(a, "a person deletes %s", a.Name)
	case ok && !a.Deleting && w.chance(30):
		a.Deleting, a.touched = true, true
		w.setAttachment(a, "a person deletes %s", a.Name)
	case w.own:
	case len(w.now.attachments) == 0 && w.chance(30):
		a := toyAttachment{made: w.version, touched: true}
		a.Name, a.UID, a.Node = byHand, fmt.Sprint("hand-", w.version), name
		w.setAttachment(a, "a person attaches to %s", name)
	case w.now.attachments[byHand].Name != "":
		a := w.now.attachments[byHand]
		a.Deleting = true
		w.setAttachment(a, "a person detaches by-hand")
	}
}

// remove is the end of an attachment that no attacher acts on.
func (w *world) remove(a toyAttachment, format string, args ...any) {
	delete(w.now.attachments, a.Name)
	if n := w.now.nodes[a.Node]; n.Exists != Yes {
		w.now.nodes[a.Node] = w.bothRemoved(n)
	}
	w.commit(format, args...)
}

// heal ends all faults: every request arrives, every node is up and restarted, no other client interferes.
func (w *world) heal() {
	for len(w.late) > 0 {
		w.arrive()
	}
	if a, ok := w.now.attachments[byHand]; ok && !a.Deleting {
		a.Deleting = true
		w.setAttachment(a, "a person detaches by-hand")
	}
	w.now.flipped = false
	for _, name := range toyNodes {
		n := w.now.nodes[name]
		if n.Exists != Yes {
			n.Machine.NodeUID += "+"
			n.Created = w.clock
			n.Reported = false
			n.DetachRequested = time.Time{}
		}
		n.Healthy, n.givenUp, n.ghost = Yes, false, false
		n.Exists, n.Managed, n.OutOfService, n.on, n.mounted, n.InUse = Yes, true, false, true, false, No
		n.Machine.BootID += "+"
		n.Machine.SystemUUID = cmp.Or(n.Machine.SystemUUID, n.hardware)
		w.setNode(name, n, "%s is restarted", name)
		if w.policy.UnmountTimeout == 0 && w.policy.DeletedNode == DeletedNodeWait {
			w.writeOff(name)
		}
	}
}

// writeOff is a person who knows that the machine before is destroyed, where no policy
// says what to do about it.
func (w *world) writeOff(name NodeName) {
	n := w.now.nodes[name]
	replaced := func(a Attachment) bool { return a.Node == name && n.runSince(&a) == Replaced }
	if a, ok := w.now.attachments["csi-"+string(name)]; ok && !a.Deleting && replaced(a.Attachment) && w.excuse(excuse.WrittenOff) {
		a.Deleting, a.touched = true, true
		w.setAttachment(a, "a person deletes %s", a.Name)
	}
	if replaced(w.ctl.given[name]) {
		delete(w.ctl.given, name)
	}
}

// settled returns what is missing from the state that must be reached in the end.
func (w *world) settled() string {
	served := 0
	for _, name := range toyNodes {
		a, ok := w.now.attachments["csi-"+string(name)]
		n := w.now.nodes[name]
		good := ok && a.Confirmed == Yes && !a.Deleting && n.Reported
		switch {
		case !n.DetachRequested.IsZero():
			return fmt.Sprintf("%s still notes a request from %v", name, n.DetachRequested)
		case good && w.now.pods[name]:
			served++
		case ok && !w.now.pods[name]:
			return fmt.Sprintf("%s is still attached and unwanted", name)
		case !ok && n.Reported:
			return fmt.Sprintf("%s is still reported", name)
		}
	}
	want := len(w.now.pods)
	if !w.shared {
		want = min(want, 1)
	}
	if served != want {
		return fmt.Sprintf("%d of %d nodes are served", served, want)
	}
	return ""
}
