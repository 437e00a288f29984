package timeline

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
)

// podChanges lists what happened to a pod between two versions of it. old is nil at
// the first sight, new is nil when the object is gone.
func podChanges(old, pod *corev1.Pod) []Change {
	seen := pod
	if seen == nil {
		seen = old
	}
	base := Change{
		Object: seen.Namespace + "/" + seen.Name, UID: string(seen.UID),
		Node: seen.Spec.NodeName, Claims: podClaims(seen),
	}
	if pod == nil {
		return with(base, PodGone)
	}
	if old == nil {
		old = &corev1.Pod{}
	}
	var out []Change
	if old.UID == "" {
		out = append(out, with(base, PodCreated)...)
	}
	if old.Spec.NodeName == "" && pod.Spec.NodeName != "" {
		out = append(out, with(base, PodBound)...)
	}
	if !Running(old) && Running(pod) {
		out = append(out, with(base, PodRunning)...)
	}
	if old.DeletionTimestamp == nil && pod.DeletionTimestamp != nil {
		out = append(out, with(base, PodDeleted)...)
	}
	if !containersEnded(old) && containersEnded(pod) {
		out = append(out, with(base, ContainersEnded)...)
	}
	return out
}

// nodeChanges lists what happened to a Node's lists, readiness and taint.
func nodeChanges(old, node *corev1.Node) []Change {
	if node == nil {
		return nil
	}
	base := Change{Object: node.Name, UID: string(node.UID), Node: node.Name}
	if old == nil {
		old = &corev1.Node{}
	}
	var out []Change
	out = append(out, setChanges(base, inUse(old), inUse(node), InUse, OutOfUse)...)
	out = append(out, setChanges(base, reported(old), reported(node), Reported, Withdrawn)...)
	switch was, is := nodeReady(old), nodeReady(node); {
	case was && !is:
		out = append(out, with(base, NodeNotReady)...)
	case !was && is:
		out = append(out, with(base, NodeReady)...)
	}
	if !outOfService(old) && outOfService(node) {
		out = append(out, with(base, OutOfService)...)
	}
	return out
}

// attachmentChanges lists what happened to a VolumeAttachment.
func attachmentChanges(old, va *storagev1.VolumeAttachment) []Change {
	seen := va
	if seen == nil {
		seen = old
	}
	base := Change{Object: seen.Name, UID: string(seen.UID), Node: seen.Spec.NodeName}
	if pv := seen.Spec.Source.PersistentVolumeName; pv != nil {
		base.Volume = *pv
	}
	if va == nil {
		return with(base, AttachmentGone)
	}
	if old == nil {
		old = &storagev1.VolumeAttachment{}
	}
	var out []Change
	if old.UID == "" {
		out = append(out, with(base, AttachmentCreated)...)
	}
	if !prepared(old) && prepared(va) {
		out = append(out, with(base, AttachmentPrepared)...)
	}
	if !old.Status.Attached && va.Status.Attached {
		out = append(out, with(base, AttachmentAttached)...)
	}
	if old.DeletionTimestamp == nil && va.DeletionTimestamp != nil {
		out = append(out, with(base, AttachmentDeleted)...)
	}
	return out
}

// claimChanges reports that a claim was bound.
func claimChanges(old, pvc *corev1.PersistentVolumeClaim) []Change {
	if pvc == nil || pvc.Status.Phase != corev1.ClaimBound {
		return nil
	}
	if old != nil && old.Status.Phase == corev1.ClaimBound {
		return nil
	}
	return []Change{{
		Kind: ClaimBound, Object: pvc.Namespace + "/" + pvc.Name,
		UID: string(pvc.UID), Volume: pvc.Spec.VolumeName,
	}}
}

func with(c Change, kind Kind) []Change {
	c.Kind = kind
	return []Change{c}
}

// setChanges compares two sorted lists of volume names.
func setChanges(base Change, old, now []string, entered, left Kind) []Change {
	var out []Change
	for _, name := range now {
		if !slices.Contains(old, name) {
			c := base
			c.Kind, c.Volume = entered, name
			out = append(out, c)
		}
	}
	for _, name := range old {
		if !slices.Contains(now, name) {
			c := base
			c.Kind, c.Volume = left, name
			out = append(out, c)
		}
	}
	return out
}

func podClaims(pod *corev1.Pod) []string {
	var claims []string
	for i := range pod.Spec.Volumes {
		if c := pod.Spec.Volumes[i].PersistentVolumeClaim; c != nil {
			claims = append(claims, pod.Namespace+"/"+c.ClaimName)
		}
	}
	return claims
}

// Running reports whether a pod is in phase Running with every container running.
func Running(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodRunning || len(pod.Status.ContainerStatuses) == 0 {
		return false
	}
	return !slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Running == nil
	})
}

// containersEnded: an empty list of statuses says nothing, it is not an end.
func containersEnded(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return true
	}
	if len(pod.Status.ContainerStatuses) == 0 {
		return false
	}
	return !slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Terminated == nil
	})
}

func inUse(node *corev1.Node) []string {
	names := make([]string, 0, len(node.Status.VolumesInUse))
	for _, name := range node.Status.VolumesInUse {
		names = append(names, string(name))
	}
	return names
}

func reported(node *corev1.Node) []string {
	names := make([]string, 0, len(node.Status.VolumesAttached))
	for _, v := range node.Status.VolumesAttached {
		names = append(names, string(v.Name))
	}
	return names
}

func nodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func outOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService
	})
}

// prepared: what the attacher must have stored before it may call the driver.
func prepared(va *storagev1.VolumeAttachment) bool {
	if _, ok := va.Annotations[kube.NodeIDAnnotation]; !ok {
		return false
	}
	return slices.ContainsFunc(va.Finalizers, func(f string) bool {
		return strings.HasPrefix(f, "external-attacher/")
	})
}
