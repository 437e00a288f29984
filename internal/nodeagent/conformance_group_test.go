package nodeagent

import (
	"context"
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
				c.giveToGroup = func(*mount.Root, context.Context, string, *mount.GroupChange) error {
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
