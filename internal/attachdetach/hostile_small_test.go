package attachdetach

import (
	"slices"
	"testing"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// The API server admits a list that names a volume twice (it is atomic). When both entries
// go at once, the volume is no longer in use, and nothing wakes it.
func TestHostileListedTwice(t *testing.T) {
	m, k := newModel(t), key{Driver: driver, Handle: "h"}
	unique := kube.UniqueVolumeName(k.Driver, k.Handle)
	m.put(aVolume("pv", k.Handle))
	m.put(aClaim("pv"))
	m.put(aNode("a", isReady, listing([]string{unique, unique}, []string{unique})))
	va := sharedAttachment(k, "a")
	va.Spec.Source.PersistentVolumeName = new("pv")
	m.put(va)
	if d := m.decide(k); d.Reason != attachment.StillInUse {
		t.Fatalf("before: %+v", d.Steps)
	}
	woken := m.put(aNode("a", isReady, listing(nil, []string{unique})))
	if d := m.decide(k); !does[attachment.WithdrawReport](d) {
		t.Fatalf("after: %+v", d.Steps)
	}
	if !slices.Contains(woken, k) {
		t.Error("the volume is no longer in use and is not woken")
	}
}

// What is remembered of Nodes and VolumeAttachments goes with them.
func TestHostileMemoryOfWhatIsGone(t *testing.T) {
	m, k := newModel(t), key{Driver: driver, Handle: "h"}
	c := m.controllerOf()
	m.put(aNode("a", isReady))
	node, _ := m.nodes.Get("a")
	now := modelTime
	m.kubelets.saw("a", node.UID, "1", now)
	m.kubelets.saw("a", node.UID, "2", now.Add(attachment.SyncWindow))
	va := sharedAttachment(k, "a")
	m.put(va)
	seen, _ := m.attachments.Get(va.Name)
	c.doubt(seen.UID, seen.ResourceVersion) // its delete had no answer, and was carried out
	c.reporter.doubt(node)                  // and a write to the Node neither
	m.remove(va)
	m.remove(aNode("a"))
	if _, err := c.Reconcile(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	if len(m.kubelets.looks) > 0 {
		t.Errorf("looks at a kubelet whose Node is gone: %v", m.kubelets.looks)
	}
	if len(c.doubtful) > 0 {
		t.Errorf("doubts about a VolumeAttachment that is gone: %v", c.doubtful)
	}
	if len(c.reporter.unsure) > 0 {
		t.Errorf("doubts about a Node that is gone: %v", c.reporter.unsure)
	}
}
