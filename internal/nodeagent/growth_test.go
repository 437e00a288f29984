package nodeagent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/nodeagent/worker"
	"belay.dev/belay/internal/nodevolume"
)

// TestResizeFieldsOfClaim: what the fields of a claim mean for the plan of an expansion.
func TestResizeFieldsOfClaim(t *testing.T) {
	oneGi := nodevolume.Size{Bytes: 1 << 30, Text: "1Gi"}
	status := func(status corev1.ClaimResourceStatus) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { setResizeStatus(&c.Status, status) }
	}
	none := nodevolume.Size{Text: "0"}
	tests := map[string]struct {
		change func(*corev1.PersistentVolumeClaim)
		want   nodevolume.ClaimSize
	}{
		"old resizer": {func(*corev1.PersistentVolumeClaim) {}, nodevolume.ClaimSize{Allocated: none}},
		"tracked": {
			func(c *corev1.PersistentVolumeClaim) { c.Status.AllocatedResources = storage("1Gi") },
			nodevolume.ClaimSize{Allocated: oneGi, Resizing: nodevolume.NotReported},
		},
		"node is next":   {status(corev1.PersistentVolumeClaimNodeResizePending), nodevolume.ClaimSize{Allocated: none, Resizing: nodevolume.NodeIsNext}},
		"node has begun": {status(corev1.PersistentVolumeClaimNodeResizeInProgress), nodevolume.ClaimSize{Allocated: none, Resizing: nodevolume.NodeIsNext}},
		"infeasible":     {status(corev1.PersistentVolumeClaimNodeResizeInfeasible), nodevolume.ClaimSize{Allocated: none, Resizing: nodevolume.OtherIsNext}},
		"controller's turn": {
			status(corev1.PersistentVolumeClaimControllerResizeInProgress), nodevolume.ClaimSize{Allocated: none, Resizing: nodevolume.OtherIsNext},
		},
		"on every node": {
			func(c *corev1.PersistentVolumeClaim) {
				c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany}
			},
			nodevolume.ClaimSize{Allocated: none, EveryNode: true},
		},
		"on every node, and none needs to": {
			func(c *corev1.PersistentVolumeClaim) {
				c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
				metav1.SetMetaDataAnnotation(&c.ObjectMeta, nodeExpansionNotRequired, "true")
			},
			nodevolume.ClaimSize{Allocated: none},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			claim := &corev1.PersistentVolumeClaim{}
			claim.Spec.Resources.Requests, claim.Status.Capacity = storage("1024Mi"), storage("1Gi")
			test.change(claim)
			test.want.Capacity, test.want.Requested = oneGi, oneGi
			if diff := cmp.Diff(test.want, claimSize(claim)); diff != "" {
				t.Errorf("claim (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEarlyWakeKeepsResync: a retry that was planned before the pod's volumes were known replaces the first resync in
// the queue. The resyncs continue nevertheless.
func TestEarlyWakeKeepsResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const uid, period = types.UID("p"), time.Minute
		p := newPod()
		p.resolved = true
		m := newPodManager(Config{SyncPeriod: period}, nil, nil, newSchedule(), nil, podHandlers{})
		m.known[uid] = p
		defer m.queue.ShutDown()
		go worker.Serve(m.queue, func(uid types.UID) { m.resync(t.Context(), uid) })
		m.queue.AddAfter(uid, time.Second) // as after a first look that failed
		m.mu.Lock()
		m.syncLater(uid, p)
		first := p.syncAt
		m.mu.Unlock()
		time.Sleep(2 * period)
		synctest.Wait()
		m.mu.Lock()
		defer m.mu.Unlock()
		if !p.syncAt.After(first) {
			t.Errorf("no resync in %v, one was due after %v at most", 2*period, period*3/2)
		}
	})
}

// TestPeriodicTasksAreBatched: each runs at one of a few moments, and never early.
func TestPeriodicTasksAreBatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const period = time.Minute
		b := newSchedule()
		at := map[time.Duration]int{}
		for i := range 1000 {
			time.Sleep(7 * time.Millisecond)
			pause := period + time.Duration(i)*period/2000
			longer := b.batch(pause, period)
			if longer < pause || longer > pause+period/slotsPerPeriod {
				t.Fatalf("%v became %v", pause, longer)
			}
			at[time.Since(b.start)+longer]++
		}
		if len(at) > slotsPerPeriod {
			t.Errorf("%d moments in %v and a half", len(at), period)
		}
		if got := b.batch(time.Second, time.Nanosecond); got != time.Second {
			t.Errorf("a period that cannot be divided: %v", got)
		}
	})
}
