package diagnosis

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// Where the end of a pod is recorded.
const (
	endOfContainer = "status.containerStatuses.state.terminated.finishedAt"
	endOfLastRun   = "status.containerStatuses.lastState.terminated.finishedAt"
	endByDeletion  = "metadata.deletionTimestamp less the grace period"
)

// containersEnd is when the last container ended of a pod that no longer needs its volumes, and the field that has it; zero if the status does not
// have it. For a container that waits for a restart, the end of its last run counts. A kubelet that has lost a container writes no time (k/k v1.36.3
// pkg/kubelet/kubelet_pods.go: ContainerStatusUnknown).
func containersEnd(pod *corev1.Pod) (last time.Time, field string) {
	if kube.ContainersRun(pod) {
		return time.Time{}, ""
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses, pod.Status.ContainerStatuses) {
		switch t, of := lastEnd(&c); {
		case t == nil: // it has not started
		case t.FinishedAt.IsZero():
			return time.Time{}, ""
		case t.FinishedAt.After(last):
			last, field = t.FinishedAt.Time, of
		}
	}
	notStarted := func(c corev1.ContainerStatus) bool { t, _ := lastEnd(&c); return t == nil }
	at := deletedAt(pod)
	switch {
	case at.IsZero() && slices.ContainsFunc(pod.Status.ContainerStatuses, notStarted):
		return time.Time{}, ""
	case at.After(last) && !endedBefore(pod):
		return at, endByDeletion // until then its containers could start again
	}
	return last, field
}

// lastEnd is the end of a container, or of its last run, and the field that has it; nil if it has not started.
func lastEnd(c *corev1.ContainerStatus) (*corev1.ContainerStateTerminated, string) {
	if c.State.Terminated != nil {
		return c.State.Terminated, endOfContainer
	}
	return c.LastTerminationState.Terminated, endOfLastRun
}

// endedBefore reports whether a pod had ended when it was deleted: the API server gives it no grace period (k/k v1.36.3
// pkg/registry/core/pod/strategy.go: CheckGracefulDelete). The phase alone does not say so: a kubelet writes Failed or Succeeded for a pod that ends
// because it was deleted, too (pkg/kubelet/kubelet.go: SyncTerminatedPod).
func endedBefore(pod *corev1.Pod) bool {
	grace := pod.DeletionGracePeriodSeconds
	return grace != nil && *grace == 0 && (pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed)
}

// endOf is containersEnd, unless that time is unknown or in the future: a node whose clock is ahead writes such times. A pod that was deleted has ended
// when its grace period is over.
func (x *state) endOf(pod *corev1.Pod) time.Time {
	end, _ := containersEnd(pod)
	switch at := pod.DeletionTimestamp; {
	case !end.IsZero() && !end.After(x.Now):
		return end
	case at == nil:
		return time.Time{}
	case at.Time.Before(x.Now):
		return at.Time
	}
	return x.Now
}

// unneededSince is since when no pod needs a volume on a node: since the last pod that was deleted there ended, or else since another pod began to
// wait for the volume. A pod that completed counts only if it ended after that, because pods whose objects are gone may have used the volume after it.
// Pods that ended before the volume was attached do not count.
func (x *state) unneededSince(key attachment.VolumeKey, node string, waits time.Time) time.Time {
	var attached, deleted time.Time
	if va, has := x.attachmentOn(key, node); has {
		attached = va.CreationTimestamp.Time
	}
	ended := waits
	for _, u := range x.uses[key] {
		if u.pod.Spec.NodeName != node || !kube.PodEnded(u.pod) {
			continue
		}
		switch end := x.endOf(u.pod); {
		case end.Before(attached.Truncate(second)):
		case u.pod.DeletionTimestamp != nil:
			deleted = later(deleted, end)
		default:
			ended = later(ended, end)
		}
	}
	if !deleted.IsZero() && !ended.After(later(waits, deleted)) {
		return deleted
	}
	return ended
}

// whyEnded is why a pod failed: kubelet ended it, such as for the size of an emptyDir, or did not take it, or a container failed.
func (x *state) whyEnded(pod *corev1.Pod) string {
	if pod.Status.Phase != corev1.PodFailed {
		return ""
	}
	why := x.containerWait(pod).detail
	if pod.Status.Reason != "" {
		why = x.foreign(joined(pod.Status.Reason, pod.Status.Message))
	}
	if why = strings.TrimRight(why, ". "); why != "" {
		why = ": " + why
	}
	return why
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
