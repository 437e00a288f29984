package nodeagent

import (
	"slices"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"belay.dev/belay/internal/testing/csidriver"
)

// upgrade has the driver come back with other capabilities, and calls that fail.
func (w *world) upgrade(caps []csispec.NodeServiceCapability_RPC_Type, calls map[string]codes.Code) {
	w.Helper()
	w.driver.Stop()
	w.driver.Lock()
	w.driver.NodeServices = caps
	w.driver.Before = func(method, _ string, _ int) error {
		if code, ok := calls[method]; ok {
			return status.Error(code, "not in this version")
		}
		return nil
	}
	w.driver.Unlock()
	w.driver.Start()
	w.driver.Registered()
}

// TestDriverStopsStaging: the driver cannot unstage what an earlier version staged. If nothing is mounted there,
// nothing is left to do; otherwise the pod gets an event, and the volume stays in use until it is unmounted.
func TestDriverStopsStaging(t *testing.T) {
	for name, mounted := range map[string]bool{"nothing is mounted": false, "it is mounted": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			l := w.live()
			staged := csidriver.LastRequest[*csispec.NodeStageVolumeRequest](w.driver).StagingTargetPath
			unmount := func() {
				w.driver.Lock()
				defer w.driver.Unlock()
				delete(w.driver.Mounts, staged)
			}
			if !mounted {
				unmount()
			}
			w.driver.Registered()
			w.upgrade(nil, map[string]codes.Code{"Unstage": codes.Unimplemented})
			l.agent.RemovePod(l.pod.UID)
			if mounted {
				w.untilEvent(l.pod, "FailedUnmount", "UnmountDevice failed", "no longer has STAGE_UNSTAGE_VOLUME", "umount "+staged)
				if !slices.Contains(w.node().Status.VolumesInUse, w.unique(l.handle)) {
					t.Error("S7: still mounted, and not in use")
				}
				unmount()
			}
			w.untilNotInUse(l.handle)
			w.untilForgotten(l.agent)
		})
	}
}

// TestUnimplementedProvesNothing for a driver that stages: the answer may come from another driver that was on the
// socket for a moment.
func TestUnimplementedProvesNothing(t *testing.T) {
	w := newWorld(t)
	l := w.live()
	w.driver.Registered()
	w.upgrade(w.driver.NodeServices, map[string]codes.Code{"Unstage": codes.Unimplemented})
	l.agent.RemovePod(l.pod.UID)
	w.untilEvent(l.pod, "FailedUnmount", "UnmountDevice failed", "not in this version")
	if !slices.Contains(w.node().Status.VolumesInUse, w.unique(l.handle)) {
		t.Error("S7: staged, and not in use")
	}
	w.plays(nil)
	w.untilNotInUse(l.handle)
}
