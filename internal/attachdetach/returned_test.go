package attachdetach

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// A Node that came back lists a volume in use and removes it from the list before a decision was made on the first
// list: what it reported in between counts, otherwise the volume waits forever.
func TestReturnedNodeReleasesVolumeBetweenDecisions(t *testing.T) {
	m := newModel(t)
	k := key{Driver: driver, Handle: "h"}
	list := []string{kube.UniqueVolumeName(driver, "h")}
	m.put(aVolume("v", "h"))
	va := anAttachment(k, "n", "v", true)
	va.Annotations[kube.NodeUIDAnnotation] = "old"
	va.Annotations[kube.BootIDAnnotation] = "boot-n"
	va.Status.Attached = true
	m.put(va)
	as := func(uid string, inUse []string) *corev1.Node {
		return aNode("n", listing(inUse, inUse), func(n *corev1.Node) { n.UID = types.UID(uid) })
	}
	m.put(as("old", list))
	m.remove(as("old", list))
	m.put(as("new", nil))
	if d := m.decide(k); d.Reason != attachment.NodeReturned {
		t.Fatalf("a Node that came back and said nothing: %+v, want to wait for %s", d, attachment.NodeReturned)
	}
	m.put(as("new", list))
	m.put(as("new", nil))
	if d := m.decide(k); !does[attachment.WithdrawReport](d) {
		t.Fatalf("a Node that let the volume go: %+v, want it withdrawn and detached", d)
	}
	// A third Node object has not reported anything.
	m.remove(as("new", nil))
	m.put(as("third", nil))
	if d := m.decide(k); d.Reason != attachment.NodeReturned {
		t.Fatalf("yet another Node: %+v, want to wait for %s", d, attachment.NodeReturned)
	}
	m.remove(va)
	if len(m.releasedBy) != 0 {
		t.Errorf("still remembered: %v", m.releasedBy)
	}
}

// A VolumeAttachment is removed by hand under a; then a's Node is deleted and another machine registers under its name.
// If both arrive as one event (a relist), the volume waits for a machine without any object that could be deleted; if
// they arrive as two, it is free.
func TestNodeReplacedInOneEvent(t *testing.T) {
	waits := func(events int) bool {
		m, k := newModel(t), key{Driver: driver, Handle: "h"}
		unique := []string{kube.UniqueVolumeName(k.Driver, k.Handle)}
		m.put(aVolume("pv", k.Handle))
		m.put(aClaim("pv"))
		m.put(aNode("b", isReady))
		m.put(aPod("p", "b", byClaimOf("pv")))
		m.put(aNode("a", isReady, listing(unique, unique)))
		m.put(sharedAttachment(k, "a"))
		m.remove(sharedAttachment(k, "a"))
		if events == 2 {
			m.remove(aNode("a"))
		}
		m.put(aNode("a", isReady, func(n *corev1.Node) { n.UID, n.Status.NodeInfo.SystemUUID = "second", "other" }))
		s := m.observe(k, &nodeReads{}, noDoubts{})
		d := attachment.Decide(modelTime, s.want, s.seen, attachment.Policy{}) // no force, as with the two flags
		return !does[attachment.Attach](d)
	}
	if two, one := waits(2), waits(1); two != one {
		t.Errorf("waits after two events: %v, after one: %v", two, one)
	}
}
