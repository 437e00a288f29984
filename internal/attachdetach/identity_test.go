package attachdetach

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// aReturnedNode is Node n, deleted and registered again after another boot, while a volume is attached to its first boot.
func aReturnedNode(t *testing.T, uuid string, others ...*corev1.Node) (*model, key) {
	t.Helper()
	m, k := newModel(t), key{Driver: driver, Handle: "h"}
	m.put(aVolume("v", "h"))
	va := anAttachment(k, "n", "v", true)
	va.Annotations[kube.NodeUIDAnnotation], va.Annotations[kube.BootIDAnnotation], va.Annotations[kube.SystemUUIDAnnotation] = "old", "boot-1", uuid
	va.Status.Attached = true
	m.put(va)
	for _, other := range others {
		m.put(other)
	}
	m.put(aNode("n", isReady, func(n *corev1.Node) {
		n.UID, n.Status.NodeInfo.BootID, n.Status.NodeInfo.SystemUUID = "new", "boot-2", uuid
	}))
	return m, k
}

// twin is another Node with a system UUID.
func twin(name, uuid string) *corev1.Node {
	return aNode(name, func(n *corev1.Node) { n.UID, n.Status.NodeInfo.SystemUUID = types.UID("uid-"+name), uuid })
}

// TestSharedUUIDNeverSaysTheSame (S1, S2): a UUID that another Node carries too does not say that the machine was restarted: another box may
// have come in its place. The volume is woken when the other Node comes, changes or goes.
func TestSharedUUIDNeverSaysTheSame(t *testing.T) {
	const uuid, same = "4c4c4544-0051-3910-8052-b4c04f4d3532", "4C4C4544005139108052B4C04F4D3532"
	m, k := aReturnedNode(t, uuid)
	if d := m.decide(k); !does[attachment.WithdrawReport](d) {
		t.Fatalf("no other Node has the UUID: %+v, want it to be detached", d)
	}
	for what, change := range map[string]func() []key{
		"comes":          func() []key { return m.put(twin("other", same)) },
		"shows it later": func() []key { m.put(twin("other", "")); return m.put(twin("other", same)) },
	} {
		if woken := change(); !slices.Contains(woken, k) {
			t.Errorf("another Node %s: woken %v", what, woken)
		}
		if d := m.decide(k); d.Reason != attachment.NodeReplaced {
			t.Errorf("another Node %s: %+v, want to wait for %s", what, d, attachment.NodeReplaced)
		}
		if woken := m.remove(twin("other", same)); !slices.Contains(woken, k) {
			t.Errorf("the other Node goes: woken %v", woken)
		}
		if d := m.decide(k); !does[attachment.WithdrawReport](d) {
			t.Errorf("the other Node is gone: %+v, want it to be detached", d)
		}
	}
	// So it is when the Node that came back is deleted again: its last version had an empty list.
	m.put(twin("other", same))
	m.remove(aNode("n"))
	if d := m.decide(k); d.Reason != attachment.NodeGone {
		t.Errorf("the Node is gone again: %+v, want to wait for %s", d, attachment.NodeGone)
	}
	// Another UUID is another machine, however many have it.
	other := "4c4c4544-0051-3910-8052-b4c04f4d3533"
	m.put(twin("other", other))
	m.put(aNode("n", isReady, func(n *corev1.Node) {
		n.UID, n.Status.NodeInfo.BootID, n.Status.NodeInfo.SystemUUID = "new", "boot-2", other
	}))
	if d := m.decide(k); d.Reason != attachment.NodeReplaced {
		t.Errorf("another UUID, which another Node has: %+v, want %s", d, attachment.NodeReplaced)
	}
}

// TestBoardDefaultsNeverSayTheSame (S1, S2): so it is with what firmware shows where no UUID was set, on one Node alone.
func TestBoardDefaultsNeverSayTheSame(t *testing.T) {
	for _, uuid := range []string{
		"00000000-0000-0000-0000-000000000000", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", "03000200-0400-0500-0006-000700080009",
		"00020003-0004-0005-0006-000700080009", "12345678-1234-5678-90ab-cddeefaabbcc",
	} {
		m, k := aReturnedNode(t, uuid)
		if d := m.decide(k); d.Reason != attachment.NodeReplaced {
			t.Errorf("%s: %+v, want to wait for %s", uuid, d, attachment.NodeReplaced)
		}
	}
}

// TestManyNodesWithOneUUIDAreNotWoken: when a Node comes that shares its UUID with many, none of them was alone with it, and the volumes of all
// nodes are not decided on for each of them.
func TestManyNodesWithOneUUIDAreNotWoken(t *testing.T) {
	const uuid = "4c4c4544-0051-3910-8052-b4c04f4d3532"
	var others []*corev1.Node
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"} {
		others = append(others, twin(name, uuid))
	}
	m, k := aReturnedNode(t, uuid, others...)
	if woken := m.put(twin("another", uuid)); slices.Contains(woken, k) {
		t.Errorf("woken: %v", woken)
	}
}

func aCSINode(name, nodeID string) *storagev1.CSINode {
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
		{Name: driver, NodeID: nodeID}, {Name: "other.test", NodeID: "other-" + nodeID},
	}}}
}

// TestNodeIDsWake: a CSINode wakes the volumes whose driver has another ID for the node than the recorded one, and no others; so does the
// attacher's record of an ID that is not the node's any more.
func TestNodeIDsWake(t *testing.T) {
	m, k := newModel(t), key{Driver: driver, Handle: "h"}
	m.put(aVolume("v", "h"))
	m.put(aNode("n", isReady))
	va := anAttachment(k, "n", "v", true)
	va.Annotations[kube.BootIDAnnotation] = "boot-n"
	m.put(va)
	m.put(aCSINode("n", "i-1"))
	va.Annotations[kube.NodeIDAnnotation] = "i-1"
	for _, step := range []struct {
		what  string
		event func() []key
		woken bool
	}{
		{"the attacher records the ID", func() []key { return m.put(va) }, false},
		{"another driver has another ID", func() []key {
			n := aCSINode("n", "i-1")
			n.Spec.Drivers[1].NodeID = "x"
			return m.put(n)
		}, false},
		{"the driver has another ID", func() []key { return m.put(aCSINode("n", "i-2")) }, true},
		{"the driver is removed", func() []key { return m.remove(aCSINode("n", "i-2")) }, true},
		{"the driver is back", func() []key { return m.put(aCSINode("n", "i-1")) }, false},
		{"an ID is recorded that is no more the node's", func() []key {
			late := va.DeepCopy()
			late.Annotations[kube.NodeIDAnnotation] = "i-0"
			return m.put(late)
		}, true},
		{"it stays", func() []key {
			late := va.DeepCopy()
			late.Annotations[kube.NodeIDAnnotation], late.Finalizers = "i-0", []string{"x"}
			return m.put(late)
		}, false},
		{"the node's ID is recorded again", func() []key { return m.put(va) }, true},
		{"it changes once more", func() []key { return m.put(aCSINode("n", "i-3")) }, true},
	} {
		if woken := step.event(); slices.Contains(woken, k) != step.woken {
			t.Errorf("%s: woken %v", step.what, woken)
		}
	}
	d := m.decide(k)
	if want := (attachment.RecordSameMachine{Node: "n", NodeID: "i-3"}); len(d.Steps) != 1 || !does[attachment.RecordSameMachine](d) {
		t.Errorf("%+v, want %+v", d.Steps, want)
	}
}

// TestAnotherMachineUnderTheName (S9): a machine with another boot and another CSI node ID has the Node object of the one that a volume is attached to
// (hetznercloud/csi-driver#320), and no identity says that they are the same. It lists the volume for its pod, and the report is withdrawn all the same.
func TestAnotherMachineUnderTheName(t *testing.T) {
	for name, uuid := range map[string]string{"another UUID": "4c4c4544-0051-3910-8052-b4c04f4d3533", "nothing says that it is the same": ""} {
		t.Run(name, func(t *testing.T) {
			m, k := newModel(t), key{Driver: driver, Handle: "h"}
			unique := []string{kube.UniqueVolumeName(k.Driver, k.Handle)}
			m.put(aVolume("v", "h"))
			m.put(aClaim("v"))
			m.put(aCSINode("n", "i-2"))
			va := anAttachment(k, "n", "v", true)
			va.Annotations[kube.NodeUIDAnnotation], va.Annotations[kube.BootIDAnnotation], va.Annotations[kube.NodeIDAnnotation] = "uid-n", "boot-1", "i-1"
			va.Annotations[kube.SystemUUIDAnnotation] = "4c4c4544-0051-3910-8052-b4c04f4d3532"
			va.Status.Attached = true
			m.put(va)
			m.put(aNode("n", isReady, listing(unique, unique), func(n *corev1.Node) {
				n.UID, n.Status.NodeInfo.BootID, n.Status.NodeInfo.SystemUUID = "uid-n", "boot-2", uuid
			}))
			m.put(aPod("p", "n", byClaimOf("v")))
			if d := m.decide(k); !does[attachment.WithdrawReport](d) {
				t.Errorf("not withdrawn: %+v", d.Steps)
			}
		})
	}
}
