package attachment

import (
	"testing"
	"time"
)

// A volume is mounted on a. Its Node is deleted and recreated in the same boot by a client that does not annotate it
// in the same request (docs/differences/controller.md: "The creator of a Node may annotate it later"). Until its kubelet reports,
// nothing shows that the volume was released.
func TestNodeRecreatedWithoutAnnotation(t *testing.T) {
	want := wantAt("b")
	seen := Observed{
		Attachments: []Attachment{attached("a")},
		Nodes:       nodes(map[NodeName]Node{"a": node("a", reborn, unmanaged), "b": node("b", healthy)}),
	}
	d := Decide(t0, want, seen, policy)
	for _, step := range d.Steps {
		switch s := step.(type) {
		case Detach, ForceDetach:
			t.Errorf("forgets what a has mounted: %+v", s)
		case Report:
			t.Errorf("reports to %s", s.Node)
		}
	}
}

// The PersistentVolume behind a's attachment is gone while the volume is mounted; another
// of the same handle is wanted on a. The Node is recreated (same boot) and lists the volume.
// belay writes [Note, Report]: the Note lands, the Report does not (a crash, a failed
// request). The volume is as mounted as before.
func TestAnnotationWithoutItsReport(t *testing.T) {
	a := attached("a", volumeGone)
	n := node("a", reborn, inUse, healthy)
	seen := func() Observed {
		return Observed{Attachments: []Attachment{a}, Nodes: nodes(map[NodeName]Node{"a": n})}
	}
	d := Decide(t0, wantAt("a"), seen(), policy)
	for _, step := range d.Steps {
		switch s := step.(type) {
		case AnnotateAttachment:
			a.Machine, a.DetachRequested = s.Machine, s.DetachRequested
		case Detach, ForceDetach, WithdrawReport:
			t.Fatalf("first decision: %+v", s)
		}
	}
	n.Checked = true // the answer of the withdrawal
	d = Decide(t0, wantAt("a"), seen(), policy)
	for _, step := range d.Steps {
		if s, ok := step.(Detach); ok {
			t.Errorf("detaches a mounted volume of a healthy node: %+v", s)
		}
	}
}

// The same Node object in the same boot has other hardware identifiers, because kubelet (cadvisor) was updated, or the firmware's
// byte order changed. It is certainly the same machine.
func TestSameBootOtherSystemUUID(t *testing.T) {
	n := node("a", healthy, checked, func(n *Node) { n.Machine.SystemUUID = "HW-A" })
	seen := Observed{Attachments: []Attachment{attached("a")}, Nodes: nodes(map[NodeName]Node{"a": n})}
	d := Decide(t0, Desired{Shared: No}, seen, policy)
	if len(d.Steps) != 1 {
		t.Fatalf("steps %+v", d.Steps)
	}
	if _, ok := d.Steps[0].(Detach); !ok {
		t.Errorf("an idle volume of a healthy node waits (until %v): %+v", d.RecheckAt, d.Steps)
	}
}

// A report that no attachment stands behind, on a node that was never given the volume
// (no ledger entry): S9. What the node lists in use makes no difference to that, and an
// entry that stays is believed by the next leader (adopt).
func TestOrphanReportOfAVolumeListedInUse(t *testing.T) {
	seen := Observed{Nodes: nodes(map[NodeName]Node{"evil": node("evil", healthy, reported, inUse)})}
	d := Decide(t0.Add(time.Hour), Desired{Shared: No}, seen, policy)
	if len(d.Steps) == 0 {
		t.Error("a report without an attachment stays")
	}
}

// The same without another pod: the volume's own pod is being deleted on a. After the Note
// landed and the Report did not, kubelet restarts: of what it finds mounted it lists only
// what is reported, so the list of the new Node object loses the volume, still mounted.
func TestAnnotationWithoutItsReportAfterRestart(t *testing.T) {
	a := attached("a")
	n := node("a", reborn, inUse, healthy)
	seen := func() Observed {
		return Observed{Attachments: []Attachment{a}, Nodes: nodes(map[NodeName]Node{"a": n})}
	}
	for _, step := range Decide(t0, Desired{Shared: No}, seen(), policy).Steps {
		if s, ok := step.(AnnotateAttachment); ok {
			a.Machine, a.DetachRequested = s.Machine, s.DetachRequested
		}
	}
	n.InUse, n.Checked = No, true
	for _, step := range Decide(t0, Desired{Shared: No}, seen(), policy).Steps {
		if s, ok := step.(Detach); ok {
			t.Errorf("believes a list that was never synced: %+v", s)
		}
	}
}
