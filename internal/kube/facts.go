package kube

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"belay.dev/belay/internal/attachment"
)

// Ready is upstream's test of a node's health: the condition Ready is True (k/k attachdetach/reconciler nodeIsHealthy).
func Ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// OutOfService reports whether the node has an out-of-service taint that counts. One that a fence of belay set is about one boot: it says
// nothing about the boots after that, although it stays on the Node until the fence releases it.
func OutOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		if t.Key != OutOfServiceTaint {
			return false
		}
		boot := node.Status.NodeInfo.BootID
		return !strings.HasPrefix(t.Value, FenceTaintPrefix) || boot != "" && node.Annotations[FencedBootAnnotation] == boot
	})
}

// Isolated reports whether a fence of belay keeps new pods from the node.
func Isolated(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == IsolationTaint })
}

// OutOfServiceByFence reports whether the out-of-service taint of the node was set by a fence of belay, and by no other client.
func OutOfServiceByFence(node *corev1.Node) bool {
	return OutOfService(node) && !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == OutOfServiceTaint && !strings.HasPrefix(t.Value, FenceTaintPrefix)
	})
}

// CutsAtUnpublish reports whether the driver was declared to cut a node off before it confirms the unpublish of a volume. A driver without
// attach has no unpublish.
func CutsAtUnpublish(driver *storagev1.CSIDriver) bool {
	return driver.Annotations[CutsAtUnpublishAnnotation] == "true" && AttachRequired(driver)
}

// controlPlaneLabels are the roles of Nodes that run the control plane or its etcd: of kubeadm now and before 1.24, of K3s and RKE2, whose members of etcd have
// a role of their own, and of RKE. worker, infra, edge and others are roles of machines that only run pods.
var controlPlaneLabels = []string{
	"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master", "node-role.kubernetes.io/etcd", "node-role.kubernetes.io/controlplane",
}

// ControlPlane reports whether the node runs the control plane, whatever the value of the label. Its kubelet cannot write the label (kubernetes v1.36.3
// plugin/pkg/admission/noderestriction/admission.go:613-618).
func ControlPlane(node *corev1.Node) bool {
	return slices.ContainsFunc(controlPlaneLabels, func(name string) bool { _, has := node.Labels[name]; return has })
}

// UnderMaintenance reports whether a condition of the node says that its owner has planned for it to be silent (KEP-5683).
func UnderMaintenance(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Status == corev1.ConditionTrue && c.Type == MaintenanceInProgress
	})
}

// Managed reports whether the controller attaches and detaches for this node.
func Managed(node *corev1.Node) bool {
	_, ok := node.Annotations[ManagedAttachAnnotation]
	return ok
}

// InUse reports whether status.volumesInUse lists the volume of that unique name.
func InUse(node *corev1.Node, unique string) bool {
	return slices.Contains(node.Status.VolumesInUse, corev1.UniqueVolumeName(unique))
}

// Reported reports whether status.volumesAttached lists the volume of that unique name.
func Reported(node *corev1.Node, unique string) bool {
	return slices.ContainsFunc(node.Status.VolumesAttached, func(v corev1.AttachedVolume) bool { return string(v.Name) == unique })
}

// DetachRequested is when belay first wanted to detach, zero if it does not or the annotation is invalid: the wait then starts
// again.
func DetachRequested(va *storagev1.VolumeAttachment) time.Time {
	return ParseTime(va.Annotations[DetachRequestedAnnotation])
}

// DetachesRequested are the times of the pending detach requests on a Node, by unique volume name. An invalid annotation counts as
// none.
func DetachesRequested(node *corev1.Node) map[string]string {
	text, ok := node.Annotations[DetachesRequestedAnnotation]
	if !ok {
		return nil
	}
	var requests map[string]string
	if json.Unmarshal([]byte(text), &requests) != nil {
		return nil
	}
	return requests
}

// ParseTime parses a time that belay wrote. An invalid time counts as none.
func ParseTime(text string) time.Time {
	if text == "" { // nearly always
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}
	}
	return t
}

// SourceName is the PersistentVolume of a VolumeAttachment, empty for an inline source.
func SourceName(va *storagev1.VolumeAttachment) string {
	if name := va.Spec.Source.PersistentVolumeName; name != nil {
		return *name
	}
	return ""
}

// VolumeOfAttachment returns the volume of an inline source or of belay's annotation. The annotation is trusted only if the name of
// the object matches.
func VolumeOfAttachment(va *storagev1.VolumeAttachment) (attachment.VolumeKey, bool) {
	if inline := va.Spec.Source.InlineVolumeSpec; inline != nil && inline.CSI != nil {
		return attachment.VolumeKey{Driver: DriverOf(va.Spec.Attacher), Handle: inline.CSI.VolumeHandle}, true
	}
	if handle, ok := va.Annotations[VolumeHandleAnnotation]; ok {
		key := attachment.VolumeKey{Driver: DriverOf(va.Spec.Attacher), Handle: handle}
		return key, IsAttachmentOf(va, key)
	}
	return attachment.VolumeKey{}, false
}

// IsAttachmentOf reports whether the VolumeAttachment has the name that kubelet and attach/detach controllers compute for the volume
// and its node.
func IsAttachmentOf(va *storagev1.VolumeAttachment, key attachment.VolumeKey) bool {
	return va.Spec.Attacher == AttacherOf(key.Driver) && IsAttachmentNameOf(va.Name, key.Handle, key.Driver, va.Spec.NodeName)
}

// ClaimName returns the claim of a pod's volume, or "".
func ClaimName(pod *corev1.Pod, volume *corev1.Volume) string {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return volume.PersistentVolumeClaim.ClaimName
	case volume.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, volume)
	}
	return ""
}

// UsesClaim reports whether the pod uses the claim. A claim of a generic ephemeral volume must be owned by the pod.
func UsesClaim(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return pod.Namespace == claim.Namespace && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		if ClaimName(pod, &v) != claim.Name {
			return false
		}
		return v.Ephemeral == nil || ephemeral.VolumeIsForPod(pod, claim) == nil
	})
}
