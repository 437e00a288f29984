package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

// replayLimit holds upstream's six minutes, which are a constant, and the minute of PodGC before.
const replayLimit = 10 * time.Minute

// movedWithin bounds a recovery with the profile fast: ten seconds of silence, and the work of a machine of two cores.
const movedWithin = 40 * time.Second

// TestReplay replays the recoveries of the article that the project began with, on both planes: the power of the writer's node is cut, a
// person does what the article says, and the time is taken until the writer has written elsewhere. It logs one table, that of docs/recovery/how-long.md.
// Upstream's six minutes are not shortened.
func TestReplay(t *testing.T) {
	needsFencing(t)
	rows := []struct {
		plane, name, recovery string
		act                   func(ctx context.Context, s *scenario.Scene, from string) error
		within                time.Duration
	}{
		{cluster.PlaneUpstream, "nothing is done, with recovery", fencing.Fast.Name, leaveAlone, movedWithin},
		{cluster.PlaneBelay, "nothing is done, with recovery", fencing.Fast.Name, leaveAlone, movedWithin},
		{cluster.PlaneUpstream, "the Node is deleted at once, with recovery", fencing.Fast.Name, deleteNode, 2 * time.Minute},
		{cluster.PlaneBelay, "the Node is deleted at once, with recovery", fencing.Fast.Name, deleteNode, movedWithin},
		{cluster.PlaneUpstream, "out-of-service taint when NotReady", "", onceNotReady(markOutOfService), 3 * time.Minute},
		{cluster.PlaneUpstream, "Node and VolumeAttachment deleted when NotReady", "", onceNotReady(deleteBoth), 4 * time.Minute},
		{cluster.PlaneUpstream, "Node deleted when NotReady: the unmount timeout", "", onceNotReady(deleteNode), replayLimit},
	}
	table := []string{"| plane | what is done after the power cut | until the writer has written elsewhere |", "|---|---|---|"}
	for _, row := range rows {
		t.Run(row.plane+"/"+row.name, func(t *testing.T) {
			scene := labtest.Open(t, cluster.Options{
				Name: "e2e-replay", Nodes: 3, NodeKind: cluster.NodeKindBelay, Plane: row.plane, Drivers: []string{labdisk.DriverDisk},
				Recovery: row.recovery, NodeMonitorGrace: 12 * time.Second,
			})
			if _, err := scene.Place(t.Context()); err != nil {
				t.Fatal(err)
			}
			if row.recovery != "" {
				time.Sleep(10 * time.Second) // the switches are exercised, and bound
			}
			took, err := scene.Replay(t.Context(), replayLimit, func(ctx context.Context, from string) error { return row.act(ctx, scene, from) })
			if err != nil {
				t.Fatal(err)
			}
			if took > row.within {
				t.Errorf("it took %v, more than %v", took, row.within)
			}
			table = append(table, fmt.Sprintf("| %s | %s | %.0f s |", row.plane, row.name, took.Seconds()))
			verified, err := scene.Verify(t.Context())
			if err != nil || verified.Count < verified.Acknowledged {
				t.Errorf("%+v (%v)", verified, err)
			}
		})
	}
	t.Logf("measured:\n%s", strings.Join(table, "\n"))
}

func leaveAlone(context.Context, *scenario.Scene, string) error { return nil }

func deleteNode(ctx context.Context, s *scenario.Scene, from string) error {
	return s.Client.CoreV1().Nodes().Delete(ctx, from, metav1.DeleteOptions{})
}

func markOutOfService(ctx context.Context, s *scenario.Scene, from string) error {
	return s.MarkOutOfService(ctx, from)
}

// deleteBoth deletes the Node and its VolumeAttachments.
func deleteBoth(ctx context.Context, s *scenario.Scene, from string) error {
	list, err := s.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if err := deleteNode(ctx, s, from); err != nil {
		return err
	}
	for i := range list.Items {
		if va := &list.Items[i]; va.Spec.NodeName == from {
			if err := s.Client.StorageV1().VolumeAttachments().Delete(ctx, va.Name, metav1.DeleteOptions{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// onceNotReady has a person act when the cluster shows that the node is lost.
func onceNotReady(act func(ctx context.Context, s *scenario.Scene, from string) error) func(ctx context.Context, s *scenario.Scene, from string) error {
	return func(ctx context.Context, s *scenario.Scene, from string) error {
		if err := s.AwaitNotReady(ctx, from); err != nil {
			return err
		}
		return act(ctx, s, from)
	}
}
