package recovery

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

const (
	aUUID        = "4c4c4544-0051-3910-8052-b4c04f4d3532"
	boardUUID    = "03000200-0400-0500-0006-000700080009"
	boardOfOther = "4c4c4544-0051-3910-8052-b4c04f4d3533"
)

func shows(name, uid, boot, uuid string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid)}}
	n.Status.NodeInfo.BootID, n.Status.NodeInfo.SystemUUID = boot, uuid
	return n
}

func over(objects ...client.Object) *parts {
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	return &parts{client: c, live: c}
}

// TestSharedUUIDProvesNoRestart (S8): a Node that was registered again shows another boot and the system UUID of the fence. If another Node has
// that UUID too, or firmware left it, the boot of the fence may run on. The Node object that was fenced keeps its identity.
func TestSharedUUIDProvesNoRestart(t *testing.T) {
	for name, c := range map[string]struct {
		uid, uuid string
		other     *corev1.Node
		want      fencing.Relation
		switches  map[string]string // what the hardware of the nodes' switches gave
	}{
		"restarted":                             {"new", "4C4C4544005139108052B4C04F4D3532", shows("n2", "2", "b", "other"), fencing.Rebooted, nil},
		"another Node has the UUID":             {"new", aUUID, shows("n2", "2", "b", aUUID), fencing.RelationUnknown, nil},
		"it does, and the Node is the fenced":   {"old", aUUID, shows("n2", "2", "b", aUUID), fencing.Rebooted, nil},
		"the default of boards":                 {"old", boardUUID, shows("n2", "2", "b", "other"), fencing.RelationUnknown, nil},
		"another UUID, which another Node has":  {"new", "other", shows("n2", "2", "b", "other"), fencing.OtherMachine, nil},
		"the UUID of a boot that is not fenced": {"new", "other", shows("n2", "2", "b", aUUID), fencing.OtherMachine, nil},
		"its own switch confirms the UUID":      {"new", aUUID, shows("n2", "2", "b", aUUID), fencing.Rebooted, map[string]string{"n1": aUUID}},
		"and that of the other Node another":    {"new", aUUID, shows("n2", "2", "b", aUUID), fencing.Rebooted, map[string]string{"n1": aUUID, "n2": boardOfOther}},
		"and that of the other Node too":        {"new", aUUID, shows("n2", "2", "b", aUUID), fencing.RelationUnknown, map[string]string{"n1": aUUID, "n2": aUUID}},
	} {
		t.Run(name, func(t *testing.T) {
			fence := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
			fence.Spec.NodeName, fence.Spec.NodeUID, fence.Spec.BootID, fence.Spec.MachineID = "n1", "old", "boot-1", aUUID
			if c.uuid == boardUUID {
				fence.Spec.MachineID = c.uuid // by an earlier version
			}
			node := shows("n1", c.uid, "boot-2", c.uuid)
			objects := []client.Object{node, c.other}
			for name, hardware := range c.switches {
				source := sourceOf(name, name)
				source.Status.Bound = &fencingv1.Bound{MachineID: hardware, HardwareID: hardware, Generation: 1}
				objects = append(objects, source)
			}
			turn := &turn{actor: &actor{parts: over(objects...)}, fence: fence, mem: &memory{}}
			seen := fencing.Observed{}
			turn.readNode(t.Context(), &seen)
			if got := seen.Now.Since(fenceState(fence).Boot); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
}

// TestClaimedUUIDSharesNoSwitch (hole 6): a kubelet that writes the system UUID of another machine into its Node takes that one's switch from no
// Node: the hardware of its own switch does not confirm it. Where the hardware of both has the UUID, it does not say whose switch is whose.
func TestClaimedUUIDSharesNoSwitch(t *testing.T) {
	for name, c := range map[string]struct {
		hardware string // of the switch of the other node; empty for a node without one
		quiet    bool
		one, two string
	}{
		"it has no switch":            {one: reasonReady},
		"its hardware has another":    {hardware: boardOfOther, one: reasonReady, two: reasonOtherNode},
		"its hardware has it too":     {hardware: aUUID, one: reasonShared, two: reasonShared},
		"it has, and one falls quiet": {hardware: aUUID, quiet: true, one: reasonShared, two: reasonShared},
	} {
		n1, n2 := shows("n1", "1", "boot", aUUID), shows("n2", "2", "boot-2", aUUID)
		bmcs := map[string]Switch{"a": &machine{uuid: aUUID, power: fencing.PowerOn}, "b": &machine{uuid: c.hardware, power: fencing.PowerOn}}
		objects := []client.Object{n1, n2, sourceOf("n1", "a")}
		if c.hardware != "" {
			objects = append(objects, sourceOf("n2", "b"))
		}
		f := newFencer(partsOver(dialing(bmcs), objects...))
		check := func(node *corev1.Node, quiet bool) string {
			source := &fencingv1.FenceSource{}
			if f.client.Get(t.Context(), client.ObjectKeyFromObject(node), source) != nil {
				return ""
			}
			before := source.DeepCopy()
			f.check(t.Context(), source, node, quiet)
			must(t, f.storeSource(t.Context(), source, before))
			return meta.FindStatusCondition(source.Status.Conditions, conditionFenceReady).Reason
		}
		for range 2 { // an exercise each minute
			check(n1, false)
			check(n2, false)
		}
		if one, two := check(n1, c.quiet), check(n2, false); one != c.one || two != c.two {
			t.Errorf("%s: %q and %q, want %q and %q", name, one, two, c.one, c.two)
		}
		if c.two == reasonOtherNode {
			claims := &fencingv1.FenceSource{}
			must(t, f.client.Get(t.Context(), client.ObjectKeyFromObject(n2), claims))
			const says = "as does the Node n1, whose own hardware has it: the kubelet of node n2 is the suspect"
			if m := meta.FindStatusCondition(claims.Status.Conditions, conditionFenceReady).Message; !strings.Contains(m, says) {
				t.Errorf("%s: the message names no suspect: %s", name, m)
			}
		}
		source := &fencingv1.FenceSource{}
		must(t, f.client.Get(t.Context(), client.ObjectKeyFromObject(n1), source))
		if shared, err := f.shared(t.Context(), source); err != nil || shared != (c.one == reasonShared) {
			t.Errorf("%s: for a command, shared is %v, %v", name, shared, err)
		}
	}
}

// TestClaimedUUIDKeepsNoFence: n1 has no power switch. Its boot has ended, as a person said, and the machine is back under another Node object with
// another boot. A kubelet that claims its system UUID for a Node of its own does not keep the fence from its end, and not in a phase before that
// either. While the boot of the fence has not ended, such a Node is a sign of life: TestSharedUUIDProvesNoRestart.
func TestClaimedUUIDKeepsNoFence(t *testing.T) {
	for _, phase := range []fencing.Phase{fencing.Fencing, fencing.Tainting, fencing.Evicting, fencing.Detaching, fencing.Moved, fencing.Releasing} {
		for _, claimed := range []bool{false, true} {
			s := newStage(t, phase)
			must(t, s.client.Delete(t.Context(), sourceOf("n1", "bmc")))
			must(t, s.client.Delete(t.Context(), nodeOf("n1", 1)))
			back := nodeOf("n1", 1)
			back.UID, back.Status.NodeInfo.BootID = "uid-n1-again", "boot-2"
			back.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			must(t, s.client.Create(t.Context(), back))
			if claimed {
				evil := nodeOf("evil", 0)
				evil.Status.NodeInfo.SystemUUID = "hw-n1"
				must(t, s.client.Create(t.Context(), evil))
			}
			for range 20 {
				s.renews()
				s.clock = s.clock.Add(30 * time.Second)
				s.ear.silences.Tick(s.clock)
				s.turns()
			}
			if f := s.fence(); !finished(f) {
				t.Errorf("from %s, claimed by another kubelet %v: ten minutes after the machine is back the fence is %s, and misses %v", phase, claimed, f.Status.Phase, f.Status.Missing)
			}
		}
	}
}

// TestFirstZoneIsRecorded: the zone that a Node names while its switch is bound for the first time stays recorded, whatever its kubelet does to the label,
// and to the bond, until the Node is recreated.
func TestFirstZoneIsRecorded(t *testing.T) {
	f := newFencer(partsOver(dialing(map[string]Switch{"a": &machine{uuid: aUUID, power: fencing.PowerOn}}), sourceOf("n1", "a")))
	for _, c := range []struct{ uid, uuid, label, want string }{
		{"1", "other", "liar", ""}, // another machine, as its hardware says
		{"1", aUUID, "", ""},
		{"1", aUUID, "a", "a"},
		{"1", aUUID, "b", "a"},
		{"1", "other", "b", "a"},
		{"1", aUUID, "b", "a"},
		{"2", "other", "b", ""},
		{"2", aUUID, "b", "b"},
	} {
		node := shows("n1", c.uid, "boot", c.uuid)
		node.Labels = map[string]string{corev1.LabelTopologyZone: c.label}
		source := &fencingv1.FenceSource{}
		must(t, f.client.Get(t.Context(), client.ObjectKeyFromObject(node), source))
		before := source.DeepCopy()
		f.check(t.Context(), source, node, false)
		must(t, f.storeSource(t.Context(), source, before))
		if got := recordedZone(source, bootOf(node)); got != c.want {
			t.Errorf("%+v: the zone is %q", c, got)
		}
	}
}

// TestSharedSwitchNamesTheOther: a FenceSource that is changed to the switch of another one names that one, and the other one says so within a look, and not a minute
// later: it is no power switch to rely on. Once one of them is corrected, the other is ready again as soon.
func TestSharedSwitchNamesTheOther(t *testing.T) {
	bmcs := map[string]Switch{"a": &machine{uuid: "hw-n1", power: fencing.PowerOn}, "b": &machine{uuid: "hw-n2", power: fencing.PowerOn}}
	f := newFencer(partsOver(dialing(bmcs), nodeOf("n1", 0), nodeOf("n2", 0), sourceOf("n1", "a"), sourceOf("n2", "b")))
	get := func(name string) *fencingv1.FenceSource {
		s := &fencingv1.FenceSource{}
		must(t, f.client.Get(t.Context(), client.ObjectKey{Name: name}, s))
		return s
	}
	ready := func(name string) *metav1.Condition {
		_, err := f.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: name}})
		must(t, err)
		return meta.FindStatusCondition(get(name).Status.Conditions, conditionFenceReady)
	}
	address := func(name, switchName string) {
		s := get(name)
		s.Spec, s.Generation = sourceOf(name, switchName).Spec, s.Generation+1
		must(t, f.client.Update(t.Context(), s))
	}
	for _, name := range []string{"n1", "n2"} {
		f.ear.silences.Renewed(f.now().Add(-time.Second), name, "before", time.Minute)
		f.ear.silences.Renewed(f.now(), name, "now", time.Minute)
	}
	ready("n1")
	first := ready("n2").Reason
	address("n2", "a")
	if c := ready("n2"); c.Reason != reasonShared || !strings.Contains(c.Message, "FenceSource n1.") {
		t.Errorf("n2: %s: %s", c.Reason, c.Message)
	}
	if c := ready("n1"); c.Reason != reasonShared || !strings.Contains(c.Message, "FenceSource n2.") {
		t.Errorf("n1: %s: %s", c.Reason, c.Message)
	}
	address("n2", "b")
	ready("n2")
	if c := ready("n1"); c.Reason == reasonShared {
		t.Errorf("n1 after the correction: %s: %s (before: %s)", c.Reason, c.Message, first)
	}
}
