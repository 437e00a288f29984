package nodeagent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

// linkForReal has the driver mount a file system outside of the root when it publishes a volume, and publish a symbolic link to it.
func (w *world) linkForReal(atUnpublish func()) {
	w.Helper()
	if os.Getuid() != 0 {
		w.Skip("needs root to mount")
	}
	w.driver.NodeServices = nil
	elsewhere := w.TempDir()
	w.Cleanup(func() { _ = unix.Unmount(elsewhere, unix.MNT_DETACH) })
	w.driver.Intercept(func(_ string, request any, do func() (any, error)) (any, error) {
		switch r := request.(type) {
		case *csispec.NodePublishVolumeRequest:
			reply, err := do()
			if err == nil {
				err = unix.Mount("volume", elsewhere, "tmpfs", 0, "")
			}
			if err == nil {
				_ = os.Remove(r.TargetPath)
				err = os.Symlink(elsewhere, r.TargetPath)
			}
			return reply, err
		case *csispec.NodeUnpublishVolumeRequest:
			atUnpublish()
			if err := os.Remove(r.TargetPath); err != nil {
				return nil, err
			}
			if err := unix.Unmount(elsewhere, 0); err != nil {
				return nil, err
			}
		}
		return do()
	})
}

// TestLinkedVolumeIsSearchedFor: a volume that is published as a symbolic link is not unpublished while a container has it mounted.
func TestLinkedVolumeIsSearchedFor(t *testing.T) {
	w := newWorld(t)
	var container *writer
	w.linkForReal(func() {
		if !container.ended.Load() {
			t.Errorf("S7: unpublished while process %d writes", container.Process.Pid)
		}
	})
	handle := w.volume("data")
	agent, _ := w.agent(func(c *Config) { c.MountPoints, c.waitEventDelay = nil, 100*time.Millisecond })
	go agent.FollowPods(w.ctx)
	pod := w.pod("p", "data")
	w.attach(handle)
	agent.SetPod(pod)
	path := w.mounted(agent, pod)[0].Path
	if target, err := filepath.EvalSymlinks(path); err != nil || target == path {
		t.Fatalf("the volume is published as %s (%v), want a link", target, err)
	}
	container = startWriter(t, path)
	agent.RemovePod(pod.UID)
	w.untilEvent(pod, "FailedUnmount", "StillMountedElsewhere", "(sh)")
	container.wrote(t, 5)
	if calls := w.callsOf("data"); slices.Contains(calls, "Unpublish") {
		t.Errorf("S7: a container writes; calls %v", calls)
	}
	container.kill()
	w.untilNotInUse(handle)
}
