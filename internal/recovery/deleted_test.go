package recovery

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/wait"
)

// recorded writes on the VolumeAttachment of the workload which boot it was made for, as belay's attach/detach controller does.
func (m *machine) recorded() {
	m.Helper()
	va := &storagev1.VolumeAttachment{}
	must(m, m.client.Get(m.Context(), client.ObjectKey{Name: m.name + "-va"}, va))
	before := client.MergeFrom(va.DeepCopy())
	va.Annotations = map[string]string{
		kube.NodeUIDAnnotation: string(m.node().UID), kube.BootIDAnnotation: m.boot, kube.SystemUUIDAnnotation: m.uuid,
	}
	must(m, m.client.Patch(m.Context(), va, before))
}

// vanishes: a person deletes the Node, and its lease goes with it. It does not fall silent before the Node is gone.
func (m *machine) vanishes() {
	m.Helper()
	must(m, m.client.Delete(m.Context(), m.node()))
	m.mu.Lock()
	m.silent = true
	m.mu.Unlock()
	must(m, client.IgnoreNotFound(m.client.Delete(m.Context(), leaseOf(m.name))))
}

// TestDeletedNodeOfADeadMachine (seed 002): the Node of a machine without power is deleted before recovery began. Its switch says Off, and
// the pod and the VolumeAttachment go in seconds, without a Node to taint, and without a command. The fence ends by itself.
func TestDeletedNodeOfADeadMachine(t *testing.T) {
	for name, record := range map[string]func(*machine){"recorded": (*machine).recorded, "not recorded": func(*machine) {}} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.fleet("n2", "n3", "n4")
			m := s.machine("n1")
			m.workload()
			record(m)
			m.source()
			s.run()
			m.bound()
			m.mu.Lock()
			m.power = fencing.PowerOff
			m.mu.Unlock()
			m.vanishes()
			began := time.Now()
			wait.Until(t, "nothing of the workload is left", m.moved)
			t.Logf("moved %v after the Node was deleted", time.Since(began))
			f := m.past(fencing.Detaching)
			if f.Spec.Trigger != fencingv1.TriggerNodeDeleted || provenBy(f) != fencing.PoweredOff {
				t.Errorf("trigger %s, proven by %q", f.Spec.Trigger, provenBy(f))
			}
			if _, offs := m.count(); offs != 0 {
				t.Errorf("commanded %d times", offs)
			}
			m.past(fencing.Moved)
		})
	}
}

// TestDeletedNodeOfARunningMachine: nothing is taken from a machine that runs, and it is not switched off, because a person deleted its
// Node. The fence says what to do, and ends when the kubelet registers again.
func TestDeletedNodeOfARunningMachine(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	m.recorded()
	m.source()
	proofs := &Proofs{}
	s.run(func(o *Options) {
		if o.Roles.Actor {
			o.Proofs = proofs
		}
	})
	m.bound()
	boot := fencing.Boot{Node: m.name, NodeUID: string(m.node().UID), ID: m.boot, Machine: strings.ToLower(m.uuid)}
	m.vanishes()
	f := m.waits("its power switch says On")
	if f.Status.Advice == "" || m.moved() {
		t.Errorf("advice %q, moved %t", f.Status.Advice, m.moved())
	}
	events := &corev1.EventList{}
	must(t, s.client.List(t.Context(), events))
	for _, e := range events.Items { // the recorder of an earlier test may still have written some
		if uid := e.InvolvedObject.UID; uid != types.UID(boot.NodeUID) && uid != f.UID {
			continue
		}
		if strings.Contains(e.Message, "is to be switched off") || strings.Contains(e.Message, "scheduled to the node") {
			t.Errorf("the event %s of a deleted Node: %s", e.Reason, e.Message)
		}
	}
	wait.Until(t, "the controller in the same process learns that the machine runs", func() bool {
		return slices.ContainsFunc(proofs.Lives(fencing.Boot{Node: m.name}), func(l fencing.Life) bool { // only an answer of the last seconds counts
			return l.Of(boot) && l.Sign() == fencing.SaysOn
		})
	})
	time.Sleep(2 * quick.Silence) // that it has no lease is no signal
	if _, offs := m.count(); offs != 0 || m.moved() {
		t.Errorf("commanded %d times, moved %t", offs, m.moved())
	}
	must(t, s.client.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name}}))
	must(t, s.client.Create(t.Context(), leaseOf(m.name)))
	m.mu.Lock()
	m.silent = false
	m.mu.Unlock()
	m.report(corev1.ConditionTrue)
	m.until(fencing.Cancelled)
	if m.moved() {
		t.Error("the workload is gone")
	}
}

// TestDeletedNodes: as many Nodes deleted at once as the brake forbids are not believed.
func TestDeletedNodes(t *testing.T) {
	s := newSite(t)
	s.fleet("n4", "n5")
	var all []*machine
	for _, name := range []string{"n1", "n2", "n3"} {
		m := s.machine(name)
		m.workload()
		m.recorded()
		m.source()
		all = append(all, m)
	}
	stop := s.run()
	for _, m := range all {
		m.bound()
	}
	stop() // until all three are deleted: recovery sees all of them at the same time
	for _, m := range all {
		m.mu.Lock()
		m.power = fencing.PowerOff
		m.mu.Unlock()
	}
	for _, m := range all {
		must(t, client.IgnoreNotFound(s.client.Delete(t.Context(), m.node())))
	}
	s.run()
	wait.Until(t, "an event says why", func() bool { return s.event(string(fencing.TooManySilent)) })
}

// TestBootsWithoutNode: which boot is asked about when the Node is gone.
func TestBootsWithoutNode(t *testing.T) {
	boot := func(id string) fencing.Boot {
		return fencing.Boot{Node: "n1", NodeUID: "uid-" + id, ID: id, Machine: "hw"}
	}
	va := func(name, id string, age time.Duration) storagev1.VolumeAttachment {
		v := storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(10000, 0).Add(-age))}}
		v.Spec.NodeName = "n1"
		if id != "" {
			v.Annotations = map[string]string{kube.NodeUIDAnnotation: "uid-" + id, kube.BootIDAnnotation: id, kube.SystemUUIDAnnotation: "HW"}
		}
		return v
	}
	sources := func(id string) *fencingv1.FenceSourceList {
		if id == "" {
			return &fencingv1.FenceSourceList{}
		}
		return &fencingv1.FenceSourceList{Items: []fencingv1.FenceSource{{
			ObjectMeta: metav1.ObjectMeta{Name: "n1"},
			Status:     fencingv1.FenceSourceStatus{Bound: &fencingv1.Bound{NodeUID: "uid-" + id, BootID: id, MachineID: "hw", HardwareID: "hw"}},
		}}}
	}
	old, last := va("a", "b1", time.Hour), va("b", "b2", time.Minute)
	unfenced := func(id string, v storagev1.VolumeAttachment) storagev1.VolumeAttachment {
		v.Annotations = maps.Clone(v.Annotations)
		if v.Annotations == nil {
			v.Annotations = map[string]string{}
		}
		v.Annotations[kube.UnfencedBootAnnotation] = id
		return v
	}
	replaced := va("c", "b9", 2*time.Hour)
	replaced.Annotations[kube.SystemUUIDAnnotation] = "HW9"
	fenced := []fencingv1.NodeFence{{Spec: fencingv1.NodeFenceSpec{NodeName: "n1", NodeUID: "uid-b1", BootID: "b1", MachineID: "hw"}}}
	for name, c := range map[string]struct {
		attachments []storagev1.VolumeAttachment
		bound       string
		nodes       map[string]*corev1.Node
		want        map[string]fencing.Boot
		fences      []fencingv1.NodeFence
	}{
		"the newest":                 {[]storagev1.VolumeAttachment{old, last}, "", nil, map[string]fencing.Boot{"n1": boot("b2")}, nil},
		"the newest, listed first":   {[]storagev1.VolumeAttachment{last, old}, "", nil, map[string]fencing.Boot{"n1": boot("b2")}, nil},
		"the bound one":              {[]storagev1.VolumeAttachment{old, last}, "b1", nil, map[string]fencing.Boot{"n1": boot("b1")}, nil},
		"the bound one, listed last": {[]storagev1.VolumeAttachment{last, old}, "b1", nil, map[string]fencing.Boot{"n1": boot("b1")}, nil},
		"not recorded":               {[]storagev1.VolumeAttachment{va("a", "", 0)}, "b3", nil, map[string]fencing.Boot{"n1": boot("b3")}, nil},
		"unknown":                    {[]storagev1.VolumeAttachment{va("a", "", 0)}, "", nil, map[string]fencing.Boot{"n1": {Node: "n1"}}, nil},
		"not recorded, and newer":    {[]storagev1.VolumeAttachment{old, va("d", "", 0)}, "", nil, map[string]fencing.Boot{"n1": boot("b1")}, nil},
		"and listed first":           {[]storagev1.VolumeAttachment{va("d", "", 0), old}, "", nil, map[string]fencing.Boot{"n1": boot("b1")}, nil},
		"unfenced":                   {[]storagev1.VolumeAttachment{unfenced("b2", last)}, "", nil, map[string]fencing.Boot{}, nil},
		"unfenced, not recorded":     {[]storagev1.VolumeAttachment{unfenced("b3", va("a", "", 0))}, "b3", nil, map[string]fencing.Boot{}, nil},
		"an earlier boot unfenced":   {[]storagev1.VolumeAttachment{unfenced("b1", last)}, "", nil, map[string]fencing.Boot{"n1": boot("b2")}, nil},
		"there is a Node":            {[]storagev1.VolumeAttachment{old}, "b1", map[string]*corev1.Node{"n1": {}}, map[string]fencing.Boot{}, nil},
		"the bound one is fenced":    {[]storagev1.VolumeAttachment{old, replaced}, "b1", nil, map[string]fencing.Boot{"n1": {Node: "n1", NodeUID: "uid-b9", ID: "b9", Machine: "hw9"}}, fenced},
		"both are fenced":            {[]storagev1.VolumeAttachment{old}, "b1", nil, map[string]fencing.Boot{"n1": boot("b1")}, fenced},
	} {
		got := bootsWithoutNode(&storagev1.VolumeAttachmentList{Items: c.attachments}, c.nodes, sources(c.bound), &fencingv1.NodeFenceList{Items: c.fences})
		if !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestPodWithFinalizer: a pod that a finalizer keeps on a machine that is off keeps no volume of another pod from moving, with a Node and
// without one.
func TestPodWithFinalizer(t *testing.T) {
	for name, deleted := range map[string]bool{"the Node is there": false, "the Node is deleted": true} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.fleet("n2", "n3", "n4")
			m := s.machine("n1")
			stuck := fixture.Pod("default", "n1-a-stuck", m.name)
			stuck.Finalizers = []string{"example.com/keep"}
			must(t, s.client.Create(t.Context(), stuck))
			t.Cleanup(func() {
				must(t, client.IgnoreNotFound(s.client.Patch(context.Background(), stuck, client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`)))))
			})
			m.workload()
			m.recorded()
			m.source()
			s.run()
			m.bound()
			m.dies(fencing.PowerOff)
			if deleted {
				m.vanishes()
			}
			wait.Until(t, "nothing of the other pod is left", m.moved)
			m.past(fencing.Detaching)
			if !m.exists(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: stuck.Name}}) {
				t.Error("the finalizer did not keep the pod")
			}
		})
	}
}

// TestUnfenceADeletedNodeAtTheAPI: a person who deletes the fence of a deleted Node has it stay so, although the machine runs and its volumes
// are attached. Once the record is taken off, the next fence has a higher epoch.
func TestUnfenceADeletedNodeAtTheAPI(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	m.recorded()
	m.source()
	s.run()
	m.bound()
	m.vanishes()
	f := m.waits("its power switch says On")
	must(t, s.client.Delete(t.Context(), f))
	wait.Until(t, "the fence is gone", func() bool { return m.fence() == nil })
	time.Sleep(2 * deletedEvery) // nothing must happen
	if m.fence() != nil || m.moved() {
		t.Fatalf("fenced again: %+v, moved %t", m.fence(), m.moved())
	}
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: m.name + "-va"}}
	must(t, s.client.Patch(t.Context(), va, client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"annotations": {"belay.dev/unfenced-boot": null}}}`))))
	wait.Until(t, "the next fence has a higher epoch", func() bool { next := m.fence(); return next != nil && next.Spec.Epoch > f.Spec.Epoch })
}
