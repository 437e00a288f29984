package diagnosis

import (
	"slices"
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
// have it. For a container that waits for a restart, the end of its last run counts. A pod that was deleted has not ended before that: until then
// its containers could start again, and a kubelet writes the phase Failed or Succeeded for it too (k/k v1.36.3 pkg/kubelet/kubelet.go:
// SyncTerminatedPod).
func containersEnd(pod *corev1.Pod) (last time.Time, field string) {
	if kube.ContainersRun(pod) {
		return time.Time{}, ""
	}
	ended := func(t *corev1.ContainerStateTerminated, of string) bool {
		if t != nil && t.FinishedAt.After(last) {
			last, field = t.FinishedAt.Time, of
		}
		return t != nil
	}
	all := true
	for _, c := range pod.Status.InitContainerStatuses {
		_ = ended(c.State.Terminated, endOfContainer) || ended(c.LastTerminationState.Terminated, endOfLastRun)
	}
	for _, c := range pod.Status.ContainerStatuses {
		all = (ended(c.State.Terminated, endOfContainer) || ended(c.LastTerminationState.Terminated, endOfLastRun)) && all
	}
	if at := deletedAt(pod); at.After(last) {
		return at, endByDeletion
	}
	if !all && pod.DeletionTimestamp == nil {
		return time.Time{}, ""
	}
	return last, field
}

// endOf is containersEnd, unless that time is in the future: a node whose clock is ahead writes such times. A pod that was deleted counts as ended
// when its grace period is over.
func (x *state) endOf(pod *corev1.Pod) time.Time {
	end, _ := containersEnd(pod)
	switch at := pod.DeletionTimestamp; {
	case !end.After(x.Now):
		return end
	case at == nil:
		return time.Time{}
	case at.Time.Before(x.Now):
		return at.Time
	}
	return x.Now
}

// unneededSince is since when no pod needs a volume on a node. Without a pod that shows it, since another pod waits for it. The end of a pod that was
// not deleted counts only if it came later: pods of which nothing is left may have used the volume after it.
func (x *state) unneededSince(key attachment.VolumeKey, node string, waits time.Time) time.Time {
	var deleted, ended []time.Time
	for _, u := range x.uses[key] {
		switch {
		case u.pod.Spec.NodeName != node || !kube.PodEnded(u.pod):
		case u.pod.DeletionTimestamp != nil:
			deleted = append(deleted, later(x.endOf(u.pod), deletedAt(u.pod)))
		default:
			ended = append(ended, x.endOf(u.pod))
		}
	}
	if len(deleted) > 0 {
		waits = slices.MaxFunc(deleted, time.Time.Compare)
	}
	return slices.MaxFunc(append(ended, waits), time.Time.Compare)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
