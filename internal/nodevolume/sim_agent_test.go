package nodevolume

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// The agent of the simulation: what it has in memory, and what it does, as the shell does it.

// simAgent is what an agent has in memory.
type simAgent struct {
	list       InUseList
	watch      int // versions seen by the watch
	synced     bool
	pods       map[string]Claim // what the owner said
	attaches   Knowledge        // what the CSIDriver said when it was last seen
	stage      Phase
	publishes  map[string]Phase
	heard      map[string]time.Time // when the driver confirmed them to this agent
	attachment Lookup
	stages     Knowledge // whether the driver does, once it was asked
	users      Users
}

// start is an agent on the records of the one before.
func (w *simWorld) start() {
	a := &simAgent{pods: map[string]Claim{}, publishes: map[string]Phase{}, heard: map[string]time.Time{}}
	for name, r := range w.records {
		phase := r.Rebuilt(w.bootID(), knows(w.mountedFor(name)))
		if w.plant == believeOldBoot {
			phase = r.Rebuilt(r.BootID, Yes)
		}
		if name == StageKind {
			a.stage = phase
		} else {
			a.publishes[name] = phase
		}
	}
	w.agent = a
	w.log("start: stage %s, publishes %v", a.stage, a.publishes)
}

// crash kills the agent. What it had on its way may still arrive.
func (w *simWorld) crash() {
	w.log("crash")
	w.tear()
	w.start()
}

// tear may take a record away: of what was in it, the files beside it tell little, or nothing.
func (w *simWorld) tear() {
	names := slices.Sorted(maps.Keys(w.records))
	if len(names) == 0 || w.rng.IntN(4) != 0 {
		return
	}
	name := names[w.rng.IntN(len(names))]
	if w.labels == nil && w.rng.IntN(4) == 0 {
		delete(w.records, name)
		w.unreadable[name] = true
		w.log("record %s is torn, and nothing tells what it held", name)
		return
	}
	r := w.records[name] // the way back knows little more than that it exists
	r.Confirmed, r.AttachmentUID, r.InUse, r.Guessed = false, "", !w.inline, !w.inline
	if w.plant == forgetInline {
		r.Inline, r.InUse = false, true
	}
	w.records[name] = r
	w.log("record %s is torn", name)
}

func (w *simWorld) bootID() string { return fmt.Sprintf("boot-%d", w.boot) }

// isUnaccounted: the agent sees a record that it cannot read.
func (w *simWorld) isUnaccounted() bool { return len(w.unreadable) > 0 && w.plant != forgetUnread }

// write is a turn of the writer of volumesInUse.
func (w *simWorld) write() {
	a := w.agent
	if a.list.NeedsRead() {
		if !a.list.Started() {
			recorded := w.handshakeKnown()
			if w.plant == noStartGuard || w.plant == keepRecorded && len(w.records) > 0 || w.plant == believeGuess && recorded == Unknown {
				recorded = Yes
			}
			a.list.Start(w.node(), func(string) Knowledge { return recorded })
			a.watch = len(w.versions) - 1
		} else {
			w.learned(a.list.ObserveLive(w.node()))
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
			w.learned(a.list.Applied(node))
		} else {
			a.list.NotApplied()
		}
	}
}

// see delivers the next version to the watch of the Node, or what is new to that of the CSIDrivers.
func (w *simWorld) see() {
	a := w.agent
	if (a.attaches == Unknown || w.rng.IntN(3) == 0) && a.attaches != knows(w.attaches) {
		a.attaches = knows(w.attaches)
		w.log("seen: volumes are attached: %s", a.attaches)
	}
	if a.list.Started() && a.watch < len(w.versions) {
		w.learned(a.list.Observe(w.versions[a.watch]))
		a.watch++
	}
}

func (w *simWorld) learned(changed []string) {
	if len(changed) > 0 && w.plant != keepLookup {
		w.agent.attachment.Doubt()
	}
}

func (w *simWorld) claim(uid string) Claim {
	switch claim, set := w.agent.pods[uid]; {
	case claim == Ending && w.plant == endingIsOver:
		return Released
	case set:
		return claim
	case w.agent.synced, w.records[uid].Leaving:
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
	if a.attaches == No && w.plant != keepAttachment {
		a.attachment.Doubt() // as the shell does
	}
	o := Observed{
		Inline: w.agentSaysInline(), Unaccounted: w.isUnaccounted(),
		Node: a.list.View(simVolume), AttachRequired: a.attaches, Attachment: a.attachment.Known(),
		Driver:        Driver{Registered: w.registered || w.plant == driverStays, Stages: a.stages, RepublishEvery: time.Minute},
		Stage:         Stage{Phase: a.stage, AttachmentUID: w.records[StageKind].AttachmentUID, Label: w.records[StageKind].SELinuxLabel},
		RecordedInUse: w.recordedInUse(), Users: a.users,
	}
	switch {
	case w.plant == believeStale && o.Node.InUse == Unknown && a.list.known:
		o.Node.InUse = a.list.inUse.lists(simVolume)
	case w.plant == skipHandshake, w.plant == publishFreely && !w.stages:
		o.Node.InUse = Yes
	case w.plant == believeOldVA:
		o.Stage.AttachmentUID = a.attachment.Known().UID
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
	read := w.justRead
	w.justRead = false
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
		a.attachment.Doubt() // as a turn that begins does
		a.users.Found = Unknown
		return w.checkRest(d, decision)
	case LookForUsers:
		w.justRead = read
		a.users.Found = knows(w.hasUsers() && w.plant != ignoreUsers)
		if a.users.Search = (Failure{}); a.users.Found == Yes {
			a.users.Search = Failure{Count: 1, At: w.now}
		}
	case ReadCapabilities:
		a.stages = knows(w.stages)
	case ReadAttachment:
		a.attachment.Read(a.attachment.Begin(), Attachment{Attached: knows(w.vaUID != 0), UID: strconv.Itoa(w.vaUID)})
		w.justRead = true
	default:
		if err := w.call(w.asPlanted(step)); err != nil {
			return err
		}
	}
	if Outdates(decision.Next) && w.plant != keepLookup {
		a.attachment.Doubt()
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
	a.users.Found = Unknown
	name, undo := recordOf(step)
	by := a.attachment.Known().UID
	w.log("agent: %T %s by %q (in use: %v)", step, name, by, w.inUse())
	if err := w.checkCall(step); err != nil {
		return err
	}
	before := a.publishes[name]
	if name == StageKind {
		before = a.stage
	}
	if w.unreadable[name] {
		before = Uncertain
	}
	if err := w.checkEnding(step, name, before); err != nil {
		return err
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
		w.record(name, labelOf(step), by, undo)
	}
	if w.rng.IntN(12) == 0 {
		w.crash()
		return nil
	}
	// A driver works on one call for a volume at a time: those that nobody waits for end first.
	w.endCalls()
	w.meanwhile()
	reply := Reply(w.rng.IntN(3))
	switch late := w.rng.IntN(4); {
	case reply == Refused:
	case reply == NoAnswer && late == 0: // and it never will be done
	case reply == NoAnswer && late == 1:
		w.begun = append(w.begun, begun{step, by})
	default:
		w.carryOut(begun{step, by})
	}
	if w.rng.IntN(12) == 0 {
		if w.rng.IntN(2) == 0 {
			w.begun = append(w.begun, begun{step, by})
		}
		w.crash()
		return nil
	}
	if !renews {
		w.record(name, labelOf(step), by, undo)
	}
	if w.plant == believeSilence && reply == NoAnswer {
		reply = Refused
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
		delete(w.handshakes, name)
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
func (w *simWorld) record(name, label, by string, undo bool) {
	r := w.records[name]
	if undo {
		r.Leaving, r.Confirmed = true, false
	} else {
		if w.unreadable[name] {
			r.InUse, r.Guessed = !w.inline, !w.inline
			delete(w.unreadable, name)
		}
		r = Record{
			Kind: name, BootID: w.bootID(), Inline: w.inline, InUse: by != "", AttachmentUID: by, SELinuxLabel: label,
		}.After(r)
		if by != "" {
			w.handshakes[name] = true
		}
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
