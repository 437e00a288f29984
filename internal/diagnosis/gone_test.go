package diagnosis

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
)

// gone makes the scene of a machine that is gone: its Node was deleted, and the driver does not know it.
func (s *scene) gone() {
	s.Nodes = slices.DeleteFunc(s.Nodes, func(n *corev1.Node) bool { return n.Name == "a" })
	s.Pods = []*corev1.Pod{s.waiter}
	s.va.UID, s.va.ResourceVersion, s.va.Finalizers = "u", "7", []string{kube.AttacherFinalizer(oneDriver)}
	s.va.DeletionTimestamp = &metav1.Time{Time: s.Now.Add(-time.Hour)}
	s.va.Annotations = map[string]string{kube.NodeIDAnnotation: "i-a"}
	s.va.Status.DetachError = &storagev1.VolumeError{Message: "rpc error: code = NotFound desc = instance i-a not found"}
	s.CSINodes = []*storagev1.CSINode{csiNodeOf("b", "i-b")}
	s.Drivers = []*storagev1.CSIDriver{{ObjectMeta: metav1.ObjectMeta{Name: oneDriver}}}
}

func csiNodeOf(name, id string) *storagev1.CSINode {
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: oneDriver, NodeID: id}}}}
}

// The detach from a machine that is gone has a reason of its own: it is unsafe to force, and the steps lead to the command. Where a Node or a
// CSINode is left, or the driver answers anything else, it is an error of the driver like any other.
func TestMachineUnknown(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(s *scene)
		want   decision.Reason
	}{
		"machine and Node are gone":  {func(*scene) {}, explain.MachineUnknown},
		"the Node exists":            {func(s *scene) { s.Nodes = append(s.Nodes, s.a) }, "DetachFailed"},
		"a node has the ID":          {func(s *scene) { s.CSINodes[0] = csiNodeOf("b", "i-a") }, "DetachFailed"},
		"the Nodes are not all read": {func(s *scene) { s.Whole = []Resource{Pods, Claims, Volumes, Attachments, Drivers, CSINodes, Leases} }, "DetachFailed"},
		"another code": {func(s *scene) {
			s.va.Status.DetachError.Message = "rpc error: code = Internal desc = i-a not found"
		}, "DetachFailed"},
		"restored": {func(s *scene) { s.va.Status.DetachError.Message = explain.Restored(s.va.Name, "i-a", "velero-server") }, publication.RestoredAttachment},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.gone()
			tt.change(&s)
			e, err := Explain(s.Snapshot, Ref{Resource: Attachments, Name: s.va.Name})
			if err != nil || len(e.Findings) == 0 {
				t.Fatalf("%+v (%v)", e, err)
			}
			f := e.Findings[0]
			if f.Reason != tt.want {
				t.Errorf("%s: %s, want %s", f.Reason, f.Summary, tt.want)
			}
			if leads := len(f.Next) > 1 && strings.Contains(f.Next[1].Command, "declare-gone va/"+s.va.Name+" --node-id i-a "); leads != (tt.want != "DetachFailed") {
				t.Errorf("steps: %+v", f.Next)
			}
			if (f.Verdict == Unsafe) != (tt.want != "DetachFailed") {
				t.Errorf("verdict %s", f.Verdict)
			}
		})
	}
}

// A statement needs each of its preconditions.
func TestPlanDeclareGone(t *testing.T) {
	asked := GoneRequest{NodeID: "i-a", Reason: "terminated"}
	may := Author{Name: "ada", May: decision.Yes}
	tests := map[string]struct {
		change  func(s *scene)
		request GoneRequest
		author  Author
		lacks   string // empty if it may be stated
	}{
		"all is true":              {nil, asked, may, ""},
		"another node ID":          {nil, GoneRequest{NodeID: "i-c", Reason: "terminated"}, may, "node ID"},
		"no node ID":               {nil, GoneRequest{Reason: "terminated"}, may, "node ID, machine"},
		"no reason":                {nil, GoneRequest{NodeID: "i-a", Reason: " "}, may, "reason"},
		"too many reasons":         {nil, GoneRequest{NodeID: "i-a", Reason: strings.Repeat("x", longestReason+1)}, may, "reason"},
		"it is wanted":             {func(s *scene) { s.va.DeletionTimestamp = nil }, asked, may, "detach"},
		"the attacher is done":     {func(s *scene) { s.va.Finalizers = []string{"example.com/other"} }, asked, may, "detach"},
		"a CSINode has the ID":     {func(s *scene) { s.CSINodes[0] = csiNodeOf("b", "i-a") }, asked, may, "machine"},
		"a Node is named so":       {func(s *scene) { s.Nodes[0].Name = "i-a" }, asked, may, "machine"},
		"a Node's provider ID":     {func(s *scene) { s.Nodes[0].Spec.ProviderID = "aws:///zone/i-a" }, asked, may, "machine"},
		"a Node's annotation":      {func(s *scene) { s.Nodes[0].Annotations[kube.CSINodeIDsAnnotation] = `{"x":"i-a"}` }, asked, may, "machine"},
		"the CSINodes are unknown": {func(s *scene) { s.Whole = []Resource{Volumes, Attachments, Nodes, Drivers} }, asked, may, "machine"},
		"the Nodes are unknown":    {func(s *scene) { s.Whole = []Resource{Volumes, Attachments, CSINodes, Drivers} }, asked, may, "machine"},
		"the Node has no driver yet": {func(s *scene) {
			s.a.Status.VolumesInUse = nil
			s.Nodes = append(s.Nodes, s.a)
		}, asked, may, "node"},
		"another machine, and it lists the volume": {func(s *scene) {
			s.Nodes, s.CSINodes = append(s.Nodes, s.a), append(s.CSINodes, csiNodeOf("a", "i-new"))
		}, asked, may, "use"},
		"another machine, which lists nothing": {func(s *scene) {
			s.a.Status.VolumesInUse = nil
			s.Nodes, s.CSINodes = append(s.Nodes, s.a), append(s.CSINodes, csiNodeOf("a", "i-new"))
		}, asked, may, ""},
		"another node waits for the volume": {func(s *scene) { s.Nodes[0].Status.VolumesInUse = s.a.Status.VolumesInUse }, asked, may, ""},
		"the user is unknown":               {nil, asked, Author{May: decision.Yes}, "user"},
		"the user may not":                  {nil, asked, Author{Name: "ada", May: decision.No}, "permission"},
	}
	for name, tt := range tests {
		for _, subject := range []Ref{{Resource: Attachments, Name: kube.AttachmentName("h", oneDriver, "a")}, {Resource: Nodes, Name: "a"}} {
			t.Run(name+" "+string(subject.Resource), func(t *testing.T) {
				s := newScene()
				s.gone()
				if tt.change != nil {
					tt.change(&s)
				}
				p, err := PlanDeclareGone(s.Snapshot, subject, tt.request, tt.author)
				if err != nil {
					t.Fatal(err)
				}
				lacks := tt.lacks
				if subject.Resource == Nodes && lacks == "detach" {
					lacks = "node ID" // none of the node is to be detached
				}
				if want := "not all that the statement needs is true: " + lacks; lacks == "" && p.Refusal != "" || lacks != "" && p.Refusal != want {
					t.Errorf("refusal %q, want %q", p.Refusal, lacks)
				}
				if lacks == "" && (len(p.Attachments) != 1 || p.Attachments[0].UID != "u" || p.Attachments[0].ResourceVersion != "7" || len(p.Risks) == 0) {
					t.Errorf("%+v", p)
				}
			})
		}
	}
}

// With a node, its VolumeAttachments that are being deleted and have the ID are taken, and the others are left out.
func TestPlanDeclareGoneOfANode(t *testing.T) {
	s := newScene()
	s.gone()
	wanted, another := s.va.DeepCopy(), s.va.DeepCopy()
	wanted.Name, wanted.DeletionTimestamp = "wanted", nil
	another.Name, another.Annotations = "another", map[string]string{kube.NodeIDAnnotation: "i-other"}
	second := s.va.DeepCopy()
	second.Name = "csi-second"
	s.Attachments = append(s.Attachments, wanted, another, second)
	p, err := PlanDeclareGone(s.Snapshot, Ref{Resource: Nodes, Name: "a"}, GoneRequest{NodeID: "i-a", Reason: "terminated"}, Author{Name: "ada", May: decision.Yes})
	if err != nil || p.Refusal != "" || len(p.Attachments) != 2 || p.Attachments[1].Name != "csi-second" && p.Attachments[0].Name != "csi-second" {
		t.Errorf("%+v (%v)", p, err)
	}
	if last := p.Does[len(p.Does)-1]; !strings.Contains(last, "leaves out 2 other") {
		t.Errorf("does: %s", last)
	}
	if _, err := PlanDeclareGone(s.Snapshot, Ref{Resource: Nodes, Name: "z"}, GoneRequest{}, Author{}); err == nil {
		t.Error("a node without VolumeAttachments has a plan")
	}
}

// A VolumeAttachment that its attacher holds for one of another cluster is explained as such, whatever became of the Node that it names: the way
// of a Node that was deleted, force-detach, looks at this cluster's machines only.
func TestRestoredAttachmentOfAMissingNode(t *testing.T) {
	s := newScene()
	s.Pods, s.Nodes = []*corev1.Pod{s.waiter}, slices.DeleteFunc(s.Nodes, func(n *corev1.Node) bool { return n.Name == s.va.Spec.NodeName })
	s.va.Status.Attached = false
	s.va.Status.AttachError = &storagev1.VolumeError{Message: explain.Restored("va", "old-vm", "velero-server"), Time: metav1.NewTime(s.Now)}
	for _, ref := range []Ref{{Attachments, "", s.va.Name}, {Pods, "ns", "waiter"}} {
		e, err := Explain(s.Snapshot, ref)
		if err != nil || len(e.Findings) == 0 {
			t.Fatalf("%v: %+v (%v)", ref, e, err)
		}
		if f := e.Findings[0]; f.Reason != publication.RestoredAttachment || f.Verdict != Unsafe {
			t.Errorf("%v: %s, %s: %s", ref, f.Reason, f.Verdict, f.Summary)
		}
	}
}
