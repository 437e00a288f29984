package attachdetach

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/telemetry"
	"belay.dev/belay/internal/testing/cputime"
)

func sharedNode(i int) string { return fmt.Sprintf("node-%04d", i) }

// sharedVolume is one volume that pods of many nodes use, attached, reported and in use
// everywhere.
func sharedVolume(tb testing.TB, nodes int) (*model, key) {
	tb.Helper()
	m, k := newModel(tb), key{Driver: driver, Handle: "shared"}
	m.put(aVolume("shared", k.Handle, corev1.ReadWriteMany))
	m.put(aClaim("shared"))
	unique := []string{kube.UniqueVolumeName(k.Driver, k.Handle)}
	for i := range nodes {
		node := aNode(sharedNode(i), listing(unique, unique), isReady)
		m.put(node)
		m.put(aPod("pod-"+node.Name, node.Name, byClaimOf("shared")))
		m.put(sharedAttachment(k, node.Name))
	}
	return m, k
}

// sharedAttachment is as belay makes it, confirmed.
func sharedAttachment(k key, node string) *storagev1.VolumeAttachment {
	va := anAttachment(k, node, "shared", true)
	va.Annotations[kube.NodeUIDAnnotation] = fmt.Sprintf("uid-%T--%s", &corev1.Node{}, node)
	va.Annotations[kube.BootIDAnnotation] = "boot-" + node
	va.Annotations[kube.SystemUUIDAnnotation] = "hw-" + node
	va.Status.Attached = true
	return va
}

func isReady(n *corev1.Node) {
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
}

// controllerOf is a controller over the model that has nothing to write to.
func (m *model) controllerOf() *Controller {
	c := assemble(m.clusterState, &rivals{}, Parts{Recorder: &record.FakeRecorder{}}, Options{
		Policy: attachment.Policy{OutOfService: true}, Metrics: telemetry.NewController(prometheus.NewRegistry()),
	})
	c.sinceAttachments, c.sinceNodes = "0", "0"
	close(c.ready)
	return c
}

// sharedNodes is how many nodes one shared volume is measured on.
const sharedNodes = 1000

// TestSharedVolumeOnManyNodes: examining a shared volume at rest, from the caches to the decision that there is nothing to do, is proportional
// to the nodes that have it, and takes at most five times as long as copying their Nodes and VolumeAttachments.
func TestSharedVolumeOnManyNodes(t *testing.T) {
	cputime.Judges(t)
	decide := atRest(t, sharedNodes)
	cputime.AtMost(t, 6, decide, atRest(t, sharedNodes/4))
	cputime.AtMost(t, 5, decide, copying(t, sharedNodes))
}

// atRest decides about a shared volume at rest.
func atRest(t *testing.T, nodes int) func() {
	t.Helper()
	m, k := sharedVolume(t, nodes)
	c := m.controllerOf()
	return func() {
		if result, err := c.Reconcile(t.Context(), k); err != nil || result.RequeueAfter != 0 {
			t.Fatalf("a volume at rest: %+v, %v", result, err)
		}
	}
}

// copying copies the objects that a decision about a shared volume reads, but for the pods.
func copying(t *testing.T, nodes int) func() {
	t.Helper()
	k := key{Driver: driver, Handle: "shared"}
	unique := []string{kube.UniqueVolumeName(k.Driver, k.Handle)}
	var objects []runtime.Object
	for i := range nodes {
		objects = append(objects, aNode(sharedNode(i), listing(unique, unique), isReady), sharedAttachment(k, sharedNode(i)))
	}
	return func() {
		for _, o := range objects {
			copied = o.DeepCopyObject()
		}
	}
}

// copied keeps the compiler from leaving the copies out.
var copied runtime.Object

// TestEventOfSharedVolumeCostsItsNode counts the objects that are read to determine what an event of one node wakes,
// and how urgent that is: as many for 1,000 nodes as for 10.
func TestEventOfSharedVolumeCostsItsNode(t *testing.T) {
	events := []struct {
		name   string
		waits  bool // afterwards, pods of the node
		happen func(m *model, k key, unique []string) []key
	}{
		{"no longer in use", false, func(m *model, _ key, unique []string) []key {
			return m.put(aNode(sharedNode(0), listing(nil, unique), isReady))
		}},
		{"in use again", false, func(m *model, _ key, unique []string) []key {
			return m.put(aNode(sharedNode(0), listing(unique, unique), isReady))
		}},
		{"no longer reported", true, func(m *model, _ key, unique []string) []key {
			return m.put(aNode(sharedNode(0), listing(unique, nil), isReady))
		}},
		{"not confirmed", true, func(m *model, k key, _ []string) []key {
			va := sharedAttachment(k, sharedNode(0))
			va.Status.Attached = false
			return m.put(va)
		}},
		{"confirmed", true, func(m *model, k key, _ []string) []key { return m.put(sharedAttachment(k, sharedNode(0))) }},
		{"the attachment goes", true, func(m *model, k key, _ []string) []key { return m.remove(sharedAttachment(k, sharedNode(0))) }},
		{"the pod goes", false, func(m *model, _ key, _ []string) []key {
			return m.remove(aPod("pod-"+sharedNode(0), sharedNode(0), byClaimOf("shared")))
		}},
		{"a pod comes", true, func(m *model, _ key, _ []string) []key {
			return m.put(aPod("pod-"+sharedNode(0), sharedNode(0), byClaimOf("shared")))
		}},
	}
	costs := map[string]int{}
	for _, nodes := range []int{10, sharedNodes} {
		m, k := sharedVolume(t, nodes)
		for _, e := range events {
			before, _ := m.reads()
			keys := e.happen(m, k, []string{kube.UniqueVolumeName(k.Driver, k.Handle)})
			waits := m.podsWaitFor(k, sharedNode(0))
			after, _ := m.reads()
			if !slices.Equal(keys, []key{k}) || waits != e.waits {
				t.Errorf("%s: wakes %v, waited for: %v", e.name, keys, waits)
			}
			if at10, ok := costs[e.name]; ok && after-before != at10 {
				t.Errorf("%s: reads %d objects for %d nodes, %d for 10", e.name, after-before, nodes, at10)
			}
			costs[e.name] = after - before
		}
	}
	t.Log(costs)
}

// each repeats the function and reports the processor time of one call, and that of the
// fastest: on a busy machine a mean of the time that passed says little.
func each(b *testing.B, name string, do func()) {
	b.Helper()
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		total, best, n := time.Duration(0), time.Hour, 0
		for b.Loop() {
			took := cputime.Of(b, do)
			total, best, n = total+took, min(best, took), n+1
		}
		b.ReportMetric(float64(total)/float64(n), "cpu-ns/op")
		b.ReportMetric(float64(best), "best-cpu-ns/op")
	})
}

func BenchmarkShared(b *testing.B) {
	m, k := sharedVolume(b, sharedNodes)
	benchmarkAtRest(b, m, k, sharedNode(0))
	m.unconfirm(k)
	c := m.controllerOf()
	each(b, "attaching", func() {
		if _, err := c.Reconcile(b.Context(), k); err != nil {
			b.Fatal(err)
		}
	})
}

// unconfirm turns the volume back to where every attacher has yet to answer.
func (m *model) unconfirm(k key) {
	for _, item := range m.stores["VolumeAttachment"].List() {
		va := item.(*storagev1.VolumeAttachment).DeepCopy()
		va.Status.Attached = false
		m.put(va)
		m.put(aNode(va.Spec.NodeName, listing([]string{kube.UniqueVolumeName(k.Driver, k.Handle)}, nil), isReady))
	}
}

// BenchmarkExclusive is an exclusive volume at rest among 2,000.
func BenchmarkExclusive(b *testing.B) {
	benchmarkAtRest(b, fullCluster(b, 2000), key{Driver: driver, Handle: nthHandle(0)}, nthNode(0))
}

func benchmarkAtRest(b *testing.B, m *model, k key, node string) {
	b.Helper()
	c := m.controllerOf()
	s := m.observe(k, &nodeReads{}, c)
	each(b, "observe", func() { m.observe(k, &nodeReads{}, c) })
	each(b, "decide", func() {
		if d := attachment.Decide(modelTime, s.want, s.seen, c.policy); len(d.Steps) > 0 {
			b.Fatal(d.Steps)
		}
	})
	each(b, "reconcile", func() {
		if _, err := c.Reconcile(b.Context(), k); err != nil {
			b.Fatal(err)
		}
	})
	each(b, "waitedFor", func() { m.podsWaitFor(k, node) })
}
