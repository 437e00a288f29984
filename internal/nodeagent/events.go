package nodeagent

import (
	"cmp"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/nodevolume"
)

// stepFailed logs a failed step, which is retried, and emits an event about it, unless that repeats the last one. The caller holds mu.
func (r *reports) stepFailed(v *volume, p *podVolume, step string, err error) {
	r.logFailure(v, p.Key, step, p.Failure.Count, err)
	failed := explain.NodeStep{Step: step, Block: p.isBlock(), Volume: p.Key.SpecName, Since: p.failingSince}
	if step == stepUnpublish {
		if text := r.unmountFailedText(failed, err); p.lastEvent.isNew(text, time.Now()) {
			r.emitFailedUnmount(p.podRef(), p.pvcRef(), text)
		}
		return
	}
	reason, text := failed.Failed(r.config.withRemedy(err).Error())
	if affinity, ok := errors.AsType[*affinityError](err); ok {
		reason, text = failed.NotHere(affinity.err.Error())
	}
	r.emitWarning(p, reason, text)
}

// emitWarning emits a warning about a pod's volume, unless it repeats the last event. The caller holds mu.
func (r *reports) emitWarning(p *podVolume, reason, text string) {
	if p.lastEvent.isNew(text, time.Now()) {
		r.events.Event(p.podRef(), corev1.EventTypeWarning, reason, text)
	}
}

// unmountFailedText is the event text of an unmount step that failed or hangs.
func (r *reports) unmountFailedText(failed explain.NodeStep, err error) string {
	return failed.StaysInUse(r.config.NodeName, r.config.withRemedy(err).Error())
}

// eventDelay is how long a pod waits before it gets an event. Where another pod uses the volume it gets one at once, as from kubelet,
// because that wait can be long.
// The caller holds mu.
func (r *reports) eventDelay(v *volume, wait nodevolume.Wait) time.Duration {
	switch {
	case wait.Reason == nodevolume.OtherPodMounted:
		return 0
	case r.config.waitEventDelayOf != nil:
		return r.config.waitEventDelayOf(wait.Reason, r.waitText(v, wait))
	default:
		return r.config.waitEventDelay
	}
}

// waitText describes why a volume waits, with kubelet's text where there is one. The caller holds mu.
func (r *reports) waitText(v *volume, wait nodevolume.Wait) string {
	switch owner, _ := r.pods.snapshot(types.UID(wait.Key.PodUID)); {
	case wait.Reason == nodevolume.DriverNotRegistered:
		return explain.NotRegistered(r.reasonText(wait.Reason), v.driver)
	case wait.Reason == nodevolume.StillMountedElsewhere:
		return v.users.text()
	case wait.Reason == nodevolume.ContainersMayRun && owner.ending != nil:
		return explain.ReasonWithCause(r.reasonText(wait.Reason), owner.ending)
	}
	why := cmp.Or(r.labelText(v, wait.Key, wait.Reason), r.reasonText(wait.Reason))
	switch wait.Reason {
	case nodevolume.OtherPodMounted, nodevolume.AttachmentReplaced, nodevolume.OtherSELinuxLabelWanted:
		return why + v.otherPods(wait.Key)
	default:
		return why
	}
}

// waiting emits an event about a wait once it is long, and returns when to look again. The caller holds mu.
func (r *reports) waiting(v *volume, wait nodevolume.Wait, since, now time.Time) (again time.Duration) {
	if left := since.Add(r.eventDelay(v, wait)).Sub(now); left > 0 {
		return left
	}
	r.emitLongWait(v, wait, since)
	return repeatEventAfter
}

// emitLongWait emits an event about a long wait. The caller holds mu.
func (r *reports) emitLongWait(v *volume, wait nodevolume.Wait, since time.Time) {
	described := explain.NodeWait{Reason: wait.Reason, Since: since, Detail: r.waitText(v, wait)}
	switch {
	case wait.Reason == nodevolume.BackingOff:
		return // the failed call had its own event
	case wait.Reason == nodevolume.OwnerSilent:
		// The pod may be running fine, and cannot do anything about it.
		r.log.Info("Keeping volume mounted because its pod is only known from a record, until the pod and its claims have been read",
			append(v.logValues(wait.Key), "since", since.UTC().Format(time.RFC3339))...)
		return
	case wait.Key.PodUID == "":
		r.emitSlowUnstage(v, explain.NodeStep{Step: stepUnstage, Block: v.state.Stage.Record.Block, Volume: v.specName()}.Waits(described))
		return
	}
	p := v.ensurePod(wait.Key)
	if v.isReady(p) && r.facts.demands(v)(p) == nodevolume.Wanted {
		return // the pod is running and does not wait for this
	}
	step := explain.NodeStep{Step: waitingStep(v, p, wait.Reason), Block: p.isBlock(), Volume: p.Key.SpecName}
	if p.Phase != nodevolume.Absent && (r.facts.demands(v)(p) == nodevolume.Released || wait.Reason == nodevolume.ContainersMayRun) {
		step.Step = stepUnpublish
		if text := step.Waits(described); p.lastEvent.isNew(text, time.Now()) {
			r.emitFailedUnmount(p.podRef(), p.pvcRef(), text)
		}
		return
	}
	reason, text := step.Failed(described.Waits())
	r.emitWarning(p, reason, text)
}

// waitingStep returns the step that the wait delays.
func waitingStep(v *volume, p *podVolume, reason nodevolume.Reason) string {
	switch {
	case reason == nodevolume.NotAttached, reason == nodevolume.NotReportedInUse:
		return stepWaitForAttach
	case reason == nodevolume.OtherPodMounted && p.toMount != nil && p.toMount.block:
		return stepMountDevice
	case reason == nodevolume.OtherPodMounted:
		return stepSetUp
	case p.Phase == nodevolume.Confirmed:
		return stepSetUp // the pod is running; a periodic republish waits
	default:
		return v.firstStep()
	}
}

// unstageFailed does the same for a failed unstage. The caller holds mu.
func (r *reports) unstageFailed(v *volume, err error) {
	r.logFailure(v, nodevolume.PublishKey{}, stepUnstage, v.state.Unstage.Count, err)
	if v.state.Unstage.Count == 1 {
		v.unstageFailingSince = cmp.Or(v.began, v.state.Unstage.At)
	}
	failed := explain.NodeStep{Step: stepUnstage, Block: v.state.Stage.Record.Block, Volume: v.specName(), Since: v.unstageFailingSince}
	r.emitFailedUnstage(v, r.unmountFailedText(failed, err))
}

// emitMapped emits kubelet's event that a block volume was mapped for a pod.
func (r *reports) emitMapped(w *volumeToMount) {
	text := explain.Mapped(w.specName, r.root.Path(podDevicesDir(string(w.pod.UID))))
	r.events.Event(w.pod.ref(), corev1.EventTypeNormal, explain.SuccessfulMountVolume, text)
}

// emitFailedUnmount emits an event about a volume that cannot be unmounted. The pod may be gone, so the claim and the Node get it as
// well. The caller holds mu.
func (r *reports) emitFailedUnmount(pod, claim *corev1.ObjectReference, text string) {
	node := &corev1.ObjectReference{Kind: "Node", Name: r.config.NodeName, UID: types.UID(r.config.NodeName)} // as kubelet names it
	for _, about := range []*corev1.ObjectReference{pod, claim, node} {
		if about != nil && about.Name != "" { // a recovered record may lack the name
			r.events.Event(about, corev1.EventTypeWarning, explain.FailedUnmount, text)
		}
	}
}

// emitSlowUnstage emits an event about an unstage that waits or whose call does not end, and logs it. The caller holds mu.
func (r *reports) emitSlowUnstage(v *volume, text string) {
	if r.emitFailedUnstage(v, text) {
		r.log.Error(errors.New(text), "Volume stays in use", v.logValues(nodevolume.PublishKey{})...)
	}
}

// emitFailedUnstage does the same as emitFailedUnmount for a volume that cannot be unstaged, unless it repeats the last event. The caller
// holds mu.
func (r *reports) emitFailedUnstage(v *volume, text string) (emitted bool) {
	if !v.lastUnstageEvent.isNew(text, time.Now()) {
		return false
	}
	staged := &podVolume{PodVolume: &nodevolume.PodVolume{Key: nodevolume.PublishKey{PodUID: v.state.Stage.Record.Pod.UID}, MountState: v.state.Stage}}
	r.emitFailedUnmount(staged.podRef(), staged.pvcRef(), text)
	return true
}
