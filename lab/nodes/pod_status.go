package nodes

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons that users know from kubelet.
const (
	reasonCreating   = "ContainerCreating"
	reasonBackOff    = "CrashLoopBackOff"
	reasonConfig     = "CreateContainerConfigError"
	reasonStartError = "StartError"
	reasonCompleted  = "Completed"
	reasonError      = "Error"
)

// containerState is one container of a pod as its worker knows it.
type containerState struct {
	// id is "belay://" and the container's directory name; empty before the first start.
	id string
	// restarts is the number of the present attempt, counted from 0.
	restarts int32
	// now and last are the present state and how the attempt before it ended.
	now, last corev1.ContainerState
	// finished says that it will not be started again.
	finished bool
}

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// terminated is the state of a container that has ended.
func terminated(id string, start started, end ended) corev1.ContainerState {
	reason := reasonError
	switch {
	case end.Problem != "" && start.PID == 0:
		reason = reasonStartError
	case end.ExitCode == 0:
		reason = reasonCompleted
	}
	begin := start.At
	if begin.IsZero() {
		begin = end.At
	}
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: int32(end.ExitCode), Reason: reason, Message: end.Problem,
		StartedAt: metav1.NewTime(begin), FinishedAt: metav1.NewTime(end.At), ContainerID: id,
	}}
}

func (s containerState) succeeded() bool {
	return s.finished && s.now.Terminated != nil && s.now.Terminated.ExitCode == 0
}

// podState is all that the status of a pod is made from.
type podState struct {
	began time.Time
	// mounted says that all volumes are there.
	mounted bool
	// containers holds the states of all containers, the init containers too, by name.
	containers map[string]containerState
}

// podStatus is the status of a pod on the node at address, made from what its worker knows and from what
// others wrote: conditions that are not ours are kept.
func podStatus(pod *corev1.Pod, address string, state podState, now time.Time) corev1.PodStatus {
	status := *pod.Status.DeepCopy()
	status.HostIP, status.PodIP = address, address
	status.HostIPs = []corev1.HostIP{{IP: address}}
	status.PodIPs = []corev1.PodIP{{IP: address}}
	if status.StartTime == nil {
		status.StartTime = &metav1.Time{Time: state.began}
	}
	status.InitContainerStatuses = containerStatuses(pod.Spec.InitContainers, state)
	for i, s := range status.InitContainerStatuses {
		// A completed init container counts as ready; a completed container does not.
		status.InitContainerStatuses[i].Ready = state.containers[s.Name].succeeded()
	}
	status.ContainerStatuses = containerStatuses(pod.Spec.Containers, state)
	status.Phase = podPhase(pod, state)

	initialized := allOf(pod.Spec.InitContainers, state, containerState.succeeded)
	ready := allOf(pod.Spec.Containers, state, func(s containerState) bool { return s.now.Running != nil })
	notReady := "ContainersNotReady"
	if status.Phase == corev1.PodSucceeded {
		notReady = "PodCompleted"
	}
	for _, condition := range []corev1.PodCondition{
		{Type: corev1.PodReadyToStartContainers, Status: conditionStatus(state.mounted)},
		{Type: corev1.PodInitialized, Status: conditionStatus(initialized), Reason: reasonUnless(initialized, "ContainersNotInitialized")},
		{Type: corev1.ContainersReady, Status: conditionStatus(ready), Reason: reasonUnless(ready, notReady)},
		{Type: corev1.PodReady, Status: conditionStatus(ready), Reason: reasonUnless(ready, notReady)},
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
	} {
		status.Conditions = setCondition(status.Conditions, condition, now)
	}
	return status
}

func conditionStatus(holds bool) corev1.ConditionStatus {
	if holds {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}

func reasonUnless(holds bool, reason string) string {
	if holds {
		return ""
	}
	return reason
}

// setCondition changes the time of transition only with the status.
func setCondition(conditions []corev1.PodCondition, want corev1.PodCondition, now time.Time) []corev1.PodCondition {
	want.LastTransitionTime = metav1.NewTime(now)
	i := slices.IndexFunc(conditions, func(c corev1.PodCondition) bool { return c.Type == want.Type })
	if i < 0 {
		return append(conditions, want)
	}
	if conditions[i].Status == want.Status {
		want.LastTransitionTime = conditions[i].LastTransitionTime
	}
	want.ObservedGeneration = conditions[i].ObservedGeneration
	conditions[i] = want
	return conditions
}

func allOf(containers []corev1.Container, state podState, holds func(containerState) bool) bool {
	return !slices.ContainsFunc(containers, func(c corev1.Container) bool { return !holds(state.containers[c.Name]) })
}

// podPhase is as the API documents it (corev1.PodPhase).
func podPhase(pod *corev1.Pod, state podState) corev1.PodPhase {
	begun, failed := false, false
	for _, c := range pod.Spec.InitContainers {
		s := state.containers[c.Name]
		if s.finished && !s.succeeded() {
			return corev1.PodFailed
		}
	}
	finished := true
	for _, c := range pod.Spec.Containers {
		s := state.containers[c.Name]
		begun = begun || s.id != ""
		failed = failed || s.finished && !s.succeeded()
		finished = finished && s.finished
	}
	switch {
	case finished && failed:
		return corev1.PodFailed
	case finished:
		return corev1.PodSucceeded
	case begun:
		return corev1.PodRunning
	default:
		return corev1.PodPending
	}
}

func containerStatuses(containers []corev1.Container, state podState) []corev1.ContainerStatus {
	var statuses []corev1.ContainerStatus
	for _, c := range containers {
		s := state.containers[c.Name]
		if s.now == (corev1.ContainerState{}) {
			s.now = waiting(reasonCreating, "")
		}
		running := s.now.Running != nil
		statuses = append(statuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: c.Image, ContainerID: s.id,
			State: s.now, LastTerminationState: s.last, RestartCount: s.restarts,
			Ready: running, Started: &running,
		})
	}
	return statuses
}
