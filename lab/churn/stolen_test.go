package churn

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// TestStolenVolumesArePublishedAgain unpublishes volumes from their nodes at the storage, past the API, and publishes
// one that no VolumeAttachment asks for: the attacher learns it from the driver's list, repairs the first and leaves
// the second alone.
func TestStolenVolumesArePublishedAgain(t *testing.T) {
	const volumes, stolen = 6, 3
	r := newRig(t, "churn-stolen", "--reconcile-sync=1s")
	ctx := t.Context()
	if _, err := r.makeVolumes(ctx, volumes+1); err != nil {
		t.Fatal(err)
	}
	if err := r.placeAll(ctx, 0, volumes, rand.New(rand.NewPCG(r.seed, 5))); err != nil {
		t.Fatal(err)
	}
	given := r.get(volumes)
	if _, err := r.driver.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
		VolumeId: given.handle, NodeId: r.nodes[0],
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
	}); err != nil {
		t.Fatal(err)
	}
	for _, v := range r.all()[:stolen] {
		if _, err := r.driver.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: v.handle, NodeId: v.node}); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	wanted := []string{r.nodes[0] + " " + given.handle}
	for _, v := range r.all()[:volumes] {
		wanted = append(wanted, v.node+" "+v.handle)
	}
	slices.Sort(wanted)
	err := until(ctx, runLimit, "wait until the stolen volumes are published again", func() error {
		attachments, err := r.scene.Cluster.Fabric().Attachments(ctx)
		if err != nil {
			return err
		}
		var held []string
		for _, a := range attachments {
			held = append(held, a.Node+" "+a.Volume)
		}
		if slices.Sort(held); !slices.Equal(held, wanted) {
			return fmt.Errorf("the storage has\n%q, want\n%q", held, wanted)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d stolen volumes were back after %.1f s", stolen, time.Since(began).Seconds())
	time.Sleep(5 * time.Second) // for what the next lists might lead to
	calls, err := r.scene.Cluster.Fabric().Calls(ctx, began)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, c := range calls {
		if c.Method == methodPublish || c.Method == methodUnpublish {
			counts[c.Method+" "+c.Volume]++
		}
	}
	for _, v := range r.all()[:stolen] {
		if counts[methodPublish+" "+v.handle] != 1 {
			t.Errorf("%s was published %d times", v.handle, counts[methodPublish+" "+v.handle])
		}
		delete(counts, methodPublish+" "+v.handle)
	}
	if len(counts) > 0 {
		t.Errorf("calls for volumes with which all was well: %v", counts)
	}
}
