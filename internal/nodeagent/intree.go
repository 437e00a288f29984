package nodeagent

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	csitranslation "k8s.io/csi-translation-lib"
)

// translator turns in-tree volumes into CSI volumes.
var translator = csitranslation.New()

// wantOfInTree is what a pod wants of a volume of an in-tree kind that stands in its spec and has moved to CSI: the
// attach/detach controller attaches it, and kubelet mounts it, as the CSI volume that it is now. Nil for what is no
// business of CSI (emptyDir, configMap, nfs ...).
func (m *podManager) wantOfInTree(object *corev1.Pod, volume *corev1.Volume) (*wantedVolume, error) {
	if !translator.IsInlineMigratable(volume) {
		return nil, nil
	}
	pv, err := translator.TranslateInTreeInlineVolumeToCSI(klogOf(m.log), volume, object.Namespace)
	if err != nil {
		return nil, fmt.Errorf("translate to CSI: %w", err)
	}
	w, err := wantOfVolume(pv)
	if err != nil {
		return nil, err
	}
	w.pod, w.volume, w.readOnly = identityOf(object), volume.Name, pv.Spec.CSI.ReadOnly
	w.migrated, w.since = true, time.Now()
	return w, nil
}

// otherVolume is a claim of a pod whose PersistentVolume is not a CSI volume. The agent does not mount it, nor does it
// keep the pod's other volumes from it.
type otherVolume struct {
	volume string // in pod.spec.volumes
	use    claimUse
	pv     *corev1.PersistentVolume
}

// Error lets wantOf return it in the place of a want.
func (o *otherVolume) Error() string {
	return fmt.Sprintf("PersistentVolume %s of claim %s is not a CSI volume (%s): belay-node does not mount it, and leaves it to the program that runs the containers of the pod",
		o.pv.Name, o.use.name, sourceOf(o.pv))
}

func (o *otherVolume) mount() Mount {
	return Mount{
		VolumeName: o.volume, ReadOnly: o.use.readOnly, Block: mode(o.pv.Spec.VolumeMode) == corev1.PersistentVolumeBlock,
		SupplementalGroup: supplementalGroup(o.pv), PersistentVolume: o.pv.DeepCopy(),
	}
}

// sourceOf is the kind of a PersistentVolume.
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
		return "of a kind that this Kubernetes does not have any more"
	}
}

// groupAnnotation on a PersistentVolume is the group that owns its files: containers of pods that have it get
// the group.
const groupAnnotation = "pv.beta.kubernetes.io/gid"

// supplementalGroup reads it. As for kubelet, what is not a number is no group.
func supplementalGroup(pv *corev1.PersistentVolume) *int64 {
	gid, err := strconv.ParseInt(pv.Annotations[groupAnnotation], 0, 64)
	if err != nil {
		return nil
	}
	return &gid
}

// emitOthers tells the pod once of each volume that is not mounted for it. The caller holds mu.
func (m *podManager) emitOthers(p *pod, others []*otherVolume) {
	for _, o := range others {
		if !slices.ContainsFunc(p.others, func(told *otherVolume) bool { return told.volume == o.volume }) {
			m.events.Eventf(p.object, corev1.EventTypeWarning, "VolumeNotMounted", "Volume %q: %v", o.volume, o)
		}
	}
	p.others = others
}
