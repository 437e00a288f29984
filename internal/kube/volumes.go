package kube

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/attachment"
)

// translator translates volumes of the seven in-tree plugins that were migrated to CSI. Since 1.36 they are migrated on every node
// (k/k pkg/volume/csimigration), so nothing else is checked.
var translator = csitranslation.New()

// KeyOfVolume returns the volume of a PersistentVolume, as StripVolume keeps it or as the API server has it. ok is false if no
// controller attaches the volume, or an in-tree source cannot be translated.
func KeyOfVolume(pv *corev1.PersistentVolume) (key attachment.VolumeKey, ok bool) {
	if pv.Spec.CSI == nil && translator.IsPVMigratable(pv) {
		translated, err := translatePV(pv)
		if err != nil {
			return attachment.VolumeKey{}, false
		}
		pv = translated
	}
	switch source := pv.Spec.PersistentVolumeSource; {
	case source.CSI != nil:
		return attachment.VolumeKey{Driver: source.CSI.Driver, Handle: source.CSI.VolumeHandle}, true
	case source.FC != nil:
		return keyOfFC(source.FC)
	case source.ISCSI != nil:
		return keyOfISCSI(source.ISCSI.TargetPortal, source.ISCSI.IQN, source.ISCSI.Lun), true
	}
	return attachment.VolumeKey{}, false
}

// keyOfFC identifies a Fibre Channel volume as upstream does (k/k pkg/volume/fc GetVolumeName): by targets and unit, else by world
// wide identifiers.
func keyOfFC(fc *corev1.FCVolumeSource) (attachment.VolumeKey, bool) {
	key := attachment.VolumeKey{Driver: FibreChannelPlugin}
	switch {
	case len(fc.TargetWWNs) > 0 && fc.Lun != nil:
		key.Handle = fmt.Sprintf("%v:%v", fc.TargetWWNs, *fc.Lun)
	case len(fc.WWIDs) > 0:
		key.Handle = fmt.Sprintf("%v", fc.WWIDs)
	default:
		return attachment.VolumeKey{}, false // the API server rejects these
	}
	return key, true
}

// keyOfISCSI identifies an iSCSI volume as upstream does (k/k pkg/volume/iscsi GetVolumeName): the portal as it is written, with or
// without a port.
func keyOfISCSI(portal, iqn string, lun int32) attachment.VolumeKey {
	return attachment.VolumeKey{Driver: ISCSIPlugin, Handle: fmt.Sprintf("%v:%v:%v", portal, iqn, lun)}
}

// InlineVolume is a volume in a pod's spec, without a claim.
type InlineVolume struct {
	Key attachment.VolumeKey
	// Name is the name in upstream's events: that of the translated PersistentVolume, "<driver>-<id>" with most drivers, or the
	// pod's name for it.
	Name string
	// Spec is the translated PersistentVolume's, for the VolumeAttachment's spec.source.inlineVolumeSpec. It is nil for volumes
	// without a VolumeAttachment.
	Spec *corev1.PersistentVolumeSpec
}

// Exclusive reports whether the pod asks for the volume at one node at a time. One without a spec is shared, as upstream has it.
func (v InlineVolume) Exclusive() bool {
	return v.Spec != nil && !attachment.AllowsSeveralNodes(v.Spec.AccessModes)
}

// InlineVolumes returns the volumes in the pod's spec that a controller attaches: in-tree ones of migrated plugins, Fibre Channel
// and iSCSI. The node creates a CSI volume in a pod's spec, and it is never attached. A volume that cannot be translated is left
// out: kubelet cannot mount it either, and reports why.
func InlineVolumes(pod *corev1.Pod) []InlineVolume {
	var found []InlineVolume
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		switch {
		case volume.FC != nil:
			if key, ok := keyOfFC(volume.FC); ok {
				found = append(found, InlineVolume{Key: key, Name: volume.Name})
			}
		case volume.ISCSI != nil:
			source := volume.ISCSI
			key := keyOfISCSI(source.TargetPortal, source.IQN, source.Lun)
			found = append(found, InlineVolume{Key: key, Name: volume.Name})
		case translator.IsInlineMigratable(volume):
			if pv, err := translateInline(volume, pod.Namespace); err == nil {
				key := attachment.VolumeKey{Driver: pv.Spec.CSI.Driver, Handle: pv.Spec.CSI.VolumeHandle}
				found = append(found, InlineVolume{Key: key, Name: pv.Name, Spec: &pv.Spec})
			}
		}
	}
	return found
}

// hasInlineVolume reports whether a controller may attach this volume of a pod although it has no claim.
func hasInlineVolume(volume *corev1.Volume) bool {
	return volume.FC != nil || volume.ISCSI != nil || translator.IsInlineMigratable(volume)
}

var errNoHandle = errors.New("the translation has no volume handle")

func translatePV(pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	translated, err := translator.TranslateInTreePVToCSI(klog.Background(), pv)
	return translationOf(translated, err)
}

// translateInline translates a volume in a pod's spec. The library reads a vSphere policy from the wrong place and panics
// (csi-translation-lib v0.36.3), so the policy is removed and added again.
func translateInline(volume *corev1.Volume, namespace string) (*corev1.PersistentVolume, error) {
	policy := ""
	if vsphere := volume.VsphereVolume; vsphere != nil && vsphere.StoragePolicyName != "" {
		policy = vsphere.StoragePolicyName
		volume = volume.DeepCopy()
		volume.VsphereVolume.StoragePolicyName = ""
	}
	pv, err := translationOf(translator.TranslateInTreeInlineVolumeToCSI(klog.Background(), volume, namespace))
	if err == nil && policy != "" {
		pv.Spec.CSI.VolumeAttributes["storagepolicyname"] = policy
	}
	return pv, err
}

// translationOf rejects a translation without a handle: all such volumes would be the same one.
func translationOf(pv *corev1.PersistentVolume, err error) (*corev1.PersistentVolume, error) {
	if err == nil && (pv.Spec.CSI == nil || pv.Spec.CSI.VolumeHandle == "") {
		err = errNoHandle
	}
	if err != nil {
		return nil, fmt.Errorf("translate an in-tree volume to CSI: %w", err)
	}
	return pv, nil
}

// OwnSource is the source of a VolumeAttachment of a volume that the node connects by itself. It identifies the volume without a
// PersistentVolume, which may be deleted before the VolumeAttachment.
func OwnSource(key attachment.VolumeKey, modes []corev1.PersistentVolumeAccessMode) storagev1.VolumeAttachmentSource {
	return storagev1.VolumeAttachmentSource{InlineVolumeSpec: &corev1.PersistentVolumeSpec{
		AccessModes: modes,
		PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: AttacherOf(key.Driver), VolumeHandle: key.Handle},
		},
	}}
}
