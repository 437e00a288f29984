package attachdetach

import (
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// A Node that was recreated lists a volume in use and takes it off the list, which proves nothing (attachment.SyncWindow). It is
// believed once its kubelet was alive for the whole window since, and each time that it lists the volume the window begins again.
func TestRecreatedNodeIsQuietForTheWindow(t *testing.T) {
	m := newModel(t)
	k := key{Driver: driver, Handle: "h"}
	list := []string{kube.UniqueVolumeName(driver, "h")}
	m.put(aVolume("v", "h"))
	va := anAttachment(k, "n", "v", true)
	va.Annotations[kube.NodeUIDAnnotation] = "old"
	va.Annotations[kube.BootIDAnnotation] = "boot-n"
	va.Annotations[kube.DetachRequestedAnnotation] = writeTime(modelTime.Add(-time.Hour))
	va.Status.Attached = true
	m.put(va)
	as := func(uid string, inUse []string) *corev1.Node {
		return aNode("n", isReady, listing(inUse, list), func(n *corev1.Node) { n.UID, n.Status.NodeInfo.BootID = types.UID(uid), "boot-n" })
	}
	lease := &coordinationv1.Lease{}
	c, clock := m.controllerOf(), &setClock{modelTime}
	c.clock, m.clusterState.clock, c.live = clock, clock, hungLease{lease: lease}
	w := &work{Controller: c, key: k, reads: &nodeReads{}, log: log.FromContext(t.Context())}
	// passes has the kubelet renew its lease for some time, and the controller check it.
	passes := func(d time.Duration) {
		for end := clock.now.Add(d); !clock.now.After(end); clock.now = clock.now.Add(time.Second) {
			lease.ResourceVersion = clock.now.String()
			if _, err := w.checkKubelet(t.Context(), attachment.CheckKubelet{Node: "n", NodeUID: "new"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	waits := func(when string) {
		t.Helper()
		if d := m.decide(k); d.Reason != attachment.NodeReturned || does[attachment.WithdrawReport](d) {
			t.Fatalf("%s: %+v, want to wait for %s", when, d, attachment.NodeReturned)
		}
	}
	m.put(as("old", list))
	m.remove(as("old", list))
	m.put(as("new", nil))
	waits("a Node that was recreated")
	m.put(as("new", list))
	m.put(as("new", nil))
	waits("it listed the volume and took it off the list")
	passes(attachment.SyncWindow - 5*time.Second)
	waits("the window has not passed")
	m.put(as("new", list))
	m.put(as("new", nil))
	waits("it listed the volume in the window")
	passes(attachment.SyncWindow - 5*time.Second)
	waits("a new window has not passed")
	passes(35 * time.Second)
	if d := m.decide(k); !does[attachment.WithdrawReport](d) {
		t.Fatalf("the window has passed: %+v, want the report withdrawn", d)
	}
	m.put(aNode("n", listing(nil, list), func(n *corev1.Node) { n.UID, n.Status.NodeInfo.BootID = "new", "boot-n" }))
	waits("it is no longer Ready")
	// A third Node object has not reported anything.
	m.remove(as("new", nil))
	m.put(as("third", nil))
	waits("yet another Node")
}

// A volume whose pods leave while the kubelet is being checked for another one has a window of its own.
func TestEachVolumeHasItsWindow(t *testing.T) {
	k, at := &kubelets{}, modelTime
	quiet := func(unique string) time.Duration {
		n := k.describe("n", unique, attachment.Node{Machine: attachment.Machine{NodeUID: "new"}})
		return n.QuietUntil.Sub(n.QuietSince)
	}
	for i := range 5 {
		if i > 0 && !k.joins("n", "new", "early", at.Add(-time.Second)) {
			t.Fatal("the lease is to be read again at once")
		}
		k.recordLease("n", "new", fmt.Sprint(i), 40*time.Second, at)
		k.joins("n", "new", "early", at)
		if i == 2 {
			k.joins("n", "new", "late", at)
		}
		at = at.Add(14 * time.Second)
	}
	if early, late := quiet("early"), quiet("late"); early != 42*time.Second || late != 14*time.Second {
		t.Errorf("quiet for %v and %v, want 42s and 14s: nothing shows that the kubelet was alive after the check before the last", early, late)
	}
	k.recordLease("n", "new", "4", 40*time.Second, at) // it was not renewed
	if early := quiet("early"); early > 0 {
		t.Errorf("quiet for %v although the lease was not renewed", early)
	}
}

// The window of an orphan, whose volume is unknown, is its own. It begins again when the Node lists what the orphan may be of.
func TestOrphanHasItsWindow(t *testing.T) {
	m := newModel(t)
	va := anAttachment(key{Driver: driver, Handle: "lost"}, "n", "v", false)
	va.Annotations = map[string]string{kube.NodeUIDAnnotation: "old", kube.BootIDAnnotation: "boot-n", kube.DetachRequestedAnnotation: writeTime(modelTime)}
	va.Status.Attached = true
	k := orphanKey(va)
	m.put(va)
	as := func(inUse ...string) *corev1.Node {
		return aNode("n", isReady, listing(inUse, nil), func(n *corev1.Node) { n.UID, n.Status.NodeInfo.BootID = "new", "boot-n" })
	}
	m.put(as())
	lease := &coordinationv1.Lease{}
	c, clock := m.controllerOf(), &setClock{modelTime}
	c.clock, m.clusterState.clock, c.live = clock, clock, hungLease{lease: lease}
	w := &work{Controller: c, key: k, reads: &nodeReads{}, log: log.FromContext(t.Context())}
	quiet := func() bool {
		for end := clock.now.Add(70 * time.Second); !clock.now.After(end); clock.now = clock.now.Add(time.Second) {
			lease.ResourceVersion = clock.now.String()
			if _, err := w.checkKubelet(t.Context(), attachment.CheckKubelet{Node: "n", NodeUID: "new"}); err != nil {
				t.Fatal(err)
			}
		}
		return does[attachment.Check](m.decide(k))
	}
	if d := m.decide(k); d.Reason != attachment.NodeReturned || !does[attachment.CheckKubelet](d) {
		t.Fatalf("before: %+v, want to wait for %s", d, attachment.NodeReturned)
	}
	if !quiet() {
		t.Fatalf("after the window: %+v, want the node read", m.decide(k))
	}
	lost := kube.UniqueVolumeName(driver, "lost")
	m.put(as(lost))
	m.put(as())
	if d := m.decide(k); !does[attachment.CheckKubelet](d) {
		t.Errorf("the volume was listed: %+v, want a new window", d)
	}
	if !quiet() {
		t.Errorf("after the second window: %+v, want the node read", m.decide(k))
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
