package recovery

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/wait"
)

// Tests of several machines that have had one name.

// another is a machine that takes the name of one that is not heard any more, under a Node of its own.
func (m *machine) another() *machine {
	m.Helper()
	key := m.name + "b"
	o := &machine{site: m.site, name: m.name, uuid: "4C4C4544-" + strings.ToUpper(key), port: m.port, power: fencing.PowerOn, boot: key + "-boot-1"}
	o.fenceName = kube.FenceNames(fencing.Boot{Node: o.name, Machine: machineID(o.uuid)})[1]
	m.site.mu.Lock()
	m.machines[key] = o
	m.site.mu.Unlock()
	must(m, m.client.Delete(m.Context(), m.node()))
	must(m, m.client.Create(m.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name}}))
	o.report(corev1.ConditionTrue)
	go o.beat(m.Context())
	return o
}

// takesSwitch: the FenceSource of the name is changed to the switch of this machine, of which the fencer finds out what it is.
func (m *machine) takesSwitch(ip string) {
	m.Helper()
	change := `{"spec":{"levels":[{"feeds":[{"agent":"fence_test","options":{"ip":"` + ip + `"}}]}]}}`
	source := &fencingv1.FenceSource{ObjectMeta: metav1.ObjectMeta{Name: m.name}}
	must(m, m.client.Patch(m.Context(), source, client.RawPatch(types.MergePatchType, []byte(change))))
	wait.Until(m, "the switch is bound to the machine", func() bool {
		must(m, m.client.Get(m.Context(), client.ObjectKeyFromObject(source), source))
		return source.Status.Bound != nil && source.Status.Bound.MachineID == machineID(m.uuid)
	})
}

// leavesVolume is a volume that is attached to the machine, as belay-controller records it.
func (m *machine) leavesVolume() *storagev1.VolumeAttachment {
	m.Helper()
	va := fixture.Attachment(m.boot+"-va", "disk.test", m.name, "pv-"+m.boot)
	va.Annotations = map[string]string{kube.NodeUIDAnnotation: string(m.node().UID), kube.BootIDAnnotation: m.boot, kube.SystemUUIDAnnotation: m.uuid}
	must(m, m.client.Create(m.Context(), va))
	return va
}

// states: a person says that the machine is off.
func (m *machine) states() {
	m.Helper()
	m.bind("alice", "belay-fence-confirm")
	m.guarded()
	c, err := client.New(cluster.User(m, "alice"), client.Options{Scheme: scheme})
	must(m, err)
	wait.Until(m, "the statement is written", func() bool {
		f := m.fence()
		before := client.MergeFrom(f.DeepCopy())
		f.Spec.Statement = &fencingv1.Statement{By: "alice", Reason: "pulled the plug", MachineID: f.Spec.MachineID, Expires: metav1.NewTime(time.Now().Add(time.Hour))}
		return c.Patch(m.Context(), f, before) == nil
	})
}

// replaced are a machine that is silent, whose switch gives no answer and whose fence waits for evidence, and another one that has its name and its FenceSource.
func (s *site) replaced() (first, second *machine, left *storagev1.VolumeAttachment) {
	s.Helper()
	first = s.machine("n1")
	left = first.leavesVolume()
	first.source()
	first.bound()
	first.mu.Lock()
	first.failing = errNoSwitch
	first.mu.Unlock()
	first.dies(fencing.PowerOn)
	first.waits("an answer of the power switch")
	second = first.another()
	second.takesSwitch("n1b")
	second.workload()
	return first, second, left
}

var errNoSwitch = errors.New("no answer")

// TestReplacedMachineIsProtected: while the fence of a machine waits for evidence, another one that has its name and falls silent has a fence of its own, with the
// switch that is known to be its own. Neither fence takes anything from the other machine, and the first one's continues.
func TestReplacedMachineIsProtected(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	s.run()
	first, second, left := s.replaced()
	second.dies(fencing.PowerOn)
	f := second.until(fencing.Moved)
	_, offs := second.count()
	_, before := first.count()
	if !second.moved() || offs == 0 || before != 0 || f.Spec.MachineID != machineID(second.uuid) || f.Spec.NodeName != second.name {
		t.Errorf("moved %t, commanded %d times, the first %d times; %+v", second.moved(), offs, before, f.Spec)
	}
	if waits := first.fence(); waits.Status.Phase != fencingv1.Phase(fencing.Fencing) || f.Spec.Epoch <= waits.Spec.Epoch || !first.exists(left) || left.DeletionTimestamp != nil {
		t.Errorf("the first one's fence is %s, epochs %d and %d", waits.Status.Phase, waits.Spec.Epoch, f.Spec.Epoch)
	}
	first.states()
	wait.Until(t, "the first one's volume is detached", func() bool { return !first.exists(left) })
	if f := second.fence(); f.Status.Phase != fencingv1.Phase(fencing.Moved) || !second.tainted(kube.OutOfServiceTaint) {
		t.Errorf("the second one's fence is %s, taints %v", f.Status.Phase, second.node().Spec.Taints)
	}
}

// TestEarlierMachineBesideUpstream (S8): kube-controller-manager would take the volume of the first machine for the second one's. The second one is not commanded
// before a person has said that the first one is off.
func TestEarlierMachineBesideUpstream(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	s.run(func(o *Options) { o.BesideUpstream = true })
	first, second, left := s.replaced()
	second.dies(fencing.PowerOn)
	second.waits("the end of an earlier machine of the name")
	if _, offs := second.count(); offs != 0 || second.tainted(kube.OutOfServiceTaint) || !second.tainted(kube.IsolationTaint) || !first.exists(left) {
		t.Errorf("commanded %d times, taints %v", offs, second.node().Spec.Taints)
	}
	first.states()
	second.until(fencing.Moved)
	if first.exists(left) || !second.moved() {
		t.Errorf("the second one's volume has moved: %t", second.moved())
	}
}

// TestReplacedMachineCountsByItsLease: a machine that renews its lease is not silent because the fence of an earlier one of its name waits.
func TestReplacedMachineCountsByItsLease(t *testing.T) {
	for machine, fenced := range map[string]bool{"hw-n1": true, "hw-before": false} {
		f := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: fencingv1.NodeFenceSpec{NodeName: "n1", NodeUID: "u", BootID: "b", MachineID: machine}}
		fleet := fencing.Fleet{Nodes: []fencing.Node{{Boot: bootOf(nodeOf("n1", 0))}}}
		d := &detector{parts: partsOver(nil)}
		d.count(&fleet, &fencingv1.NodeFenceList{Items: []fencingv1.NodeFence{*f}}, nil)
		if fleet.Fenced["n1"] != fenced || fleet.InFlight != 1 {
			t.Errorf("a fence of %s: fenced %t, in flight %d", machine, fleet.Fenced["n1"], fleet.InFlight)
		}
	}
}

// TestSwitchOfAnEarlierMachine (hole 6): a switch is taken from the fence of an earlier machine of the name only by the hardware that answers.
func TestSwitchOfAnEarlierMachine(t *testing.T) {
	for hardware, want := range map[string]string{"hw-before": "hw-before", "hw-n1": "hw-n1", "hw-third": "hw-before"} {
		node, source := nodeOf("n1", 0), sourceOf("n1", "bmc")
		source.Status.Bound = &fencingv1.Bound{NodeUID: "uid-before", BootID: "boot-before", MachineID: "hw-before", HardwareID: "hw-before", Generation: source.Generation}
		fence := &fencingv1.NodeFence{
			ObjectMeta: metav1.ObjectMeta{Name: "n1", Finalizers: []string{finalizer}},
			Spec:       fencingv1.NodeFenceSpec{NodeName: "n1", NodeUID: "uid-before", BootID: "boot-before", MachineID: "hw-before"},
		}
		p := partsOver(dialing(map[string]Switch{"bmc": &machine{uuid: hardware, power: fencing.PowerOn}}), node, source, fence, leaseOf("n1"))
		p.ear.silences.Renewed(p.now(), "n1", "", time.Hour)
		f := newFencer(p)
		if _, err := f.Reconcile(t.Context(), request("n1")[0]); err != nil {
			t.Fatal(err)
		}
		must(t, p.client.Get(t.Context(), client.ObjectKeyFromObject(source), source))
		if source.Status.Bound == nil || source.Status.Bound.MachineID != want {
			t.Errorf("the hardware is %s: bound to %+v", hardware, source.Status.Bound)
		}
	}
}

// TestDoubledFenceIsFound (hole 13): two creates were carried out for one machine, while the fence of an earlier one had the name of the node, and after it.
func TestDoubledFenceIsFound(t *testing.T) {
	names := kube.FenceNames(fencing.Boot{Node: "n1", Machine: "hw-n1"})
	fence := func(i int, epoch int64, phase fencing.Phase) *fencingv1.NodeFence {
		return &fencingv1.NodeFence{
			ObjectMeta: metav1.ObjectMeta{Name: names[i], UID: types.UID(names[i])}, Status: fencingv1.NodeFenceStatus{Phase: fencingv1.Phase(phase)},
			Spec: fencingv1.NodeFenceSpec{NodeName: "n1", NodeUID: "uid-n1", BootID: "boot-n1", MachineID: "hw-n1", Epoch: epoch},
		}
	}
	commands := func(f *fencingv1.NodeFence) *fencingv1.NodeFence {
		f.Status.Intents = []fencingv1.Intent{{Action: powerOff, Nonce: "off"}}
		return f
	}
	keeps := func(f *fencingv1.NodeFence) *fencingv1.NodeFence {
		f.Finalizers = []string{finalizer}
		return f
	}
	for name, c := range map[string]struct {
		own, other *fencingv1.NodeFence
		doubled    bool
	}{
		"the other has begun":           {fence(0, 9, ""), fence(1, 8, fencing.Fencing), true},
		"the other has a higher epoch":  {fence(0, 8, ""), fence(1, 9, ""), true},
		"the other has a lower epoch":   {fence(0, 9, ""), fence(1, 8, ""), false},
		"the other is over":             {fence(0, 9, ""), fence(1, 8, fencing.Released), false},
		"this one has begun":            {fence(0, 8, fencing.Fencing), fence(1, 9, ""), false},
		"both have begun":               {fence(0, 8, fencing.Fencing), fence(1, 9, fencing.Isolating), true},
		"both have, this one later":     {fence(0, 9, fencing.Isolating), fence(1, 8, fencing.Fencing), false},
		"the other has commanded":       {fence(0, 9, fencing.Fencing), commands(fence(1, 8, fencing.Fencing)), true},
		"this one has commanded":        {commands(fence(0, 8, fencing.Fencing)), fence(1, 9, fencing.Fencing), false},
		"both have commanded":           {commands(fence(0, 8, fencing.Fencing)), commands(fence(1, 9, fencing.Fencing)), false},
		"the other is being cancelled":  {fence(0, 8, ""), keeps(fence(1, 9, fencing.Cancelled)), false},
		"with one epoch, it is another": {fence(0, 9, ""), fence(1, 9, ""), names[1] > names[0]},
	} {
		turn := &turn{actor: &actor{parts: partsOver(nil, c.own, c.other)}, fence: c.own, mem: &memory{}}
		seen := fencing.Observed{}
		if must(t, turn.readOthers(t.Context(), &seen)); seen.Doubled != c.doubled {
			t.Errorf("%s: doubled %t", name, seen.Doubled)
		}
	}
}

// TestProofsOfTwoMachines: what is known about one machine of a name takes nothing away that is known about another.
func TestProofsOfTwoMachines(t *testing.T) {
	proves := func(id string) fencing.Decision {
		boot := fencing.Boot{Node: "n1", NodeUID: "uid-" + id, ID: id, Machine: "hw-" + id}
		return fencing.Decide(time.Now(), fencing.Fence{Phase: fencing.Evicting, Boot: boot, Evidence: fencing.PoweredOff}, fencing.Observed{Exists: fencing.No, Ended: true})
	}
	p, woken := &Proofs{}, []string{}
	p.OnNew(func(node string) { woken = append(woken, node) })
	p.decided("n1", proves("a"))
	p.decided("n1.b", proves("b"))
	if all := p.Of("n1"); len(all) != 2 || !slices.Equal(woken, []string{"n1", "n1"}) {
		t.Errorf("%+v, woken %v", all, woken)
	}
	p.decided("n1", fencing.Decision{})
	if all := p.Of("n1"); len(all) != 1 || all[0].Boot().ID != "b" || len(p.Of("n2")) != 0 {
		t.Errorf("%+v", all)
	}
}

// TestNamesOfNodeFences: the API server stores no NodeFence under a name that does not begin with that of its node.
func TestNamesOfNodeFences(t *testing.T) {
	s := newSite(t)
	long := strings.Repeat("a", 253)
	for _, c := range []struct {
		node, name string
		stored     bool
	}{
		{"n1", "n1", true},
		{"n1", kube.FenceNames(fencing.Boot{Node: "n1", Machine: "hw"})[1], true},
		{long, kube.FenceNames(fencing.Boot{Node: long, Machine: "hw"})[1], true},
		{"n1", "n1.0123456789abcde", false},
		{"n10", "n1.0123456789abcdef", false},
		{"n1.0123456789abcdef", "n1.0123456789abcdef", true},
		{"n1", "n1-0123456789abcdef", false},
		{"n1", "n1.0123456789abcdeg", false},
		{"n1", "n2.0123456789abcdef", false},
		{"n1", "n2", false},
	} {
		err := s.client.Create(t.Context(), &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: c.name}, Spec: fencingv1.NodeFenceSpec{
			NodeName: c.node, NodeUID: "u", BootID: "b", MachineID: "hw", Epoch: 1,
		}})
		if (err == nil) != c.stored {
			t.Errorf("%s for node %s: %v", c.name, c.node, err)
		}
	}
}

// TestRefusedFenceHoldsBackNoOther: a NodeFence that the API server refuses, as a CRD of another version may refuse its name, keeps no other node from being fenced.
func TestRefusedFenceHoldsBackNoOther(t *testing.T) {
	w := watch(t, fencing.Brakes{Share: 1, ZoneShare: 1, Window: 10 * time.Minute, Fences: 9, InFlight: 9}, "n1", "n2", "n3")
	w.client = interceptor.NewClient(w.client.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.CreateOption) error {
			if object.GetName() != "n3" { // the last in the order of the cache
				return apierrors.NewInvalid(schema.GroupKind{Kind: "NodeFence"}, object.GetName(), nil)
			}
			return c.Create(ctx, object, o...)
		},
	})
	if w.looks(1); w.fences() != 1 {
		t.Errorf("%d fences: %q", w.fences(), w.said)
	}
}
