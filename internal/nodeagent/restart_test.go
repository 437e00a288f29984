package nodeagent

import (
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/testing/wait"
)

// TestRestartDuringEachStep stops the agent while the driver executes one call, and starts another agent on the same
// root. Whether the pod is still wanted then or not, its volume ends up mounted or unmounted accordingly, and is in use
// until its unstage is confirmed.
func TestRestartDuringEachStep(t *testing.T) {
	tests := map[string]struct {
		method string
		done   bool // the driver did its work before the agent died
		wanted bool // the pod is wanted after the restart
	}{
		"stage not begun, pod wanted":   {"Stage", false, true},
		"stage not begun, pod gone":     {"Stage", false, false},
		"staged unheard, pod wanted":    {"Stage", true, true},
		"staged unheard, pod gone":      {"Stage", true, false},
		"publish not begun, pod wanted": {"Publish", false, true},
		"publish not begun, pod gone":   {"Publish", false, false},
		"published unheard, pod wanted": {"Publish", true, true},
		"published unheard, pod gone":   {"Publish", true, false},
		"unpublish not begun":           {"Unpublish", false, false},
		"unpublished unheard":           {"Unpublish", true, false},
		"unstage not begun":             {"Unstage", false, false},
		"unstaged unheard":              {"Unstage", true, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			handle := w.volume("data")
			reached, dead := w.stopsIn(test.method, test.done)
			agent, stop := w.agent()
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			w.untilInUse(handle)
			w.attach(handle)
			if test.method == "Unpublish" || test.method == "Unstage" {
				w.mounted(agent, pod)
				agent.RemovePod(pod.UID)
			}
			wait.For(t, "the call to arrive", reached)
			stop()
			close(dead)
			w.afterRestart(pod, handle, test.wanted)
		})
	}
}

// stopsIn has the first call of a method wait, before the driver has started or after it has done its work: reached is
// closed when the call has come that far, and its answer is lost once dead is closed.
func (w *world) stopsIn(method string, done bool) (reached, dead chan struct{}) {
	reached, dead = make(chan struct{}), make(chan struct{})
	var once sync.Once
	stopHere := func(called, _ string, attempt int) error {
		if called != method || attempt > 1 {
			return nil
		}
		once.Do(func() { close(reached) })
		<-dead
		return status.Error(codes.Unavailable, "nobody listens")
	}
	if done {
		w.driver.After = stopHere
	} else {
		w.driver.Before = stopHere
	}
	return reached, dead
}

// afterRestart is what must hold of a new agent, and come about with it.
func (w *world) afterRestart(pod *corev1.Pod, handle string, wanted bool) {
	w.Helper()
	if !slices.Contains(w.node().Status.VolumesInUse, w.unique(handle)) {
		w.Error("S7: the agent died in the middle of a call and the volume is not in use")
	}
	agent, _ := w.agent()
	if wanted {
		agent.SetPod(pod)
	}
	agent.PodsSynced()
	if wanted {
		w.mounted(agent, pod)
		agent.RemovePod(pod.UID)
	}
	w.unmounted(agent, pod)
	w.untilNotInUse(handle)
	if points, _ := w.driver.MountPoints(); len(points) > 0 {
		w.Errorf("still mounted: %v", points)
	}
	w.untilNothingIsLeft()
}
