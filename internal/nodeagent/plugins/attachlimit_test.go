package plugins

import (
	"context"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/nodeagent/worker"
	"belay.dev/belay/internal/testing/wait"
)

// refreshed lets the driver's limit be asked for every ten seconds, the shortest that the API allows.
func refreshed(d *storagev1.CSIDriver) { d.Spec.NodeAllocatableUpdatePeriodSeconds = new(int64(10)) }

// limits watches the node's CSINode and returns what follows its count: it fails if the
// driver's entry is ever missing.
func (w *world) limits() (until func(count int32)) {
	w.Helper()
	counts := make(chan int32, 100)
	see := func(object any) {
		drivers := object.(*storagev1.CSINode).Spec.Drivers
		i := slices.IndexFunc(drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == w.driverName() })
		if i < 0 {
			w.Error("for a moment the scheduler knew of no limit")
			return
		}
		counts <- limitOf(drivers[i])
	}
	nodes := worker.NewInformer(w.admin.StorageV1().RESTClient(), "csinodes", fields.OneTermEqualSelector(metav1.ObjectNameField, w.name), &storagev1.CSINode{})
	_, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, object any) { see(object) }})
	must(w, err)
	ctx, cancel := context.WithCancel(w.ctx)
	var watching sync.WaitGroup
	watching.Go(func() { nodes.RunWithContext(ctx) })
	w.Cleanup(func() { cancel(); watching.Wait() })
	return func(want int32) {
		w.Helper()
		for wait.For(w, "the allocatable count", counts) != want {
			continue
		}
	}
}

// Upstream's "should report attach limit when limit is bigger than 0" (csi_volume_limit), "should
// observe dynamic changes in CSINode allocatable count" (mutable_csinode_allocatable), and the
// overflow rules of TestInstallCSIDriver.
func TestAllocatableCountFollowsDriver(t *testing.T) {
	w := newWorld(t, refreshed)
	w.limit(5)
	w.plugins(func(c *Config) { c.LimitPeriodUnit = time.Millisecond })
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
			p.LimitExhausted("d")
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
	client := fakeNode()
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
	i := identityOf(client)
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
	client := fakeNode()
	i := identityOf(client)
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
