package e2e

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labtest"
)

// admin is the user of the tests at the API server.
const admin = "belay-lab-admin"

// TestThawedNode: a node that hung while a person stated, wrongly, that its machine is off, continues after its volume has moved. The storage
// refuses what it writes, and nothing is lost. Its BMC does not answer: else it would be switched off, and nothing could thaw.
func TestThawedNode(t *testing.T) {
	needsFencing(t)
	for _, kind := range []string{cluster.NodeKindKubelet, cluster.NodeKindBelay} {
		t.Run(kind+" nodes", func(t *testing.T) {
			openSite(t, cluster.Options{Name: "hl-thaw", Nodes: 3, NodeKind: kind}).thaws()
		})
	}
}

func (s *site) thaws() {
	lab, from := s.scene.Cluster, s.writerNode()
	s.must(lab.FaultBMC(from, cluster.BMCDead))
	s.must(lab.Freeze(from))
	s.reaches(from, fencing.Fencing)
	s.state(from)
	to := s.moved(from, fenceLimit)
	s.reaches(from, fencing.Moved)
	acknowledged := s.scene.Acknowledged()
	thawed := time.Now()
	s.must(lab.Thaw(from))
	labtest.Until(s.T, fenceLimit, "the storage to refuse a write of the node that thawed", func() error {
		violations, err := s.scene.Violations(s.Context())
		if err != nil {
			return err
		}
		for _, v := range violations {
			if v.Node == from && v.Refused && v.Time.After(thawed) {
				s.Logf("refused %.1f s after the thaw: %s, offset %d, %d bytes", v.Time.Sub(thawed).Seconds(), v.Reason, v.Offset, v.Length)
				return nil
			}
		}
		return fmt.Errorf("none among %d", len(violations))
	})
	labtest.Until(s.T, fenceLimit, "the fence to be contradicted", func() error {
		f := s.fence(from)
		if f == nil || !meta.IsStatusConditionTrue(f.Status.Conditions, "Contradicted") {
			return fmt.Errorf("it is %+v", f)
		}
		return nil
	})
	if now := s.writerPod(); now.Spec.NodeName != to || now.DeletionTimestamp != nil {
		s.Errorf("the pod is on %s, deleted at %v", now.Spec.NodeName, now.DeletionTimestamp)
	}
	if last := s.lastWrites(from).Last; last.After(s.lastWrites(to).First) {
		s.Errorf("a write of the node that thawed landed at %v", last)
	}
	s.intact(from)
	if now := s.scene.Acknowledged(); now <= acknowledged {
		s.Errorf("the writer acknowledged %d records by now, and %d before the thaw", now, acknowledged)
	}
	// The machine is started again, which ends the boot that the statement was about.
	s.must(lab.FaultBMC(from, cluster.BMCWorks))
	s.must(lab.PowerOff(from))
	s.must(lab.PowerOn(from))
	s.released(from)
}

// state says for a person that the machine of a node is off.
func (s *site) state(node string) {
	s.Helper()
	labtest.Until(s.T, fenceLimit, "the statement to be stored", func() error {
		f := s.fence(node)
		before := client.MergeFrom(f.DeepCopy())
		f.Spec.Statement = &fencingv1.Statement{
			By: admin, Reason: "the test says so", MachineID: f.Spec.MachineID, Expires: metav1.NewTime(time.Now().Add(time.Hour)),
		}
		return s.api.Patch(s.Context(), f, before)
	})
}
