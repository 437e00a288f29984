package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

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
	lab, from := s.Scene.Cluster, s.WriterNode()
	s.Must(lab.FaultBMC(from, cluster.BMCDead))
	s.Must(lab.Freeze(from))
	s.Reaches(from, fencing.Fencing)
	s.state(from)
	to := s.Moved(from, fenceLimit)
	s.Reaches(from, fencing.Moved)
	acknowledged := s.Scene.Acknowledged()
	thawed := time.Now()
	s.Must(lab.Thaw(from))
	labtest.Until(s.T, fenceLimit, "the storage to refuse a write of the node that thawed", func() error {
		violations, err := s.Scene.Violations(s.Context())
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
		f := s.Fence(from)
		if f == nil || !meta.IsStatusConditionTrue(f.Status.Conditions, "Contradicted") {
			return fmt.Errorf("it is %+v", f)
		}
		return nil
	})
	if now := s.WriterPod(); now.Spec.NodeName != to || now.DeletionTimestamp != nil {
		s.Errorf("the pod is on %s, deleted at %v", now.Spec.NodeName, now.DeletionTimestamp)
	}
	if last := s.LastWrites(from).Last; last.After(s.LastWrites(to).First) {
		s.Errorf("a write of the node that thawed landed at %v", last)
	}
	s.Intact(from)
	if now := s.Scene.Acknowledged(); now <= acknowledged {
		s.Errorf("the writer acknowledged %d records by now, and %d before the thaw", now, acknowledged)
	}
	// The machine is started again, which ends the boot that the statement was about.
	s.Must(lab.FaultBMC(from, cluster.BMCWorks))
	s.Must(lab.PowerOff(from))
	s.Must(lab.PowerOn(from))
	s.Released(from)
}

// state says for a person that the machine of a node is off, with the command that does that. It refuses as long as the node is Ready.
func (s *site) state(node string) {
	s.Helper()
	plugin, err := cluster.Program("kubectl-belay")
	s.Must(err)
	belay := func(args ...string) (string, int) {
		c := exec.CommandContext(s.Context(), plugin, append(args, "--kubeconfig", s.Scene.Cluster.Kubeconfig())...)
		out, _ := c.CombinedOutput()
		return string(out), c.ProcessState.ExitCode()
	}
	labtest.Until(s.T, fenceLimit, "the evidence to say that the power switch does not answer", func() error {
		if out, status := belay("evidence", "node/"+node); status != 2 || !strings.Contains(out, "SourceSilent") {
			return fmt.Errorf("exit status %d: %s", status, out)
		}
		return nil
	})
	machine := s.Fence(node).Spec.MachineID
	if out, status := belay("fence", node, "--confirm-powered-off", "--machine", "another", "--reason", "the test says so", "--confirm"); status != 2 {
		s.Errorf("a statement about another machine: exit status %d: %s", status, out)
	}
	labtest.Until(s.T, fenceLimit, "the statement to be stored", func() error {
		out, status := belay("fence", node, "--confirm-powered-off", "--machine", machine, "--reason", "the test says so", "--confirm")
		if status != 0 {
			return fmt.Errorf("exit status %d: %s", status, out)
		}
		s.Logf("%s", out)
		return nil
	})
	if f := s.Fence(node); f.Spec.Statement == nil || f.Spec.Statement.By != admin {
		s.Errorf("the statement is %+v", f.Spec.Statement)
	}
}
