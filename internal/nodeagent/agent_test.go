package nodeagent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"belay.dev/belay/internal/testing/csidriver"
)

func TestVolumeIsMountedAndUnmounted(t *testing.T) {
	w := newWorld(t)
	handle := w.volume("data")
	agent, _ := w.agent()
	pod := w.pod("writer", "data")
	agent.SetPod(pod)
	w.untilInUse(handle)
	if calls := w.driver.Made(); len(calls) != 0 {
		t.Fatalf("the driver was called before the volume was attached: %v", calls)
	}
	w.attach(handle)

	full := w.name + "-data"
	target := filepath.Join(w.root, "pods", string(pod.UID), "volumes/kubernetes.io~csi", full, "mount")
	if diff := cmp.Diff([]Mount{{VolumeName: "data", Path: target}}, placesOf(w.mounted(agent, pod))); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	staging := filepath.Join(w.root, "plugins/kubernetes.io/csi", w.driverName(), hash(handle), "globalmount")
	capability := &csispec.VolumeCapability{
		AccessMode: &csispec.VolumeCapability_AccessMode{Mode: csispec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csispec.VolumeCapability_Mount{Mount: &csispec.VolumeCapability_MountVolume{FsType: "ext4"}},
	}
	if diff := cmp.Diff(&csispec.NodeStageVolumeRequest{
		VolumeId: handle, PublishContext: map[string]string{"device": "/dev/" + handle}, StagingTargetPath: staging,
		VolumeCapability: capability, VolumeContext: map[string]string{"pool": "fast"},
	}, csidriver.LastRequest[*csispec.NodeStageVolumeRequest](w.driver), protocmp.Transform()); diff != "" {
		t.Errorf("NodeStageVolume (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&csispec.NodePublishVolumeRequest{
		VolumeId: handle, PublishContext: map[string]string{"device": "/dev/" + handle}, StagingTargetPath: staging, TargetPath: target,
		VolumeCapability: capability, VolumeContext: map[string]string{"pool": "fast"},
	}, csidriver.LastRequest[*csispec.NodePublishVolumeRequest](w.driver), protocmp.Transform()); diff != "" {
		t.Errorf("NodePublishVolume (-want +got):\n%s", diff)
	}
	wantData(t, filepath.Join(filepath.Dir(target), volumeData), map[string]string{
		"attachmentID": "csi-" + hash(handle+w.driverName()+w.name), "driverName": w.driverName(), "nodeName": w.name,
		"specVolID": full, "volumeHandle": handle, "volumeLifecycleMode": "Persistent",
	})
	wantData(t, filepath.Join(filepath.Dir(staging), volumeData), map[string]string{"driverName": w.driverName(), "volumeHandle": handle})

	agent.RemovePod(pod.UID)
	w.unmounted(agent, pod)
	w.untilNotInUse(handle)
	if diff := cmp.Diff([]string{"Stage data", "Publish data", "Unpublish data", "Unstage data"}, w.driver.Made()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	w.untilNothingIsLeft()
	if pods := agent.Pods(); len(pods) > 0 {
		t.Errorf("pods still known: %v", pods)
	}
}

func wantData(t *testing.T, path string, want map[string]string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	must(t, err)
	var got map[string]string
	must(t, json.Unmarshal(raw, &got))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}
