package nodes

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodStatus(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	up := containerState{id: "belay://1", now: runningSince(now)}
	done := containerState{id: "belay://1", now: terminated("belay://1", started{PID: 1, At: now}, ended{At: now}), finished: true}
	failed := containerState{id: "belay://1", now: terminated("belay://1", started{PID: 1, At: now}, ended{ExitCode: 2, At: now}), finished: true}
	crashed := failed
	crashed.finished = false

	type want struct {
		Phase              corev1.PodPhase
		Initialized, Ready corev1.ConditionStatus
	}
	yes, no := corev1.ConditionTrue, corev1.ConditionFalse
	tests := map[string]struct {
		init, main []containerState
		want       want
	}{
		"volumes are not there yet":              {main: []containerState{{}, {}}, want: want{corev1.PodPending, yes, no}},
		"init container runs":                    {init: []containerState{up}, main: []containerState{{}}, want: want{corev1.PodPending, no, no}},
		"init container failed for good":         {init: []containerState{failed}, main: []containerState{{}}, want: want{corev1.PodFailed, no, no}},
		"one of two runs":                        {init: []containerState{done}, main: []containerState{up, {}}, want: want{corev1.PodRunning, yes, no}},
		"both run":                               {main: []containerState{up, up}, want: want{corev1.PodRunning, yes, yes}},
		"one crashed and will be started again":  {main: []containerState{up, crashed}, want: want{corev1.PodRunning, yes, no}},
		"all crashed and will be started again":  {main: []containerState{crashed}, want: want{corev1.PodRunning, yes, no}},
		"one is done, the other runs":            {main: []containerState{done, up}, want: want{corev1.PodRunning, yes, no}},
		"all are done":                           {main: []containerState{done, done}, want: want{corev1.PodSucceeded, yes, no}},
		"all have ended, one of them in failure": {main: []containerState{done, failed}, want: want{corev1.PodFailed, yes, no}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			state := podState{began: now, containers: map[string]containerState{}}
			add := func(prefix string, states []containerState) (containers []corev1.Container) {
				for i, s := range states {
					name := prefix + string(rune('a'+i))
					containers = append(containers, corev1.Container{Name: name})
					state.containers[name] = s
				}
				return containers
			}
			pod.Spec.InitContainers, pod.Spec.Containers = add("init-", test.init), add("main-", test.main)
			status := podStatus(pod, loopbackIP, state, now)
			got := want{Phase: status.Phase}
			for _, condition := range status.Conditions {
				switch condition.Type {
				case corev1.PodInitialized:
					got.Initialized = condition.Status
				case corev1.PodReady:
					got.Ready = condition.Status
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestPodStatusKeepsForeignConditionsAndTransitionTimes(t *testing.T) {
	early := metav1.NewTime(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	late := early.Add(time.Minute)
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}, Status: corev1.PodStatus{
		StartTime: &early,
		Conditions: []corev1.PodCondition{
			{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: early},
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: early},
			{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ContainersNotReady", LastTransitionTime: early},
		},
	}}
	state := podState{mounted: true, containers: map[string]containerState{"c": {id: "belay://c", now: runningSince(late)}}}
	status := podStatus(pod, loopbackIP, state, late)
	got := map[corev1.PodConditionType]time.Time{}
	for _, condition := range status.Conditions {
		got[condition.Type] = condition.LastTransitionTime.Time
	}
	want := map[corev1.PodConditionType]time.Time{
		corev1.DisruptionTarget: early.Time, corev1.PodScheduled: early.Time, corev1.PodReady: late,
		corev1.ContainersReady: late, corev1.PodInitialized: late, corev1.PodReadyToStartContainers: late,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if !status.StartTime.Equal(&early) {
		t.Errorf("start time %v, was %v", status.StartTime, early)
	}
}
