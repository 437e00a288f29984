package nodeagent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

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
	return p.Record.Block || (p.want != nil && p.want.block)
}

// emitFailure emits an event about a failed step, unless it repeats the last one. The caller holds mu.
func (m *volumeManager) emitFailure(v *volume, p *podVolume, step string, err error) {
	failed := explain.NodeStep{Step: step, Block: p.isBlock(), Volume: p.Key.SpecName, Since: p.failingSince}
	if step == stepUnpublish {
		if text := m.stuckText(failed, err); p.told.isNew(text, time.Now()) {
			m.emitStuck(p.podOf(), p.claimOf(), text)
		}
		return
	}
	reason, text := failed.Failed(m.withRemedy(err).Error())
	if affinity, ok := errors.AsType[*affinityError](err); ok {
		reason, text = failed.NotHere(affinity.err.Error())
	}
	if p.told.isNew(text, time.Now()) {
		m.events.Event(p.podOf(), corev1.EventTypeWarning, reason, text)
		m.log.V(1).Info("Emitted event", "volume", v.name, "pod", p.Key.PodUID, "text", text)
	}
}

// unmountFailedText is the event text of an unmount step that failed or hangs.
func (m *volumeManager) stuckText(failed explain.NodeStep, err error) string {
	return failed.StaysInUse(m.config.NodeName, m.withRemedy(err).Error())
}

// eventDelay is how long a pod waits before it gets an event. Where another pod uses the volume it gets one at once, as from kubelet,
// because that wait can be long.
func (m *volumeManager) toldAfter(reason nodevolume.Reason) time.Duration {
	if reason == nodevolume.OtherPodMounted {
		return 0
	}
	return m.config.longWait
}

// waitText describes why a volume waits, in kubelet's words where it has some. The caller holds mu.
func (m *volumeManager) whyOf(v *volume, hold nodevolume.Wait) string {
	switch owner, _ := m.pods.look(types.UID(hold.Key.PodUID)); {
	case hold.Reason == nodevolume.DriverNotRegistered:
		return explain.NotRegistered(m.why(hold.Reason), v.driver)
	case hold.Reason == nodevolume.StillMountedElsewhere:
		return v.users.words()
	case hold.Reason == nodevolume.ContainersMayRun && owner.ending != nil:
		return fmt.Sprintf("%s: %v", m.why(hold.Reason), owner.ending)
	}
	why := cmp.Or(m.labelWords(v, hold.Key, hold.Reason), m.why(hold.Reason))
	switch hold.Reason {
	case nodevolume.OtherPodMounted, nodevolume.AttachmentReplaced, nodevolume.OtherSELinuxLabelWanted:
		return why + v.podsBeside(hold.Key)
	default:
		return why
	}
}

// otherPods lists the other pods for which the volume is or may be published.
func (v *volume) podsBeside(key nodevolume.PublishKey) string {
	var names []string
	for _, p := range v.pods {
		if pod := p.podOf(); p.Phase != nodevolume.Absent && p.Key.PodUID != key.PodUID && pod.Name != "" {
			names = append(names, pod.Namespace+"/"+pod.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return " (" + strings.Join(names, ", ") + ")"
}

// emitLongWait emits an event about a long wait. The caller holds mu.
func (m *volumeManager) emitLongWait(v *volume, hold nodevolume.Wait, since time.Time) {
	held := explain.NodeWait{Reason: hold.Reason, Since: since, Detail: m.whyOf(v, hold)}
	switch {
	case hold.Reason == nodevolume.BackingOff:
		return // the failed call had its own event
	case hold.Reason == nodevolume.OwnerSilent:
		// The pod may be running fine, and cannot do anything about it.
		m.log.Info("Keeping volume mounted, the pod is only known from a record and its object or claims have not been read", "volume", v.name, "pod", hold.Key.PodUID,
			"since", since.UTC().Format(time.RFC3339))
		return
	case hold.Key.PodUID == "":
		m.emitStage(v, explain.NodeStep{Step: stepUnstage, Block: v.life.Stage.Record.Block, Volume: v.specName()}.Waits(held))
		return
	}
	p := v.publication(hold.Key)
	if v.isReady(p) && m.claims(v)(p) == nodevolume.Wanted {
		return // the pod is running and does not wait for this
	}
	step := explain.NodeStep{Step: stepHeld(v, p, hold.Reason), Block: p.isBlock(), Volume: p.Key.SpecName}
	if p.Phase != nodevolume.Absent && (m.claims(v)(p) == nodevolume.Released || hold.Reason == nodevolume.ContainersMayRun) {
		step.Step = stepUnpublish
		if text := step.Waits(held); p.told.isNew(text, time.Now()) {
			m.emitStuck(p.podOf(), p.claimOf(), text)
		}
		return
	}
	if reason, text := step.Failed(held.Waits()); p.told.isNew(text, time.Now()) {
		m.events.Event(p.podOf(), corev1.EventTypeWarning, reason, text)
	}
}

// waitingStep returns the step that the wait delays.
func stepHeld(v *volume, p *podVolume, reason nodevolume.Reason) string {
	switch {
	case reason == nodevolume.NotAttached, reason == nodevolume.NotReportedInUse:
		return stepWaitForAttach
	case reason == nodevolume.OtherPodMounted && p.want != nil && p.want.block:
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
func (m *volumeManager) emitUnstage(v *volume, err error) {
	if v.life.Unstage.Count == 1 {
		v.unstageFailingSince = cmp.Or(v.began, v.life.Unstage.At)
	}
	failed := explain.NodeStep{Step: stepUnstage, Block: v.life.Stage.Record.Block, Volume: v.specName(), Since: v.unstageFailingSince}
	m.emitStage(v, m.stuckText(failed, err))
}

// emitMapped emits kubelet's event that a block volume was mapped for a pod.
func (m *volumeManager) emitMapped(w *wantedVolume) {
	text := explain.Mapped(w.specName, m.root.Path(podDevicesDir(string(w.pod.UID))))
	m.events.Event(w.pod.ref(), corev1.EventTypeNormal, explain.SuccessfulMountVolume, text)
}

func klogOf(log logr.Logger) klog.Logger { return log }
