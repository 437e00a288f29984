package takeover

import (
	"context"
	"fmt"
	"testing"
	"time"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

const (
	// watchFor is how long each new controller is watched after it has proved that it acts. Upstream's verifies all
	// attached volumes once a minute.
	watchFor = 65 * time.Second
	// perVolume bounds the time that upstream's plane and two kubelets take for one.
	perVolume = 3 * time.Second
)

// TestTakeOverAndBack is the promise to operators who change the controller on a live cluster.
func TestTakeOverAndBack(t *testing.T) {
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: the take-over of a live lab belongs to the long tests")
	}
	if kind, because := cluster.DefaultNodeKind(); kind != cluster.NodeKindKubelet {
		t.Skip("NOT RUN: " + because)
	}
	pods := labtest.Number(t, "BELAY_TAKEOVER_PODS", 20)
	volumes := labtest.Number(t, "BELAY_TAKEOVER_VOLUMES", 10)
	ctx := t.Context()
	scene := labtest.Open(t, cluster.Options{
		Name: "takeover", Nodes: 2, NodeKind: cluster.NodeKindKubelet, Plane: cluster.PlaneBelay, Drivers: []string{labdisk.DriverDisk},
	})
	if err := scene.Cluster.SwitchController(ctx, cluster.PlaneUpstream); err != nil {
		t.Fatal(err)
	}
	nodes := []string{"node-1", "node-2"}
	within := 2*time.Minute + time.Duration(pods*volumes)*perVolume
	began := time.Now()
	crowd, err := scene.NewCrowd(ctx, scenario.CrowdOptions{Name: "crowd", Pods: pods, VolumesPerPod: volumes, Nodes: nodes}, within)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d volumes of %d pods attached and mounted through upstream's controller after %.0f s",
		len(crowd.Handles), pods, time.Since(began).Seconds())
	for turn, to := range []string{cluster.PlaneBelay, cluster.PlaneUpstream} {
		if !t.Run("to "+to, func(t *testing.T) { handOver(t, scene, crowd, to, turn) }) {
			return
		}
	}
	if found, err := scene.Violations(ctx); err != nil || len(found) > 0 {
		t.Errorf("the storage counted forbidden writes: %+v (%v)", found, err)
	}
	if err := crowd.Remove(ctx, within); err != nil {
		t.Error(err)
	}
}

// handOver changes the controller and looks for anything that it did to the crowd.
func handOver(t *testing.T, scene *scenario.Scene, crowd *scenario.Crowd, to string, turn int) {
	t.Helper()
	ctx := t.Context()
	check := labtest.Undisturbed(t, scene, crowd)
	start := time.Now()
	if err := scene.Cluster.SwitchController(ctx, to); err != nil {
		t.Fatal(err)
	}
	// A volume that is attached and detached shows that the new controller acts.
	probe, err := scene.NewCrowd(ctx, scenario.CrowdOptions{
		Name: fmt.Sprintf("probe-%d", turn), Pods: 1, VolumesPerPod: 1, Nodes: []string{"node-1"},
	}, 2*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the new controller attached a volume %.1f s after the handoff began", time.Since(start).Seconds())
	if err := probe.Remove(ctx, 2*time.Minute); err != nil {
		t.Fatal(err)
	}
	select {
	case <-time.After(watchFor):
	case <-ctx.Done():
		t.Fatal(context.Cause(ctx))
	}
	check()
}
