package attachdetach

import (
	"encoding/json"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// The API server admits a list that names a volume twice (it is atomic). When both entries
// go at once, the volume is no longer in use, and nothing wakes it.
func TestListedTwice(t *testing.T) {
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
func TestMemoryOfWhatIsGone(t *testing.T) {
	m, k := newModel(t), key{Driver: driver, Handle: "h"}
	c := m.controllerOf()
	m.put(aNode("a", isReady))
	node, _ := m.nodes.Get("a")
	now := modelTime
	m.kubelets.saw("a", node.UID, "1", 40*time.Second, now)
	m.kubelets.saw("a", node.UID, "2", 40*time.Second, now.Add(attachment.SyncWindow))
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

// A VolumeAttachment was removed by hand under a; then a's Node is deleted and another machine
// registers under its name. Where both come as one event (a relist), the volume waits for a
// machine of which nothing is left that anybody could delete; where they come as two, it is
// free.
func TestReplacedInOneEvent(t *testing.T) {
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
		s := m.observe(k, &turn{}, noDoubts{})
		d := attachment.Decide(modelTime, s.want, s.seen, attachment.Policy{}) // no force, as with the two flags
		return !does[attachment.Attach](d)
	}
	if two, one := waits(2), waits(1); two != one {
		t.Errorf("waits after two events: %v, after one: %v", two, one)
	}
}

// One node lists 50,000 volumes in use (1.4 MB, which the API server stores) and sends its
// status. Each such event is looked at by the one goroutine that hears of all Nodes.
func TestLongListHoldsUpAllNodes(t *testing.T) {
	m := newModel(t)
	var names []string
	for i := range 50_000 {
		names = append(names, kube.UniqueVolumeName("d", strconv.Itoa(100_000+i)))
	}
	m.put(aNode("evil", isReady, listing(names, nil)))
	next := aNode("evil", listing(names, nil)) // a heartbeat: no list changed
	if took := cpuTimeOf(t, func() { m.put(next) }); took > time.Second {
		t.Errorf("one event of one node takes %v", took)
	} else {
		t.Logf("one event of one node takes %v", took)
	}
}

// The same node also writes belay's annotation on its own Node, as long as the API server
// admits it, and changes its list of volumes in use from nothing to 50,000 and back: each
// volume is woken, and each decision reads the whole annotation and the whole list again.
func TestLongAnnotationCostsEachVolume(t *testing.T) {
	m := newModel(t)
	requests := map[string]string{}
	for i := range 3_500 {
		requests[kube.UniqueVolumeName("d", strconv.Itoa(100_000+i))] = "2026-01-01T00:00:00.000000000Z"
	}
	text, err := json.Marshal(requests)
	if err != nil || len(text) > 250<<10 {
		t.Fatal(len(text), err)
	}
	var names []string
	for i := range 50_000 {
		names = append(names, kube.UniqueVolumeName("d", strconv.Itoa(100_000+i)))
	}
	noted := func(n *corev1.Node) { n.Annotations[kube.DetachesRequestedAnnotation] = string(text) }
	m.put(aNode("evil", isReady, noted))
	woken := m.put(aNode("evil", isReady, noted, listing(names, nil)))
	const sample = 200
	took := cpuTimeOf(t, func() {
		for _, k := range woken[:sample] {
			m.decide(k)
		}
	})
	if all := took * time.Duration(len(woken)) / sample; all > 10*time.Second {
		t.Errorf("one write of one node costs %v of processor time: %d decisions of %v", all.Round(time.Second), len(woken), took/sample)
	}
}
