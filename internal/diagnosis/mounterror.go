package diagnosis

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/drivers"
	"belay.dev/belay/internal/explain"
)

// mountError explains an event of kubelet about a mount that fails. own is set if it names this volume.
func (x *state) mountError(w wait, pod *corev1.Pod, key attachment.VolumeKey, message string, own bool) wait {
	heard := hear(message)
	if !own {
		w.detail, w.reason = x.foreign(message), explain.MountFailing
		return w
	}
	begun := w
	begun.since = x.failsSince(pod, key, w.since)
	answered := x.answered(begun, drivers.Mount, key, pod.Spec.NodeName, heard)
	answered.since, answered.answer.Affinity = w.since, affine(x.volume(key))
	if heard.code == "" && answered.reason != explain.FSGroupRefused || answered.reason == explain.MountFailing {
		answered.detail = x.quoted(message)
	}
	return answered
}

// failsSince is when kubelet first reported a mount of the volume that failed.
func (x *state) failsSince(pod *corev1.Pod, key attachment.VolumeKey, since time.Time) time.Time {
	first := x.Now
	for _, e := range x.events[string(pod.UID)] {
		at := e.FirstTimestamp.Time
		if at.IsZero() {
			at = eventTime(e)
		}
		if own, _ := x.concerns(e, pod, key); own && slices.Contains(mountFailures, e.Reason) && at.Before(first) && !at.Before(since) {
			first = at
		}
	}
	return first
}
