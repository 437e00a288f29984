package explained

import (
	"testing"
	"time"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
)

// Nodes to which something happens as a whole.
const (
	off, cutOff, bare, unmanaged, deleted, recreated = "node-3", "node-4", "node-5", "node-6", "node-7", "node-8"
	full, tainted, hung                              = "node-9", "node-10", "node-11"
	nodeCount                                        = 11
	// notReadyAfter is longer than the lab's nodes need to renew their leases on a busy machine.
	notReadyAfter = 25 * time.Second
)

// situation is one in which a volume is stuck.
type situation struct {
	name string
	is   func(*stuck)
	// cheap is set for the few that the short tests make.
	cheap bool
	// only is the plane on which it gets stuck; empty for both.
	only string
}

func TestExplainOnBelaysPlane(t *testing.T) { explainAll(t, "explained", cluster.PlaneBelay) }

func TestExplainOnUpstreamsPlane(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT RUN: upstream's plane belongs to the long tests")
	}
	explainAll(t, "explained-up", cluster.PlaneUpstream)
}

func explainAll(t *testing.T, name, plane string) {
	t.Helper()
	count := nodeCount
	if testing.Short() {
		count = 2 // the cheap situations are on the first two
	}
	scene := labtest.Open(t, cluster.Options{
		Name: name, Nodes: count, NodeKind: cluster.NodeKindBelay, Plane: plane, Drivers: []string{labdisk.DriverDisk}, NodeMonitorGrace: notReadyAfter,
	})
	if plane == cluster.PlaneUpstream {
		leads(t, scene)
	}
	run := func(t *testing.T, all []situation, parallel bool) {
		t.Helper()
		for _, one := range all {
			if testing.Short() && !one.cheap || one.only != "" && one.only != plane {
				continue
			}
			t.Run(one.name, func(t *testing.T) {
				if parallel {
					t.Parallel() // each has a volume of its own
				}
				s := &stuck{&labtest.Stuck{T: t, Scene: scene, Name: one.name, Began: time.Now()}, plane}
				one.is(s)
				t.Logf("%.0f s", time.Since(s.Began).Seconds())
			})
		}
	}
	t.Run("together", func(t *testing.T) { run(t, together, true) })
	run(t, alone, false)
}
