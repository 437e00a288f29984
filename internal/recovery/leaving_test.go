package recovery

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// detectorLease is held by a detector.
func detectorLease(holder string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "belay-recovery-detector"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: new(int32(15))},
	}
}

// TestLeaveStopsTheDetector: until the detector that led has stopped, a fence can begin. Leave sees it, refuses, and gives the lease back; without
// one it keeps the lease, so that none begins before the Deployments are gone.
func TestLeaveStopsTheDetector(t *testing.T) {
	for name, c := range map[string]struct {
		holder      string
		begins      time.Duration // when the detector creates a fence; zero for never
		within      time.Duration
		want, holds string
		after       time.Duration
	}{
		"no detector":                     {holder: "", within: time.Minute, holds: leaver},
		"a detector leads":                {holder: "a", within: time.Minute, holds: leaver, after: 15 * time.Second},
		"it was run before":               {holder: leaver, within: time.Minute, holds: leaver},
		"a fence begins in between":       {holder: "a", within: time.Minute, begins: 14 * time.Second, want: "n1 (Suspected)", holds: "", after: 15 * time.Second},
		"the time is too short":           {holder: "a", within: 10 * time.Second, want: "wait until the detector a has stopped", holds: "", after: 10 * time.Second},
		"a fence is there from the start": {holder: "a", within: time.Minute, begins: -1, want: "n1 (Suspected)", holds: "a"},
	} {
		synctest.Test(t, func(t *testing.T) {
			lease, fence := detectorLease(c.holder), &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
			api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(lease).Build()
			if c.begins != 0 {
				time.AfterFunc(c.begins, func() { must(t, api.Create(context.Background(), fence)) })
				synctest.Wait()
			}
			ctx, cancel := context.WithTimeout(t.Context(), c.within)
			defer cancel()
			began := time.Now()
			err := Leave(ctx, api, client.ObjectKeyFromObject(lease))
			if took := time.Since(began); took != c.after {
				t.Errorf("%s: it took %v, want %v", name, took, c.after)
			}
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", name, err, c.want)
			}
			must(t, api.Get(t.Context(), client.ObjectKeyFromObject(lease), lease))
			if *lease.Spec.HolderIdentity != c.holds {
				t.Errorf("%s: the lease is held by %q, want %q", name, *lease.Spec.HolderIdentity, c.holds)
			}
			if c.want == "" && time.Duration(*lease.Spec.LeaseDurationSeconds)*time.Second != LeaveLease {
				t.Errorf("%s: the lease lasts %d s", name, *lease.Spec.LeaseDurationSeconds)
			}
		})
	}
}

// TestLeaveReleasesAsTheActorDoes: a cancelled fence takes its own taints along, and no others.
func TestLeaveReleasesAsTheActorDoes(t *testing.T) {
	node := nodeOf("n1", 7)
	foreign := corev1.Taint{Key: kube.OutOfServiceTaint, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}
	node.Spec.Taints = []corev1.Taint{foreign, {Key: kube.IsolationTaint, Value: taintValue(7), Effect: corev1.TaintEffectNoSchedule}}
	fence := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1", Finalizers: []string{finalizer}}}
	fence.Spec = fencingv1.NodeFenceSpec{NodeName: "n1", NodeUID: "uid-n1", BootID: "boot-n1", MachineID: "hw-n1", Epoch: 7}
	fence.Status.Phase = fencingv1.Phase(fencing.Cancelled)
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(node, fence).WithStatusSubresource(&fencingv1.NodeFence{}).Build()
	must(t, Leave(t.Context(), api, client.ObjectKey{Namespace: "kube-system", Name: "none"}))
	must(t, api.Get(t.Context(), client.ObjectKeyFromObject(node), node))
	must(t, api.Get(t.Context(), client.ObjectKeyFromObject(fence), fence))
	if len(node.Spec.Taints) != 1 || node.Spec.Taints[0] != foreign || !finished(fence) {
		t.Errorf("taints %v, finalizers %v", node.Spec.Taints, fence.Finalizers)
	}
}
