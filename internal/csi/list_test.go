package csi

import (
	"context"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"belay.dev/belay/internal/testing/csidriver"
)

// TestListedNodeIDsAreCleaned: an empty node ID names no node, and a repeated one names no second.
func TestListedNodeIDsAreCleaned(t *testing.T) {
	published := func(ids ...string) *csispec.ListVolumesResponse_VolumeStatus {
		return &csispec.ListVolumesResponse_VolumeStatus{PublishedNodeIds: ids}
	}
	for name, test := range map[string]struct {
		status *csispec.ListVolumesResponse_VolumeStatus
		want   PublishedVolume
	}{
		"one":              {published("a"), PublishedVolume{Known: true, NodeIDs: []string{"a"}}},
		"two":              {published("b", "a"), PublishedVolume{Known: true, NodeIDs: []string{"a", "b"}}},
		"none":             {published(), PublishedVolume{Known: true}},
		"no status":        {nil, PublishedVolume{}},
		"repeated":         {published("b", "a", "b"), PublishedVolume{Known: true, NodeIDs: []string{"a", "b"}}},
		"empty, and one":   {published("", "a"), PublishedVolume{Known: true, NodeIDs: []string{"a"}}}, // the GCE PD driver
		"empties, and two": {published("", "", "a", "b"), PublishedVolume{Known: true, NodeIDs: []string{"a", "b"}}},
		"empty only":       {published(""), PublishedVolume{}},
		"empties only":     {published("", ""), PublishedVolume{}},
	} {
		t.Run(name, func(t *testing.T) {
			conn := (&csidriver.Driver{
				ControllerServices: []csispec.ControllerServiceCapability_RPC_Type{csispec.ControllerServiceCapability_RPC_LIST_VOLUMES},
				List: func(context.Context, *csispec.ListVolumesRequest) (*csispec.ListVolumesResponse, error) {
					return &csispec.ListVolumesResponse{Entries: []*csispec.ListVolumesResponse_Entry{{Volume: &csispec.Volume{VolumeId: "v"}, Status: test.status}}}, nil
				},
			}).Connect(t)
			t.Cleanup(func() { _ = conn.Close() })
			c, err := NewController(t.Context(), conn)
			if err != nil {
				t.Fatal(err)
			}
			page, err := c.ListVolumes(t.Context(), 0, "")
			if err != nil {
				t.Fatal(err)
			}
			test.want.VolumeHandle = "v"
			if diff := cmp.Diff([]PublishedVolume{test.want}, page.Published, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("published (-want +got):\n%s", diff)
			}
		})
	}
}
