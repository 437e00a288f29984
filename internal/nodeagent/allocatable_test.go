package nodeagent

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/wait"
)

// refreshed lets the driver's limit be asked for every ten seconds, the shortest that the API allows.
func refreshed(d *storagev1.CSIDriver) { d.Spec.NodeAllocatableUpdatePeriodSeconds = new(int64(10)) }

// hasty makes a second of that period as long.
func hasty(second time.Duration) func(*Config) {
	return func(c *Config) { c.limitPeriodUnit, c.attachErrorAfter = second, time.Millisecond }
}

func (w *world) limit(volumes int64) {
	w.driver.Lock()
	defer w.driver.Unlock()
	old := w.driver.NodeInfo
	w.driver.NodeInfo = &csispec.NodeGetInfoResponse{NodeId: old.NodeId, MaxVolumesPerNode: volumes, AccessibleTopology: old.AccessibleTopology}
}

// untilLimit waits until the CSINode has the allocatable count.
func (w *world) untilLimit(count int32) {
	w.Helper()
	wait.Until(w, fmt.Sprintf("the allocatable count is %d", count), func() bool {
		object, err := w.admin.StorageV1().CSINodes().Get(w.ctx, w.name, metav1.GetOptions{})
		return err == nil && len(object.Spec.Drivers) == 1 && *object.Spec.Drivers[0].Allocatable.Count == count
	})
}

// wantNoRefresh checks that an attachError had no limit refreshed.
func (w *world) wantNoRefresh(agent *Agent, handle string) {
	w.Helper()
	agent.volumes.mu.Lock()
	v := agent.volumes.all[string(w.unique(handle))]
	handled := !v.exhaustedAt.IsZero()
	agent.volumes.mu.Unlock()
	if handled {
		w.Error("the attachError counts as a sign that the node is full")
	}
	w.untilLimit(7) // as at registration
}

// Without a period nothing refreshes the count: neither a timer nor a refused attach.
func TestAllocatableCountStaysWithoutPeriod(t *testing.T) {
	w := newWorld(t, func(d *storagev1.CSIDriver) { d.Spec.AttachRequired = new(true) })
	handle := w.volume("data")
	agent, _ := w.agent(hasty(time.Millisecond))
	w.driver.Registered()
	w.limit(8)
	w.refuse(handle, codes.ResourceExhausted)
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.untilInUse(handle)
	if err := w.waitFails(agent, pod); errors.As(err, new(*AttachLimitError)) {
		t.Errorf("%v although the driver did not ask for it", err)
	}
	w.wantNoRefresh(agent, handle)
}

// refuse plays an attacher whose driver refuses the attach.
func (w *world) refuse(handle string, code codes.Code) {
	w.Helper()
	api := w.admin.StorageV1().VolumeAttachments()
	va, err := api.Create(w.ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: kube.AttachmentName(handle, w.driverName(), w.name)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: w.driverName(), NodeName: w.name,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new(strings.TrimPrefix(handle, "h-"))},
		},
	}, metav1.CreateOptions{})
	must(w, err)
	va.Status.AttachError = &storagev1.VolumeError{
		Time: metav1.Now(), Message: "attachment limit exceeded", ErrorCode: new(int32(code)),
	}
	_, err = api.UpdateStatus(w.ctx, va, metav1.UpdateOptions{})
	must(w, err)
}

// Upstream's TestWaitForAttachAndMountVolumeAttachLimitExceededError, and the second case of
// mutable_csinode_allocatable, "should transition pod to failed state when attachment limit exceeded", whose last step
// is left to the caller that runs the pods.
func TestWaitForAttachAndMountVolumeAttachLimitExceededError(t *testing.T) {
	w := newWorld(t, refreshed)
	handle := w.volume("data")
	agent, _ := w.agent(hasty(time.Hour)) // the clock asks for nothing
	w.driver.Registered()
	w.untilLimit(7)
	w.limit(2)
	w.refuse(handle, codes.ResourceExhausted)
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.untilInUse(handle)
	w.untilLimit(2)
	text := `Node has reached its volume attachment limit: volume "` + w.name + `-data" of driver ` + w.driverName() +
		" is not attached: attachment limit exceeded"
	w.untilEvent(pod, "VolumeAttachmentLimitExceeded: "+text)
	full, ok := errors.AsType[*AttachLimitError](w.waitSays(agent, pod, "attachment limit exceeded"))
	if !ok {
		t.Fatal("the wait does not report that the node is full")
	}
	if diff := cmp.Diff(&AttachLimitError{Volume: w.name + "-data", Driver: w.driverName(), Problem: "attachment limit exceeded"}, full); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
	// There is room after all.
	must(t, w.admin.StorageV1().VolumeAttachments().Delete(w.ctx, kube.AttachmentName(handle, w.driverName(), w.name), metav1.DeleteOptions{}))
	w.attach(handle)
	w.mounted(agent, pod)
}

// Any other error is no sign that the node is full.
func TestOtherAttachErrorsDoNotRefreshTheLimit(t *testing.T) {
	w := newWorld(t, refreshed)
	handle := w.volume("data")
	agent, _ := w.agent(func(c *Config) { c.limitPeriodUnit, c.attachErrorAfter = time.Hour, time.Hour })
	w.driver.Registered()
	w.limit(2)
	w.refuse(handle, codes.Internal)
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.untilInUse(handle)
	w.waitSays(agent, pod, "NotAttached")
	agent.volumes.tasks.readAttachError(w.ctx, string(w.unique(handle)))
	if err := w.waitFails(agent, pod); errors.As(err, new(*AttachLimitError)) {
		t.Errorf("the wait reports that the node is full: %v", err)
	}
	w.wantNoRefresh(agent, handle)
}
