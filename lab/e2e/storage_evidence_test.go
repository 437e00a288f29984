package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

// TestStorageEvidence: the node of a live writer is cut off and its BMC is dead, so nothing proves that it is off. Its driver was declared to
// cut at unpublish: nothing happens until a person deletes the pod, and then the volume is cut at the storage before another node writes.
func TestStorageEvidence(t *testing.T) {
	needsFencing(t)
	s := openSite(t, cluster.Options{Name: "e2e-cut", Nodes: 3, NodeKind: cluster.NodeKindBelay, StorageEvidence: true})
	from, pod, began := s.WriterNode(), s.WriterPod().UID, time.Now()
	attachment := s.Attachment(from)
	s.Must(s.Scene.Cluster.FaultBMC(from, cluster.BMCDead))
	s.Must(s.Scene.Cluster.Partition(from, cluster.Both))
	s.Reaches(from, fencing.Fencing)
	labtest.Until(t, fenceLimit, "the volumes of "+from+" to be proven", func() error {
		if f := s.Fence(from); !meta.IsStatusConditionTrue(f.Status.Conditions, "StorageFenced") {
			return fmt.Errorf("the fence is %+v", f.Status)
		}
		return nil
	})
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
		if f := s.Fence(from); s.WriterPod().UID != pod || s.Attachment(from) != attachment || fencing.Phase(f.Status.Phase) != fencing.Fencing ||
			!slices.Equal(s.Tainted(from), []string{"fencing.belay.dev/isolated"}) {
			t.Fatalf("something was taken: %+v, taints %v", f.Status, s.Tainted(from))
		}
	}
	written := s.LastWrites(from).Count
	labtest.Until(t, fenceLimit, "more writes of the node that is cut off", func() error { return s.Wrote(from, written) })
	zero, deleted := int64(0), time.Now()
	s.Must(s.Scene.Client.CoreV1().Pods(scenario.Namespace).Delete(t.Context(), scenario.WriterPod, metav1.DeleteOptions{GracePeriodSeconds: &zero}))
	to := s.Moved(from, fenceLimit)
	before, after := s.LastWrites(from), s.LastWrites(to)
	t.Logf("cut off at 0, pod deleted at %.1f s, last write of %s at %.1f s, first of %s at %.1f s", deleted.Sub(began).Seconds(),
		from, before.Last.Sub(began).Seconds(), to, after.First.Sub(began).Seconds())
	if deleted.Sub(before.Last) > time.Second { // the volume may be taken between two writes
		t.Errorf("the writer stopped at %v, before its volume was taken: this is another case than that of the test", before.Last)
	}
	if !s.Scene.Cluster.IsOn(from) || !slices.Equal(s.Tainted(from), []string{"fencing.belay.dev/isolated"}) {
		t.Errorf("on: %t, taints %v", s.Scene.Cluster.IsOn(from), s.Tainted(from))
	}
	s.Intact(from)
	s.Must(s.Scene.Cluster.Heal(from))
	s.Must(s.Scene.Cluster.FaultBMC(from, cluster.BMCWorks))
	back := time.Now()
	s.Released(from)
	if took := time.Since(back); took < fencing.SettleFor-5*time.Second && s.Scene.Cluster.IsOn(from) {
		t.Errorf("%s got pods again after %v", from, took)
	}
	if last := s.LastWrites(from).Last; last.After(after.First) {
		t.Errorf("%s wrote at %v, after the first write elsewhere at %v", from, last, after.First)
	}
}
