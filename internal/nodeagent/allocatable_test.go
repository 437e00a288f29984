package nodeagent

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	watchtools "k8s.io/client-go/tools/watch"

	"belay.dev/belay/internal/csi"
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

// limits watches the node's CSINode and returns what follows its count: it fails if the
// driver's entry is ever missing.
func (w *world) limits() (until func(count int32)) {
	w.Helper()
	_, informer, watching, ended := watchtools.NewIndexerInformerWatcher(
		following(w.admin.StorageV1().CSINodes(), metav1.ObjectNameField, w.name), &storagev1.CSINode{})
	w.Cleanup(func() { watching.Stop(); <-ended })
	wait.Until(w, "the CSINode is listed", informer.HasSynced)
	count := int32(-1) // until it is seen
	see := func(object *storagev1.CSINode) {
		i := slices.IndexFunc(object.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == w.driverName() })
		if i < 0 {
			w.Error("for a moment the scheduler knew of no limit")
			return
		}
		count = limitOf(object.Spec.Drivers[i])
	}
	return func(want int32) {
		w.Helper()
		deadline := time.After(wait.Timeout)
		for count != want {
			select {
			case event := <-watching.ResultChan():
				if object, ok := event.Object.(*storagev1.CSINode); ok && event.Type != watch.Deleted {
					see(object)
				}
			case <-deadline:
				w.Fatalf("the allocatable count is %d, want %d", count, want)
			}
		}
	}
}

// Upstream's "should report attach limit when limit is bigger than 0" (csi_volume_limit), "should
// observe dynamic changes in CSINode allocatable count" (mutable_csinode_allocatable), and the
// overflow rules of TestInstallCSIDriver.
func TestAllocatableCountFollowsDriver(t *testing.T) {
	w := newWorld(t, refreshed)
	w.limit(5)
	w.agent(hasty(time.Millisecond))
	w.driver.Registered()
	until := w.limits()
	until(5)
	for _, c := range []struct {
		says int64
		want int32
	}{{8, 8}, {math.MaxInt64, math.MaxInt32}, {0, 0}, {3, 3}, {-1, 0}} {
		w.limit(c.says)
		until(c.want)
	}
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
	agent.plugins.refreshLimit(w.ctx, w.driverName())
	object, err := w.admin.StorageV1().CSINodes().Get(w.ctx, w.name, metav1.GetOptions{})
	must(t, err)
	if got := limitOf(object.Spec.Drivers[0]); got != 7 {
		t.Errorf("the allocatable count is %d, want 7 as at registration", got)
	}
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
	until := w.limits()
	until(7)
	w.limit(2)
	w.refuse(handle, codes.ResourceExhausted)
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.untilInUse(handle)
	until(2)
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
	agent.volumes.readAttachError(w.ctx, string(w.unique(handle)))
	if err := w.waitFails(agent, pod); errors.As(err, new(*AttachLimitError)) {
		t.Errorf("the wait reports that the node is full: %v", err)
	}
	agent.plugins.refreshLimit(w.ctx, w.driverName())
	object, err := w.admin.StorageV1().CSINodes().Get(w.ctx, w.name, metav1.GetOptions{})
	must(t, err)
	if got := limitOf(object.Spec.Drivers[0]); got != 7 {
		t.Errorf("the allocatable count is %d, want 7 as at registration", got)
	}
}

func TestLimitRefreshSchedule(t *testing.T) {
	p := onlyPlugins(t, ignore)
	p.drivers["d"] = &driver{name: "d"}
	start := time.Now()
	for _, step := range []struct {
		name   string
		at     time.Duration
		period time.Duration
		full   bool
		want   bool
		wait   time.Duration
	}{
		{name: "registered: not before a whole period", at: 0, period: 10 * time.Second, wait: 10 * time.Second},
		{name: "woken early", at: 9 * time.Second, period: 10 * time.Second, wait: time.Second},
		{name: "due", at: 10 * time.Second, period: 10 * time.Second, want: true, wait: 10 * time.Second},
		{name: "woken again at once", at: 10 * time.Second, period: 10 * time.Second, wait: 10 * time.Second},
		{name: "an attach was refused", at: 12 * time.Second, period: 10 * time.Second, full: true, want: true, wait: 10 * time.Second},
		{name: "the period changes and begins anew", at: 20 * time.Second, period: 60 * time.Second, wait: 60 * time.Second},
		{name: "switched off", at: 21 * time.Second},
		{name: "on again", at: 100 * time.Second, period: 10 * time.Second, wait: 10 * time.Second},
	} {
		if step.full {
			p.exhausted("d")
		}
		due, wait := p.limitDue("d", step.period, start.Add(step.at))
		if (due != nil) != step.want || wait != step.wait {
			t.Errorf("%s: due %v in %s, want %v and %s", step.name, due != nil, wait, step.want, step.wait)
		}
	}
	delete(p.drivers, "d")
	if due, wait := p.limitDue("d", 10*time.Second, start.Add(time.Hour)); due != nil || wait != 0 || len(p.limits) != 0 {
		t.Errorf("a driver that went is due %v in %s, and kept: %v", due, wait, p.limits)
	}
}

// An API server before 1.35 does not allow an entry to be changed. A driver that comes back with another limit is
// registered nevertheless.
func TestImmutableLimitIsReplaced(t *testing.T) {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "1"}})
	client.PrependReactor("update", "csinodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		next := action.(clienttesting.UpdateAction).GetObject().(*storagev1.CSINode)
		object, err := client.Tracker().Get(action.GetResource(), "", "n")
		must(t, err)
		for _, was := range object.(*storagev1.CSINode).Spec.Drivers {
			for _, is := range next.Spec.Drivers {
				if is.Name == was.Name && !cmp.Equal(is, was) {
					return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "CSINode"}, "n", nil)
				}
			}
		}
		return false, nil, nil
	})
	i := newIdentity("n", client)
	for _, limit := range []int32{5, 8, 0} {
		must(t, i.install(t.Context(), "d", csi.NodeInfo{NodeID: "id", MaxVolumes: limit}))
		object, err := client.StorageV1().CSINodes().Get(t.Context(), "n", metav1.GetOptions{})
		must(t, err)
		if len(object.Spec.Drivers) != 1 || limitOf(object.Spec.Drivers[0]) != limit {
			t.Errorf("CSINode says %v, want a limit of %d", object.Spec.Drivers, limit)
		}
	}
}

func TestRefreshChangesOnlyTheLimit(t *testing.T) {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "1"}})
	i := newIdentity("n", client)
	must(t, i.install(t.Context(), "d", csi.NodeInfo{NodeID: "id", MaxVolumes: 5, Topology: map[string]string{"rack": "1"}}))
	must(t, i.refresh(t.Context(), "d", csi.NodeInfo{NodeID: "id", MaxVolumes: 8, Topology: map[string]string{"row": "2"}}))
	must(t, i.refresh(t.Context(), "unknown", csi.NodeInfo{NodeID: "id", MaxVolumes: 8}))
	if err := i.refresh(t.Context(), "d", csi.NodeInfo{NodeID: "other", MaxVolumes: 9}); err == nil {
		t.Error("the limit of another machine is taken for this one's")
	}
	object, err := client.StorageV1().CSINodes().Get(t.Context(), "n", metav1.GetOptions{})
	must(t, err)
	want := []storagev1.CSINodeDriver{{Name: "d", NodeID: "id", TopologyKeys: []string{"rack"}, Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(8))}}}
	if diff := cmp.Diff(want, object.Spec.Drivers); diff != "" {
		t.Errorf("CSINode (-want +got):\n%s", diff)
	}
}
