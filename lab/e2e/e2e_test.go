package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/demo"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
	"belay.dev/belay/lab/timeline"
)

// TestVolumeLifecycle is the short way: a claim, a writer, one move, every
// record read back, nothing left. Belay's node agent shakes hands with either plane.
func TestVolumeLifecycle(t *testing.T) {
	t.Run("belay's plane", func(t *testing.T) { goesAllTheWay(t, "e2e", cluster.PlaneBelay) })
	t.Run("upstream's plane", func(t *testing.T) { goesAllTheWay(t, "e2e-up", cluster.PlaneUpstream) })
}

func goesAllTheWay(t *testing.T, name, plane string) {
	t.Helper()
	ctx := t.Context()
	scene := labtest.Open(t, cluster.Options{
		Name: name, Nodes: 2, NodeKind: cluster.NodeKindBelay, Plane: plane,
		Drivers: []string{labdisk.DriverDisk},
	})
	if _, err := scene.Place(ctx); err != nil {
		t.Fatal(err)
	}
	move, err := scene.Drain(ctx, "drain")
	if err != nil {
		t.Fatal(err)
	}
	labtest.Until(t, time.Minute, "the watches to bring all of the move", func() error {
		move, err = scene.Timeline(ctx, timeline.Query{
			Title: move.Title, From: move.From, To: move.To, Start: move.Start, Volume: move.Volume,
			NextPod: scenario.Namespace + "/" + scenario.WriterPod,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range move.Steps {
			if !step.Seen {
				err = errors.Join(err, fmt.Errorf("step %q was not seen", step.Name))
			}
		}
		return err
	})
	if err := timeline.Chart(t.Output(), move, timeline.Style{}); err != nil {
		t.Error(err)
	}
	if err := scene.AwaitSettled(ctx, move.To); err != nil {
		t.Error(err)
	}
	if _, err := scene.Verify(ctx); err != nil {
		t.Error(err)
	}
	if found, err := scene.Violations(ctx); err != nil || len(found) != 0 {
		t.Errorf("the storage counted forbidden writes: %+v (%v)", found, err)
	}
	if err := scene.RemoveWriter(ctx); err != nil {
		t.Error(err)
	}
}

// TestDemo is the whole demo: on both kinds of node, and on kubelets through both
// planes.
func TestDemo(t *testing.T) {
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: the whole demo belongs to the long tests")
	}
	for name, set := range map[string]demo.Settings{
		"belay nodes, belay's plane":      {NodeKind: cluster.NodeKindBelay, Plane: cluster.PlaneBelay},
		"kubelet nodes, belay's plane":    {NodeKind: cluster.NodeKindKubelet, Plane: cluster.PlaneBelay},
		"kubelet nodes, upstream's plane": {NodeKind: cluster.NodeKindKubelet, Plane: cluster.PlaneUpstream},
	} {
		t.Run(name, func(t *testing.T) {
			if set.NodeKind == cluster.NodeKindKubelet {
				if kind, because := cluster.DefaultNodeKind(); kind != cluster.NodeKindKubelet {
					t.Skip("NOT RUN: " + because)
				}
			}
			set.Name, set.Say = "e2e-demo", t.Logf
			set.Show = func(_ string, step demo.Step) error {
				if step.Move == nil {
					t.Logf("refused: %s", step.Refused.Message)
					return nil
				}
				return timeline.Chart(t.Output(), step.Move, timeline.Style{})
			}
			if _, err := demo.Run(t.Context(), set); err != nil {
				t.Error(err)
			}
		})
	}
}
