package nodeagent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/testing/wait"
)

// script are the codes with which the calls of each kind end, in their order; those after fare well.
type script map[string][]codes.Code

const always = 1000 // times: more than a test waits for

func times(n int, c codes.Code) []codes.Code { return slices.Repeat([]codes.Code{c}, n) }

// plays has the driver play a script for all volumes.
func (w *world) plays(s script) {
	w.driver.SetBefore(func(method, _ string, attempt int) error {
		if list := s[method]; attempt <= len(list) && list[attempt-1] != codes.OK {
			return status.Error(list[attempt-1], "as the script says")
		}
		return nil
	})
}

// untilForgotten waits until the agent has forgotten all pods and volumes, and checks that nothing is left on disk or
// mounted.
func (w *world) untilForgotten(agent *Agent) {
	w.Helper()
	wait.Until(w, "all is forgotten", func() bool {
		agent.volumes.mu.Lock()
		defer agent.volumes.mu.Unlock()
		return len(agent.pods.uids()) == 0 && len(agent.volumes.all) == 0
	})
	if points, _ := w.driver.MountPoints(); len(points) > 0 {
		w.Errorf("still mounted: %v", points)
	}
	w.untilNothingIsLeft()
}

// callsAre compares the calls so far; repeated ones count once.
func (w *world) callsAre(want ...string) {
	w.Helper()
	if diff := cmp.Diff(want, slices.Compact(w.driver.Made())); diff != "" {
		w.Errorf("calls (-want +got):\n%s", diff)
	}
}

func blockVolume(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) }

// device has a pod use its volumes as devices.
func device(p *corev1.Pod) {
	for _, m := range p.Spec.Containers[0].VolumeMounts {
		p.Spec.Containers[0].VolumeDevices = append(p.Spec.Containers[0].VolumeDevices, corev1.VolumeDevice{Name: m.Name, DevicePath: "/dev/" + m.Name})
	}
	p.Spec.Containers[0].VolumeMounts = nil
}

// TestUpstreamNodeStageErrorCases are csi_node_stage_error_cases of upstream's e2e tests: a stage that fails, finally
// or not, and the calls after the pod is deleted.
func TestUpstreamNodeStageErrorCases(t *testing.T) {
	tests := map[string]struct {
		script script
		runs   bool
		want   []string
	}{
		"should call NodeUnstage after NodeStage success": {
			runs: true, want: []string{"Stage data", "Publish data", "Unpublish data", "Unstage data"},
		},
		"should retry NodeStage after NodeStage final error": {
			script: script{"Stage": times(2, codes.InvalidArgument)}, runs: true,
			want: []string{"Stage data", "Publish data", "Unpublish data", "Unstage data"},
		},
		"should retry NodeStage after NodeStage ephemeral error": {
			script: script{"Stage": times(2, codes.DeadlineExceeded)}, runs: true,
			want: []string{"Stage data", "Publish data", "Unpublish data", "Unstage data"},
		},
		"should call NodeUnstage after NodeStage ephemeral error": {
			script: script{"Stage": times(always, codes.DeadlineExceeded)}, want: []string{"Stage data", "Unstage data"},
		},
		"should not call NodeUnstage after NodeStage final error": {
			script: script{"Stage": times(always, codes.InvalidArgument)}, want: []string{"Stage data"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newAttachedWorld(t)
			w.volume("data")
			w.plays(test.script)
			agent, _ := w.agent()
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			if test.runs {
				w.mounted(agent, pod)
			} else {
				w.untilEvent(pod, "FailedMount", "MountVolume.MountDevice failed")
			}
			agent.RemovePod(pod.UID)
			w.untilForgotten(agent)
			w.callsAre(test.want...)
			if failing := len(test.script["Stage"]); test.runs && w.driver.Count("Stage", "") != failing+1 {
				t.Errorf("staged %d times, want %d", w.driver.Count("Stage", ""), failing+1)
			}
		})
	}
}

// TestUpstreamNodeUnstageErrorCases: a second pod comes while the unstage of the first one's volume fails, until that pod has
// the volume. Whether it is still staged is unknown then, so it is staged again.
func TestUpstreamNodeUnstageErrorCases(t *testing.T) {
	life := []string{"Stage data", "Publish data", "Unpublish data", "Unstage data"}
	for name, code := range map[string]codes.Code{
		"should call NodeStage after NodeUnstage success":                            codes.OK,
		"two pods: should call NodeStage after previous NodeUnstage final error":     codes.InvalidArgument,
		"two pods: should call NodeStage after previous NodeUnstage transient error": codes.DeadlineExceeded,
	} {
		t.Run(name, func(t *testing.T) {
			w := newAttachedWorld(t)
			w.volume("data")
			w.plays(script{"Unstage": times(always, code)})
			agent, _ := w.agent()
			first, second := w.pod("first", "data"), w.pod("second", "data")
			agent.SetPod(first)
			w.mounted(agent, first)
			agent.RemovePod(first.UID)
			wait.Until(w, "the first pod's volume was to be unstaged", func() bool { return w.driver.Count("Unstage", "") > 0 })
			if code != codes.OK {
				w.untilEvent(first, "FailedUnmount", "UnmountDevice failed")
			}
			agent.SetPod(second)
			w.mounted(agent, second)
			if w.callsAre(slices.Concat(life, life[:2])...); t.Failed() {
				return // rather than wait for the rest
			}
			w.plays(nil)
			agent.RemovePod(second.UID)
			w.untilForgotten(agent)
			w.callsAre(slices.Concat(life, life)...)
		})
	}
}

// TestUpstreamUncertainDeviceGlobalMounts: the calls at the end depend on what is known of the stage. Each case runs
// for a file system and for a device.
func TestUpstreamUncertainDeviceGlobalMounts(t *testing.T) {
	for name, test := range map[string]struct {
		script []codes.Code
		wait   int // for so many calls
		want   []string
	}{
		"timed out operations should result in device marked as uncertain": {
			times(always, codes.DeadlineExceeded), 1, []string{"Stage data", "Unstage data"},
		},
		"failed operation should result in not-mounted device": {
			times(always, codes.InvalidArgument), 1, []string{"Stage data"},
		},
		// Kubelet believes the refusal and calls nothing.
		"timeout followed by failed operation should result in non-mounted device": {
			slices.Concat(times(1, codes.DeadlineExceeded), times(always, codes.InvalidArgument)), 2, []string{"Stage data", "Unstage data"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newAttachedWorld(t)
			w.failsAndGoes("Stage", test.script, test.wait)
			w.callsAre(test.want...)
			w.driver.ForgetCalls()
			w.failsAndGoesAs("Stage", test.script, test.wait, "disk", blockVolume)
			w.callsAre(forDisk(test.want)...)
		})
	}
}

func forDisk(calls []string) []string {
	out := slices.Clone(calls)
	for i, call := range out {
		out[i] = call[:len(call)-len("data")] + "disk"
	}
	return out
}

// TestUpstreamUncertainVolumeMountState is the same for the publish.
func TestUpstreamUncertainVolumeMountState(t *testing.T) {
	for name, test := range map[string]struct {
		script []codes.Code
		wait   int
		want   []string
	}{
		"timed out operations should result in volume marked as uncertain": {
			times(always, codes.DeadlineExceeded), 1, []string{"Stage data", "Publish data", "Unpublish data", "Unstage data"},
		},
		"failed operation should result in not-mounted volume": {
			times(always, codes.InvalidArgument), 1, []string{"Stage data", "Publish data", "Unstage data"},
		},
		// Kubelet believes the refusal and does not unpublish.
		"timeout followed by failed operation should result in non-mounted volume": {
			slices.Concat(times(1, codes.DeadlineExceeded), times(always, codes.InvalidArgument)), 2,
			[]string{"Stage data", "Publish data", "Unpublish data", "Unstage data"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newAttachedWorld(t)
			w.failsAndGoes("Publish", test.script, test.wait)
			w.callsAre(test.want...)
			w.driver.ForgetCalls()
			w.failsAndGoesAs("Publish", test.script, test.wait, "disk", blockVolume)
			w.callsAre(forDisk(test.want)...)
		})
	}
}

func (w *world) failsAndGoes(method string, codes []codes.Code, failures int) {
	w.Helper()
	w.failsAndGoesAs(method, codes, failures, "data")
}

// failsAndGoesAs has a pod wait for a volume until so many calls have failed, and go.
func (w *world) failsAndGoesAs(method string, codes []codes.Code, failures int, name string, options ...volumeOptions) {
	w.Helper()
	w.volume(name, options...)
	w.plays(script{method: codes})
	agent, stop := w.agent()
	defer stop()
	var change func(*corev1.Pod)
	if len(options) > 0 {
		change = device
	}
	pod := w.podWith("p-"+name, change, name)
	agent.SetPod(pod)
	wait.Until(w, "the call has failed", func() bool { return agent.failuresOf(pod.UID) >= failures })
	agent.RemovePod(pod.UID)
	w.untilForgotten(agent)
}

// failuresOf counts what failed in a row for a pod.
func (a *Agent) failuresOf(uid types.UID) int {
	a.volumes.mu.Lock()
	defer a.volumes.mu.Unlock()
	for _, v := range a.volumes.all {
		for _, p := range v.pods {
			if p.Key.PodUID == string(uid) {
				return p.Failure.Count
			}
		}
	}
	return 0
}

// TestUpstreamMounterSetupJSONFileHandling: the file that drivers read stays for as long as
// something may be mounted beside it.
func TestUpstreamMounterSetupJSONFileHandling(t *testing.T) {
	for name, test := range map[string]struct {
		code  codes.Code
		stays bool
	}{
		"transient error should not remove json file": {codes.DeadlineExceeded, true},
		"final error should remove json file":         {codes.InvalidArgument, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newAttachedWorld(t)
			w.volume("data")
			w.plays(script{"Publish": times(always, test.code)})
			agent, _ := w.agent()
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			wait.Until(w, "the publish has failed", func() bool { return agent.failuresOf(pod.UID) >= 1 })
			there := func() bool { _, err := os.Stat(w.podData(pod)); return err == nil }
			if !test.stays { // it is there again during each further call
				wait.Until(w, volumeData+" is removed", func() bool { return !there() })
			} else if !there() {
				t.Errorf("%s was removed", volumeData)
			}
			w.plays(nil)
			w.mounted(agent, pod)
			if _, err := os.Stat(w.podData(pod)); err != nil {
				t.Errorf("mounted, and no %s: %v", volumeData, err)
			}
		})
	}
	t.Run("error in fsgroup permission change, should not remove json file", func(t *testing.T) {
		w := newAttachedWorld(t)
		handle := w.volume("data")
		agent, _ := w.agent(func(c *Config) {
			c.changeGroup = func(*mount.Root, context.Context, string, *mount.GroupChange) error { return errors.New("cannot") }
		})
		pod := w.podWith("p", withGroup(corev1.FSGroupChangeAlways), "data")
		agent.SetPod(pod)
		w.untilEvent(pod, "FailedMount", "applyFSGroup failed")
		if _, err := os.Stat(w.podData(pod)); err != nil {
			t.Errorf("mounted, and no %s: %v", volumeData, err)
		}
		agent.RemovePod(pod.UID)
		w.untilForgotten(agent)
		w.untilNotInUse(handle)
		w.callsAre("Stage data", "Publish data", "Unpublish data", "Unstage data")
	})
}

// podData is the file beside the target of the volume "data".
func (w *world) podData(pod *corev1.Pod) string {
	return filepath.Join(w.root, podVolumesDir(string(pod.UID)), w.name+"-data", volumeData)
}

// TestUpstreamMounterSetUpWithNodePublishFinalError: a publish that is refused leaves nothing,
// unless an earlier one may have done something.
func TestUpstreamMounterSetUpWithNodePublishFinalError(t *testing.T) {
	t.Run("setup with new volume", func(t *testing.T) {
		w := newAttachedWorld(t)
		w.failsAndGoes("Publish", times(always, codes.InvalidArgument), 1)
		w.callsAre("Stage data", "Publish data", "Unstage data")
	})
	t.Run("setup with reconstructed volume", func(t *testing.T) {
		w := newWorld(t)
		l := w.live()
		l.stop()
		w.driver.LoseMounts() // another process unmounted everything
		w.plays(script{"Publish": times(always, codes.InvalidArgument)})
		agent, _ := w.agent()
		agent.SetPod(l.pod)
		wait.Until(w, "the publish has failed", func() bool { return agent.failuresOf(l.pod.UID) > 0 })
		if _, err := os.Stat(w.podData(l.pod)); err != nil {
			t.Errorf("an earlier publish may stand, and its file is gone: %v", err)
		}
		agent.RemovePod(l.pod.UID)
		w.untilForgotten(agent)
		w.callsAre("Stage data", "Publish data", "Stage data", "Publish data", "Unpublish data", "Unstage data")
	})
}

// TestUpstreamMounterSetupWithStatusTracking: an error that comes before the driver was
// called changes nothing; one of the driver's may have.
func TestUpstreamMounterSetupWithStatusTracking(t *testing.T) {
	t.Run("setup with missing attachment should result in nochange", func(t *testing.T) {
		w := newWorld(t)
		handle := w.volume("data")
		agent, _ := w.agent()
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		w.untilInUse(handle)
		must(t, w.report(handle, true)) // and there is no VolumeAttachment
		w.untilEvent(pod, "FailedMount", "MountVolume.WaitForAttach failed", "volume attachment")
		if left := w.leftovers(); len(left) > 0 {
			t.Errorf("on disk: %v", left)
		}
		agent.RemovePod(pod.UID)
		w.untilForgotten(agent)
		w.callsAre()
	})
	t.Run("missing attachment of a volume that is staged", func(t *testing.T) {
		w := newWorld(t)
		l := w.live()
		// It is gone, and still reported.
		must(t, w.admin.StorageV1().VolumeAttachments().Delete(w.ctx, kube.AttachmentName(l.handle, w.driverName(), w.name), metav1.DeleteOptions{}))
		second := w.pod("second", "data")
		l.agent.SetPod(second)
		w.untilEvent(second, "FailedMount", "MountVolume.WaitForAttach failed", "volume attachment")
		w.callsAre("Stage data", "Publish data")
		l.agent.RemovePod(second.UID)
		w.unmounted(l.agent, second)
		w.mounted(l.agent, l.pod)
		w.callsAre("Stage data", "Publish data")
		if !slices.Contains(w.node().Status.VolumesInUse, w.unique(l.handle)) {
			t.Error("S7: staged, and not in use")
		}
	})
	t.Run("setup with missing secrets should result in nochange exit", func(t *testing.T) {
		w := newAttachedWorld(t)
		w.volume("data", func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: w.name, Name: "missing"}
		})
		agent, _ := w.agent()
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		w.untilEvent(pod, "FailedMount", "MountVolume.SetUp failed", "missing")
		agent.RemovePod(pod.UID)
		w.untilForgotten(agent)
		w.callsAre("Stage data", "Unstage data")
	})
	t.Run("setup with timeout errors on NodePublish", func(t *testing.T) {
		w := newAttachedWorld(t)
		w.failsAndGoes("Publish", times(always, codes.DeadlineExceeded), 1)
		w.callsAre("Stage data", "Publish data", "Unpublish data", "Unstage data")
	})
}

// TestUpstreamAttacherMountDevice are the cases that are not among the above.
func TestUpstreamAttacherMountDevice(t *testing.T) {
	t.Run("stage_unstage cap not set", func(t *testing.T) {
		w := newAttachedWorld(t)
		w.driver.NodeServices = nil
		w.volume("data")
		agent, _ := w.agent()
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		w.mounted(agent, pod)
		agent.RemovePod(pod.UID)
		w.untilForgotten(agent) // and no empty folder is left, as kubelet leaves one
		w.callsAre("Publish data", "Unpublish data")
	})
	t.Run("driver not specified", func(t *testing.T) {
		w := newAttachedWorld(t)
		w.driver.Stop()
		w.volume("data")
		agent, _ := w.agent()
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		wait.Until(w, "the pod waits for the driver", func() bool { return w.waitsFor(agent, pod, "DriverNotRegistered") })
		if left := w.leftovers(); len(left) > 0 {
			t.Errorf("on disk: %v", left)
		}
		w.driver.Start()
		w.mounted(agent, pod)
	})
	t.Run("failure PV with existing data", func(t *testing.T) {
		w := newAttachedWorld(t)
		handle := w.volume("data")
		// Files beside the stage are not the agent's, and something occupies the place of its file.
		beside := csiDir + "/" + w.driverName() + "/" + hash(handle)
		dir := filepath.Join(w.root, beside)
		must(t, os.MkdirAll(filepath.Join(dir, volumeData, "in the way"), 0o750))
		must(t, os.WriteFile(filepath.Join(dir, "newfile"), nil, 0o600))
		agent, _ := w.agent()
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		w.untilEvent(pod, "FailedMount", "MountVolume.MountDevice failed", volumeData)
		w.callsAre()
		must(t, os.RemoveAll(filepath.Join(dir, volumeData)))
		w.mounted(agent, pod)
		agent.RemovePod(pod.UID)
		w.untilNotInUse(handle)
		w.callsAre("Stage data", "Publish data", "Unpublish data", "Unstage data")
		if diff := cmp.Diff([]string{beside, beside + "/newfile"}, w.leftovers()); diff != "" {
			t.Errorf("on disk (-want +got):\n%s", diff)
		}
	})
}

// TestUpstreamAttacherUnmountDevice are the cases about the file beside the stage. Kubelet learns from it which volume to unstage; here
// the record tells.
func TestUpstreamAttacherUnmountDevice(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"json file doesn't exist": os.Remove,
		"invalid json":            func(path string) error { return os.WriteFile(path, []byte(`{"driverName"}}`), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newAttachedWorld(t)
			handle := w.volume("data")
			agent, stop := w.agent()
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			w.mounted(agent, pod)
			stop()
			must(t, damage(filepath.Join(w.root, csiDir, w.driverName(), hash(handle), volumeData)))
			agent, _ = w.agent()
			agent.PodsSynced()
			w.untilForgotten(agent)
			w.untilNotInUse(handle)
			w.callsAre("Stage data", "Publish data", "Unpublish data", "Unstage data")
		})
	}
}

// waitsFor says whether a pod waits for that.
func (w *world) waitsFor(agent *Agent, pod *corev1.Pod, reason string) bool {
	agent.volumes.mu.Lock()
	defer agent.volumes.mu.Unlock()
	for _, v := range agent.volumes.all {
		for key, hold := range v.waits {
			if key.PodUID == string(pod.UID) && string(hold.reason) == reason {
				return true
			}
		}
	}
	return false
}

// TestUnmountWaitsForTheDriver: a pod is deleted while its driver is away. No volume is forgotten, and all are
// unmounted when the driver is back (secrets-store-csi-driver#895).
func TestUnmountWaitsForTheDriver(t *testing.T) {
	w := newWorld(t)
	l := w.live()
	w.driver.Stop()
	wait.Until(w, "the driver is gone", func() bool {
		client, _ := l.agent.plugins.Registered(w.driverName())
		return client == nil
	})
	l.agent.RemovePod(l.pod.UID)
	wait.Until(w, "the volume waits for the driver", func() bool { return w.waitsFor(l.agent, l.pod, "DriverNotRegistered") })
	if got := w.detach(l.handle); got == nil {
		t.Error("detached while it is mounted")
	}
	w.driver.Start()
	w.untilForgotten(l.agent)
	w.untilNotInUse(l.handle)
	w.callsAre("Stage data", "Publish data", "Unpublish data", "Unstage data")
}
