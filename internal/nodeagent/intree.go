package nodeagent

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	csitranslation "k8s.io/csi-translation-lib"

	"belay.dev/belay/internal/explain"
)

// translator translates in-tree volumes to CSI volumes.
var translator = csitranslation.New()

// inTreeVolumeToMount returns an in-tree volume in the pod spec that is migrated to CSI, or nil for other volumes (emptyDir, configMap,
// nfs ...).
func (m *podManager) inTreeVolumeToMount(object *corev1.Pod, volume *corev1.Volume) (*volumeToMount, error) {
	if !translator.IsInlineMigratable(volume) {
		return nil, nil
	}
	pv, err := translator.TranslateInTreeInlineVolumeToCSI(m.log, volume, object.Namespace)
	if err != nil {
		return nil, fmt.Errorf("translate to CSI: %w", err)
	}
	w, err := newVolumeToMount(pv)
	if err != nil {
		return nil, err
	}
	w.pod, w.volume, w.readOnly = identityOf(object), volume.Name, pv.Spec.CSI.ReadOnly
	w.migrated, w.since = true, time.Now()
	return w, nil
}

// nonCSIVolume is a claim of a pod whose PersistentVolume is not a CSI volume. The agent does not mount it, but mounts the pod's other
// volumes.
type nonCSIVolume struct {
	volume string // the name in pod.spec.volumes
	use    claimUse
	pv     *corev1.PersistentVolume
}

// Error makes it a result of volumeToMountOf.
func (o *nonCSIVolume) Error() string {
	return explain.NotCSIVolume(o.pv.Name, o.use.name, sourceOf(o.pv))
}

// sourceOf returns the type of a PersistentVolume's source.
func sourceOf(pv *corev1.PersistentVolume) string {
	switch s := pv.Spec; {
	case s.HostPath != nil:
		return "hostPath"
	case s.Local != nil:
		return "local"
	case s.NFS != nil:
		return "nfs"
	case s.ISCSI != nil:
		return "iscsi"
	case s.FC != nil:
		return "fc"
	case s.FlexVolume != nil:
		return "flexVolume"
	default:
		return "of a type that this version of Kubernetes no longer has"
	}
}

// groupAnnotation on a PersistentVolume is the group that owns its files. Containers of its pods get the group.
const groupAnnotation = "pv.beta.kubernetes.io/gid"

// supplementalGroup returns the group of a PersistentVolume. Like kubelet, it ignores an invalid one.
func supplementalGroup(pv *corev1.PersistentVolume) *int64 {
	gid, err := strconv.ParseInt(pv.Annotations[groupAnnotation], 0, 64)
	if err != nil {
		return nil
	}
	return &gid
}

// emitNonCSIVolumes emits one event for each volume that the agent does not mount. The caller holds mu.
func (m *podManager) emitNonCSIVolumes(p *pod, found []*nonCSIVolume) {
	for _, o := range found {
		if !slices.ContainsFunc(p.nonCSI, func(known *nonCSIVolume) bool { return known.volume == o.volume }) {
			m.events.Event(p.object, corev1.EventTypeWarning, explain.VolumeNotMounted, explain.PodVolumeProblem(o.volume, o))
		}
	}
	p.nonCSI = found
}
