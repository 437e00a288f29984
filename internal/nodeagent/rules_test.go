package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	watchtools "k8s.io/client-go/tools/watch"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/wait"
)

// untilEvent waits for an event about a pod that holds all the words.
func (w *world) untilEvent(pod *corev1.Pod, words ...string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, wait.Timeout)
	defer cancel()
	holds := func(e *corev1.Event) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(e.Reason+": "+e.Message, word) })
	}
	events := following(w.admin.CoreV1().Events(w.name), "involvedObject.uid", string(pod.UID))
	_, err := watchtools.UntilWithSync(ctx, events, &corev1.Event{}, nil, func(event watch.Event) (bool, error) {
		e, ok := event.Object.(*corev1.Event)
		return ok && event.Type != watch.Deleted && holds(e), nil
	})
	if err == nil {
		return
	}
	list, listErr := w.admin.CoreV1().Events(w.name).List(w.ctx, metav1.ListOptions{})
	must(w, listErr)
	var told []string
	for _, e := range list.Items {
		told = append(told, e.Reason+": "+e.Message)
	}
	w.Fatalf("pod %s has no event with %q (%v); there are %q", pod.Name, words, err, told)
}

// waitFails waits for a pod's volumes for a short time, requires that the wait fails, and returns its error.
func (w *world) waitFails(agent *Agent, pod *corev1.Pod) error {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, 200*time.Millisecond)
	defer cancel()
	mounts, err := agent.WaitMounted(ctx, pod.UID)
	if err == nil {
		w.Fatalf("pod %s is mounted: %v", pod.Name, mounts)
	}
	return err
}

// waitSays waits for a pod's volumes until the wait fails with one of the texts.
func (w *world) waitSays(agent *Agent, pod *corev1.Pod, texts ...string) error {
	w.Helper()
	var err error
	wait.Until(w, fmt.Sprintf("the wait for pod %s fails with one of %q", pod.Name, texts), func() bool {
		err = w.waitFails(agent, pod)
		return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(err.Error(), text) })
	})
	return err
}

func noAttach(d *storagev1.CSIDriver) { d.Spec.AttachRequired = new(false) }

func TestDriverWithoutAttachNeedsNoHandshake(t *testing.T) {
	w := newWorld(t, noAttach)
	w.volume("data")
	agent, _ := w.agent()
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	if got := csidriver.LastRequest[*csispec.NodeStageVolumeRequest](w.driver).PublishContext; len(got) > 0 {
		t.Errorf("publish context %v", got)
	}
	if got := w.node().Status.VolumesInUse; len(got) > 0 {
		t.Errorf("in use: %v", got)
	}
	agent.RemovePod(pod.UID)
	w.unmounted(agent, pod)
	wait.Until(w, "all is undone", func() bool { return len(w.driver.Made()) == 4 && len(agent.Pods()) == 0 })
}

func TestRequestsOfDriver(t *testing.T) {
	w := newWorld(t, noAttach, func(d *storagev1.CSIDriver) { d.Spec.PodInfoOnMount = new(true) })
	w.driver.NodeServices = append(w.driver.NodeServices, csispec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER, csispec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
	_, err := w.admin.CoreV1().Secrets(w.name).Create(w.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "key"}, StringData: map[string]string{"password": "hunter2"},
	}, metav1.CreateOptions{})
	must(t, err)
	w.volume("data", func(pv *corev1.PersistentVolume) {
		pv.Spec.MountOptions = []string{"noatime"}
		pv.Spec.CSI.FSType = "xfs"
		pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: w.name, Name: "key"}
		pv.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: w.name, Name: "key"}
	})
	agent, _ := w.agent()
	pod := w.podWith("p", func(p *corev1.Pod) {
		p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
		p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(3000))}
		p.Spec.ServiceAccountName = "robot"
	}, "data")
	agent.SetPod(pod)
	if mounts := w.mounted(agent, pod); !mounts[0].ReadOnly {
		t.Errorf("mount is not read-only: %+v", mounts)
	}
	staged, published := csidriver.LastRequest[*csispec.NodeStageVolumeRequest](w.driver), csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver)
	capability := &csispec.VolumeCapability{
		AccessMode: &csispec.VolumeCapability_AccessMode{Mode: csispec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		AccessType: &csispec.VolumeCapability_Mount{Mount: &csispec.VolumeCapability_MountVolume{
			FsType: "xfs", MountFlags: []string{"noatime"}, VolumeMountGroup: "3000",
		}},
	}
	for name, got := range map[string]*csispec.VolumeCapability{"stage": staged.VolumeCapability, "publish": published.VolumeCapability} {
		if diff := cmp.Diff(capability, got, protocmp.Transform()); diff != "" {
			t.Errorf("capability at %s (-want +got):\n%s", name, diff)
		}
	}
	for name, got := range map[string]map[string]string{"stage": staged.Secrets, "publish": published.Secrets} {
		if got["password"] != "hunter2" {
			t.Errorf("no secret at %s", name)
		}
	}
	if diff := cmp.Diff(map[string]string{"pool": "fast"}, staged.VolumeContext); diff != "" {
		t.Errorf("volume context at stage (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{
		"pool": "fast", "csi.storage.k8s.io/pod.name": "p", "csi.storage.k8s.io/pod.namespace": w.name, "csi.storage.k8s.io/pod.uid": string(pod.UID),
		"csi.storage.k8s.io/serviceAccount.name": "robot", "csi.storage.k8s.io/ephemeral": "false",
	}, published.VolumeContext); diff != "" {
		t.Errorf("volume context at publish (-want +got):\n%s", diff)
	}
	if !published.Readonly {
		t.Error("published writable")
	}
}

func TestBlockVolume(t *testing.T) {
	w := newWorld(t)
	handle := w.volume("disk", func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) })
	agent, stop := w.agent()
	pod := w.podWith("p", func(p *corev1.Pod) {
		p.Spec.Containers[0].VolumeMounts = nil
		p.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "disk", DevicePath: "/dev/xvda"}}
	}, "disk")
	full := w.name + "-disk"
	devices := filepath.Join(w.root, "plugins/kubernetes.io/csi/volumeDevices")
	target := filepath.Join(devices, "publish", full, string(pod.UID))
	if diff := cmp.Diff([]Mount{{VolumeName: "disk", Path: target, Block: true}}, placesOf(w.bringUp(agent, pod, handle))); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	if got := csidriver.LastRequest[*csispec.NodeStageVolumeRequest](w.driver).StagingTargetPath; got != filepath.Join(devices, "staging", full) {
		t.Errorf("staging path %s", got)
	}
	link, err := os.Readlink(filepath.Join(w.root, "pods", string(pod.UID), "volumeDevices/kubernetes.io~csi", full))
	must(t, err)
	if link != target {
		t.Errorf("the pod's device links to %s", link)
	}
	wantData(t, filepath.Join(devices, full, "data", volumeData), map[string]string{
		"attachmentID": "csi-" + hash(handle+w.driverName()+w.name), "driverName": w.driverName(), "nodeName": w.name, "specVolID": full, "volumeHandle": handle,
	})
	stop()
	agent, _ = w.agent() // unmounted from the records alone
	agent.PodsSynced()
	w.unmounted(agent, pod)
	w.untilNotInUse(handle)
	w.untilNothingIsLeft()
}

func TestTwoPodsShareAVolume(t *testing.T) {
	w := newWorld(t)
	handle := w.volume("data")
	agent, _ := w.agent()
	first, second := w.pod("first", "data"), w.pod("second", "data")
	agent.SetPod(second)
	w.bringUp(agent, first, handle)
	w.mounted(agent, second)
	agent.RemovePod(first.UID)
	w.unmounted(agent, first)
	if got := w.detach(handle); !errors.Is(got, errStillInUse) {
		t.Errorf("detach while the second pod runs: %v, want %v", got, errStillInUse)
	}
	agent.RemovePod(second.UID)
	w.untilNotInUse(handle)
	if diff := cmp.Diff([]string{"Stage data", "Publish data", "Publish data", "Unpublish data", "Unpublish data", "Unstage data"}, w.driver.Made()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestReadWriteOncePodHoldsTheSecondPodBack(t *testing.T) {
	w := newWorld(t, noAttach)
	w.volume("data", func(pv *corev1.PersistentVolume) {
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	})
	agent, _ := w.agent()
	first, second := w.pod("first", "data"), w.pod("second", "data")
	agent.SetPod(first)
	w.mounted(agent, first)
	agent.SetPod(second)
	w.waitSays(agent, second, "OtherPodMounted")
	agent.RemovePod(first.UID)
	w.mounted(agent, second)
}

func TestWaitNamesItsCondition(t *testing.T) {
	w := newWorld(t)
	handle := w.volume("data")
	agent, _ := w.agent()
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.untilInUse(handle)
	err := w.waitSays(agent, pod, "NotAttached")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the wait ends with %v, want the context's error in it", err)
	}
	for _, word := range []string{`volume "data"`, "Volume not attached according to node status"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the wait does not say %q: %v", word, err)
		}
	}
	// Reported, but the attachment is a different one: the event has the text that users match on.
	must(t, w.report(handle, true))
	w.untilEvent(pod, "FailedMount", `MountVolume.WaitForAttach failed for volume "`+w.name+`-data" :`, "volume attachment")
	w.driver.SetBefore(func(string, string, int) error { return status.Error(codes.InvalidArgument, "no such pool") })
	w.attach(handle)
	w.untilEvent(pod, "FailedMount", `MountVolume.MountDevice failed for volume "`+w.name+`-data" :`, "no such pool")
}

func TestUnsupportedPodsAreRefused(t *testing.T) {
	w := newWorld(t, noAttach)
	w.volume("data")
	w.volume("raw", blockVolume)
	tests := map[string]struct {
		change func(*corev1.Pod)
		claims []string
		words  string
		atOnce bool
	}{
		"device": {func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts = nil
			p.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}}
		}, []string{"data"}, "has volumeMode Filesystem, but is specified in volumeDevices", true},
		"mount": {nil, []string{"raw"}, "has volumeMode Block, but is specified in volumeMounts", true},
	}
	agent, _ := w.agent()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := w.podWith(name, test.change, test.claims...)
			agent.SetPod(pod)
			w.untilEvent(pod, "FailedMount", test.words)
			if err := w.waitSays(agent, pod, test.words); test.atOnce && strings.Contains(err.Error(), "deadline") {
				t.Errorf("the wait says: %v", err)
			}
		})
	}
}

func TestHangingCallBlocksOnlyItsVolume(t *testing.T) {
	w := newWorld(t, noAttach)
	hung := w.volume("hung")
	w.volume("free")
	release := make(chan struct{})
	w.driver.Before = func(_, volume string, attempt int) error {
		if volume == hung && attempt == 1 {
			<-release
		}
		return nil
	}
	agent, _ := w.agent()
	slow, fast := w.pod("slow", "hung"), w.pod("fast", "free")
	agent.SetPod(slow)
	wait.Until(w, "the call hangs", func() bool { return slices.Contains(w.driver.Made(), "Stage hung") })
	agent.SetPod(fast)
	w.mounted(agent, fast)
	close(release)
	w.mounted(agent, slow)
}

func TestRegistrationErrorsMatchKubelet(t *testing.T) {
	tests := map[string]struct {
		plugin *registration.PluginInfo
		want   string
	}{
		"no CSI plugin": {&registration.PluginInfo{Type: "DevicePlugin", Name: "x", SupportedVersions: []string{"1.0.0"}}, "no handler registered for plugin type: DevicePlugin"},
		"only 0.x":      {&registration.PluginInfo{Type: "CSIPlugin", Name: "x", SupportedVersions: []string{"0.3.0"}}, "plugin validation failed"},
		"only 2.x":      {&registration.PluginInfo{Type: "CSIPlugin", Name: "x", SupportedVersions: []string{"2.0.0"}}, "plugin validation failed"},
		"no versions":   {&registration.PluginInfo{Type: "CSIPlugin", Name: "x"}, "empty list for supported versions"},
		"hostile name":  {&registration.PluginInfo{Type: "CSIPlugin", Name: "../x", SupportedVersions: []string{"1.0.0"}}, "plugin validation failed"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.driver.Lock()
			w.driver.Plugin = test.plugin
			w.driver.Unlock()
			w.agent()
			if got := w.driver.Registered(); got.PluginRegistered || !strings.Contains(got.Error, test.want) {
				t.Errorf("notified of %+v, want %q", got, test.want)
			}
		})
	}
}

func TestRecreatedAttachmentIsStagedAgain(t *testing.T) {
	w := newWorld(t)
	first := w.live()
	// Detached by force while the volume is staged, and attached again.
	must(t, w.admin.StorageV1().VolumeAttachments().Delete(w.ctx, "csi-"+hash(first.handle+w.driverName()+w.name), metav1.DeleteOptions{}))
	w.attach(first.handle)
	second := w.pod("second", "data")
	first.agent.SetPod(second)
	w.waitSays(first.agent, second, string(nodevolume.AttachmentReplaced))
	first.agent.RemovePod(first.pod.UID)
	w.mounted(first.agent, second)
	if diff := cmp.Diff([]string{"Stage data", "Publish data", "Unpublish data", "Unstage data", "Stage data", "Publish data"}, w.driver.Made()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestReboot(t *testing.T) {
	w := newWorld(t)
	kept, gone := w.volume("kept"), w.volume("gone")
	agent, stop := w.agent()
	stays, leaves := w.pod("stays", "kept"), w.pod("leaves", "gone")
	w.bringUp(agent, stays, kept)
	w.bringUp(agent, leaves, gone)
	stop()
	w.driver.Lock()
	clear(w.driver.Mounts)
	clear(w.driver.Staged)
	w.driver.Unlock()
	w.driver.ForgetCalls()
	w.bootID = "boot-2"
	agent, _ = w.agent()
	agent.SetPod(stays)
	agent.PodsSynced()
	w.mounted(agent, stays)
	w.untilNotInUse(gone)
	calls := w.driver.Made()
	slices.Sort(calls)
	if diff := cmp.Diff([]string{"Publish kept", "Stage kept", "Unpublish gone", "Unstage gone"}, calls); diff != "" {
		t.Errorf("calls after the reboot (-want +got):\n%s", diff)
	}
}

func TestUnmountNeedsNoAPI(t *testing.T) {
	w := newWorld(t)
	l := w.live()
	l.stop()
	real := w.nodeID
	w.nodeID = &rest.Config{Host: "https://127.0.0.1:1"} // no server listens
	agent, stop := w.agent()
	agent.RemovePod(l.pod.UID)
	w.unmounted(agent, l.pod)
	wait.Until(w, "unstaged", func() bool { return slices.Contains(w.driver.Made(), "Unstage data") })
	if !slices.Contains(w.node().Status.VolumesInUse, w.unique(l.handle)) {
		t.Fatal("not in use, although no agent can have removed it")
	}
	stop()
	w.nodeID = real
	w.agent()
	w.untilNotInUse(l.handle)
}

func TestSecondAgentOnSameRootIsRefused(t *testing.T) {
	w := newWorld(t)
	_, stop := w.agent()
	config := Config{NodeName: w.name, Root: w.root, RESTConfig: w.nodeID, BootID: w.bootID}
	if _, err := New(config); !errors.Is(err, mount.ErrLocked) {
		t.Errorf("a second agent: %v, want %v", err, mount.ErrLocked)
	}
	stop()
	w.agent()
}

func TestTornRecordsForgetNothing(t *testing.T) {
	for name, damage := range map[string][]byte{"empty": {}, "cut off": []byte(`{"version":1,"kind":"st`)} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			l := w.live()
			l.stop()
			records, err := filepath.Glob(filepath.Join(w.root, recordsDir, "*.json"))
			must(t, err)
			if len(records) != 2 {
				t.Fatalf("records: %v", records)
			}
			for _, record := range records {
				must(t, os.WriteFile(record, damage, 0o600))
			}
			// Beside the records lie files that are not the agent's, where it looks for directories.
			for _, stray := range []string{"pods/stray", csiDir + "/stray", blockDir} {
				must(t, os.WriteFile(filepath.Join(w.root, stray), nil, 0o600))
			}
			agent, _ := w.agent()
			if got := agent.Pods(); len(got) != 1 || got[0] != l.pod.UID {
				t.Fatalf("pods known after the restart: %v", got)
			}
			if got := w.detach(l.handle); !errors.Is(got, errStillInUse) {
				t.Fatalf("detach while it is staged: %v, want %v", got, errStillInUse)
			}
			agent.PodsSynced()
			w.untilNotInUse(l.handle)
			if diff := cmp.Diff([]string{"Stage data", "Publish data", "Unpublish data", "Unstage data"}, w.driver.Made()); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{csiDir + "/stray", "pods/stray"}, w.leftovers()); diff != "" {
				t.Errorf("left behind (-want +got):\n%s", diff)
			}
		})
	}
}
