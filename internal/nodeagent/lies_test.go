package nodeagent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// TestPublishOKWithoutMount is detected immediately: a container that runs on the directory below a missing mount
// writes to the node's own disk.
func TestPublishOKWithoutMount(t *testing.T) {
	tests := map[string]struct {
		block bool
		// lie replaces the driver's work.
		lie   func(target string) error
		event string
	}{
		"nothing":            {false, func(string) error { return nil }, "MountVolume.SetUp failed"},
		"an empty directory": {false, func(target string) error { return os.MkdirAll(target, 0o750) }, "MountVolume.SetUp failed"},
		"no device":          {true, func(string) error { return nil }, "MapVolume.MapPodDevice failed"},
		"a plain file":       {true, func(target string) error { return os.WriteFile(target, nil, 0o600) }, "MapVolume.MapPodDevice failed"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			var options []volumeOptions
			change := func(*corev1.Pod) {}
			if test.block {
				options = append(options, func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) })
				change = asDevice
			}
			handle := w.volume("data", options...)
			w.driver.Intercept(func(call string, request any, do func() (any, error)) (any, error) {
				if call != "NodePublishVolume" {
					return do()
				}
				return &csispec.NodePublishVolumeResponse{}, test.lie(request.(*csispec.NodePublishVolumeRequest).TargetPath)
			})
			agent, _ := w.agent()
			pod := w.podWith("p", change, "data")
			agent.SetPod(pod)
			w.untilInUse(handle)
			w.attach(handle)
			w.untilEvent(pod, "Failed", test.event, "returned OK", "mountPropagation")
			w.waitSays(agent, pod, "returned OK")
			w.driver.Intercept(nil) // it does its work from now on
			w.mounted(agent, pod)
			agent.RemovePod(pod.UID)
			w.untilNotInUse(handle)
			w.untilNothingIsLeft()
		})
	}
}

// TestPodDeletedAfterPublishOKWithoutMountIsUnpublished: the volume may be published nevertheless.
func TestPodDeletedAfterPublishOKWithoutMountIsUnpublished(t *testing.T) {
	w := newWorld(t)
	handle := w.volume("data")
	w.driver.Intercept(func(call string, _ any, do func() (any, error)) (any, error) {
		if call == "NodePublishVolume" {
			return &csispec.NodePublishVolumeResponse{}, nil
		}
		return do()
	})
	agent, _ := w.agent()
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.untilInUse(handle)
	w.attach(handle)
	w.untilEvent(pod, "MountVolume.SetUp failed", "returned OK")
	agent.RemovePod(pod.UID)
	w.untilNotInUse(handle)
	if diff := cmp.Diff([]string{"Stage data", "Unpublish data", "Unstage data"}, w.driver.Made()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// TestDriverPublishesSymlink: it mounts elsewhere, and the target links there. Kubelet accepts that.
func TestDriverPublishesSymlink(t *testing.T) {
	w := newWorld(t, noAttach)
	w.volume("data")
	elsewhere := t.TempDir()
	w.driver.Intercept(func(call string, request any, do func() (any, error)) (any, error) {
		if call == "NodePublishVolume" {
			return &csispec.NodePublishVolumeResponse{}, os.Symlink(elsewhere, request.(*csispec.NodePublishVolumeRequest).TargetPath)
		}
		return do()
	})
	agent, _ := w.agent()
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	mounts := w.mounted(agent, pod)
	if got, err := filepath.EvalSymlinks(mounts[0].Path); err != nil || got != elsewhere {
		t.Errorf("the volume is at %s, %v", got, err)
	}
	agent.RemovePod(pod.UID)
	w.unmounted(agent, pod)
	if _, err := os.Stat(elsewhere); err != nil {
		t.Errorf("the link's end was removed: %v", err)
	}
}

// TestUnmountOKWithoutEffect: the volume stays in use and its pod gets an event, until the volume is really unmounted.
func TestUnmountOKWithoutEffect(t *testing.T) {
	for _, test := range []struct{ call, event string }{
		{"NodeUnpublishVolume", "UnmountVolume.TearDown failed"},
		{"NodeUnstageVolume", "UnmountDevice failed"},
	} {
		t.Run(test.call, func(t *testing.T) {
			w := newWorld(t)
			l := w.live()
			w.driver.Intercept(func(call string, _ any, do func() (any, error)) (any, error) {
				switch {
				case call != test.call:
					return do()
				case call == "NodeUnpublishVolume":
					return &csispec.NodeUnpublishVolumeResponse{}, nil
				default:
					return &csispec.NodeUnstageVolumeResponse{}, nil
				}
			})
			l.agent.RemovePod(l.pod.UID)
			w.untilEvent(l.pod, "FailedUnmount", test.event+` for volume "`+w.name+`-data" :`, "a file system is still mounted on it", "returned OK", "stays in use")
			if !slices.Contains(w.node().Status.VolumesInUse, w.unique(l.handle)) {
				t.Error("S7: still mounted, and not in use")
			}
			w.driver.Intercept(nil)
			w.untilNotInUse(l.handle)
			w.untilNothingIsLeft()
		})
	}
}

// asDevice has a pod use its volume as a device.
func asDevice(p *corev1.Pod) {
	p.Spec.Containers[0].VolumeMounts = nil
	p.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: p.Spec.Volumes[0].Name, DevicePath: "/dev/xvda"}}
}
