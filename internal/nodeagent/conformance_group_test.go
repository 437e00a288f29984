package nodeagent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/mount"
)

// TestUpstreamFSGroupPolicy is csi_fsgroup_policy of upstream's e2e tests: which volumes are given
// to the pod's group, also when the CSIDriver's policy was changed before the pod came.
func TestUpstreamFSGroupPolicy(t *testing.T) {
	const (
		byDefault = storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
		file      = storagev1.FileFSGroupPolicy
		none      = storagev1.NoneFSGroupPolicy
	)
	for name, test := range map[string]struct {
		before, after storagev1.FSGroupPolicy // after is empty: it is not changed
		given         bool
	}{
		"should modify fsGroup if fsGroupPolicy=default":           {before: byDefault, given: true},
		"should modify fsGroup if fsGroupPolicy=File":              {before: file, given: true},
		"should not modify fsGroup if fsGroupPolicy=None":          {before: none},
		"should update fsGroup if update from None to File":        {before: none, after: file, given: true},
		"should update fsGroup if update from None to default":     {before: none, after: byDefault, given: true},
		"should not update fsGroup if update from File to None":    {before: file, after: none},
		"should update fsGroup if update from File to default":     {before: file, after: byDefault, given: true},
		"should not update fsGroup if update from detault to None": {before: byDefault, after: none},
		"should update fsGroup if update from detault to File":     {before: byDefault, after: file, given: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, noAttach, func(d *storagev1.CSIDriver) { d.Spec.FSGroupPolicy = &test.before })
			w.volume("data")
			var given atomic.Int64
			agent, _ := w.agent(func(c *Config) {
				c.changeGroup = func(*mount.Root, context.Context, string, *mount.GroupChange) error {
					given.Add(1)
					return nil
				}
			})
			if test.after != "" {
				w.updateCSIDriver(agent, func(d *storagev1.CSIDriver) { d.Spec.FSGroupPolicy = &test.after })
			}
			pod := w.podWith("p", withGroup(corev1.FSGroupChangeAlways), "data")
			agent.SetPod(pod)
			w.mounted(agent, pod)
			if (given.Load() > 0) != test.given {
				t.Errorf("given to the group %d times, want that it is: %v", given.Load(), test.given)
			}
		})
	}
}

// TestUpstreamFSGroupOfTheNextPod: the volume of one pod is given to the group of the next.
func TestUpstreamFSGroupOfTheNextPod(t *testing.T) {
	for name, policy := range map[string]corev1.PodFSGroupChangePolicy{
		"(Always) chgrp in first pod, new pod with different fsgroup applied":         corev1.FSGroupChangeAlways,
		"(OnRootMismatch) chgrp in first pod, new pod with different fsgroup applied": corev1.FSGroupChangeOnRootMismatch,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, noAttach)
			w.volume("data")
			next := func(gid int64) func(*corev1.Pod) {
				return func(p *corev1.Pod) {
					withGroup(policy)(p)
					p.Spec.SecurityContext.FSGroup = &gid
				}
			}
			w.groupsFollow(next(testGroup), next(testGroup+1), fmt.Sprintf("%d 660", testGroup+1))
		})
	}
	t.Run("(Always) rwop, new pod fsgroup applied to volume contents", func(t *testing.T) {
		w := newWorld(t, noAttach)
		w.volume("data", func(pv *corev1.PersistentVolume) {
			pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
		})
		always := withGroup(corev1.FSGroupChangeAlways)
		w.groupsFollow(always, always, fmt.Sprintf("%d 660", testGroup))
	})
}

// groupsFollow runs a pod that changes the group of a file, and then another one.
func (w *world) groupsFollow(first, second func(*corev1.Pod), want string) {
	w.Helper()
	file := filepath.Join(w.realMounts(), "file")
	must(w, os.WriteFile(file, nil, 0o600))
	agent, _ := w.agent()
	pod := w.podWith("first", first, "data")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	if got, own := owner(w, file), fmt.Sprintf("%d 660", testGroup); got != own {
		w.Errorf("in the first pod the file is %s, want %s", got, own)
	}
	must(w, os.Chown(file, -1, testGroup+2))
	agent.RemovePod(pod.UID)
	w.unmounted(agent, pod)
	pod = w.podWith("second", second, "data")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	if got := owner(w, file); got != want {
		w.Errorf("in the second pod the file is %s, want %s", got, want)
	}
}
