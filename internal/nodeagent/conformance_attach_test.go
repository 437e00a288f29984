package nodeagent

import (
	"reflect"
	"slices"
	"sync"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/wait"
)

// csiDriver recreates the driver's CSIDriver.
func (w *world) csiDriver(change ...func(*storagev1.CSIDriver)) {
	w.Helper()
	object := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: w.driverName()}}
	for _, f := range change {
		f(object)
	}
	api := w.admin.StorageV1().CSIDrivers()
	if err := api.Delete(w.ctx, object.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
	_, err := api.Create(w.ctx, object, metav1.CreateOptions{})
	must(w, err)
}

func withAttach(d *storagev1.CSIDriver) { d.Spec.AttachRequired = new(true) }

// TestUpstreamAttachPolicy is csi_attach_volume of upstream's e2e tests, the node's part.
func TestUpstreamAttachPolicy(t *testing.T) {
	for name, test := range map[string]struct {
		driver   func(*storagev1.CSIDriver) // nil: there is no CSIDriver
		attached bool
	}{
		"should not require VolumeAttach for drivers without attachment": {noAttach, false},
		"should require VolumeAttach for drivers with attachment":        {withAttach, true},
		"should preserve attachment policy when no CSIDriver present":    {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if test.driver != nil {
				w.csiDriver(test.driver)
			}
			handle := w.volume("data")
			agent, _ := w.agent()
			pod := w.pod("p", "data")
			agent.SetPod(pod)
			if test.attached {
				w.waitSays(agent, pod, string(nodevolume.NotAttached))
				w.untilInUse(handle)
				w.callsAre()
				w.attach(handle)
			}
			w.mounted(agent, pod)
			if inUse := len(w.node().Status.VolumesInUse) > 0; inUse != test.attached {
				t.Errorf("in use: %v, want %v", inUse, test.attached)
			}
		})
	}
}

// TestUpstreamCSIDriverChanges is the rest of it: a CSIDriver that comes late, or changes its mind.
func TestUpstreamCSIDriverChanges(t *testing.T) {
	t.Run("should bringup pod after deploying CSIDriver attach=false", func(t *testing.T) {
		w := newWorld(t)
		handle := w.volume("data")
		agent, _ := w.agent()
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		w.untilInUse(handle)
		w.csiDriver(noAttach)
		w.mounted(agent, pod)
		w.untilNotInUse(handle) // so that the VolumeAttachment can go, while the pod runs
	})
	t.Run("should cleanup VolumeAttachment properly", func(t *testing.T) {
		w := newWorld(t, withAttach)
		handle := w.volume("data")
		agent, _ := w.agent()
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		w.untilInUse(handle)
		w.csiDriver(noAttach)
		w.mounted(agent, pod)
		w.untilNotInUse(handle)
	})
	t.Run("a stage without an answer, and then no attach is needed", func(t *testing.T) {
		w := newWorld(t, withAttach)
		handle := w.volume("data")
		agent, _ := w.agent()
		w.driver.SetBefore(func(method, _ string, _ int) error {
			if method == "Stage" && len(csidriver.LastRequest[*csispec.NodeStageVolumeRequest](w.driver).PublishContext) > 0 {
				return status.Error(codes.DeadlineExceeded, "nobody knows")
			}
			return nil
		})
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		w.untilInUse(handle)
		w.attach(handle)
		wait.Until(w, "the stage had no answer", func() bool { return agent.failuresOf(pod.UID) > 0 })
		w.csiDriver(noAttach)
		w.mounted(agent, pod)
		if got := w.detach(handle); got == nil {
			t.Error("detached, and the first stage may stand")
		}
		agent.RemovePod(pod.UID)
		w.untilNotInUse(handle)
	})
	t.Run("TestFindAndRemoveNonattachableVolumes", func(t *testing.T) {
		// A volume that was staged under the handshake stays in use: an unstage may need the attachment.
		w := newWorld(t, withAttach)
		l := w.live()
		w.csiDriver(noAttach)
		wait.Until(w, "the agent knows", func() bool { return l.agent.plugins.Rules(w.driverName()).AttachRequired == nodevolume.No })
		second := w.pod("second", "data")
		l.agent.SetPod(second)
		w.mounted(l.agent, second)
		if got := w.detach(l.handle); got == nil {
			t.Error("detached while it is staged")
		}
		l.agent.RemovePod(second.UID)
		l.agent.RemovePod(l.pod.UID)
		w.untilNotInUse(l.handle)
	})
}

// TestUpstreamMountControllerAttachEnabled is the reconciler's tests of the handshake.
func TestUpstreamMountControllerAttachEnabled(t *testing.T) {
	t.Run("Test_Run_Negative_VolumeMountControllerAttachEnabled", func(t *testing.T) {
		w := newWorld(t)
		handle := w.volume("data")
		agent, _ := w.agent()
		pod := w.pod("p", "data")
		agent.SetPod(pod)
		w.untilInUse(handle)
		w.waitFails(agent, pod)
		agent.RemovePod(pod.UID) // a volume that was never attached leaves as it came
		w.untilForgotten(agent)
		w.untilNotInUse(handle)
		w.callsAre()
	})
	t.Run("Test_Run_Positive_VolumeMountControllerAttachEnabledRace", func(t *testing.T) {
		// A pod comes while the last one's volume is unstaged: it is mounted again, and
		// stays in use all the time.
		w := newWorld(t)
		l := w.live()
		second := w.pod("second", "data")
		w.driver.Lock()
		set := make(chan struct{})
		var once sync.Once
		w.driver.Before = func(method, _ string, _ int) error {
			if method == "Unstage" {
				once.Do(func() { l.agent.SetPod(second); close(set) })
			}
			return nil
		}
		w.driver.Unlock()
		l.agent.RemovePod(l.pod.UID)
		<-set
		w.mounted(l.agent, second)
		if got := w.detach(l.handle); got == nil {
			t.Error("detached while it is mounted")
		}
		w.callsAre("Stage data", "Publish data", "Unpublish data", "Unstage data", "Stage data", "Publish data")
	})
}

// TestUpstreamWorkloadInformation is csi_workload of upstream's e2e tests.
func TestUpstreamWorkloadInformation(t *testing.T) {
	podInfo := func(is bool) func(*storagev1.CSIDriver) {
		return func(d *storagev1.CSIDriver) { d.Spec.PodInfoOnMount = &is }
	}
	for name, test := range map[string]struct {
		before, after []func(*storagev1.CSIDriver) // nil: there is no CSIDriver; after: it is not changed
		passed        bool
	}{
		"should be passed when podInfoOnMount=true":             {before: []func(*storagev1.CSIDriver){noAttach, podInfo(true)}, passed: true},
		"should not be passed when podInfoOnMount=false":        {before: []func(*storagev1.CSIDriver){noAttach, podInfo(false)}},
		"should not be passed when CSIDriver does not exist":    {},
		"should not be passed when update from true to false":   {before: []func(*storagev1.CSIDriver){noAttach, podInfo(true)}, after: []func(*storagev1.CSIDriver){podInfo(false)}},
		"should be passed when update from false to true":       {before: []func(*storagev1.CSIDriver){noAttach, podInfo(false)}, after: []func(*storagev1.CSIDriver){podInfo(true)}, passed: true},
		"should not be passed when podInfoOnMount is left open": {before: []func(*storagev1.CSIDriver){noAttach}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, test.before...)
			handle := w.volume("data")
			agent, _ := w.agent()
			if test.after != nil {
				w.updateCSIDriver(agent, test.after[0])
			}
			pod := w.podWith("p", func(p *corev1.Pod) { p.Spec.ServiceAccountName = "robot" }, "data")
			if test.before == nil {
				w.bringUp(agent, pod, handle)
			} else {
				agent.SetPod(pod)
				w.mounted(agent, pod)
			}
			want := map[string]string{"pool": "fast"}
			if test.passed {
				want = map[string]string{
					"pool": "fast", "csi.storage.k8s.io/pod.name": "p", "csi.storage.k8s.io/pod.namespace": w.name,
					"csi.storage.k8s.io/pod.uid": string(pod.UID), "csi.storage.k8s.io/serviceAccount.name": "robot", "csi.storage.k8s.io/ephemeral": "false",
				}
			}
			wantContext(t, "publish", want, csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver).VolumeContext)
			wantContext(t, "stage", map[string]string{"pool": "fast"}, csidriver.LastRequest[*csispec.NodeStageVolumeRequest](w.driver).VolumeContext)
		})
	}
}

// updateCSIDriver changes the driver's CSIDriver and waits until the agent has seen it.
func (w *world) updateCSIDriver(agent *Agent, change func(*storagev1.CSIDriver)) {
	w.Helper()
	api, before := w.admin.StorageV1().CSIDrivers(), agent.plugins.Rules(w.driverName())
	object, err := api.Get(w.ctx, w.driverName(), metav1.GetOptions{})
	must(w, err)
	change(object)
	_, err = api.Update(w.ctx, object, metav1.UpdateOptions{})
	must(w, err)
	wait.Until(w, "the agent has seen the CSIDriver", func() bool {
		return !reflect.DeepEqual(before, agent.plugins.Rules(w.driverName()))
	})
}

func wantContext(t *testing.T, of string, want, got map[string]string) {
	t.Helper()
	for key, value := range want {
		if got[key] != value {
			t.Errorf("context at %s: %s is %q, want %q", of, key, got[key], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("context at %s is %v, want %v", of, got, want)
	}
}

// TestUpstreamConcurrency: the operation executor's rules, and those of its pending
// operations: one call at a time for a volume, volumes side by side, and a back-off for
// each pod.
func TestUpstreamConcurrency(t *testing.T) {
	t.Run("one call at a time for a volume", func(t *testing.T) {
		w := newWorld(t, noAttach)
		var mu sync.Mutex
		flying := map[string]bool{}
		w.driver.Before = func(method, volume string, _ int) error {
			mu.Lock()
			defer mu.Unlock()
			if flying[volume] {
				t.Errorf("%s of volume %s while another call for it is under way", method, volume)
			}
			flying[volume] = true
			return nil
		}
		w.driver.After = func(_, volume string, _ int) error {
			mu.Lock()
			defer mu.Unlock()
			flying[volume] = false
			return nil
		}
		w.volume("one")
		w.volume("two")
		agent, _ := w.agent()
		pods := []*corev1.Pod{w.pod("a", "one", "two"), w.pod("b", "two", "one"), w.pod("c", "one")}
		for range 2 {
			for _, pod := range pods {
				agent.SetPod(pod)
			}
			for _, pod := range pods {
				w.mounted(agent, pod)
			}
			for _, pod := range pods {
				agent.RemovePod(pod.UID)
			}
			w.untilForgotten(agent)
		}
	})
	t.Run("volumes side by side", func(t *testing.T) {
		w := newWorld(t, noAttach)
		const volumes = 5
		var all sync.WaitGroup
		all.Add(volumes)
		w.driver.Before = func(method, _ string, attempt int) error {
			if method == "Stage" && attempt == 1 {
				all.Done()
				all.Wait() // no call returns until all have arrived
			}
			return nil
		}
		agent, _ := w.agent()
		names := []string{"v1", "v2", "v3", "v4", "v5"}
		for _, name := range names {
			w.volume(name)
		}
		pod := w.pod("p", names...)
		agent.SetPod(pod)
		w.mounted(agent, pod)
	})
	t.Run("a back-off for each pod", func(t *testing.T) {
		w := newWorld(t, noAttach)
		w.volume("data")
		agent, _ := w.agent()
		bad, good := w.podWith("bad", func(p *corev1.Pod) { p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true }, "data"), w.pod("good", "data")
		w.driver.SetBefore(func(method, _ string, _ int) error {
			if method == "Publish" && csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver).Readonly {
				return status.Error(codes.Internal, "not for this pod")
			}
			return nil
		})
		agent.SetPod(bad)
		wait.Until(w, "the first pod's publish has failed again and again", func() bool { return agent.failuresOf(bad.UID) >= 2 })
		agent.SetPod(good)
		w.mounted(agent, good)
		agent.RemovePod(good.UID)
		agent.RemovePod(bad.UID)
		w.untilForgotten(agent)
	})
}

// deletePod has a pod's object deleted while no agent runs, and its containers ended.
func (w *world) deletePod(pod *corev1.Pod, force bool) {
	w.Helper()
	seconds := new(int64(30))
	if force {
		seconds = new(int64(0))
	}
	must(w, w.admin.CoreV1().Pods(w.name).Delete(w.ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: seconds}))
	wait.Until(w, "the pod is gone", func() bool {
		got, err := w.admin.CoreV1().Pods(w.name).Get(w.ctx, pod.Name, metav1.GetOptions{})
		if err == nil && got.Status.Phase != corev1.PodSucceeded { // the part of the runtime, which ends the pod
			got.Status.Phase = corev1.PodSucceeded
			_, _ = w.admin.CoreV1().Pods(w.name).UpdateStatus(w.ctx, got, metav1.UpdateOptions{})
		}
		return err != nil || got.Status.Phase == corev1.PodSucceeded
	})
}

// writesListFor has the agent write the list of volumes in use, for a pod with a volume of this name.
func (w *world) writesListFor(agent *Agent, name string) {
	w.Helper()
	handle := w.volume(name)
	agent.SetPod(w.pod("for-"+name, name))
	w.untilInUse(handle)
}

// TestUpstreamRestarts are upstream's disruptive tests and those of the reconstruction: what
// becomes of volumes whose pods stayed, or went, while the agent was down.
func TestUpstreamRestarts(t *testing.T) {
	for name, test := range map[string]struct{ removed, force, next bool }{
		"written before kubelet restart is readable after restart":                            {},
		"deleted while the kubelet is down cleans up when the kubelet returns":                {removed: true},
		"force deleted while the kubelet is down cleans up when the kubelet returns":          {removed: true, force: true},
		"deleted while the kubelet is down is usable by a new pod when kubelet returns":       {removed: true, next: true},
		"force deleted while the kubelet is down is usable by a new pod when kubelet returns": {removed: true, force: true, next: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			l := w.live()
			l.stop()
			if test.removed {
				w.deletePod(l.pod, test.force)
			}
			var next *corev1.Pod
			if test.next {
				next = w.pod("next", "data")
			}
			agent, _ := w.agent()
			go agent.FollowPods(w.ctx)
			switch {
			case test.next:
				w.unmounted(agent, l.pod)
				if points, _ := w.driver.MountPoints(); slices.Contains(points, w.target(l.pod)) {
					t.Errorf("still mounted for the pod that is gone: %v", points)
				}
				wait.Until(w, "the new pod is known", func() bool { return slices.Contains(agent.Pods(), next.UID) })
				w.mounted(agent, next)
			case test.removed:
				w.untilNotInUse(l.handle)
				w.callsAre("Stage data", "Publish data", "Unpublish data", "Unstage data")
				w.untilNothingIsLeft()
			default:
				wait.Until(w, "the pod is wanted", func() bool {
					agent.pods.mu.Lock()
					defer agent.pods.mu.Unlock()
					p := agent.pods.known[l.pod.UID]
					return p != nil && p.resolved && agent.pods.followed
				})
				w.mounted(agent, l.pod)
				w.callsAre("Stage data", "Publish data") // mounted all the time
			}
		})
	}
	t.Run("should not umount volume when the pvc is terminating but still used by a running pod", func(t *testing.T) {
		w := newWorld(t)
		l := w.live()
		claims := w.admin.CoreV1().PersistentVolumeClaims(w.name)
		claim, err := claims.Get(w.ctx, "data", metav1.GetOptions{})
		must(t, err)
		claim.Finalizers = []string{"kubernetes.io/pvc-protection"}
		_, err = claims.Update(w.ctx, claim, metav1.UpdateOptions{})
		must(t, err)
		must(t, claims.Delete(w.ctx, "data", metav1.DeleteOptions{}))
		l.stop()
		agent, _ := w.agent()
		agent.SetPod(l.pod)
		agent.PodsSynced()
		w.mounted(agent, l.pod)
		w.callsAre("Stage data", "Publish data")
	})
	t.Run("TestReconstructedVolumeShouldUnmountSucceedAfterSetupFailed", func(t *testing.T) {
		w := newWorld(t)
		l := w.live()
		l.stop()
		w.driver.LoseMounts()
		w.plays(script{"Stage": times(always, codes.DeadlineExceeded)})
		agent, _ := w.agent()
		agent.SetPod(l.pod)
		wait.Until(w, "the stage has failed", func() bool { return agent.failuresOf(l.pod.UID) > 0 })
		agent.RemovePod(l.pod.UID)
		w.untilForgotten(agent)
		w.untilNotInUse(l.handle)
		w.callsAre("Stage data", "Publish data", "Stage data", "Unpublish data", "Unstage data")
	})
	t.Run("TestReconcileWithUpdateReconstructedFromAPIServer", func(t *testing.T) {
		// The volume is found on disk: it is not removed from the list before the Node has been read.
		w := newWorld(t)
		l := w.live()
		l.stop()
		agent, _ := w.agent()
		wait.Until(w, "the Node has been read", agent.status.Started)
		w.writesListFor(agent, "other")
		if got := w.detach(l.handle); got == nil {
			t.Error("detached while it is mounted and the pod's owner is silent")
		}
		w.callsAre("Stage data", "Publish data")
	})
}
