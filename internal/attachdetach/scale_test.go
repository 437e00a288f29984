package attachdetach

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// A full cluster has 20 volumes per node, each attached, reported and in use by a pod.
const perNode = 20

func nthHandle(i int) string { return fmt.Sprintf("h%05d", i) }
func nthName(i int) string   { return fmt.Sprintf("v%05d", i) }
func nthNode(i int) string   { return fmt.Sprintf("n%04d", i/perNode) }

func fullCluster(tb testing.TB, volumes int) *model {
	tb.Helper()
	m := newModel(tb)
	var lists []string
	for i := range volumes {
		k := key{Driver: driver, Handle: nthHandle(i)}
		m.put(aVolume(nthName(i), k.Handle))
		m.put(aClaim(nthName(i)))
		m.put(aPod(nthName(i), nthNode(i), byClaimOf(nthName(i))))
		va := anAttachment(k, nthNode(i), nthName(i), true)
		va.Status.Attached = true
		m.put(va)
		if lists = append(lists, kube.UniqueVolumeName(driver, k.Handle)); len(lists) == perNode || i == volumes-1 {
			m.put(aNode(nthNode(i), listing(lists, lists)))
			lists = nil
		}
	}
	return m
}

// TestEachEventCostsWhatItChanges counts, in a small cluster and in one a hundred times
// its size, the volumes that each event wakes and the objects that are read for it and
// for the decision. Neither may grow with the cluster.
func TestEachEventCostsWhatItChanges(t *testing.T) {
	type cost struct{ woken, reads int }
	costs := map[string][]cost{}
	for _, size := range []int{200, 20_000} {
		m := fullCluster(t, size)
		for _, e := range clusterEvents() {
			before, listsBefore := m.reads()
			keys := e.happen(m)
			for _, k := range keys {
				m.podsWaitFor(k, nthNode(0)) // as the handlers do
				m.decide(k)
			}
			reads, lists := m.reads()
			costs[e.name] = append(costs[e.name], cost{len(keys), reads - before})
			if lists != listsBefore {
				t.Errorf("%s: lists all objects of a kind", e.name)
			}
			if len(keys) > e.wakes {
				t.Errorf("%d volumes: %s: wakes %d volumes, want at most %d", size, e.name, len(keys), e.wakes)
			}
			if limit := perNode + 10 + 60*len(keys) + e.looks; reads-before > limit {
				t.Errorf("%d volumes: %s: reads %d objects for %d volumes, want at most %d", size, e.name, reads-before, len(keys), limit)
			}
		}
	}
	for name, c := range costs {
		t.Logf("%-32s wakes %3d, reads %4d", name, c[1].woken, c[1].reads)
		if c[0] != c[1] {
			t.Errorf("%s: costs %+v in a small cluster and %+v in a large one", name, c[0], c[1])
		}
	}
}

type clusterEvent struct {
	name   string
	wakes  int
	looks  int // reads to find out whether to wake
	happen func(*model) []key
}

func clusterEvents() []clusterEvent {
	k := key{Driver: driver, Handle: nthHandle(0)}
	var lists, others []string
	for i := range perNode {
		lists = append(lists, kube.UniqueVolumeName(driver, nthHandle(i)))
	}
	others = lists[1:]
	put := func(obj client.Object) func(*model) []key { return func(m *model) []key { return m.put(obj) } }
	running, ended := aPod(nthName(0), nthNode(0), byClaimOf(nthName(0))), aPod(nthName(0), nthNode(0), byClaimOf(nthName(0)))
	running.Status.Phase = corev1.PodRunning
	ended.Status.Phase = corev1.PodSucceeded
	failed := anAttachment(k, nthNode(0), nthName(0), true)
	failed.Status.AttachError = &storagev1.VolumeError{Message: "no"}
	labelled := aVolume(nthName(0), nthHandle(0))
	labelled.Labels = map[string]string{"a": "b"}
	heartbeat := aNode(nthNode(0), listing(lists, lists), func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, LastHeartbeatTime: metav1.Now()}}
	})
	return []clusterEvent{
		{"a node's heartbeat", 0, 0, put(heartbeat)},
		{"a node becomes ready", 0, 10 * perNode, put(aNode(nthNode(0), listing(lists, lists), func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		}))},
		{"a pod starts to run", 0, 0, put(running)},
		{"a volume gets a label", 0, 0, put(labelled)},
		{"a claim is annotated", 0, 0, put(aClaim(nthName(0)))},
		{"an attachment gets an error", 1, 0, put(failed)},
		{"a pod ends", 1, 0, put(ended)},
		{"a pod goes", 1, 0, func(m *model) []key { return m.remove(ended) }},
		{"a volume is no longer in use", 1, 0, put(aNode(nthNode(0), isReady, listing(others, lists)))},
		{"a volume is no longer reported", 1, 0, put(aNode(nthNode(0), isReady, listing(others, others)))},
		{"an attachment goes", 1, 0, func(m *model) []key { return m.remove(failed) }},
		{"a pod without volumes comes", 0, 0, put(aPod("plain", nthNode(0)))},
		{"a pod with a missing claim comes", 0, 0, put(aPod("lost", nthNode(0), byClaimOf("missing")))},
		{"a pod comes", 1, 0, put(aPod("again", nthNode(0), byClaimOf(nthName(0))))},
		{"a node goes out of service", perNode, 0, put(aNode(nthNode(0), listing(others, others), func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: kube.OutOfServiceTaint}}
		}))},
		{"a node goes", perNode, 0, func(m *model) []key { return m.remove(aNode(nthNode(0))) }},
		{"a node comes", perNode, 0, put(aNode(nthNode(0)))},
		{"a driver that needs no attach comes", 0, 0, put(&storagev1.CSIDriver{
			ObjectMeta: metav1.ObjectMeta{Name: "other.test"}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)},
		})},
	}
}

// TestImpossibleVolumesCostNothing has 1,000 pods whose volumes can never attach. Each is examined once per event that
// concerns it, and never because of a timer.
func TestImpossibleVolumesCostNothing(t *testing.T) {
	m := newModel(t)
	m.put(aNode("n"))
	woken := map[string]int{}
	for i := range 1000 {
		name := nthName(i)
		kind := []string{"no claim", "claim not bound", "no volume", "driver absent", "driver refuses", "claim of another"}[i%6]
		var keys []key
		add := func(obj client.Object) { keys = append(keys, m.put(obj)...) }
		claim, pv := aClaim(name), aVolume(name, nthHandle(i))
		k := key{Driver: driver, Handle: nthHandle(i)}
		switch kind {
		case "claim not bound":
			claim.Status.Phase = corev1.ClaimPending
			add(claim)
		case "no volume":
			add(claim)
		case "driver absent", "driver refuses":
			add(claim)
			add(pv)
		case "claim of another":
			pv.Spec.ClaimRef.UID = "another"
			add(claim)
			add(pv)
		}
		add(aPod(name, "n", byClaimOf(name)))
		if kind == "driver absent" || kind == "driver refuses" {
			if got := attaches(m.decide(k)); len(got) != 1 {
				t.Fatalf("%s: attaches to %v", kind, got)
			}
			va := anAttachment(k, "n", name, true)
			add(va)
			if kind == "driver refuses" {
				va.Status.AttachError = &storagev1.VolumeError{Message: "bad handle", Time: metav1.Now()}
				add(va)
			}
		}
		for _, k := range keys {
			d := m.decide(k)
			if !d.RecheckAt.IsZero() {
				t.Errorf("%s: wants to look again at %v", kind, d.RecheckAt)
			}
			for _, s := range d.Steps {
				if _, ok := s.(attachment.Wait); !ok {
					t.Errorf("%s: acts: %T", kind, s)
				}
			}
		}
		woken[kind] += len(keys)
	}
	t.Logf("volumes woken by all events of about 167 pods each: %v", woken)
	for kind, n := range woken {
		if n > 167*4 {
			t.Errorf("%s: woken %d times", kind, n)
		}
	}
}

// TestPodsThatWaitGoFirst puts clean-up, the volumes of the start and volumes that pods
// wait for into the queue, and takes them out.
func TestPodsThatWaitGoFirst(t *testing.T) {
	m := newModel(t)
	q := kube.NewQueue("priorities", workqueue.NewTypedItemExponentialFailureRateLimiter[key](time.Second, time.Second)).(priorityqueue.PriorityQueue[key])
	t.Cleanup(q.ShutDown)
	attachments := on(m.clusterState, m.attachmentChanged)
	pods := on(m.clusterState, m.podChanged)
	for i := range 100 {
		va := anAttachment(key{Driver: driver, Handle: nthHandle(i)}, "n", nthName(i), true)
		m.put(va)
		attachments.Create(t.Context(), event.TypedCreateEvent[*storagev1.VolumeAttachment]{Object: va, IsInInitialList: true}, q)
	}
	for i := range 100 {
		va := anAttachment(key{Driver: driver, Handle: nthHandle(100 + i)}, "n", nthName(100+i), true)
		m.put(va)
		attachments.Create(t.Context(), event.TypedCreateEvent[*storagev1.VolumeAttachment]{Object: va}, q)
	}
	m.put(aNode("n"))
	m.put(aVolume("wanted", "wanted"))
	m.put(aClaim("wanted"))
	pod := aPod("p", "n", byClaimOf("wanted"))
	m.put(pod)
	pods.Create(t.Context(), event.TypedCreateEvent[*corev1.Pod]{Object: pod, IsInInitialList: true}, q)

	want := func(n, priority int) {
		t.Helper()
		for range n {
			k, got, _ := q.GetWithPriority()
			if got != priority {
				t.Fatalf("%v came with priority %d, want one with %d", k, got, priority)
			}
			q.Done(k)
		}
	}
	want(1, podsWaitPriority)
	want(100, 0)
	want(100, handler.LowPriority)
}

// TestResync delivers the content of the caches again, as happens every ten hours: each volume is examined, after
// everything else.
func TestResync(t *testing.T) {
	m := fullCluster(t, 100)
	q := kube.NewQueue("resync", workqueue.NewTypedItemExponentialFailureRateLimiter[key](time.Second, time.Second)).(priorityqueue.PriorityQueue[key])
	t.Cleanup(q.ShutDown)
	handlerOfAttachments := on(m.clusterState, m.attachmentChanged)
	for _, item := range m.stores["VolumeAttachment"].List() {
		va := item.(*storagev1.VolumeAttachment)
		handlerOfAttachments.Update(t.Context(), event.TypedUpdateEvent[*storagev1.VolumeAttachment]{ObjectOld: va, ObjectNew: va}, q)
	}
	for range 100 {
		k, priority, _ := q.GetWithPriority()
		if priority != handler.LowPriority {
			t.Fatalf("%v: priority %d", k, priority)
		}
		if d := m.decide(k); len(d.Steps) > 0 {
			t.Errorf("%v: a settled volume has steps: %+v", k, d.Steps)
		}
		q.Done(k)
	}
}

// TestDepartedNodesAreForgotten removes many nodes with their attachments, in both
// orders.
func TestDepartedNodesAreForgotten(t *testing.T) {
	m := newModel(t)
	for i := range 1000 {
		k := key{Driver: driver, Handle: nthHandle(i)}
		unique := []string{kube.UniqueVolumeName(driver, k.Handle)}
		node := aNode(fmt.Sprintf("gone-%d", i), listing(unique, unique))
		node.UID = types.UID(node.Name)
		va := anAttachment(k, node.Name, "pv", true)
		m.put(node)
		m.put(va)
		if i%2 == 0 {
			m.remove(node)
			if _, ok := m.lastSeen(node.Name); !ok {
				t.Fatal("forgot a node while something is attached to it")
			}
			m.remove(va)
		} else {
			m.remove(va)
			m.remove(node)
		}
	}
	if n := len(m.departed); n > 0 {
		t.Errorf("%d nodes are remembered forever", n)
	}
	if n := len(m.unidentified.volumes); n > 0 {
		t.Errorf("%d nameless attachments are remembered forever", n)
	}
}

// A Node that was deleted and recreated between two events of the watch counts as both: the second does not list yet
// what the first had in use.
func TestNodeRecreatedBetweenWatchEvents(t *testing.T) {
	m := newModel(t)
	disk := aVolume("c", "")
	disk.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
		FC: &corev1.FCVolumeSource{TargetWWNs: []string{"5006"}, Lun: new(int32(1))},
	}
	k := key{Driver: kube.FibreChannelPlugin, Handle: "[5006]:1"}
	unique := []string{kube.UniqueVolumeName(k.Driver, k.Handle)}
	m.put(disk)
	m.put(aClaim("c"))
	m.put(aPod("p", "b", byClaimOf("c")))
	m.put(aNode("b"))
	old, anew := aNode("a", listing(unique, unique)), aNode("a")
	old.UID, anew.UID = "old", "new"
	m.put(old)
	m.put(ownAttachment(k, old))
	if d := m.decide(k); reports(d) {
		t.Fatalf("reported on b while a uses it: %+v", d.Steps)
	}
	m.put(anew)
	if d := m.decide(k); slices.ContainsFunc(d.Steps, reportsOn("b")) {
		t.Errorf("S1: reported on b as soon as a was recreated, for the same run of the machine: %+v", d.Steps)
	}
	restarted := aNode("a", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "another" })
	restarted.UID = "new"
	woken := m.put(restarted)
	if d := m.decide(k); !does[attachment.WithdrawReport](d) || !slices.Contains(woken, k) {
		t.Errorf("not taken from a after it was restarted; woken %v: %+v", woken, d.Steps)
	}
}

func reportsOn(node attachment.NodeName) func(attachment.Step) bool {
	return func(s attachment.Step) bool {
		r, ok := s.(attachment.Report)
		return ok && r.Node == node
	}
}

// allDoubts reports for everything that a write may be in flight.
type allDoubts struct{ noDoubts }

func (allDoubts) deleteMayBeUnderway(*storagev1.VolumeAttachment) bool { return true }

// TestUpdatesThatChangeNoDecision has the attacher add its finalizer, which no decision reads, and changes everything
// else that a decision reads.
func TestUpdatesThatChangeNoDecision(t *testing.T) {
	m, k := newModel(t), key{Driver: driver, Handle: "h"}
	m.put(aVolume("h", "h"))
	tests := map[string]struct {
		change       func(va *storagev1.VolumeAttachment)
		writeTracker writeTracker
		want         bool
	}{
		"finalizer":                  {func(va *storagev1.VolumeAttachment) { va.Finalizers = []string{"external-attacher/x"} }, noDoubts{}, false},
		"after an unanswered delete": {func(*storagev1.VolumeAttachment) {}, allDoubts{}, true},
		"attached":                   {func(va *storagev1.VolumeAttachment) { va.Status.Attached = !va.Status.Attached }, noDoubts{}, true},
		"attach error":               {func(va *storagev1.VolumeAttachment) { va.Status.AttachError = &storagev1.VolumeError{Message: "no"} }, noDoubts{}, true},
		"detach error":               {func(va *storagev1.VolumeAttachment) { va.Status.DetachError = &storagev1.VolumeError{Message: "no"} }, noDoubts{}, true},
		"deleted":                    {func(va *storagev1.VolumeAttachment) { va.DeletionTimestamp = &metav1.Time{Time: modelTime} }, noDoubts{}, true},
		"detach requested":           {func(va *storagev1.VolumeAttachment) { va.Annotations[kube.DetachRequestedAnnotation] = "now" }, noDoubts{}, true},
		"made anew":                  {func(va *storagev1.VolumeAttachment) { va.UID = "another" }, noDoubts{}, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			before := anAttachment(k, "n", "h", false)
			if before.Annotations == nil {
				before.Annotations = map[string]string{}
			}
			before.ResourceVersion = "7"
			after := before.DeepCopy()
			after.ResourceVersion = "8"
			tt.change(after)
			keys := m.clusterState.attachmentChanged(kube.StripAttachment(before), kube.StripAttachment(after), tt.writeTracker)
			if got := slices.Contains(keys, k); got != tt.want {
				t.Errorf("the volume is looked at: %v, want %v", got, tt.want)
			}
		})
	}
}
