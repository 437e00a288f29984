package attachdetach

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// aFibreVolume is one exclusive Fibre Channel volume with a claim.
func aFibreVolume(m *model) (key, string) {
	pv := aVolume("fc", "")
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"5006"}, Lun: new(int32(1))}}
	m.put(pv)
	m.put(aClaim("fc"))
	k := key{Driver: kube.FibreChannelPlugin, Handle: "[5006]:1"}
	return k, kube.UniqueVolumeName(k.Driver, k.Handle)
}

// The model is a standby: its caches are synced, and it makes no decisions. The leader moves an exclusive Fibre Channel
// volume from a to b. Later a's Node is recreated by its kubelet (same boot). Then the standby leads.
func TestStandbyRemembersWithdrawnReports(t *testing.T) {
	m := newModel(t)
	k, unique := aFibreVolume(m)
	v := []string{unique}
	m.put(aNode("a", isReady))
	m.put(aNode("b", isReady))
	m.put(ownAttachment(k, aNode("a")))
	m.put(aNode("a", isReady, listing(v, v)))   // reported to a, mounted
	m.put(aNode("a", isReady, listing(nil, v))) // unmounted
	m.put(aNode("a", isReady))                  // withdrawn
	m.remove(ownAttachment(k, aNode("a")))
	m.put(ownAttachment(k, aNode("b")))
	m.put(aNode("b", isReady, listing(v, v))) // moved
	m.put(aPod("p", "b", byClaimOf("fc")))
	m.remove(aNode("a"))
	m.put(aNode("a", isReady, func(n *corev1.Node) { n.UID = "second" }))

	m.clusterState.adopt(true) // it leads now
	for _, step := range m.decide(k).Steps {
		if s, ok := step.(attachment.Report); ok {
			t.Errorf("the volume is reported to and mounted on b, and is reported to %s", s.Node)
		}
	}
}

// hungClient does not answer requests for some names until it is released.
type hungClient struct {
	client.Client
	hangs   func(verb, name string) bool
	release chan struct{}

	mu   sync.Mutex
	sent []string
}

func (c *hungClient) does(ctx context.Context, verb, name string) error {
	c.mu.Lock()
	c.sent = append(c.sent, verb+" "+name)
	c.mu.Unlock()
	if c.hangs(verb, name) {
		select {
		case <-c.release:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (c *hungClient) has(what string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.sent, what)
}

func (c *hungClient) Create(ctx context.Context, obj client.Object, _ ...client.CreateOption) error {
	err := c.does(ctx, "create", obj.GetName())
	obj.SetUID(types.UID("made-" + obj.GetName()))
	obj.SetResourceVersion("1000000")
	return err
}

func (c *hungClient) Delete(ctx context.Context, obj client.Object, _ ...client.DeleteOption) error {
	return c.does(ctx, "delete", obj.GetName())
}

func (m *model) hungController(t *testing.T, hangs func(verb, name string) bool) (*Controller, *hungClient) {
	t.Helper()
	c, hung := m.controllerOf(), &hungClient{hangs: hangs, release: make(chan struct{})}
	c.client = hung
	c.sinceAttachments, c.sinceNodes = "1", "1" // older than all Nodes and VolumeAttachments
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[key]())
	t.Cleanup(queue.ShutDown)
	c.slowNodes.queue = queue
	return c, hung
}

// The create of a shared volume's VolumeAttachment for node a gets no answer. Meanwhile its access modes are changed
// (ADR 17: "The access modes can be changed") and a pod on b wants it. The create for a may still be carried out, so b
// must wait (S1).
func TestUnansweredCreateBlocksOtherNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, k := newModel(t), key{Driver: driver, Handle: "h"}
		m.put(aVolume("pv", k.Handle, corev1.ReadWriteMany))
		m.put(aClaim("pv"))
		m.put(aNode("a", isReady))
		m.put(aNode("b", isReady))
		m.put(aPod("on-a", "a", byClaimOf("pv")))
		toA, toB := kube.AttachmentName(k.Handle, k.Driver, "a"), kube.AttachmentName(k.Handle, k.Driver, "b")
		c, hung := m.hungController(t, func(_, name string) bool { return name == toA })
		defer close(hung.release)
		if _, err := c.Reconcile(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		if !hung.has("create " + toA) {
			t.Fatal("nothing was sent for a")
		}
		m.put(aVolume("pv", k.Handle, corev1.ReadWriteOnce))
		m.remove(aPod("on-a", "a"))
		m.put(aPod("on-b", "b", byClaimOf("pv")))
		if _, err := c.Reconcile(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		if hung.has("create " + toB) {
			t.Error("an exclusive volume is attached to b while its create for a is in flight")
		}
	})
}

// A step that has not started when the others stop waiting for it is not taken on the old decision: here a forced
// detach from a node that has become Ready again. (This needs more nodes than stepsAtOnce and a slow API server, or a
// node whose first step hangs.)
func TestStaleStepsAreNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, k := newModel(t), key{Driver: driver, Handle: "h"}
		m.put(aVolume("pv", k.Handle, corev1.ReadWriteMany))
		m.put(aClaim("pv"))
		unique := kube.UniqueVolumeName(k.Driver, k.Handle)
		lost := func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: kube.OutOfServiceTaint}} }
		for _, name := range []string{"a", "b"} {
			m.put(aNode(name, lost, listing([]string{unique}, nil)))
			va := sharedAttachment(k, name)
			va.Spec.Source.PersistentVolumeName = new("pv")
			m.put(va)
		}
		toA, toB := kube.AttachmentName(k.Handle, k.Driver, "a"), kube.AttachmentName(k.Handle, k.Driver, "b")
		c, hung := m.hungController(t, func(_, name string) bool { return name == toA })
		c.stepsAtOnce = 1
		w := &work{Controller: c, key: k, reads: &nodeReads{}, failed: map[attachment.NodeName]error{}, log: log.FromContext(t.Context())}
		w.reads.record("a", outcome{answered: true}) // both were withdrawn
		w.reads.record("b", outcome{answered: true})
		w.now = m.observe(k, w.reads, noDoubts{})
		d := attachment.Decide(modelTime, w.now.want, w.now.seen, c.policy)
		if !does[attachment.ForceDetach](d) {
			t.Fatalf("steps %+v", d.Steps)
		}
		if w.act(t.Context(), d.Steps); len(w.failed) > 0 {
			t.Fatal(w.failed)
		}
		if hung.has("delete " + toB) {
			t.Fatal("b was not delayed")
		}
		// Minutes later b is back, with the volume mounted.
		m.put(aNode("b", isReady, listing([]string{unique}, []string{unique})))
		close(hung.release)
		if synctest.Wait(); hung.has("delete " + toB) {
			t.Error("the volume was detached by force from b, which is Ready and uses it (S2)")
		}
	})
}

// hungLease is the API server's answer about one kubelet.
type hungLease struct {
	client.Reader
	lease *coordinationv1.Lease
}

func (r hungLease) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	r.lease.DeepCopyInto(obj.(*coordinationv1.Lease))
	return nil
}

type setClock struct{ now time.Time }

func (c *setClock) Now() time.Time { return c.now }

// A kubelet of a recreated Node renews its lease once, a second after the lease was read first, and dies (or hangs, or
// crashes repeatedly before it has rebuilt its volumes). Its Node stays Ready for the grace period of 50 s. That is not
// a kubelet that "was seen to renew its lease for SyncWindow".
func TestSingleLeaseRenewalIsNoSync(t *testing.T) {
	m := newModel(t)
	m.put(aNode("a", isReady, func(n *corev1.Node) { n.UID = "second" }))
	c := m.controllerOf()
	began := modelTime
	clock := &setClock{began}
	c.clock, m.clusterState.clock = clock, clock
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}}
	lease.Spec.RenewTime = &metav1.MicroTime{Time: began}
	c.live = hungLease{lease: lease}
	w := &work{Controller: c, reads: &nodeReads{}, log: log.FromContext(t.Context())}
	look := attachment.CheckKubelet{Node: "a", NodeUID: "second"}
	if _, err := w.checkKubelet(t.Context(), look); err != nil {
		t.Fatal(err)
	}
	lease.ResourceVersion = "2"
	lease.Spec.RenewTime = &metav1.MicroTime{Time: began.Add(time.Second)} // the last sign of life
	clock.now = began.Add(attachment.SyncWindow)
	if _, err := w.checkKubelet(t.Context(), look); err != nil {
		t.Fatal(err)
	}
	n := m.kubelets.describe("a", w.unique(), attachment.Node{Machine: attachment.Machine{NodeUID: "second"}})
	if n.QuietUntil.Sub(n.QuietSince) > 0 {
		t.Error("a kubelet that was last heard 39 s ago is taken for one that has sent its list")
	}
}

// A node writes the volume of other nodes into its own lists (NodeRestriction allows it). That blocks no node, and is
// withdrawn before the next leader could believe it.
func TestFalseInUseEntryBlocksNoOtherNode(t *testing.T) {
	m, k := newModel(t), key{Driver: driver, Handle: "h"}
	unique := []string{kube.UniqueVolumeName(k.Driver, k.Handle)}
	m.put(aVolume("pv", k.Handle))
	m.put(aClaim("pv"))
	m.put(aNode("evil", isReady, listing(unique, unique)))
	m.put(aNode("b", isReady))
	m.put(aPod("p", "b", byClaimOf("pv")))
	if d := m.decide(k); !does[attachment.Attach](d) || !does[attachment.WithdrawReport](d) {
		t.Fatalf("before: %+v", d.Steps)
	}
	m.clusterState.adopt(true) // the next leader begins before it is withdrawn
	if d := m.decide(k); !does[attachment.Attach](d) {
		t.Errorf("one node's credentials keep any volume from all others: %+v", d.Steps)
	}
}

// The same with a volume that the node connects by itself: the report alone makes no holder.
func TestFalseReportMakesNoHolder(t *testing.T) {
	m := newModel(t)
	k, unique := aFibreVolume(m)
	m.put(aNode("evil", isReady, listing([]string{unique}, []string{unique})))
	m.put(aNode("b", isReady))
	m.put(aPod("p", "b", byClaimOf("fc")))
	m.clusterState.adopt(true)
	if d := m.decide(k); !does[attachment.Attach](d) || !does[attachment.WithdrawReport](d) {
		t.Errorf("one node's report keeps a Fibre Channel volume from all others: %+v", d.Steps)
	}
}

// A VolumeAttachment was removed under a mount, and the leader changes. A pod of the node uses the claim, which no kubelet can make up: the
// node keeps the volume, also when the pod has ended and its object is still there.
func TestPodMakesAReportCount(t *testing.T) {
	for name, ended := range map[string]bool{"runs": false, "has ended": true} {
		t.Run(name, func(t *testing.T) {
			m, k := newModel(t), key{Driver: driver, Handle: "h"}
			unique := []string{kube.UniqueVolumeName(k.Driver, k.Handle)}
			m.put(aVolume("pv", k.Handle))
			m.put(aClaim("pv"))
			m.put(aNode("a", isReady, listing(unique, unique)))
			m.put(aNode("b", isReady))
			p := aPod("p", "a", byClaimOf("pv"))
			if ended {
				p.Status.Phase = corev1.PodFailed
			}
			m.put(p)
			m.put(aPod("q", "b", byClaimOf("pv")))
			m.clusterState.adopt(true)
			if d := m.decide(k); slices.Contains(attaches(d), "b") {
				t.Errorf("attached to b under the mount of a: %+v", d.Steps)
			}
		})
	}
}

// A kubelet makes mirror pods itself, with volumes in their spec: they make no claim on a volume that has a PersistentVolume.
func TestMirrorPodWantsNoPersistentVolume(t *testing.T) {
	m := newModel(t)
	k, _ := aFibreVolume(m)
	m.put(aNode("evil", isReady))
	m.put(aNode("b", isReady))
	mirror := aPod("mirror", "evil", corev1.VolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"5006"}, Lun: new(int32(1))}})
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	mirror.CreationTimestamp = metav1.Unix(1, 0)
	m.put(mirror)
	m.put(aPod("p", "b", byClaimOf("fc")))
	d := m.decide(k)
	if list := attaches(d); len(list) != 1 || list[0] != "b" {
		t.Errorf("a mirror pod takes a volume from the pods of its claim: %+v", d.Steps)
	}
}

// A pod names a Fibre Channel volume in its spec, and came before the pod of the claim. It gets the volume if no claim is bound to it, or one of its
// own namespace.
func TestPodNamesNoVolumeOfAnotherNamespace(t *testing.T) {
	for name, tt := range map[string]struct {
		namespace string // of the pod; the claim's is ns
		change    func(m *model, pv *corev1.PersistentVolume)
		gets      bool
	}{
		"of another namespace": {namespace: "other"},
		"of its own":           {namespace: "ns", gets: true},
		"bound to no claim": {namespace: "other", gets: true, change: func(m *model, pv *corev1.PersistentVolume) {
			pv.Spec.ClaimRef = nil
			m.put(pv)
		}},
		"the claim was deleted": {namespace: "other", change: func(m *model, _ *corev1.PersistentVolume) { m.remove(aClaim("fc")) }},
		"its own claim has the volume too": {namespace: "other", gets: true, change: func(m *model, pv *corev1.PersistentVolume) {
			twin := pv.DeepCopy()
			twin.Name, twin.UID, twin.Spec.ClaimRef.Namespace = "fc-twin", "uid-twin", "other"
			m.put(twin)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel(t)
			k, unique := aFibreVolume(m)
			m.put(aNode("evil", isReady))
			m.put(aNode("b", isReady))
			thief := aPod("thief", "evil", corev1.VolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"5006"}, Lun: new(int32(1))}})
			thief.Namespace, thief.CreationTimestamp = tt.namespace, metav1.Unix(1, 0)
			m.put(thief)
			if tt.change != nil {
				tt.change(m, list[*corev1.PersistentVolume](m.clusterState.volumes, byVolume, unique)[0].DeepCopy())
			}
			d := m.decide(k)
			if got := slices.Contains(attaches(d), "evil"); got != tt.gets {
				t.Errorf("the pod gets the volume: %v, want %v: %+v", got, tt.gets, d.Steps)
			}
			if got := len(m.clusterState.demandFor(k).refused); (got == 0) != tt.gets {
				t.Errorf("%d pods get the event that they do not get the volume", got)
			}
			if m.put(aPod("p", "b", byClaimOf("fc"))); name == "of another namespace" && !slices.Contains(attaches(m.decide(k)), "b") {
				t.Error("the pod of the claim does not get the volume")
			}
		})
	}
}

// An orphan (upstream's VolumeAttachment, whose PersistentVolume was recreated for another handle) waits while its node
// uses the PersistentVolume's present volume. The event that ends this wait wakes it.
func TestOrphanIsWokenWhenItsWaitEnds(t *testing.T) {
	m := newModel(t)
	first, second := key{Driver: driver, Handle: "first"}, key{Driver: driver, Handle: "second"}
	unique := []string{kube.UniqueVolumeName(driver, "second")}
	m.put(aVolume("pv", second.Handle, corev1.ReadWriteMany))
	m.put(aClaim("pv"))
	m.put(aNode("a", isReady, listing(unique, unique)))
	m.put(aPod("p", "a", byClaimOf("pv")))
	va := sharedAttachment(second, "a")
	va.Spec.Source.PersistentVolumeName = new("pv")
	m.put(va)
	old := anAttachment(first, "a", "pv", false)
	old.Status.Attached = true
	old.Finalizers = []string{kube.AttacherFinalizer(driver)}
	m.put(old)
	k := orphanKey(old)
	before := m.decide(k)
	if before.Reason != attachment.StillInUse {
		t.Fatalf("the orphan does not wait: %+v", before.Steps)
	}
	woken := m.remove(aPod("p", "a"))
	woken = append(woken, m.put(aNode("a", isReady, listing(nil, unique)))...) // unmounted
	woken = append(woken, m.put(aNode("a", isReady))...)                       // withdrawn
	woken = append(woken, m.remove(va)...)                                     // detached
	after := m.decide(k)
	if !does[attachment.Check](after) {
		t.Fatalf("steps %+v", after.Steps)
	}
	if !slices.Contains(woken, k) {
		t.Errorf("what ends the orphan's wait wakes %v, not the orphan", woken)
	}
}

// Nothing blocks the deletion of an orphan that cannot detach its PersistentVolume's present volume. If that volume
// waits for the orphan, nothing else would end the wait.
func TestHarmlessOrphanIsDeleted(t *testing.T) {
	for name, change := range map[string]func(*storagev1.VolumeAttachment){
		"no attacher has begun": func(*storagev1.VolumeAttachment) {},
		"belay-attacher recorded the volume": func(va *storagev1.VolumeAttachment) {
			va.Finalizers = []string{kube.AttacherFinalizer(driver)}
			va.Annotations = map[string]string{kube.PublishedHandleAnnotation: "first"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel(t)
			second := key{Driver: driver, Handle: "second"}
			unique := []string{kube.UniqueVolumeName(driver, "second")}
			m.put(aVolume("pv", second.Handle, corev1.ReadWriteMany))
			m.put(aNode("a", isReady, listing(nil, unique)))
			va := sharedAttachment(second, "a")
			va.Spec.Source.PersistentVolumeName = new("pv")
			m.put(va)
			old := anAttachment(key{Driver: driver, Handle: "first"}, "a", "pv", false)
			change(old)
			m.put(old)
			if d := m.decide(orphanKey(old)); !does[attachment.Check](d) {
				t.Errorf("steps %+v", d.Steps)
			}
		})
	}
}

// The out-of-service taint comes while the node is still Ready; a pod there still wants the
// volume, by another PersistentVolume than its attachment names. Then the node turns
// NotReady: that wakes the volume, whose detach is forced now.
func TestTaintedNodeThatTurnsNotReadyWakesItsVolume(t *testing.T) {
	m, k := newModel(t), key{Driver: driver, Handle: "h"}
	unique := []string{kube.UniqueVolumeName(k.Driver, k.Handle)}
	lost := func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: kube.OutOfServiceTaint}} }
	m.put(aVolume("pv", k.Handle))
	m.put(aClaim("pv"))
	m.put(aNode("a", isReady, lost, listing(unique, unique)))
	m.put(aPod("p", "a", byClaimOf("pv")))
	va := sharedAttachment(k, "a")
	va.Spec.Source.PersistentVolumeName = new("gone")
	m.put(va)
	before := m.decide(k)
	for _, step := range before.Steps {
		if s, ok := step.(attachment.AnnotateAttachment); ok {
			t.Logf("noted: %+v", s)
		}
	}
	if before.Reason != attachment.OutOfServiceNodeReady {
		t.Fatalf("before: %+v", before.Steps)
	}
	woken := m.put(aNode("a", lost, listing(unique, unique)))
	if after := m.decide(k); !does[attachment.WithdrawReport](after) {
		t.Fatalf("after: %+v", after.Steps)
	}
	if !slices.Contains(woken, k) {
		t.Error("the node's health changes the decision and wakes nothing")
	}
}

// A pod wants the volume at a node whose Node object was deleted and recreated. Whether the kubelet still uses it from before, a ready kubelet
// is asked: the end of an outage wakes the volume, although no detach was requested and no pod waits for a report (simulation, seed 11475).
func TestReturnedNodeThatTurnsReadyWakesItsVolume(t *testing.T) {
	m, k := newModel(t), key{Driver: driver, Handle: "h"}
	unique := []string{kube.UniqueVolumeName(k.Driver, k.Handle)}
	recreated := func(n *corev1.Node) { n.UID, n.CreationTimestamp = "second", metav1.Now() }
	m.put(aVolume("pv", k.Handle))
	m.put(aClaim("pv"))
	va := anAttachment(k, "a", "pv", true)
	va.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	m.put(va)
	m.put(aNode("a", recreated, listing(unique, unique)))
	m.put(aPod("p", "a", byClaimOf("pv")))
	if woken := m.put(aNode("a", isReady, recreated, listing(unique, unique))); !slices.Contains(woken, k) {
		t.Errorf("woke %v", woken)
	}
}
