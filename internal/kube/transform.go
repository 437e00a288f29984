package kube

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// CacheOptions keeps in the watch caches only what the attach/detach controller
// reads: at scale pods and nodes are most of its memory.
func CacheOptions() cache.Options {
	byObject := map[client.Object]cache.ByObject{
		&corev1.Pod{}:                   {Transform: transform(StripPod)},
		&corev1.Node{}:                  {Transform: transform(StripNode)},
		&corev1.PersistentVolumeClaim{}: {Transform: transform(stripClaim)},
		&corev1.PersistentVolume{}:      {Transform: transform(stripVolume)},
		&storagev1.VolumeAttachment{}:   {Transform: transform(StripAttachment)},
		&storagev1.CSIDriver{}:          {Transform: transform(stripDriver)},
	}
	return cache.Options{ByObject: byObject}
}

// transform applies strip to objects of its type and passes on the rest, such as
// the tombstones of a missed deletion.
func transform[T client.Object](strip func(T) T) func(any) (any, error) {
	return func(obj any) (any, error) {
		if t, ok := obj.(T); ok {
			return strip(t), nil
		}
		return obj, nil
	}
}

func meta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
	}
}

// StripPod keeps where the pod runs, whether it still does, and its claims.
func StripPod(pod *corev1.Pod) *corev1.Pod {
	kept := &corev1.Pod{ObjectMeta: meta(pod.ObjectMeta)}
	kept.Spec.NodeName = pod.Spec.NodeName
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			kept.Spec.Volumes = append(kept.Spec.Volumes, corev1.Volume{
				Name: v.Name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: v.PersistentVolumeClaim},
			})
		case v.Ephemeral != nil:
			kept.Spec.Volumes = append(kept.Spec.Volumes, corev1.Volume{
				Name: v.Name, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}},
			})
		}
	}
	kept.Status.Phase = pod.Status.Phase
	if len(kept.Spec.Volumes) > 0 {
		kept.Status.InitContainerStatuses = stripStatuses(pod.Status.InitContainerStatuses)
		kept.Status.ContainerStatuses = stripStatuses(pod.Status.ContainerStatuses)
		kept.Status.EphemeralContainerStatuses = stripStatuses(pod.Status.EphemeralContainerStatuses)
	}
	return kept
}

// stripStatuses keeps which of its states each container is in.
func stripStatuses(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	if len(statuses) == 0 {
		return nil
	}
	kept := make([]corev1.ContainerStatus, len(statuses))
	for i, s := range statuses {
		switch {
		case s.State.Terminated != nil:
			kept[i].State.Terminated = &corev1.ContainerStateTerminated{}
		case s.State.Waiting != nil:
			kept[i].State.Waiting = &corev1.ContainerStateWaiting{}
		}
	}
	return kept
}

// StripNode keeps the identity of the machine, whether it is ready or out of service,
// the two lists of the handshake with kubelet, belay's annotations, and who wrote the
// report if it was somebody else.
func StripNode(node *corev1.Node) *corev1.Node {
	kept := &corev1.Node{ObjectMeta: meta(node.ObjectMeta)}
	for name, value := range node.Annotations {
		if name == ManagedAttachAnnotation || strings.HasPrefix(name, ownPrefix) {
			if kept.Annotations == nil {
				kept.Annotations = map[string]string{}
			}
			kept.Annotations[name] = value
		}
	}
	for _, taint := range node.Spec.Taints {
		if taint.Key == OutOfServiceTaint {
			kept.Spec.Taints = append(kept.Spec.Taints, corev1.Taint{Key: taint.Key, Effect: taint.Effect})
		}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			kept.Status.Conditions = []corev1.NodeCondition{{Type: condition.Type, Status: condition.Status}}
		}
	}
	kept.Status.VolumesAttached = node.Status.VolumesAttached
	kept.Status.VolumesInUse = node.Status.VolumesInUse
	kept.Status.NodeInfo.BootID = node.Status.NodeInfo.BootID
	kept.Status.NodeInfo.SystemUUID = node.Status.NodeInfo.SystemUUID
	kept.ManagedFields = keepReportWriter(node)
	return kept
}

func stripClaim(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	kept := &corev1.PersistentVolumeClaim{ObjectMeta: meta(claim.ObjectMeta)}
	kept.OwnerReferences = claim.OwnerReferences
	kept.Spec.VolumeName = claim.Spec.VolumeName
	kept.Status.Phase = claim.Status.Phase
	return kept
}

func stripVolume(volume *corev1.PersistentVolume) *corev1.PersistentVolume {
	kept := &corev1.PersistentVolume{ObjectMeta: meta(volume.ObjectMeta)}
	kept.Spec.AccessModes = volume.Spec.AccessModes
	if ref := volume.Spec.ClaimRef; ref != nil {
		kept.Spec.ClaimRef = &corev1.ObjectReference{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}
	}
	if csi := volume.Spec.CSI; csi != nil {
		kept.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: csi.Driver, VolumeHandle: csi.VolumeHandle}
	}
	return kept
}

// StripAttachment drops who wrote which field, and the driver's metadata.
func StripAttachment(attachment *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
	kept := &storagev1.VolumeAttachment{ObjectMeta: meta(attachment.ObjectMeta), Spec: attachment.Spec}
	for _, name := range attachmentAnnotations {
		if value, ok := attachment.Annotations[name]; ok {
			if kept.Annotations == nil {
				kept.Annotations = map[string]string{}
			}
			kept.Annotations[name] = value
		}
	}
	kept.Status.Attached = attachment.Status.Attached
	kept.Status.AttachError = attachment.Status.AttachError
	kept.Status.DetachError = attachment.Status.DetachError
	return kept
}

// attachmentAnnotations are those that the controller reads back.
var attachmentAnnotations = []string{
	DetachRequestedAnnotation, VolumeHandleAnnotation, NodeUIDAnnotation, BootIDAnnotation, SystemUUIDAnnotation,
}

func stripDriver(driver *storagev1.CSIDriver) *storagev1.CSIDriver {
	kept := &storagev1.CSIDriver{ObjectMeta: meta(driver.ObjectMeta)}
	kept.Spec.AttachRequired = driver.Spec.AttachRequired
	return kept
}
