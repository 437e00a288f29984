package nodevolume

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"belay.dev/belay/internal/decision"
)

// The agent of the simulation: the life of the volume and the list as they ship, and around them what a shell does: it keeps
// records on a disk, calls and reads.

// simAgent is what an agent has in memory.
type simAgent struct {
	list     InUseList
	life     VolumeState
	watch    int // versions seen by the watch
	pods     map[string]PodState
	allSet   bool
	attaches Knowledge // what the CSIDriver said when it was last seen
	stages   Knowledge // whether the driver does, once it was asked
}

// start is an agent on the records of the one before.
func (w *simWorld) start() {
	a := &simAgent{pods: map[string]PodState{}, life: VolumeState{Inline: w.inline}} // as its name says, or else its records
	for _, name := range slices.Sorted(maps.Keys(w.records)) {
		r := w.records[name]
		if w.plant == believeOldBoot {
			a.life.AddRecord(r, r.BootID, Yes)
			continue
		}
		a.life.AddRecord(r, w.bootID(), decision.Known(w.mountedFor(name)))
	}
	w.agent = a
	w.log("start: stage %s, publishes a %s, b %s", a.life.Stage.Phase, a.phase("a"), a.phase("b"))
}

// set is what a shell does about a pod that its owner wants.
func (a *simAgent) set(w *simWorld, uid string) {
	if !a.pods[uid].Set || a.pods[uid].Removed {
		a.life.EnsurePod(PublishKey{PodUID: uid})
	}
	a.pods[uid] = PodState{Set: true, Resolved: true}
}

// say notes what the owner says of a pod that it spoke of before.
func (a *simAgent) say(uid string, state PodState) {
	if was, known := a.pods[uid]; known || a.allSet {
		state.Set, state.Resolved = was.Set, was.Resolved
		a.pods[uid] = state
	}
}

// phase is that of the publish for a pod.
func (a *simAgent) phase(uid string) Phase {
	if p := a.life.podVolume(PublishKey{PodUID: uid}); p != nil {
		return p.Phase
	}
	return Absent
}

// crash kills the agent. Its requests in flight may still arrive.
func (w *simWorld) crash() {
	w.log("crash")
	w.tear()
	w.start()
}

// tear may take a record away: of what was in it, the files beside it tell little, or nothing.
func (w *simWorld) tear() {
	names := slices.Sorted(maps.Keys(w.records))
	if often := w.restless && w.rng.IntN(2) == 0; len(names) == 0 || !often && w.rng.IntN(4) != 0 {
		return
	}
	name := names[w.rng.IntN(len(names))]
	if w.labels == nil && w.rng.IntN(4) == 0 {
		delete(w.records, name)
		w.unreadable[name] = true
		w.log("record %s is torn, and its content is lost", name)
		return
	}
	r := w.records[name] // an unmount knows little more than that it exists
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
			recorded := a.life.InUseHandshake(w.isUnaccounted() && !w.inline)
			if w.plant == noStartGuard || w.plant == keepRecorded && len(w.records) > 0 || w.plant == believeGuess && recorded == Unknown {
				recorded = Yes
			}
			a.list.Start(w.node(), func(string) Knowledge { return recorded })
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
		a.list.NotApplied() // no reply; it may still be carried out
	case 1:
		w.crash() // died with the write in flight
		if w.restless {
			w.changeCSIDriver() // which the next agent learns before that write lands
			w.see()
			w.syncPods()
		}
	default:
		if node, ok := w.land(len(w.writes) - 1); ok && w.rng.IntN(5) > 0 {
			a.list.Applied(node)
		} else {
			a.list.NotApplied()
		}
	}
}

// see delivers the next version to the watch of the Node, or what is new to that of the CSIDrivers.
func (w *simWorld) see() {
	a := w.agent
	if (a.attaches == Unknown || w.rng.IntN(3) == 0) && a.attaches != decision.Known(w.attaches) {
		a.attaches = decision.Known(w.attaches)
		w.log("seen: volumes are attached: %s", a.attaches)
	}
	if a.list.Started() && a.watch < len(w.versions) {
		a.list.Observe(w.versions[a.watch])
		a.watch++
	}
}

// view is what the agent believes of the Node.
func (w *simWorld) view() Node {
	view := w.agent.list.View(simVolume)
	switch {
	case w.plant == believeStale && view.InUse == Unknown && w.agent.list.known:
		view.InUse = w.agent.list.inUse.lists(simVolume)
	case w.plant == skipHandshake, w.plant == publishFreely && !w.stages:
		view.InUse = Yes
	case w.plant == keepLookup:
		view.Changes = 0
	}
	return view
}

func (w *simWorld) facts() Facts {
	return Facts{
		Node: w.view(), AttachRequired: w.agent.attaches, Unaccounted: w.isUnaccounted(), Pod: w.pod,
		Driver: Driver{Registered: w.registered || w.plant == driverStays, Stages: w.agent.stages, RepublishEvery: time.Minute},
	}
}

// pod is what the agent knows of the pod of a publication.
func (w *simWorld) pod(p *PodVolume) PodFacts {
	uid := p.Key.PodUID
	facts := PodFacts{PodState: w.agent.pods[uid], Label: w.label(uid)}
	facts.Wants, facts.PodsSynced = facts.Set, w.agent.allSet
	facts.Deleting = facts.Set && w.leaving[uid] && w.plant != renewLeaving
	facts.Removed = facts.Removed || facts.Ending && w.plant == endingIsOver
	if w.plant == forgetLabels {
		facts.Label = ""
	}
	return facts
}

// decide is the life's decision, as a shell asks for it, unless a fault is planted there.
func (w *simWorld) decide() Decision {
	l := &w.agent.life
	lookup, mistaken := l.attachment, map[*PodVolume]bool{}
	for _, p := range l.Pods {
		if w.plant == labelsOverMount && p.Phase == Confirmed && l.Demand(w.facts(), p) == Wanted && w.label(p.Key.PodUID) != p.Record.SELinuxLabel {
			p.Phase, mistaken[p] = Uncertain, true
		}
		if w.plant == forgetLabels {
			p.Record.SELinuxLabel, l.Stage.Record.SELinuxLabel = "", ""
		}
	}
	if w.plant == believeOldVA && l.Stage.Record.AttachmentUID != "" {
		l.Stage.Record.AttachmentUID = l.attachment.Known(w.view()).UID
	}
	decision := l.Decide(w.now, w.facts())
	for p := range mistaken {
		p.Phase = Confirmed
	}
	if w.plant == keepAttachment {
		l.attachment, l.decidedOn = lookup, lookup.Known(w.view())
	}
	if w.plant == forgetRenewal {
		decision.RecheckAt = time.Time{}
	}
	if w.plant == wishOnlyNews && w.view().InUse == decision.InUse {
		decision.InUse = Unknown
	}
	return decision
}

// turn is one decision of the agent and its step.
func (w *simWorld) turn() error {
	a := w.agent
	read := w.justRead
	w.justRead = false
	w.now = w.now.Add(time.Duration(w.rng.IntN(20)) * time.Second)
	decided := w.decide()
	if decided.InUse != Unknown {
		a.list.Want(simVolume, decided.InUse == Yes)
	}
	if decided.Forget {
		a.list.Forget(simVolume)
	}
	step := decided.Next
	lookup := a.life.attachment
	switch step := step.(type) {
	case nil:
		a.life.BeginTurn()
		return w.checkRest(decided)
	case LookForUsers:
		w.justRead = read
		a.life.UsersSearched(w.hasUsers() && w.plant != ignoreUsers, w.now, 0)
	case ReadCapabilities:
		a.stages = decision.Known(w.stages)
	case ReadAttachment:
		w.read()
	default:
		w.justRead = read
		if w.rng.IntN(4) == 0 && !w.settling {
			w.justRead = false
			w.others() // while a secret is read
			w.read()
		}
		if !a.life.StillValid(w.view(), a.attaches) {
			break
		}
		if err := w.call(w.asPlanted(step)); err != nil || w.agent != a {
			return err
		}
	}
	a.life.EndStep(step)
	if w.plant == keepLookup {
		if _, reads := step.(ReadAttachment); !reads {
			a.life.attachment = lookup
		}
	}
	return nil
}

// read reads the VolumeAttachment.
func (w *simWorld) read() {
	begun := w.agent.life.BeginRead(w.view())
	w.agent.life.Read(begun, Attachment{Attached: decision.Known(w.vaUID != 0), UID: strconv.Itoa(w.vaUID)})
	w.justRead = true
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

// call writes records, calls the driver and processes the reply, and may die between any two of these.
func (w *simWorld) call(step Step) error {
	a := w.agent
	name, undo := recordOf(step)
	intent := Record{Kind: PublishKind, BootID: w.bootID(), Inline: w.inline, SELinuxLabel: labelOf(step), Pod: RecordPod{UID: KeyOf(step).PodUID}}
	if name == StageKind {
		intent.Kind = StageKind
	}
	var lost *Knowledge
	if w.unreadable[name] {
		lost = new(decision.Known(w.mountedFor(name)))
	}
	call, by := a.life.Begin(step, intent, lost), a.life.decidedOn.UID
	w.log("agent: %T %s by %q (in use: %v)", step, name, by, w.inUse())
	if err := w.checkCall(step); err != nil {
		return err
	}
	if err := w.checkEnding(step, name, call.Before); err != nil {
		return err
	}
	if undo && call.Before == Confirmed && name != StageKind && a.life.Demand(w.facts(), a.life.EnsurePod(KeyOf(step))) == Wanted {
		return fmt.Errorf("the volume is taken from pod %s, which runs on it", name)
	}
	if undo && name != StageKind && w.runs(name) {
		return fmt.Errorf("the volume is taken from pod %s (%s), whose containers run", name, call.Before)
	}
	if _, publishes := step.(Publish); publishes && w.stages && !w.inline && !w.staged {
		return fmt.Errorf("publish for %s of a volume that is not staged", name)
	}
	_, renews := step.(Republish)
	if renews {
		if err := w.checkRenewal(name); err != nil {
			return err
		}
	}
	if w.plant != recordAfterCall || undo {
		w.record(name, call)
	}
	if w.rng.IntN(12) == 0 {
		w.crash()
		return nil
	}
	// A driver works on one call for a volume at a time: abandoned calls end first.
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
	if w.plant == recordAfterCall && !undo {
		w.record(name, call)
	}
	w.end(name, call, reply)
	return nil
}

// end processes the reply to a call.
func (w *simWorld) end(name string, call Call, reply Reply) {
	_, undo := recordOf(call.Step)
	_, renews := call.Step.(Republish)
	if w.plant == believeSilence && reply == NoAnswer {
		reply = Refused
	}
	if w.plant == dropUncertain && undo {
		reply = OK
	}
	after := call.After(reply)
	if w.plant == believeRefusal && !renews && !undo || w.plant == believeRenewal && renews {
		after = AfterCall(Absent, reply)
	}
	heard := Confirmation{}
	switch after {
	case Absent:
		delete(w.records, name)
		delete(w.handshakes, name)
	case Confirmed:
		w.started[name] = true
		r := w.records[name]
		r.Confirmed = true
		w.records[name] = r
		if reply == OK {
			heard.At = w.now
		}
	case Uncertain:
	}
	w.agent.life.End(call, after, heard)
	w.log("reply %d: %s is %s", reply, name, after)
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

// record puts the record of a call on the disk.
func (w *simWorld) record(name string, call Call) {
	if call.Write {
		w.records[name] = call.Record
		if _, undo := recordOf(call.Step); !undo {
			delete(w.unreadable, name)
			if w.agent.life.decidedOn.UID != "" {
				w.handshakes[name] = true
			}
		}
	}
	w.agent.life.Recorded(call)
}
