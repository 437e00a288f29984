package nodeagent

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAPodThatWaitsLongIsToldWhereAndSinceWhen: no call failed, and still nothing goes on.
func TestAPodThatWaitsLongIsToldWhereAndSinceWhen(t *testing.T) {
	tests := map[string]struct {
		change func(*storagev1.CSIDriver)
		wait   func(w *world, agent *Agent) *corev1.Pod
		words  []string
	}{
		"attached by nobody": {nil, func(w *world, agent *Agent) *corev1.Pod {
			handle := w.volume("data")
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			w.untilInUse(handle)
			return pod
		}, []string{"FailedMount: MountVolume.WaitForAttach failed", "waits in hop NotAttached", "Volume not attached according to node status"}},
		"a block volume": {nil, func(w *world, agent *Agent) *corev1.Pod {
			w.volume("data", func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) })
			pod := w.podWith("p", asDevice, "data")
			agent.SetPod(pod)
			return pod
		}, []string{"FailedMapVolume: MapVolume.WaitForAttach failed", "waits in hop NotAttached"}},
		"no driver": {noAttach, func(w *world, agent *Agent) *corev1.Pod {
			w.driver.stop()
			w.volume("data")
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			return pod
		}, []string{"FailedMount: MountVolume.MountDevice failed", "waits in hop DriverNotRegistered", "the driver is not registered on this node"}},
		"another pod has it for itself": {noAttach, func(w *world, agent *Agent) *corev1.Pod {
			w.volume("data", func(pv *corev1.PersistentVolume) {
				pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
			})
			first, second := w.pod("first", "data"), w.pod("second", "data")
			agent.SetPod(first)
			w.mounted(agent, first)
			agent.SetPod(second)
			return second
		}, []string{"FailedMount", "waits in hop OtherPodMounted", "volume uses the ReadWriteOncePod access mode and is already in use by another pod"}},
		"no claim": {noAttach, func(w *world, agent *Agent) *corev1.Pod {
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			return pod
		}, []string{"FailedMount: Unable to attach or mount volumes", "waits in hop ClaimNotReady", "not found"}},
		"the driver is gone before the unpublish": {noAttach, func(w *world, agent *Agent) *corev1.Pod {
			w.volume("data")
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			w.mounted(agent, pod)
			w.goneDriver(agent)
			agent.RemovePod(pod.UID)
			return pod
		}, []string{"FailedUnmount: UnmountVolume.TearDown waits", "in hop DriverNotRegistered", "the driver is not registered on this node"}},
		"the driver is gone before the unstage": {nil, func(w *world, agent *Agent) *corev1.Pod {
			handle := w.volume("data")
			pod := w.pod("p", "data")
			w.bringUp(agent, pod, handle)
			w.driver.intercept(func(call string, _ any, do func() (any, error)) (any, error) {
				if call == "NodeUnstageVolume" {
					return nil, status.Error(codes.Internal, "no luck")
				}
				return do()
			})
			agent.RemovePod(pod.UID)
			w.untilEvent(pod, "UnmountDevice failed")
			w.goneDriver(agent)
			return pod
		}, []string{"FailedUnmount: UnmountDevice waits", "in hop DriverNotRegistered", "the driver is not registered on this node"}},
	}
	since := regexp.MustCompile(` since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ: `)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var options []func(*storagev1.CSIDriver)
			if test.change != nil {
				options = append(options, test.change)
			}
			w := newWorld(t, options...)
			agent, _ := w.agent(func(c *Config) { c.longWait, c.patience = 500*time.Millisecond, 500*time.Millisecond })
			w.driver.registered()
			pod := test.wait(w, agent)
			w.untilEvent(pod, append(test.words, " since 20")...)
			events, err := w.admin.CoreV1().Events(w.name).List(w.ctx, metav1.ListOptions{})
			must(t, err)
			for _, e := range events.Items {
				if e.InvolvedObject.UID == pod.UID && e.Count > 3 {
					t.Errorf("told %d times: %s", e.Count, e.Message)
				}
				if regexp.MustCompile(`waits .*since`).MatchString(e.Message) && !since.MatchString(e.Message) {
					t.Errorf("no time in %q", e.Message)
				}
			}
		})
	}
}

// goneDriver stops the driver and waits until the agent knows.
func (w *world) goneDriver(agent *Agent) {
	w.driver.stop()
	w.until("the driver is gone", func() bool {
		agent.mu.Lock()
		defer agent.mu.Unlock()
		return agent.drivers[w.driverName()] == nil
	})
}

func TestNewsIsToldAtOnceAndTheRestNowAndThen(t *testing.T) {
	var last told
	begin := time.Unix(0, 0)
	var got []string
	for minute := range 50 {
		text := "first"
		if minute == 3 {
			text = "second"
		}
		if last.news(text, begin.Add(time.Duration(minute)*time.Minute)) {
			got = append(got, fmt.Sprintf("%d %s", minute, text))
		}
	}
	if want := "[0 first 3 second 4 first 24 first 44 first]"; fmt.Sprint(got) != want {
		t.Errorf("told %v, want %s", got, want)
	}
}
