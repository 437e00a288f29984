package nodeagent

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/nodevolume"
)

// nodeExpansionNotRequired is set by external-resizer on claims whose driver needs no NodeExpandVolume.
const nodeExpansionNotRequired = "volume.kubernetes.io/node-expansion-not-required"

func sizeOf(list corev1.ResourceList) nodevolume.Size {
	size := list[corev1.ResourceStorage]
	return nodevolume.Size{Bytes: size.Value(), Text: size.String()}
}

func claimSize(claim *corev1.PersistentVolumeClaim) nodevolume.ClaimSize {
	s := nodevolume.ClaimSize{
		Capacity: sizeOf(claim.Status.Capacity), Requested: sizeOf(claim.Spec.Resources.Requests), Allocated: sizeOf(claim.Status.AllocatedResources),
		EveryNode: slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany) && !metav1.HasAnnotation(claim.ObjectMeta, nodeExpansionNotRequired),
	}
	switch status := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]; status {
	case "":
		if claim.Status.AllocatedResources != nil {
			s.Resizing = nodevolume.NotReported
		}
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		s.Resizing = nodevolume.NodeIsNext
	default:
		s.Resizing = nodevolume.OtherIsNext
	}
	return s
}

// updateSize updates the size of a claim and its volume. It reports whether an expansion became due. The caller holds mu.
func (m *volumeManager) updateSize(v *volume, size nodevolume.ClaimSize, capacity nodevolume.Size, mounting ...nodevolume.PublishKey) (due bool) {
	wasDue := v.state.Growth.Due()
	v.state.Growth.Update(size, capacity, mounting...)
	m.releaseWaitingPods(v)
	if wasDue || !v.state.Growth.Due() {
		return false
	}
	m.log.Info("Volume was expanded", append(v.logValues(nodevolume.PublishKey{}), "size", v.state.Growth.Current.Text, "capacity", capacity.Text)...)
	return true
}

// releaseWaitingPods releases the pods that no longer have to wait for the expansion. The caller holds mu.
func (m *volumeManager) releaseWaitingPods(v *volume) {
	released := v.state.Growth.Release()
	for _, p := range v.pods {
		if !slices.Contains(released, p.Key) {
			continue
		}
		p.problem, p.step = nil, ""
		m.pods.notify(types.UID(p.Key.PodUID))
	}
}

// isReady reports whether the publish is confirmed and the pod does not wait for an expansion. The caller holds mu.
func (v *volume) isReady(p *podVolume) bool {
	return p.Phase == nodevolume.Confirmed && !v.state.Growth.Waits(p.Key)
}

// addSize adds the size that a new pod of the volume read. The caller holds mu.
func (m *volumeManager) addSize(v *volume, w *volumeToMount) {
	if w.claim.name == "" {
		return
	}
	if w.readOnly {
		if w.size.Behind(w.capacity) {
			m.emitGrowth(v.ensurePod(w.key()), corev1.EventTypeWarning, explain.FileSystemResizeFailed, explain.ExpandReadOnly(w.specName))
		}
		return
	}
	v.state.Growth.PodAdded()
	m.updateSize(v, w.size, w.capacity, w.key())
}

// emitGrowth emits an event about an expansion on the pod and its claim.
func (m *volumeManager) emitGrowth(p *podVolume, kind, reason, text string) {
	m.events.Event(p.podRef(), kind, reason, text)
	m.events.Event(p.pvcRef(), kind, reason, text)
}
