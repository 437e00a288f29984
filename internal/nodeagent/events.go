package nodeagent

import (
	"cmp"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/nodevolume"
)

// Kubelet's names of the steps, as in its events.
const (
	stepWaitForAttach = explain.StepWaitForAttach
	stepMountDevice   = explain.StepMountDevice
	stepSetUp         = explain.StepSetUp
	stepUnpublish     = explain.StepUnpublish
	stepUnstage       = explain.StepUnstage
)

// isBlock reports whether the volume is, or will be, a block device for the pod.
func (p *podVolume) isBlock() bool {
	return p.Record.Block || (p.toMount != nil && p.toMount.block)
}

// emitFailure emits an event about a failed step, unless it repeats the last one. The caller holds mu.
func (m *volumeManager) emitFailure(p *podVolume, step string, err error) {
	failed := explain.NodeStep{Step: step, Block: p.isBlock(), Volume: p.Key.SpecName, Since: p.failingSince}
	if step == stepUnpublish {
		if text := m.unmountFailedText(failed, err); p.lastEvent.isNew(text, time.Now()) {
			m.emitFailedUnmount(p.podRef(), p.pvcRef(), text)
		}
		return
	}
	reason, text := failed.Failed(m.config.withRemedy(err).Error())
	if affinity, ok := errors.AsType[*affinityError](err); ok {
		reason, text = failed.NotHere(affinity.err.Error())
	}
	m.emitWarning(p, reason, text)
}

// emitWarning emits a warning about a pod's volume, unless it repeats the last event. The caller holds mu.
func (m *volumeManager) emitWarning(p *podVolume, reason, text string) {
	if p.lastEvent.isNew(text, time.Now()) {
		m.events.Event(p.podRef(), corev1.EventTypeWarning, reason, text)
	}
}

// unmountFailedText is the event text of an unmount step that failed or hangs.
func (m *volumeManager) unmountFailedText(failed explain.NodeStep, err error) string {
	return failed.StaysInUse(m.config.NodeName, m.config.withRemedy(err).Error())
}

// eventDelay is how long a pod waits before it gets an event. Where another pod uses the volume it gets one at once, as from kubelet,
// because that wait can be long.
// The caller holds mu.
func (m *volumeManager) eventDelay(v *volume, wait nodevolume.Wait) time.Duration {
	switch {
	case wait.Reason == nodevolume.OtherPodMounted:
		return 0
	case m.config.waitEventDelayOf != nil:
		return m.config.waitEventDelayOf(wait.Reason, m.waitText(v, wait))
	default:
		return m.config.waitEventDelay
	}
}

// waitText describes why a volume waits, with kubelet's text where there is one. The caller holds mu.
func (m *volumeManager) waitText(v *volume, wait nodevolume.Wait) string {
	switch owner, _ := m.pods.snapshot(types.UID(wait.Key.PodUID)); {
	case wait.Reason == nodevolume.DriverNotRegistered:
		return explain.NotRegistered(m.reasonText(wait.Reason), v.driver)
	case wait.Reason == nodevolume.StillMountedElsewhere:
		return v.users.text()
	case wait.Reason == nodevolume.ContainersMayRun && owner.ending != nil:
		return explain.ReasonWithCause(m.reasonText(wait.Reason), owner.ending)
	}
	why := cmp.Or(m.labelText(v, wait.Key, wait.Reason), m.reasonText(wait.Reason))
	switch wait.Reason {
	case nodevolume.OtherPodMounted, nodevolume.AttachmentReplaced, nodevolume.OtherSELinuxLabelWanted:
		return why + v.otherPods(wait.Key)
	default:
		return why
	}
}

// otherPods lists the other pods for which the volume is or may be published.
func (v *volume) otherPods(key nodevolume.PublishKey) string {
	var names []string
	for _, p := range v.pods {
		if pod := p.podRef(); p.Phase != nodevolume.Absent && p.Key.PodUID != key.PodUID && pod.Name != "" {
			names = append(names, pod.Namespace+"/"+pod.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return explain.OtherPods(names)
}

// emitLongWait emits an event about a long wait. The caller holds mu.
func (m *volumeManager) emitLongWait(v *volume, wait nodevolume.Wait, since time.Time) {
	described := explain.NodeWait{Reason: wait.Reason, Since: since, Detail: m.waitText(v, wait)}
	switch {
	case wait.Reason == nodevolume.BackingOff:
		return // the failed call had its own event
	case wait.Reason == nodevolume.OwnerSilent:
		// The pod may be running fine, and cannot do anything about it.
		m.log.Info("Keeping volume mounted because its pod is only known from a record, until the pod and its claims have been read",
			append(v.logValues(wait.Key), "since", since.UTC().Format(time.RFC3339))...)
		return
	case wait.Key.PodUID == "":
		m.emitSlowUnstage(v, explain.NodeStep{Step: stepUnstage, Block: v.state.Stage.Record.Block, Volume: v.specName()}.Waits(described))
		return
	}
	p := v.ensurePod(wait.Key)
	if v.isReady(p) && m.demands(v)(p) == nodevolume.Wanted {
		return // the pod is running and does not wait for this
	}
	step := explain.NodeStep{Step: waitingStep(v, p, wait.Reason), Block: p.isBlock(), Volume: p.Key.SpecName}
	if p.Phase != nodevolume.Absent && (m.demands(v)(p) == nodevolume.Released || wait.Reason == nodevolume.ContainersMayRun) {
		step.Step = stepUnpublish
		if text := step.Waits(described); p.lastEvent.isNew(text, time.Now()) {
			m.emitFailedUnmount(p.podRef(), p.pvcRef(), text)
		}
		return
	}
	reason, text := step.Failed(described.Waits())
	m.emitWarning(p, reason, text)
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

// unstageFailed emits an event about a failed unstage. The caller holds mu.
func (m *volumeManager) unstageFailed(v *volume, err error) {
	if v.state.Unstage.Count == 1 {
		v.unstageFailingSince = cmp.Or(v.began, v.state.Unstage.At)
	}
	failed := explain.NodeStep{Step: stepUnstage, Block: v.state.Stage.Record.Block, Volume: v.specName(), Since: v.unstageFailingSince}
	m.emitFailedUnstage(v, m.unmountFailedText(failed, err)) // logFailure has logged it
}

// emitMapped emits kubelet's event that a block volume was mapped for a pod.
func (m *volumeManager) emitMapped(w *volumeToMount) {
	text := explain.Mapped(w.specName, m.root.Path(podDevicesDir(string(w.pod.UID))))
	m.events.Event(w.pod.ref(), corev1.EventTypeNormal, explain.SuccessfulMountVolume, text)
}

// eventDedup suppresses repeated events about one object.
type eventDedup struct {
	text string
	at   time.Time
}

// repeatEventAfter is when an unchanged event is sent again: the API server drops events after an hour (kube-apiserver --event-ttl).
const repeatEventAfter = 20 * time.Minute

// isNew reports whether to send the event now, and remembers it if so.
func (t *eventDedup) isNew(text string, now time.Time) bool {
	if t.text == text && now.Sub(t.at) < repeatEventAfter {
		return false
	}
	t.text, t.at = text, now
	return true
}

// setBlocker stores the error that blocks volumes which wait for one of the reasons, or clears it if err is nil.
func (m *volumeManager) setBlocker(err error, reasons ...nodevolume.Reason) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, reason := range reasons {
		if err == nil {
			delete(m.blockers, reason)
			continue
		}
		if m.blockers[reason] == nil {
			m.queueWaiting(reason) // an event may have been sent without a cause
		}
		m.blockers[reason] = err
	}
}

// queueWaiting queues the volumes that wait for a reason. Unlike wake it keeps their back-offs. The caller holds mu.
func (m *volumeManager) queueWaiting(reason nodevolume.Reason) {
	for name, v := range m.all {
		for _, wait := range v.waits {
			if wait.reason == reason {
				m.queue.Add(name)
				break
			}
		}
	}
}

// reasonText describes a reason, with the error that blocks it. The caller holds mu.
func (m *volumeManager) reasonText(reason nodevolume.Reason) string {
	if err := m.blockers[reason]; err != nil {
		return explain.LastError(reason, m.config.withRemedy(err).Error())
	}
	return explain.NodeReason(reason)
}

// emitFailedUnmount emits an event about a volume that cannot be unmounted. The pod may be gone, so the claim and the Node get it as
// well. The caller holds mu.
func (m *volumeManager) emitFailedUnmount(pod, claim *corev1.ObjectReference, text string) {
	node := &corev1.ObjectReference{Kind: "Node", Name: m.config.NodeName, UID: types.UID(m.config.NodeName)} // as kubelet names it
	for _, about := range []*corev1.ObjectReference{pod, claim, node} {
		if about != nil && about.Name != "" { // a recovered record may lack the name
			m.events.Event(about, corev1.EventTypeWarning, explain.FailedUnmount, text)
		}
	}
}

// emitSlowUnstage emits an event about an unstage that waits or whose call does not end, and logs it. The caller holds mu.
func (m *volumeManager) emitSlowUnstage(v *volume, text string) {
	if m.emitFailedUnstage(v, text) {
		m.log.Error(errors.New(text), "Volume stays in use", v.logValues(nodevolume.PublishKey{})...)
	}
}

// emitFailedUnstage does the same as emitFailedUnmount for a volume that cannot be unstaged, unless it repeats the last event. The caller
// holds mu.
func (m *volumeManager) emitFailedUnstage(v *volume, text string) (emitted bool) {
	if !v.lastUnstageEvent.isNew(text, time.Now()) {
		return false
	}
	staged := &podVolume{PodVolume: &nodevolume.PodVolume{Key: nodevolume.PublishKey{PodUID: v.state.Stage.Record.Pod.UID}, MountState: v.state.Stage}}
	m.emitFailedUnmount(staged.podRef(), staged.pvcRef(), text)
	return true
}

// pvcRef returns the reference for events about the claim, or nil.
func (p *podVolume) pvcRef() *corev1.ObjectReference {
	pod := p.Record.Pod
	claim, namespace := claimRef{name: pod.Claim, uid: types.UID(pod.ClaimUID)}, pod.Namespace
	if p.toMount != nil {
		claim, namespace = p.toMount.claim, p.toMount.pod.Namespace
	}
	if claim.name == "" {
		return nil
	}
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: namespace, Name: claim.name, UID: claim.uid}
}
