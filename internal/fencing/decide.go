package fencing

import (
	"slices"
	"time"

	"belay.dev/belay/internal/decision"
)

const (
	// AskEvery is how long after a question that was answered a switch is asked again.
	AskEvery = time.Second
	// AskDeletedEvery is the same for the switch of a machine whose Node was deleted, and which is on: for days, if it is left running. It is for a fence
	// without news, too (NoNewsFor).
	AskDeletedEvery = 10 * time.Second
	// SettleFor is how long a released node gets no pods after the out-of-service taint was removed: a controller whose cache still has the
	// taint would detach the volumes of a node that runs (kubernetes/kubernetes#142331).
	SettleFor = 60 * time.Second
	// ContradictedAfter is how long a contradiction has to last before it is reported. The kubelet of the next boot may renew its lease before its Node
	// shows the new boot: kubelet does both side by side, and repeats a status that failed after 10 s (nodeStatusUpdateFrequency).
	ContradictedAfter = 15 * time.Second
	// EnduresFor is how long a node must have renewed its lease, since the last command could be carried out, until it gets pods whatever its switch says, or
	// does not say.
	EnduresFor = 5 * time.Minute
	// proofFor is how long a Proof may be used without a new decision.
	proofFor = 30 * time.Second
)

// Decide returns what to do next for a fence.
func Decide(now time.Time, f Fence, seen Observed) Decision {
	d := &decider{now: now, fence: f, seen: seen, out: Decision{Reason: Settled}}
	d.out.Life = d.life()
	if seen.Exists == Unknown && f.Phase != Released {
		d.do(ReadNode{})
		d.wait(NodeUnknown, 0)
		return d.out
	}
	switch f.Phase {
	case Suspected:
		d.suspected()
	case Isolating:
		d.isolating()
	case Fencing:
		d.fencing()
	case Tainting:
		d.tainting()
	case Evicting:
		d.evicting()
	case Detaching:
		d.detaching()
	case Moved:
		d.moved()
	case Releasing:
		d.releasing()
	case Cancelled:
		d.cancelled()
	case Released:
		d.do(Finish{})
	}
	return d.out
}

type decider struct {
	now   time.Time
	fence Fence
	seen  Observed
	out   Decision
}

func (d *decider) do(s Step) { d.out.Steps = append(d.out.Steps, s) }

// wait says why there is nothing to do, and after what time to decide again; zero for never.
func (d *decider) wait(r decision.Reason, after time.Duration) {
	d.out.Reason = r
	if after > 0 {
		d.out.RecheckAt = decision.Earlier(d.out.RecheckAt, d.now.Add(after))
	}
}

func (d *decider) enter(p Phase) {
	d.do(Enter{Phase: p, Evidence: d.fence.Evidence})
}

// sameMachine reports whether the Node object is that of the fence's machine: only that one is tainted.
func (d *decider) sameMachine() bool {
	return d.seen.Exists == Yes && d.seen.Now.Since(d.fence.Boot) != OtherMachine
}

// unnamed reports whether the Node is another object that does not name its machine yet: it may be any.
func (d *decider) unnamed() bool {
	return d.seen.Exists == Yes && d.seen.Now.Since(d.fence.Boot) == RelationUnknown && d.seen.Now.NodeUID != d.fence.Boot.NodeUID
}

// replaced reports whether another machine uses the name of the node, or did when its own fence began.
func (d *decider) replaced() bool {
	return d.seen.Exists == Yes && d.seen.Now.Replaces(d.fence.Boot) || d.seen.Exists == No && d.seen.Later
}

// isolates reports whether the Node is to be isolated. One that does not name its machine may be that of a later fence: two fences do not take turns.
func (d *decider) isolates() bool {
	shared := d.seen.Now.Since(d.fence.Boot) == RelationUnknown && d.seen.IsolatedLater
	return d.sameMachine() && !d.seen.Isolated && !shared
}

// leftAlone is Observed.leavesAlone.
func (d *decider) leftAlone() bool { return d.seen.leavesAlone(d.fence) }

// cancelled before anything irreversible was done.
func (d *decider) cancels() bool {
	switch {
	case d.fence.offSent() || !Needless(d.fence, d.seen):
		return false
	case d.seen.outdates(d.fence): // what isolates the Node is another fence's to keep
	case !d.unmounted():
		return d.fence.Phase == Fencing // it waits there, isolated
	}
	d.enter(Cancelled)
	return true
}

func (d *decider) suspected() {
	switch {
	case d.cancels():
	case !d.seen.live(d.now):
		d.do(ReadNode{})
		d.wait(NotReadLive, 0)
	default:
		d.enter(Isolating)
	}
}

func (d *decider) isolating() {
	switch {
	case d.cancels():
	case d.isolates():
		d.do(Isolate{NodeUID: d.seen.Now.NodeUID})
	default:
		d.enter(Fencing)
	}
}

// fencing looks for evidence. The node stays isolated meanwhile: a taint that vanished, or a new Node object of the same boot, is tainted again
// (hole 14). A machine that has taken the Node over is not what is isolated, unless volumes were taken that the first one may have mounted: it may come back.
func (d *decider) fencing() {
	d.evidence()
	if len(d.out.Steps) > 0 {
		if _, leaves := d.out.Steps[0].(Enter); leaves {
			return
		}
	}
	switch {
	case d.isolates():
		d.out.Steps = []Step{Isolate{NodeUID: d.seen.Now.NodeUID}}
	case d.seen.Isolated && d.replaced() && !d.fence.StorageProven: // the machine that has taken the Node over may have pods
		d.out.Steps = []Step{Unisolate{NodeUID: d.seen.Now.NodeUID}}
	}
}

func (d *decider) evidence() {
	source := d.seen.Source
	switch {
	case d.cancels():
	case d.seen.restarted(d.fence):
		d.do(Enter{Phase: Releasing, Evidence: Restarted})
	case d.seen.alive(d.fence):
		d.survived()
	case d.nothingLeft():
	case !d.fence.offSent() && d.besideEarlier(): // a machine is not switched off for a fence that then waits
	case source.off(d.now, d.fence.Boot):
		d.do(Enter{Phase: Tainting, Evidence: PoweredOff})
	case d.leftAlone(): // a command may have been sent before that
		d.survived()
	case d.fence.stated(d.now) && source.allows(d.fence.Boot, time.Time{}):
		d.do(Enter{Phase: Tainting, Evidence: Stated})
	case !d.storeProven():
	default:
		d.gather()
	}
}

// besideEarlier waits while the taint would also release the volumes of an earlier machine of the name, which may still run.
func (d *decider) besideEarlier() bool {
	if !d.seen.Earlier || !d.sameMachine() {
		return false
	}
	d.wait(EarlierMachine, AskEvery)
	return true
}

// nothingLeft ends a fence that has nothing more to do: its Node was deleted, or is another machine's now, and no pod or VolumeAttachment of the boot is
// left that is not being deleted. Others detach those, and the pods of the name are the other machine's: that one may need a fence of its own. Volumes that
// were taken one by one may be mounted on the machine, which may register again: then it waits on.
func (d *decider) nothingLeft() bool {
	switch {
	case d.seen.Exists != No && !d.replaced() || d.fence.StorageProven || d.fence.Intent.open(d.now):
		return false
	case !d.seen.Listed:
		d.do(List{})
		return true
	}
	waits := !d.replaced() && slices.ContainsFunc(d.seen.Pods, func(p Pod) bool { return !p.Leaving }) ||
		slices.ContainsFunc(d.seen.Attachments, func(a Attachment) bool { return !a.Deleting })
	if !waits {
		d.enter(Cancelled)
	}
	return !waits
}

// gather has the switch asked, or the machine switched off.
func (d *decider) gather() {
	source := d.seen.Source
	switch {
	case source.Locked:
		d.wait(SourceLocked, 0)
	case !source.bound(d.fence.Boot):
		d.wait(NoEvidence, 0)
	case source.Running && d.lapsed():
		d.awaitAnswer()
	case source.Running && d.stale() && d.fence.offSent() && source.Status.Power == PowerOn: // the wait does not change with each question
		d.wait(NotOff, AskEvery)
	case source.Running:
		d.awaitAnswer()
	case !d.seen.silent(d.fence):
		d.wait(SilenceTooShort, AskEvery)
	case d.fence.NodeDeleted || d.seen.Exists != Yes: // without a lease, a machine that runs well could not show that it does
		d.askEvery(AskDeletedEvery, NodeDeletedMachineOn)
	default:
		d.switchOff()
	}
}

// survived handles a node that gave a sign of life, or was opted out, after the command to switch it off was stored, and perhaps sent. Once the command cannot
// be carried out any more and the switch has given its state after that, or the node has lived on for long enough, the fence ends: nothing was deleted. If the
// machine is off, or falls silent again, the next fence begins with its last sign of life.
func (d *decider) survived() {
	source, intent := d.seen.Source, d.fence.Intent
	switch {
	case intent.open(d.now):
		d.wait(IntentOpen, intent.NotAfter.Sub(d.now))
	case source.answers(d.fence.Boot) && !d.fence.Deleting && !source.settled(intent.NotAfter) && !d.endures():
		d.askAgain(AwaitingSource)
	case d.unmounted():
		d.enter(Cancelled)
	}
}

// switchOff asks for the power state first: a machine that is off already gets no command, and a command that is not sent cannot come late.
// The command is stored on a reading of the node that is not older than a second (hole 16).
func (d *decider) switchOff() {
	source, intent := d.seen.Source, d.fence.Intent
	switch {
	case source.Status.Asked.IsZero():
		d.do(Ask{})
		d.wait(AwaitingSource, AskEvery)
	case source.Status.Power == PowerOff && source.Status.Machine == d.fence.Boot.Machine: // too long ago to authorize anything
		d.askAgain(AwaitingSource)
	case intent.open(d.now) && source.Held:
		d.askAgain(SwitchOffHeld)
	case d.lapsed(): // an Off that another component causes is evidence as any other
		d.askAgain(RequestWithdrawn)
	case intent.open(d.now):
		d.askAgain(NotOff)
	case d.commandsSeldom():
		d.askAgain(NotOff)
	case !d.seen.live(d.now):
		d.do(ReadNode{})
		d.wait(NotReadLive, 0)
	default:
		d.do(Command{NotAfter: d.now.Add(IntentFor).Round(0), Renewal: d.seen.Renewal})
	}
}

// lapsed reports whether no command is sent any more, because no remediation asks for the fence.
func (d *decider) lapsed() bool { return d.seen.Withdrawn && !d.fence.Intent.open(d.now) }

// awaitAnswer waits for an agent. A switch that did not answer, or whose agent takes as long as AskEvery, is asked again at once, so that there is
// no other wait in which a person could read that the switch does not answer, or that the machine ignores the command.
func (d *decider) awaitAnswer() {
	source, intent := d.seen.Source, d.fence.Intent
	switch {
	case source.Held && intent.open(d.now):
		d.wait(SwitchOffHeld, AskEvery)
	case d.lapsed() && !source.Status.Asked.IsZero():
		d.wait(RequestWithdrawn, AskEvery)
	case !source.Status.Asked.IsZero() && source.Status.Power == PowerUnknown:
		d.wait(SourceSilent, AskEvery)
	case intent.open(d.now) && source.saysOn(intent.NotAfter.Add(-IntentFor)): // asked after the command was stored
		d.wait(NotOff, AskEvery)
	default:
		d.wait(AwaitingSource, AskEvery)
	}
}

// askAgain asks the switch again, if the latest answer is old enough. Without news that has time.
func (d *decider) askAgain(reason decision.Reason) {
	every, status := AskEvery, d.seen.Source.Status
	if d.stale() {
		every = AskDeletedEvery
		if !status.Asked.IsZero() && status.Power == PowerUnknown && reason != SwitchOffHeld && reason != RequestWithdrawn {
			reason = SourceSilent
		}
	}
	d.askEvery(every, reason)
}

func (d *decider) askEvery(every time.Duration, reason decision.Reason) {
	source := d.seen.Source
	since := d.now.Sub(source.Status.Asked)
	switch {
	case source.Running:
		d.awaitAnswer()
	case source.Status.Asked.IsZero() || since >= every:
		d.do(Ask{})
		d.wait(reason, every)
	default:
		d.wait(reason, every-since)
	}
}

// tainting is the bracket: off, the taint, off again. Only the second answer says that no kubelet started pods in between (hole 1).
func (d *decider) tainting() {
	switch {
	case d.seen.restarted(d.fence):
		d.retreat(Releasing, Restarted)
	case d.seen.alive(d.fence) || d.doubted() || d.leftAlone() && !d.fence.offSent() || d.fence.Evidence != Stated && d.spoken():
		d.retreat(Fencing, "")
	case d.bracketed():
		d.enter(Evicting)
	}
}

// retreat goes back, or on to the release, from a phase in which nothing was deleted. The fence's taint is removed before that.
func (d *decider) retreat(to Phase, evidence Class) {
	if d.seen.OutOfService {
		d.untaint()
		return
	}
	d.do(Enter{Phase: to, Evidence: evidence})
}

func (d *decider) untaint() {
	if d.seen.OutOfService {
		d.do(Untaint{NodeUID: d.seen.Now.NodeUID, Version: d.seen.Version})
	}
}

// doubted reports whether the evidence of the fence no longer holds: the switch says On, or the statement has expired.
func (d *decider) doubted() bool {
	source := d.seen.Source
	byPerson := d.fence.Evidence == Stated
	if byPerson {
		return source.contradicts(d.fence.Boot) || !d.fence.stated(d.now)
	}
	return source.Status.fresh(d.now) && source.Status.Power == PowerOn
}

// bracketed reports whether the boot is proven to have ended, and otherwise says what is missing. Evidence that is stored counts for
// nothing here: only answers to this process do (hole 4).
func (d *decider) bracketed() bool {
	source := d.seen.Source
	byPerson := d.spoken()
	tainted := d.seen.OutOfService || d.seen.ForeignTaint
	switch {
	case d.unnamed():
		d.wait(NodeUnknown, AskEvery)
	case !d.seen.silent(d.fence):
		d.wait(SilenceTooShort, AskEvery)
	case !tainted && d.besideEarlier():
	case !byPerson && !source.off(d.now, d.fence.Boot) && !source.bound(d.fence.Boot):
		d.wait(NoEvidence, 0)
	case !byPerson && !source.off(d.now, d.fence.Boot):
		d.askAgain(NotOff)
	case !d.sameMachine():
		return true // there is no Node to taint, and nothing that kubelet could start pods by
	case !tainted && !d.seen.live(d.now):
		d.do(ReadNode{})
		d.wait(NotReadLive, 0)
	case !tainted:
		d.do(Taint{NodeUID: d.seen.Now.NodeUID, Version: d.seen.Version})
	default:
		return d.confirmed(byPerson)
	}
	return false
}

// confirmed reports whether the switch, or the silence of one that leaves the word to a person, was asked for again after the taint.
func (d *decider) confirmed(byPerson bool) bool {
	switch {
	case byPerson && !d.seen.Source.allows(d.fence.Boot, d.seen.TaintSeen):
		d.askAgain(AwaitingSource)
		return false
	case byPerson:
		return true
	}
	return d.offAgain()
}

// spoken reports whether a person's statement counts now, and the switch leaves the word to it.
func (d *decider) spoken() bool {
	source := d.seen.Source
	return d.fence.stated(d.now) && !source.off(d.now, d.fence.Boot) && source.allows(d.fence.Boot, time.Time{})
}

// offAgain reports whether the machine was off when asked after the taint.
func (d *decider) offAgain() bool {
	source := d.seen.Source
	switch {
	case source.Status.Asked.After(d.seen.TaintSeen):
		return true
	case source.Running:
		d.awaitAnswer()
	default:
		d.do(Ask{})
		d.wait(AwaitingSource, AskEvery)
	}
	return false
}

// tainted reports whether what has to be tainted is. A taint that vanished means a new bracket (hole 14).
func (d *decider) tainted() bool {
	return !d.sameMachine() || d.seen.OutOfService || d.seen.ForeignTaint
}

// proven reports whether the boot has ended, as this process knows, and otherwise says what is missing.
func (d *decider) proven() bool {
	switch {
	case d.seen.alive(d.fence):
		d.contradicted()
		return false
	case d.seen.Ended && d.tainted() || d.bracketed():
		d.prove()
		return true
	}
	return false
}

// contradicted: the boot that was proven to have ended shows a sign of life, so nothing more is taken from it.
func (d *decider) contradicted() {
	d.wait(Contradicted, d.seen.AliveSince.Add(ContradictedAfter).Sub(d.now)) // decided again when it is to be reported
}

// prove has the decision say that the boot has ended, and be taken again before that no longer counts.
func (d *decider) prove() {
	class := d.fence.Evidence
	if !d.seen.Ended && d.spoken() { // what is stored is the evidence of an earlier process
		class = Stated
	}
	d.out.Proof = Proof{boot: d.fence.Boot, class: class, until: d.now.Add(proofFor)}
	d.wait(Settled, proofFor/2)
}

func (d *decider) evicting() {
	switch {
	case d.seen.restarted(d.fence): // its kubelet does the rest
		d.retreat(Releasing, Restarted)
	case !d.proven():
	case d.replaced(): // its kubelet runs the pods of the name
		d.enter(Detaching)
	case !d.seen.Listed:
		d.do(List{})
	default:
		d.evict()
	}
}

// evict deletes the pods. One that a finalizer keeps does not run, and keeps no volume of another pod: the fence continues once the API server
// has accepted each delete.
func (d *decider) evict() {
	for _, pod := range d.seen.Pods {
		if pod.leaves() && !pod.Leaving {
			d.do(DeletePod{Pod: pod})
		}
	}
	if len(d.out.Steps) > 0 {
		d.wait(AwaitingPods, 0)
		return
	}
	d.enter(Detaching)
}

// detaching lets the VolumeAttachments go. While the Node exists, the attach/detach controller deletes them because of the taint.
func (d *decider) detaching() {
	switch {
	case d.seen.restarted(d.fence):
		d.retreat(Releasing, Restarted)
	case !d.proven():
	case !d.seen.Listed:
		d.do(List{})
	case len(d.seen.Attachments) == 0:
		d.enter(Moved)
	default:
		for _, a := range d.seen.Attachments {
			if !d.sameMachine() && !a.Deleting {
				d.do(DeleteAttachment{Attachment: a})
			}
		}
		if slices.ContainsFunc(d.seen.Pods, func(p Pod) bool { return p.leaves() && p.Leaving }) { // their volumes may be the ones that are left
			d.wait(AwaitingPods, 0)
			return
		}
		d.wait(AwaitingDetach, 0)
	}
}

// moved waits for the next boot of the machine, or for another machine of the name, which may be silent itself: the taints are not about that one. If
// the Node was deleted, there is nothing to wait for: the taints went with it.
func (d *decider) moved() {
	back := d.seen.Exists == No || d.replaced() || d.seen.Ready == Yes && d.seen.restarted(d.fence)
	switch {
	case d.seen.alive(d.fence):
		d.contradicted()
	case back && d.fence.ManualRelease && !d.fence.Deleting:
		d.wait(AwaitingRelease, 0)
	case back:
		d.enter(Releasing)
	default:
		if d.seen.Ended && d.tainted() { // a VolumeAttachment that was made for an earlier boot may be left
			d.prove()
		}
		d.wait(AwaitingBoot, 0)
	}
}

// releasing removes the taints, after the last command that may still be carried out (hole 5), and the isolation once the switch says On after that,
// if there is one that may be asked, or the node has lived for EnduresFor. It does not wait for VolumeAttachments: the boot that they were made for has ended, so nothing is mounted there,
// and one that a pod of the new boot needs stays.
func (d *decider) releasing() {
	source, intent := d.seen.Source, d.fence.Intent
	settled := d.fence.Untainted.Add(SettleFor)
	switch {
	case d.seen.alive(d.fence):
		d.contradicted()
	case intent.open(d.now):
		d.wait(IntentOpen, intent.NotAfter.Sub(d.now))
	case d.seen.OutOfService:
		d.untaint()
	case d.fence.Untainted.IsZero():
		d.do(Enter{Phase: Releasing, Evidence: d.fence.Evidence, Untainted: d.now.Round(0)})
	case d.fence.offSent() && d.sameMachine() && !d.fence.Deleting && source.answers(d.fence.Boot) && !d.onAgain():
		d.askAgain(AwaitingSource)
	case d.now.Before(settled):
		d.wait(SettlingAfterTaint, settled.Sub(d.now))
	case d.seen.Isolated:
		d.do(Unisolate{NodeUID: d.seen.Now.NodeUID})
	default:
		d.enter(Released)
	}
}

// endures reports whether the node is Ready and has renewed its lease for EnduresFor since the last command could be carried out. A switch that is silent for
// weeks keeps no such node from its pods: an Off that comes later still is a crash of the boot that runs, from which nothing is taken without new evidence.
func (d *decider) endures() bool {
	relation, since := d.seen.Now.Since(d.fence.Boot), d.seen.AliveSince
	if since.IsZero() || !d.seen.Renewed || d.seen.Silent || d.seen.Exists != Yes || d.seen.Ready != Yes || relation != SameBoot && relation != Rebooted {
		return false
	}
	if ended := d.fence.Intent.NotAfter; since.Before(ended) {
		since = ended
	}
	return d.now.Sub(since) >= EnduresFor
}

// onAgain reports whether the switch said On after the last command, or the node shows by itself that it is, or whatever the switch says if the node is lost again:
// the next boot may need a fence of its own, and no pod comes to it before it is Ready.
func (d *decider) onAgain() bool {
	source, ended := d.seen.Source, d.fence.Intent.NotAfter
	return source.saysOn(ended) || d.endures() || d.seen.Silent && d.seen.Ready != Yes && source.Status.Asked.After(ended)
}

func (d *decider) cancelled() {
	switch {
	case d.seen.OutOfService:
		d.untaint()
	case d.seen.Isolated:
		d.do(Unisolate{NodeUID: d.seen.Now.NodeUID})
	case d.unfences():
	default:
		d.do(Finish{})
	}
}

// unfences marks the VolumeAttachments of a boot whose Node was deleted, once a client has deleted the fence: without a Node and a NodeFence
// nothing else keeps the detector from beginning the next fence at once.
func (d *decider) unfences() bool {
	switch {
	case !d.fence.Deleting || !d.fence.NodeDeleted || d.seen.Exists != No:
		return false
	case !d.seen.Listed:
		d.do(List{})
		return true
	}
	for _, a := range d.seen.Attachments {
		if !a.Unfenced && !a.Deleting {
			d.do(Unfence{Attachment: a})
		}
	}
	return len(d.out.Steps) > 0
}
