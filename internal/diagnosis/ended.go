package diagnosis

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// stillRuns reports whether a container of the pod runs.
func stillRuns(pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses),
		func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
}

// containersEnd is when the last container ended of a pod that needs its volumes no longer; zero if the status does not have it. A container
// that waits to be restarted ended the last time. A pod that was deleted meanwhile ended with that: until then the containers could start again.
func containersEnd(pod *corev1.Pod) (last time.Time) {
	end := func(c *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
		return cmp.Or(c.State.Terminated, c.LastTerminationState.Terminated)
	}
	if stillRuns(pod) || slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return end(&c) == nil }) {
		return time.Time{}
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if t := end(&c); t != nil {
			last = later(last, t.FinishedAt.Time)
		}
	}
	if last.IsZero() || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return last
	}
	return later(last, deletedAt(pod))
}

// endOf is containersEnd as far as it can be: a node whose clock is ahead writes times that have not come. Such a pod counts as ended when the
// grace period was over.
func (x *state) endOf(pod *corev1.Pod) time.Time {
	end := containersEnd(pod)
	if !end.After(x.Now) {
		return end
	}
	if at := pod.DeletionTimestamp; at != nil && at.Time.Before(x.Now) {
		return at.Time
	}
	return x.Now
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
