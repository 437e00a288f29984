package attachdetach

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/cputime"
	"belay.dev/belay/internal/testing/wait"
)

// waitingPods is an exclusive volume that pods of many nodes want. The first node has it.
func waitingPods(tb testing.TB, nodes, pods int) (*model, key) {
	tb.Helper()
	m, k := newModel(tb), key{Driver: driver, Handle: "h"}
	m.put(aVolume("pv", k.Handle))
	m.put(aClaim("pv"))
	for n := range nodes {
		node := sharedNode(n)
		m.put(aNode(node, isReady))
		for p := range pods {
			m.put(aPod(fmt.Sprintf("%s-%d", node, p), node, byClaimOf("pv")))
		}
	}
	m.put(aNode(sharedNode(0), isReady, listing(nil, []string{kube.UniqueVolumeName(k.Driver, k.Handle)})))
	va := sharedAttachment(k, sharedNode(0))
	va.Spec.Source.PersistentVolumeName = new("pv")
	m.put(va)
	return m, k
}

// emitAgain emits the events of a decision that changes nothing, as most do.
func emitAgain(tb testing.TB, nodes, pods int) func() {
	tb.Helper()
	m, k := waitingPods(tb, nodes, pods)
	c := m.controllerOf()
	w := &work{Controller: c, key: k, log: log.Log}
	w.now = m.observe(k, &nodeReads{}, noDoubts{})
	steps := attachment.Decide(modelTime, w.now.want, w.now.seen, c.policy).Steps
	w.emitEvents(steps, nil)
	return func() { w.emitEvents(steps, nil) }
}

// What the events of a wait cost depends on the nodes, and hardly on their pods: the cause is determined once for each
// node, and a text is made when it is emitted. (50 pods: the map of what was emitted is larger.)
func TestEventsOfWaitingPodsCostTheirNodes(t *testing.T) {
	const nodes = 100
	few := testing.AllocsPerRun(5, emitAgain(t, nodes, 1))
	many := testing.AllocsPerRun(5, emitAgain(t, nodes, 50))
	t.Logf("%v allocations for one pod per node, %v for 50", few, many)
	if many > few+nodes {
		t.Errorf("%v allocations for %d nodes with 50 pods each, %v with one", many, nodes, few)
	}
}

// TestPodThatNamesAnothersVolumeGetsAnEvent: once for the cause, and few of many such pods. It names neither the claim nor its namespace.
func TestPodThatNamesAnothersVolumeGetsAnEvent(t *testing.T) {
	m := newModel(t)
	k, _ := aFibreVolume(m)
	for i := range 1000 {
		thief := aPod(fmt.Sprint("thief-", i), "evil", corev1.VolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"5006"}, Lun: new(int32(1))}})
		thief.Namespace = "other"
		m.put(thief)
	}
	c := m.controllerOf()
	events := record.NewFakeRecorder(2000)
	c.eventEmitter = newEventEmitter(events)
	w := &work{Controller: c, key: k, log: log.Log}
	for range 2 {
		w.now = m.observe(k, &nodeReads{}, noDoubts{})
		w.emitEvents(attachment.Decide(modelTime, w.now.want, w.now.seen, c.policy).Steps, nil)
	}
	if n := len(events.Events); n != podsOfNode {
		t.Fatalf("%d events, want those of %d pods", n, podsOfNode)
	}
	want := "Warning FailedAttachVolume " + explain.AttachFailed("v0", explain.OfAnotherNamespace) + " map[" + kube.ReasonAnnotation + ":VolumeOfAnotherNamespace]"
	if got := <-events.Events; got != want {
		t.Errorf("event %q, want %q", got, want)
	}
}

// TestManyPodsOfNodeAreLimited: a tenant may create any number of pods with a nodeName that use one claim. One wait of a node is one line of the
// log and the events of few pods, and the next turn repeats none. The message names few pods too.
func TestManyPodsOfNodeAreLimited(t *testing.T) {
	const nodes, pods = 3, 1000
	m, k := waitingPods(t, nodes, pods)
	c := m.controllerOf()
	var lines []logLine
	events := record.NewFakeRecorder(nodes * pods)
	c.eventEmitter = newEventEmitter(events)
	w := &work{Controller: c, key: k, log: logTo(t, &lines)}
	for range 2 {
		w.now = m.observe(k, &nodeReads{}, noDoubts{})
		w.emitEvents(attachment.Decide(modelTime, w.now.want, w.now.seen, c.policy).Steps, nil)
	}
	if n := len(lines); n != nodes-1 {
		t.Errorf("%d lines of the log, want one for each node that waits", n)
	}
	if n := len(events.Events); n != (nodes-1)*podsOfNode {
		t.Errorf("%d events, want those of %d pods of each node that waits", n, podsOfNode)
	}
	for range len(events.Events) {
		if event := <-events.Events; len(event) > decision.MaxText+100 {
			t.Fatalf("an event has %d bytes", len(event))
		}
	}
}

// A tenant sets spec.nodeName, and so how many pods of one claim are on one node: many are not compared each with each.
func TestPodsOfOneNodeAreComparedOnce(t *testing.T) {
	cputime.Judges(t)
	observing := func(pods int) func() {
		m, k := waitingPods(t, 1, pods)
		c := m.controllerOf()
		return func() { m.observe(k, &nodeReads{}, c) }
	}
	cputime.AtMost(t, 40, observing(8000), observing(1000)) // eight times, a sort, and caches that are too small; a comparison of each with each takes 100
}

// The events of one volume keep no other waiting.
func TestEventsOfOneVolumeBlockNoOther(t *testing.T) {
	m, k := waitingPods(t, 2, 1)
	c := m.controllerOf()
	other := key{Driver: driver, Handle: "other"}
	for i := 0; c.eventEmitter.of(other) == c.eventEmitter.of(k); i++ {
		other.Handle = fmt.Sprint("other-", i)
	}
	busy := c.eventEmitter.of(other)
	busy.mu.Lock()
	defer busy.mu.Unlock()
	done := make(chan error)
	go func() {
		_, err := c.Reconcile(t.Context(), k)
		done <- err
	}()
	if err := wait.For(t, "the decision on a volume while the events of another are busy", done); err != nil {
		t.Error(err)
	}
}

func BenchmarkWaitingPods(b *testing.B) {
	for _, size := range [][2]int{{1000, 50}, {100, 50}, {1000, 1}} {
		of := fmt.Sprintf("/%dx%d", size[0], size[1])
		each(b, "events"+of, emitAgain(b, size[0], size[1]))
		m, k := waitingPods(b, size[0], size[1])
		c := m.controllerOf()
		each(b, "observe"+of, func() { m.observe(k, &nodeReads{}, c) })
		each(b, "reconcile"+of, func() {
			if _, err := c.Reconcile(b.Context(), k); err != nil {
				b.Fatal(err)
			}
		})
	}
}
