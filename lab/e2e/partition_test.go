package e2e

import (
	"testing"
	"time"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labtest"
)

// heldFor is how long a partition without evidence lasts: several times what a recovery takes, and longer than the grace after which the
// node is not Ready.
const heldFor = 90 * time.Second

// TestPartition cuts the node of a live writer off, on both kinds of node: without evidence, nothing is taken from it; with a BMC, it is
// switched off before its volume is.
func TestPartition(t *testing.T) {
	needsFencing(t)
	for _, kind := range []string{cluster.NodeKindBelay, cluster.NodeKindKubelet} {
		t.Run(kind+" nodes", func(t *testing.T) {
			s := openSite(t, cluster.Options{Name: "hl-part", Nodes: 3, NodeKind: kind})
			t.Run("the kubelet's port answers", func(t *testing.T) { s.of(t).oneWay() })
			t.Run("no evidence", func(t *testing.T) { s.of(t).holds() })
			t.Run("BMC", func(t *testing.T) { s.of(t).offFirst() })
		})
	}
}

// oneWay: a node whose kubelet answers lives, whatever it says to the API server.
func (s *site) oneWay() {
	from, pod, began := s.WriterNode(), s.WriterPod().UID, time.Now()
	s.Must(s.Scene.Cluster.Partition(from, cluster.ToAPI))
	labtest.Until(s.T, fenceLimit, "an event that says why the node is not fenced", func() error {
		return s.Heard(string(fencing.SignOfLife), began)
	})
	written := s.LastWrites(from).Count
	labtest.Until(s.T, fenceLimit, "more writes", func() error { return s.Wrote(from, written) })
	if f := s.Fence(from); f != nil || len(s.Tainted(from)) > 0 || s.WriterPod().UID != pod {
		s.Errorf("the fence is %+v, the taints are %v", f, s.Tainted(from))
	}
	s.Must(s.Scene.Cluster.Heal(from))
	s.Released(from)
	if off := s.SwitchedOff(from, began); !off.IsZero() {
		s.Errorf("%s was switched off at %v", from, off)
	}
}

// holds: with a BMC that is dead, nothing is taken from the node for as long as the partition lasts. Healed, the pod lives on.
func (s *site) holds() {
	from, pod, began := s.WriterNode(), s.WriterPod().UID, time.Now()
	attachment := s.Attachment(from)
	s.Must(s.Scene.Cluster.FaultBMC(from, cluster.BMCDead))
	s.Must(s.Scene.Cluster.Partition(from, cluster.Both))
	s.Reaches(from, fencing.Fencing)
	written := s.LastWrites(from).Count
	for end := began.Add(heldFor); time.Now().Before(end); {
		labtest.Until(s.T, fenceLimit, "more writes of the node that is cut off", func() error { return s.Wrote(from, written) })
		written = s.LastWrites(from).Count
		if now := s.WriterPod(); now.UID != pod || now.DeletionTimestamp != nil {
			s.Fatalf("the pod was deleted: %v, %v", now.UID, now.DeletionTimestamp)
		}
		if now := s.Attachment(from); now != attachment {
			s.Fatalf("the VolumeAttachment was deleted, there is %q", now)
		}
		if f := s.Fence(from); f == nil || fencing.Phase(f.Status.Phase) != fencing.Fencing {
			s.Fatalf("the fence is %+v", f)
		}
		select {
		case <-s.Context().Done():
			s.Fatal("the test ends")
		case <-time.After(time.Second):
		}
	}
	f := s.Fence(from)
	s.Logf("after %v the fence is %s, misses %q, and says: %s", heldFor, f.Status.Phase, f.Status.Missing, f.Status.Advice)
	if len(f.Status.Missing) == 0 || f.Status.Advice == "" {
		s.Error("it does not say what would help")
	}
	if taints := s.Tainted(from); len(taints) != 1 {
		s.Errorf("the taints are %v, want the isolation alone", taints)
	}
	s.Must(s.Scene.Cluster.Heal(from))
	labtest.Until(s.T, fenceLimit, "the node to be Ready", func() error { return s.IsReady(from) })
	s.Must(s.Scene.Cluster.FaultBMC(from, cluster.BMCWorks))
	s.Released(from)
	if off := s.SwitchedOff(from, began); !off.IsZero() {
		s.Errorf("%s was switched off at %v", from, off)
	}
	if now := s.WriterPod(); now.UID != pod || now.Spec.NodeName != from {
		s.Errorf("the pod is another one, on %s", now.Spec.NodeName)
	}
	if got := s.Writes(); len(got) != 1 {
		s.Errorf("more than one attachment has written: %+v", got)
	}
	s.Intact()
}

// offFirst: with a BMC the node is switched off, and only then its volume is moved.
func (s *site) offFirst() {
	from, began := s.WriterNode(), time.Now()
	s.Must(s.Scene.Cluster.Partition(from, cluster.Both))
	s.Moved(from, fenceLimit)
	if s.Scene.Cluster.IsOn(from) {
		s.Error("the node runs")
	}
	off, deleted := s.SwitchedOff(from, began), s.Deleted(from, began)
	last := s.LastWrites(from).Last
	s.Logf("silent at 0, last write at %.1f s, switched off at %.1f s, VolumeAttachment deleted at %.1f s",
		last.Sub(began).Seconds(), off.Sub(began).Seconds(), deleted.Sub(began).Seconds())
	if off.IsZero() || off.After(deleted) {
		s.Errorf("the BMC switched the node off at %v, and its VolumeAttachment was deleted at %v", off, deleted)
	}
	if last.Before(began.Add(fencing.Fast.Silence / 2)) {
		s.Errorf("the writer stopped at %v, before it was switched off: this is another case than that of the test", last)
	}
	s.Intact()
	s.Must(s.Scene.Cluster.Heal(from))
	s.Must(s.Scene.Cluster.PowerOn(from))
	s.Released(from)
}
