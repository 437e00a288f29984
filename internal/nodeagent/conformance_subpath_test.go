package nodeagent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// subPathMounts are the subPaths that the kernel has mounted below the root.
func (w *world) subPathMounts() (mounts []string) {
	w.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	must(w, err)
	for line := range strings.Lines(string(table)) {
		if point := strings.Fields(line)[4]; strings.HasPrefix(point, w.root) && strings.Contains(point, "volume-subpaths") {
			mounts = append(mounts, point)
		}
	}
	return mounts
}

// reallyMounts makes the driver mount a file system where it publishes. Mounts of parts of it elsewhere must be gone
// when the driver is called to unmount it.
func (w *world) reallyMounts() {
	w.Helper()
	if os.Getuid() != 0 {
		w.Skip("needs root to mount")
	}
	targets := func() []string {
		found, err := filepath.Glob(filepath.Join(w.root, "pods/*/volumes/kubernetes.io~csi/*/mount"))
		must(w, err)
		return found
	}
	w.driver.Lock()
	defer w.driver.Unlock()
	w.driver.After = func(method, _ string, _ int) error {
		if method != "Publish" {
			return nil
		}
		return unix.Mount("volume", targets()[0], "tmpfs", 0, "")
	}
	w.driver.Before = func(method, _ string, _ int) error {
		if method != "Unpublish" {
			return nil
		}
		if left := w.subPathMounts(); len(left) > 0 {
			w.Errorf("asked to unpublish while %v are mounted", left)
		}
		for _, target := range targets() {
			if err := unix.Unmount(target, 0); err != nil {
				return fmt.Errorf("unmount %s: %w", target, err)
			}
		}
		return nil
	}
	w.Cleanup(func() {
		for _, point := range append(w.subPathMounts(), targets()...) {
			_ = unix.Unmount(point, unix.MNT_DETACH)
		}
	})
}

// TestUpstreamSubPathRestarts: a pod with a subPath is deleted while the agent is down.
func TestUpstreamSubPathRestarts(t *testing.T) {
	for name, force := range map[string]bool{
		"should unmount if pod is gracefully deleted while kubelet is down": false,
		"should unmount if pod is force deleted while kubelet is down":      true,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.reallyMounts()
			handle := w.volume("data")
			agent, stop := w.agent()
			pod := w.podWith("p", func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts[0].SubPath = "a/b" }, "data")
			w.bringUp(agent, pod, handle)
			path, err := agent.MountSubPath(pod.UID, SubPath{Volume: "data", Container: "c", Path: "a/b"})
			must(t, err)
			must(t, os.WriteFile(filepath.Join(path, "file"), []byte("x"), 0o600))
			if mounts := w.subPathMounts(); len(mounts) != 1 || mounts[0] != path {
				t.Fatalf("mounted are %v, want %s", mounts, path)
			}
			stop()
			w.deletePod(pod, force)
			agent, _ = w.agent()
			go agent.FollowPods(w.ctx)
			w.untilNotInUse(handle)
			w.callsAre("Stage data", "Publish data", "Unpublish data", "Unstage data")
			if mounts := w.subPathMounts(); len(mounts) > 0 {
				t.Errorf("still mounted: %v", mounts)
			}
			w.untilNothingIsLeft()
		})
	}
}
