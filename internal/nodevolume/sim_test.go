package nodevolume

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The simulation: one node, one volume, two pods, a controller that withdraws
// and checks, a watch that lags, writes that land late or twice or never with
// replies that are lost, a driver that fails in every way and wants to be called
// again from time to time, and an agent that dies between any two steps, also with a
// record that cannot be read afterwards. In some worlds the pods want it with SELinux labels of
// their own, and the CSIDriver says so now and then. After each step S7 is checked against the
// store and the driver, that whatever is published has a record, and that nothing is mounted with two labels.

const simVolume = "v"

// plant is a fault put in on purpose: the simulation must find it.
type plant string

const (
	noPlant         plant = ""
	believeStale    plant = "an in-use list is believed while a write that changes it may land"
	noStartGuard    plant = "a write that an earlier agent left on its way is forgotten at start"
	recordAfterCall plant = "the record is written after the driver was called"
	believeRefusal  plant = "a refusal is believed though an earlier call has had no answer"
	wishOnlyNews    plant = "an older wish to clear the volume is left standing because the list says already what is wanted"
	dropUncertain   plant = "an unstage without an answer counts as done"
	skipHandshake   plant = "the volume is staged without being listed in use"
	believeRenewal  plant = "a renewal that is refused counts as a publish that is refused"
	forgetRenewal   plant = "a publish that is to be renewed is not looked at again"
	renewLeaving    plant = "the publish of a pod that is being deleted is renewed"
	forgetInline    plant = "a torn record of an inline volume is taken for that of a persistent one"
	forgetLabels    plant = "what is mounted counts as mounted with the label that a pod wants"
	labelsOverMount plant = "a pod that runs with a label which is no more its own is taken down"
)

// simWorld is what is true, whatever the agent believes.
type simWorld struct {
	rng   *rand.Rand
	plant plant
	trace []string
	now   time.Time
	// inline: the volume is the pods' own.
	inline bool
	// labels are those that the pods want; labelled, the CSIDriver says that its driver mounts with them.
	labels   map[string]string
	labelled bool

	// The API server: all versions of the Node; the last one is true.
	versions []NodeStatus
	writes   []Write // sent and neither landed nor failed yet
	vaUID    int     // of the VolumeAttachment; 0 if there is none
	nextUID  int

	// The owner of the pods, and those that are being deleted.
	owned, leaving map[string]bool

	// The driver.
	staged    bool
	published map[string]bool
	// stagedAs and publishedAs are with which labels.
	stagedAs    string
	publishedAs map[string]string
	begun       []Step // calls of dead agents that may still be carried out

	// The disk.
	records map[string]Record

	agent *simAgent
}

// simAgent is what an agent has in memory.
type simAgent struct {
	list       InUseList
	watch      int // versions seen by the watch
	synced     bool
	pods       map[string]bool // set by the owner; false: removed
	stage      Phase
	publishes  map[string]Phase
	heard      map[string]time.Time // when the driver confirmed them to this agent
	attachment Attachment
}

func newSimWorld(seed uint64, p plant) *simWorld {
	w := &simWorld{
		rng: rand.New(rand.NewPCG(seed, 7)), plant: p, now: now, inline: seed%5 == 4,
		versions: []NodeStatus{{UID: "n", ResourceVersion: "1000"}},
		owned:    map[string]bool{}, leaving: map[string]bool{}, published: map[string]bool{}, publishedAs: map[string]string{}, records: map[string]Record{},
	}
	if seed%3 == 1 && !w.inline {
		w.labels, w.labelled = map[string]string{"a": "x", "b": "y"}, true
	}
	w.start()
	return w
}

func (w *simWorld) log(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

func (w *simWorld) node() NodeStatus { return w.versions[len(w.versions)-1] }

func (w *simWorld) inUse() bool { return slices.Contains(w.node().InUse, simVolume) }

func (w *simWorld) change(edit func(*NodeStatus)) {
	n := w.node()
	version, _ := strconv.Atoi(n.ResourceVersion)
	n.ResourceVersion = strconv.Itoa(version + 1)
	n.InUse, n.Attached = slices.Clone(n.InUse), slices.Clone(n.Attached)
	edit(&n)
	w.versions = append(w.versions, n)
}

// start is an agent on the records of the one before.
func (w *simWorld) start() {
	a := &simAgent{pods: map[string]bool{}, publishes: map[string]Phase{}, heard: map[string]time.Time{}}
	for name, r := range w.records {
		phase := r.Rebuilt("boot", knows(w.mountedFor(name)))
		if name == StageKind {
			a.stage = phase
		} else {
			a.publishes[name] = phase
		}
	}
	w.agent = a
	w.log("start: stage %s, publishes %v", a.stage, a.publishes)
}

func knows(is bool) Knowledge {
	if is {
		return Yes
	}
	return No
}

func (w *simWorld) mountedFor(record string) bool {
	if record == StageKind {
		return w.staged
	}
	return w.published[record]
}

// crash kills the agent. What it had on its way may still arrive.
func (w *simWorld) crash() {
	w.log("crash")
	if names := slices.Sorted(maps.Keys(w.records)); w.rng.IntN(4) == 0 && len(names) > 0 {
		r := w.records[names[0]] // torn: the way back knows little more than that it exists
		r.Confirmed, r.AttachmentUID, r.InUse = false, "", !w.inline
		if w.plant == forgetInline {
			r.Inline, r.InUse = false, true
		}
		w.records[names[0]] = r
		w.log("record %s is torn", names[0])
	}
	w.start()
}

func otherPod(uid string) string { return map[string]string{"a": "b", "b": "a"}[uid] }

// label is with which one the pod would get the volume now.
func (w *simWorld) label(uid string) string {
	if w.labelled {
		return w.labels[uid]
	}
	return ""
}

// owner sets and removes pods; a new agent is told everything again.
func (w *simWorld) owner() {
	if w.labels != nil && w.rng.IntN(10) == 0 {
		w.labelled = !w.labelled
		w.log("the driver mounts with labels: %v", w.labelled)
	}
	uid := []string{"a", "b"}[w.rng.IntN(2)]
	switch {
	case w.owned[uid] && !w.leaving[uid] && w.rng.IntN(3) == 0:
		w.leaving[uid] = true
	case w.owned[uid]:
		delete(w.owned, uid)
		delete(w.leaving, uid)
		if _, known := w.agent.pods[uid]; known || w.agent.synced {
			w.agent.pods[uid] = false
		}
	case w.agent.publishes[uid] == Absent:
		w.owned[uid] = true
		w.agent.pods[uid] = true
	}
	w.log("owner: %v, leaving %v", w.owned, w.leaving)
}

func (w *simWorld) syncPods() {
	if w.agent.synced {
		return
	}
	for uid := range w.owned {
		w.agent.pods[uid] = true
	}
	w.agent.synced = true
	w.log("owner tells the agent of %v", w.owned)
}

// controller attaches what pods want, and withdraws and checks what they do not.
func (w *simWorld) controller() {
	attached := slices.Contains(w.node().Attached, simVolume)
	switch {
	case w.inline: // of no concern to it
	case len(w.owned) > 0 && w.vaUID == 0:
		w.nextUID++
		w.vaUID = w.nextUID
		w.log("controller: attached as %d", w.vaUID)
	case w.vaUID != 0 && !attached && (len(w.owned) > 0 || w.inUse()):
		w.change(func(n *NodeStatus) { n.Attached = []string{simVolume} })
		w.log("controller: reported")
	case len(w.owned) == 0 && attached && !w.inUse():
		w.change(func(n *NodeStatus) { n.Attached = nil })
		if !w.inUse() {
			w.vaUID = 0
		}
		w.log("controller: withdrawn and detached")
	case w.rng.IntN(8) == 0:
		w.change(func(*NodeStatus) {}) // another writer of the Node
	}
}

// land lets a write that is under way reach the store. It names a version and
// lands on no other.
func (w *simWorld) land(i int) (NodeStatus, bool) {
	write := w.writes[i]
	w.writes = slices.Delete(w.writes, i, i+1)
	if write.ResourceVersion != w.node().ResourceVersion {
		w.log("write of %v at %s fails", write.InUse, write.ResourceVersion)
		return NodeStatus{}, false
	}
	w.change(func(n *NodeStatus) { n.InUse = slices.Clone(write.InUse) })
	w.log("write of %v lands as %s", write.InUse, w.node().ResourceVersion)
	return w.node(), true
}

// write is a turn of the writer of volumesInUse.
func (w *simWorld) write() {
	a := w.agent
	if a.list.NeedsRead() {
		if !a.list.Started() {
			keep := func(string) bool { return a.stage != Absent || len(a.publishes) > 0 || w.plant == noStartGuard }
			a.list.Start(w.node(), keep)
			a.watch = len(w.versions) - 1
		} else {
			a.list.ObserveLive(w.node())
		}
		return
	}
	write, due := a.list.Next()
	if !due {
		return
	}
	w.writes = append(w.writes, write)
	w.log("write of %v at %s is sent", write.InUse, write.ResourceVersion)
	switch w.rng.IntN(6) {
	case 0:
		a.list.NotApplied() // no reply; it may still land
	case 1:
		w.crash() // died with the write on its way
	default:
		if node, ok := w.land(len(w.writes) - 1); ok && w.rng.IntN(5) > 0 {
			a.list.Applied(node)
		} else {
			a.list.NotApplied()
		}
	}
}

// see delivers the next version to the watch.
func (w *simWorld) see() {
	if a := w.agent; a.list.Started() && a.watch < len(w.versions) {
		a.list.Observe(w.versions[a.watch])
		a.watch++
	}
}

func (w *simWorld) claim(uid string) Claim {
	switch wanted, set := w.agent.pods[uid]; {
	case set && wanted:
		return Wanted
	case set, w.agent.synced, w.records[uid].Leaving:
		return Released
	default:
		return Unclaimed
	}
}

func (w *simWorld) observed() (Desired, Observed) {
	a := w.agent
	var d Desired
	for _, uid := range []string{"a", "b"} {
		claim, phase := w.claim(uid), a.publishes[uid]
		if claim == Wanted || phase != Absent {
			d.Pods = append(d.Pods, Pod{
				Key: PublishKey{PodUID: uid}, Claim: claim, Publish: phase, LastConfirmed: Confirmation{At: a.heard[uid]},
				Leaving: w.leaving[uid] && w.plant != renewLeaving,
				Label:   w.label(uid), PublishedLabel: w.records[uid].SELinuxLabel,
			})
		}
	}
	o := Observed{
		Inline: w.agentSaysInline(),
		Node:   a.list.View(simVolume), AttachRequired: Yes, Attachment: a.attachment,
		Driver:        Driver{Registered: true, Stages: Yes, RepublishEvery: time.Minute},
		Stage:         Stage{Phase: a.stage, AttachmentUID: w.records[StageKind].AttachmentUID, Label: w.records[StageKind].SELinuxLabel},
		RecordedInUse: len(w.records) > 0 && !w.inline,
	}
	switch {
	case w.plant == believeStale && o.Node.InUse == Unknown && a.list.known:
		o.Node.InUse = a.list.inUse.lists(simVolume)
	case w.plant == skipHandshake:
		o.Node.InUse = Yes
	}
	for i, p := range d.Pods {
		switch {
		case w.plant == forgetLabels:
			d.Pods[i].Label, d.Pods[i].PublishedLabel, o.Stage.Label = "", "", ""
		case w.plant == labelsOverMount && p.Publish == Confirmed && p.Claim == Wanted && p.Label != p.PublishedLabel:
			d.Pods[i].Publish = Uncertain
		}
	}
	return d, o
}

// agentSaysInline: the agent knows it from its records, or from the pods where there are none.
func (w *simWorld) agentSaysInline() bool {
	for _, r := range w.records {
		if !r.Inline {
			return false
		}
	}
	return w.inline
}

// turn is one decision of the agent and its step.
func (w *simWorld) turn() error {
	a := w.agent
	w.now = w.now.Add(time.Duration(w.rng.IntN(20)) * time.Second)
	d, o := w.observed()
	decision := Decide(w.now, d, o)
	if w.plant == forgetRenewal {
		decision.RecheckAt = time.Time{}
	}
	if w.plant == wishOnlyNews && o.Node.InUse == decision.InUse {
		decision.InUse = Unknown
	}
	if decision.InUse != Unknown {
		a.list.Want(simVolume, decision.InUse == Yes)
	}
	if decision.Forget {
		a.list.Forget(simVolume)
	}
	switch step := decision.Next.(type) {
	case nil:
		a.attachment = Attachment{}
		return w.checkRest(d, decision)
	case ReadAttachment:
		a.attachment = Attachment{Attached: knows(w.vaUID != 0), UID: strconv.Itoa(w.vaUID)}
	default:
		return w.call(w.asPlanted(step))
	}
	return nil
}

// asPlanted has a call say the label that the pod wants where the decision knew of none.
func (w *simWorld) asPlanted(step Step) Step {
	if w.plant != forgetLabels {
		return step
	}
	switch step := step.(type) {
	case StageVolume:
		step.Label = w.label(step.For.PodUID)
		return step
	case Publish:
		step.Label = w.label(step.Key.PodUID)
		return step
	default:
		return step
	}
}

// call records, calls the driver and takes in the reply, and may die between any two of these.
func (w *simWorld) call(step Step) error {
	a := w.agent
	name, undo := recordOf(step)
	w.log("agent: %T %s (in use: %v)", step, name, w.inUse())
	if _, isStage := step.(StageVolume); isStage && !w.inUse() {
		return fmt.Errorf("S7: a stage begins and the Node does not list the volume in use")
	}
	before := a.publishes[name]
	if name == StageKind {
		before = a.stage
	}
	if undo && before == Confirmed && name != StageKind && w.claim(name) == Wanted {
		return fmt.Errorf("the volume is taken from pod %s, which runs on it", name)
	}
	_, renews := step.(Republish)
	if renews {
		if err := w.checkRenewal(name); err != nil {
			return err
		}
	}
	if !renews && (w.plant != recordAfterCall || undo) {
		w.record(name, labelOf(step), undo)
	}
	if w.rng.IntN(12) == 0 {
		w.crash()
		return nil
	}
	// A driver works on one call for a volume at a time: those of dead agents end first.
	for _, late := range w.begun {
		w.carryOut(late)
	}
	w.begun = nil
	reply := Reply(w.rng.IntN(3))
	switch {
	case reply == Refused:
	case reply == NoAnswer && w.rng.IntN(2) == 0:
	default:
		w.carryOut(step)
	}
	if w.rng.IntN(12) == 0 {
		if w.rng.IntN(2) == 0 {
			w.begun = append(w.begun, step)
		}
		w.crash()
		return nil
	}
	if !renews {
		w.record(name, labelOf(step), undo)
	}
	if w.plant == dropUncertain && undo {
		reply = OK
	}
	after := AfterCall(before, reply)
	if w.plant == believeRefusal && !renews || w.plant == believeRenewal && renews {
		after = AfterCall(Absent, reply)
	}
	if undo {
		after = AfterUndo(reply)
	}
	switch after {
	case Absent:
		delete(w.records, name)
	case Confirmed:
		r := w.records[name]
		r.Confirmed = true
		w.records[name] = r
		if reply == OK {
			a.heard[name] = w.now
		}
	case Uncertain:
	}
	w.set(name, after)
	w.log("reply %d: %s is %s", reply, name, after)
	return nil
}

func recordOf(step Step) (name string, undo bool) {
	switch step := step.(type) {
	case StageVolume:
		return StageKind, false
	case Unstage:
		return StageKind, true
	case Publish:
		return step.Key.PodUID, false
	case Republish:
		return step.Key.PodUID, false
	case Unpublish:
		return step.Key.PodUID, true
	default:
		panic(fmt.Sprintf("%T is no call", step))
	}
}

// labelOf is the one with which a step mounts.
func labelOf(step Step) string {
	switch step := step.(type) {
	case StageVolume:
		return step.Label
	case Publish:
		return step.Label
	default:
		return ""
	}
}

// record makes the record, as the shell does before the call.
func (w *simWorld) record(name, label string, undo bool) {
	a := w.agent
	r, ok := w.records[name]
	if undo {
		r.Leaving, r.Confirmed = true, false
	} else if !ok || !r.Leaving {
		r = Record{Kind: name, BootID: "boot", Inline: w.inline, InUse: !w.inline, AttachmentUID: a.attachment.UID}
	} else {
		r.Leaving = false
	}
	if !undo {
		r.SELinuxLabel = label
	}
	w.records[name] = r
	w.set(name, Uncertain)
}

func (w *simWorld) set(name string, phase Phase) {
	switch {
	case name == StageKind:
		w.agent.stage = phase
	case phase == Absent:
		delete(w.agent.publishes, name)
	default:
		w.agent.publishes[name] = phase
	}
}

func (w *simWorld) carryOut(step Step) {
	switch step := step.(type) {
	case StageVolume:
		w.staged, w.stagedAs = true, step.Label
	case Unstage:
		w.staged = false
	case Publish:
		w.published[step.Key.PodUID], w.publishedAs[step.Key.PodUID] = true, step.Label
	case Republish:
		w.published[step.Key.PodUID] = true
	case Unpublish:
		delete(w.published, step.Key.PodUID)
	}
}

// check is S7, against what is true.
func (w *simWorld) check() error {
	for uid := range w.published {
		if _, recorded := w.records[uid]; !recorded {
			return fmt.Errorf("S7: the volume is published for %s and there is no record of it", uid)
		}
		if w.staged && w.publishedAs[uid] != w.stagedAs {
			return fmt.Errorf("the volume is published for %s with label %q and staged with %q", uid, w.publishedAs[uid], w.stagedAs)
		}
		if other := otherPod(uid); w.published[other] && w.publishedAs[other] != w.publishedAs[uid] {
			return fmt.Errorf("the volume is published with two labels: %v", w.publishedAs)
		}
	}
	switch {
	case w.inline && (w.staged || w.inUse()):
		return fmt.Errorf("an inline volume is staged (%v) or listed in use (%v)", w.staged, w.inUse())
	case w.inline:
		return nil
	case w.staged && !w.inUse():
		return fmt.Errorf("S7: the volume is staged and the Node does not list it in use")
	case len(w.records) > 0 && !w.inUse():
		return fmt.Errorf("S7: there are records %v and the Node does not list the volume in use", slices.Collect(maps.Keys(w.records)))
	case w.staged && w.vaUID == 0:
		return fmt.Errorf("S2: the volume is staged and its attachment is gone")
	}
	return nil
}

// step is one step of somebody.
func (w *simWorld) step() error {
	switch n := w.rng.IntN(100); {
	case n < 8:
		w.owner()
	case n < 12:
		w.syncPods()
	case n < 30:
		w.controller()
	case n < 45:
		w.write()
	case n < 60:
		w.see()
	case n < 65:
		if len(w.writes) > 0 {
			w.land(w.rng.IntN(len(w.writes)))
		}
	case n < 68:
		w.crash()
	default:
		return w.turn()
	}
	return nil
}

func (w *simWorld) run(steps int) error {
	for range steps {
		if err := w.step(); err != nil {
			return err
		}
		if err := w.check(); err != nil {
			return err
		}
	}
	return nil
}

// settled: what is wanted is published, what is not is gone.
func (w *simWorld) settled() bool {
	waiting := 0
	for uid := range w.owned {
		if w.published[uid] && w.agent.publishes[uid] == Confirmed {
			continue
		}
		other := otherPod(uid)
		if w.published[uid] || !w.published[other] || w.publishedAs[other] == w.label(uid) {
			return false
		}
		waiting++ // for the pod that has the volume with another label
	}
	if len(w.published) != len(w.owned)-waiting {
		return false
	}
	return len(w.owned) > 0 || (!w.staged && !w.inUse() && len(w.records) == 0)
}

// settle goes on without the owner's whims until all is well.
func (w *simWorld) settle() error {
	w.syncPods()
	for range 5000 {
		if w.settled() {
			return nil
		}
		var err error
		switch n := w.rng.IntN(4); n {
		case 0:
			w.controller()
		case 1:
			w.write()
			w.syncPods()
		case 2:
			w.see()
		default:
			err = w.turn()
			w.syncPods()
		}
		if err == nil {
			err = w.check()
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("liveness: never settled; owned %v, published %v, staged %v, in use %v, records %v", w.owned, w.published, w.staged, w.inUse(), w.records)
}

func simulate(seed uint64, p plant) (*simWorld, error) {
	w := newSimWorld(seed, p)
	err := w.run(400)
	if err == nil {
		err = w.settle()
	}
	return w, err
}

// seeds are how many the simulation runs; BELAY_SIM_SEED replays one of them.
const seeds = 3000

func TestSimulationKeepsS7ThroughCrashes(t *testing.T) {
	first, last := uint64(0), uint64(seeds)
	if text := os.Getenv("BELAY_SIM_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("BELAY_SIM_SEED=%q is no number", text)
		}
		first, last = seed, seed+1
	}
	for seed := first; seed < last; seed++ {
		if w, err := simulate(seed, noPlant); err != nil {
			t.Fatalf("seed %d (replay with BELAY_SIM_SEED=%d): %v\n%s", seed, seed, err, strings.Join(w.trace, "\n"))
		}
	}
}

func TestSimulationFindsPlantedFaults(t *testing.T) {
	for _, p := range []plant{believeStale, noStartGuard, recordAfterCall, believeRefusal, wishOnlyNews, dropUncertain, skipHandshake, believeRenewal, forgetRenewal, renewLeaving, forgetInline, forgetLabels, labelsOverMount} {
		t.Run(string(p), func(t *testing.T) {
			for seed := range uint64(seeds) {
				if _, err := simulate(seed, p); err != nil {
					t.Logf("found by seed %d: %v", seed, err)
					return
				}
			}
			t.Errorf("not found by %d seeds", seeds)
		})
	}
}
