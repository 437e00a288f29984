package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
)

// nameless is a switch that cannot tell whose it is, as an outlet of a PDU.
type nameless struct{ *machine }

func (nameless) Identity(context.Context) (string, error) { return "", ErrNoIdentity }

// sourceOf is a FenceSource with one feed in each level.
func sourceOf(name string, addresses ...string) *fencingv1.FenceSource {
	s := &fencingv1.FenceSource{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1, Annotations: map[string]string{fenceMachine: "hw-" + name}}}
	for _, a := range addresses {
		s.Spec.Levels = append(s.Spec.Levels, fencingv1.FenceLevel{Feeds: []fencingv1.Feed{{Agent: "fence_test", Options: map[string]fencingv1.FeedOption{"ip": fencingv1.FeedOption(a)}}}})
	}
	return s
}

func dialing(switches map[string]Switch) Dial {
	return func(feed fencingv1.Feed, _ map[string][]byte) (Switch, error) {
		return switches[string(feed.Options["ip"])], nil
	}
}

// The fencer itself finds that a switch says Off while the node runs: "it switches another machine" (FenceReady False, NotOn). What it had
// said before still binds it: when the node is cut off, that Off is taken for the node's, twice, and its volumes get two writers. The same
// after another client corrected the FenceSource to a wrong outlet. Expected: what contradicts the binding ends it.
func TestHostileSwitchThatSaysOffOfARunningNodeIsNotBound(t *testing.T) {
	outlet := &machine{power: fencing.PowerOn}
	source, node := sourceOf("n1", "pdu"), nodeOf("n1", 0)
	p := partsOver(dialing(map[string]Switch{"pdu": nameless{outlet}}), node, source)
	f := newFencer(p)
	f.check(t.Context(), source, node, false)
	if boundSource(source).SaidOn != bootOf(node) {
		t.Fatalf("not bound: %+v", source.Status)
	}
	outlet.power = fencing.PowerOff // the outlet is not that of the node: it is off, and the node renews its lease
	f.check(t.Context(), source, node, false)
	if boundSource(source).SaidOn != bootOf(node) {
		t.Fatal("one answer Off, as of a machine that lost its power a moment ago, has ended the binding")
	}
	f.check(t.Context(), source, node, false) // a minute later, and the node has renewed its lease since
	if c := meta.FindStatusCondition(source.Status.Conditions, conditionFenceReady); c.Reason != reasonNotOn {
		t.Fatalf("FenceReady is %+v", c)
	}
	if s := boundSource(source); s.SaidOn == bootOf(node) {
		t.Errorf("FenceReady is False (NotOn), and the switch is still bound to %+v: its Off proves that the node is off", s.SaidOn)
	}
}

// The spec of a FenceSource was changed after the switch was bound, and the node fell silent before it was exercised again: what the old
// outlet said binds the new one, which has never said anything. Off goes to another machine. A switch that gives no identity has no other
// check than that it said On under this boot (hole 6).
func TestHostileChangedSourceIsNotBound(t *testing.T) {
	good := &machine{power: fencing.PowerOn}
	wrong := &machine{power: fencing.PowerOn} // of another, healthy machine
	source, node := sourceOf("n1", "outlet-1"), nodeOf("n1", 0)
	p := partsOver(dialing(map[string]Switch{"outlet-1": nameless{good}, "outlet-2": nameless{wrong}}), node, source)
	f := newFencer(p)
	f.check(t.Context(), source, node, false)
	source.Spec.Levels[0].Feeds[0].Options["ip"] = "outlet-2"
	source.Generation = 2
	f.check(t.Context(), source, node, true) // the node is silent
	if s := boundSource(source); s.SaidOn == bootOf(node) {
		t.Errorf("outlet-2 is bound to %+v, under which it never said On", s.SaidOn)
	}
}

// The second level is only ever asked when the first does not answer, so it is never exercised: a PDU with a wrong outlet is found when it
// is needed. It is commanded all the same, and believed, although it has never said On under this boot and gives no identity (hole 6: "a
// source counts for a node only if ... it said On under this bootID"): a healthy machine loses its power, or an outlet that is off proves
// that a partitioned node is. Expected: a level that was never bound is not commanded, and proves nothing.
func TestHostileSecondLevelThatWasNeverBoundIsNotCommanded(t *testing.T) {
	bmc, outlet := &machine{uuid: "hw-n1", power: fencing.PowerOn}, &machine{power: fencing.PowerOn}
	source, node := sourceOf("n1", "bmc", "pdu"), nodeOf("n1", 0)
	source.Annotations = nil
	fence := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: fencingv1.NodeFenceSpec{NodeName: "n1", NodeUID: "uid-n1", BootID: "boot-n1", MachineID: "hw-n1"}}
	fence.Status.Phase = fencingv1.Phase(fencing.Fencing)
	fence.Status.Intents = []fencingv1.Intent{{Action: powerOff, Nonce: "n", NotAfter: metav1.NewMicroTime(time.Now().Add(time.Minute))}}
	p := partsOver(dialing(map[string]Switch{"bmc": bmc, "pdu": nameless{outlet}}), node, nodeOf("n9", 0), source, fence)
	p.hears(&coordinationv1.Lease{})
	f := newFencer(p)
	get := func() {
		must(t, p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, fence))
		must(t, p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, source))
	}
	get()
	for range 3 {
		f.check(t.Context(), source, node, false)
	}
	must(t, p.client.Status().Update(t.Context(), source))
	if asked, _ := outlet.count(); asked > 0 {
		return // it is exercised, and this test is about something else
	}
	bmc.failing = context.DeadlineExceeded // it is on the feed, or the network, that the node lost
	get()
	_, err := f.serve(t.Context(), f.state("n1"), source, fence)
	must(t, err)
	_, offs := outlet.count()
	last := lastOf(fence.Status.Evidence, 1)
	if offs > 0 || len(last) > 0 && last[0].Power == powerOff {
		t.Errorf("an outlet that has never been asked while the node lived was switched off %d times, and proves %+v", offs, last)
	}
}

// Node and lease are read live before a command (hole 16, "live GET at most 1 s before Off"), but then the Secrets are read and the intent is
// marked, with no bound on how long that takes, and the machine is switched off on what was read before. The case for it is the common
// one: an API server that is slow makes healthy nodes silent, and is slow here too. Expected: what is old by then is read again.
func TestHostileSlowServerBetweenTheLiveReadAndOff(t *testing.T) {
	bmc := &machine{uuid: "hw-n1", power: fencing.PowerOn}
	node, source := nodeOf("n1", 0), sourceOf("n1", "bmc")
	source.Status.Bound = &fencingv1.Bound{NodeUID: "uid-n1", BootID: "boot-n1", MachineID: "hw-n1", HardwareID: "hw-n1"}
	lease := leaseOf("n1")
	renewed := metav1.NewMicroTime(time.Now().Add(-time.Minute))
	lease.Spec.RenewTime = &renewed
	fence := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: fencingv1.NodeFenceSpec{NodeName: "n1", NodeUID: "uid-n1", BootID: "boot-n1", MachineID: "hw-n1"}}
	fence.Status.Phase = fencingv1.Phase(fencing.Fencing)
	p := partsOver(dialing(map[string]Switch{"bmc": bmc}), node, nodeOf("n9", 0), source, fence, lease)
	read := &coordinationv1.Lease{}
	must(t, p.client.Get(t.Context(), client.ObjectKeyFromObject(lease), read))
	must(t, p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, fence))
	fence.Status.Intents = []fencingv1.Intent{{Action: powerOff, Nonce: "n", NotAfter: metav1.NewMicroTime(time.Now().Add(time.Minute)), Renewal: renewal(read)}}
	must(t, p.client.Status().Update(t.Context(), fence))
	clock := time.Now()
	p.now = func() time.Time { return clock }
	p.hears(read)
	inner := p.client
	p.client = interceptor.NewClient(inner.(client.WithWatch), interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			if err := c.SubResource(sub).Patch(ctx, object, patch, opts...); err != nil {
				return err
			}
			if s, ok := object.(*fencingv1.FenceSource); ok && s.Status.Command != nil { // who sends the command is stored: that took 8 s
				clock = clock.Add(8 * time.Second)
				now := metav1.NewMicroTime(clock)
				read.Spec.RenewTime = &now // and the node renewed its lease
				return inner.Update(ctx, read)
			}
			return nil
		},
	})
	f := newFencer(p)
	_, err := f.serve(t.Context(), f.state("n1"), source, fence)
	must(t, err)
	if _, offs := bmc.count(); offs > 0 {
		t.Errorf("switched off a node that renewed its lease, on a reading that was 8 s old")
	}
}

// The brake counts the commands of the window, whatever became of the fences: the detector itself deletes a finished NodeFence before the node's next one,
// and a person may delete it. What the fencer recorded stays.
func TestHostileBrakeCountsCommandsOfFencesThatWereDeleted(t *testing.T) {
	objects := []client.Object{nodeOf("n1", 0)}
	for i := range 5 {
		source := sourceOf(fmt.Sprint("other-", i), fmt.Sprint("bmc-", i))
		source.Status.Command = &fencingv1.SentCommand{Nonce: "1", Time: micro(time.Now())}
		objects = append(objects, source)
	}
	d := &detector{parts: partsOver(nil, objects...), held: map[string]hold{}}
	fleet, _, err := d.fleet(t.Context())
	must(t, err)
	if len(fleet.Commanded) != 5 {
		t.Errorf("%d of 5 commands of the window count", len(fleet.Commanded))
	}
}

// A fence without a power switch takes volumes one by one where a driver cuts the node off: the first counts in the window as a command does.
func TestHostileBrakeCountsVolumesTakenOneByOne(t *testing.T) {
	objects := []client.Object{nodeOf("n1", 0)}
	for i := range 5 {
		f := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("other-", i), Finalizers: []string{finalizer}}}
		f.Spec.NodeName = f.Name
		f.Status.Phase, f.Status.Missing = fencingv1.Phase(fencing.Fencing), []string{"a power switch"}
		f.Status.Conditions = []metav1.Condition{{Type: conditionStorageFenced, Status: metav1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		objects = append(objects, f)
	}
	d := &detector{parts: partsOver(nil, objects...), held: map[string]hold{}}
	fleet, _, err := d.fleet(t.Context())
	must(t, err)
	if len(fleet.Commanded) != 5 || fleet.InFlight != 0 {
		t.Errorf("%d of 5 fences count in the window, %d in flight", len(fleet.Commanded), fleet.InFlight)
	}
}

// Fences that were cancelled before a command, and those of nodes without a power switch, take no place of another: two nodes without a switch held back the
// recovery of all others for as long as they were silent, and a network card that flaps did for the window.
func TestHostileFencesWithoutACommandHoldBackNoOther(t *testing.T) {
	objects := []client.Object{nodeOf("n1", 0)}
	for i := range 6 {
		name := fmt.Sprint("other-", i)
		f := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.Now()}}
		f.Status.Phase = fencingv1.Phase(fencing.Cancelled)
		if i < 2 {
			f.Finalizers, f.Status.Phase, f.Status.Missing = []string{finalizer}, fencingv1.Phase(fencing.Fencing), []string{"a power switch"}
		}
		objects = append(objects, f)
	}
	d := &detector{parts: partsOver(nil, objects...), held: map[string]hold{}}
	fleet, _, err := d.fleet(t.Context())
	must(t, err)
	if fleet.InFlight != 0 || len(fleet.Commanded) != 0 {
		t.Errorf("%d fences in flight and %d commands count", fleet.InFlight, len(fleet.Commanded))
	}
}

// A Node that was deleted, whose machine runs on, has a fence for days (AskDeletedEvery: "for days, if it is left running"). It commands
// nothing, and still takes one of the two places in flight: after a person has deleted two such Nodes, no dead node is recovered any more,
// and nothing but the end of those machines ends that.
func TestHostileDeletedNodesThatRunDoNotStopAllRecovery(t *testing.T) {
	objects := []client.Object{nodeOf("n1", 0)}
	for i, name := range []string{"gone-1", "gone-2", "gone-3", "gone-4", "gone-5"} {
		f := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Finalizers: []string{finalizer}}}
		f.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Duration(i) * time.Minute))
		f.Spec.Trigger, f.Status.Phase = fencingv1.TriggerNodeDeleted, fencingv1.Phase(fencing.Fencing)
		objects = append(objects, f)
	}
	d := &detector{parts: partsOver(nil, objects...), held: map[string]hold{}}
	fleet, _, err := d.fleet(t.Context())
	must(t, err)
	if fleet.InFlight >= fencing.DefaultBrakes().InFlight {
		t.Errorf("%d fences are in flight, which command nothing: TooManyInFlight for days", fleet.InFlight)
	}
}

// The create of a fence for a deleted Node that has no answer counts as that fence would: it commands nothing, and takes no place.
func TestHostileUnansweredFencesOfDeletedNodesTakeNoPlace(t *testing.T) {
	va := fixture.Attachment("va-of-gone", "disk.test", "gone", "pv-1")
	va.Annotations = map[string]string{kube.NodeUIDAnnotation: "uid-gone", kube.BootIDAnnotation: "boot-gone", kube.SystemUUIDAnnotation: "hw-gone"}
	va.Status.Attached = true
	d := &detector{parts: partsOver(nil, nodeOf("n1", 0), va), held: map[string]hold{}}
	d.client = interceptor.NewClient(d.client.(client.WithWatch), interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			return context.DeadlineExceeded
		},
	})
	fleet := fencing.Fleet{}
	must(t, d.countLive(t.Context(), &fleet, "n1"))
	boot := fencing.Boot{Node: "gone", NodeUID: "uid-gone", ID: "boot-gone", Machine: "hw-gone"}
	if err := d.suspect(t.Context(), fencing.Node{Boot: boot, Deleted: true}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("no create was sent: %v", err)
	}
	must(t, d.countLive(t.Context(), &fleet, "n1"))
	if fleet.InFlight != 0 || len(fleet.Commanded) != 0 {
		t.Errorf("in flight %d, commanded %v", fleet.InFlight, fleet.Commanded)
	}
}

// Beside kube-controller-manager VolumeAttachments record no boot. Once another machine has registered under the name, one without a record
// may be the new machine's, whose kubelet has the volume mounted. The fence of the old machine deletes it.
func TestHostileAttachmentsOfAnotherMachineAreNotOfTheBoot(t *testing.T) {
	node := nodeOf("n1", 0) // hw-n1, the new machine
	fence := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: fencingv1.NodeFenceSpec{NodeName: "n1", NodeUID: "uid-old", BootID: "boot-old", MachineID: "hw-old"}}
	va := fixture.Attachment("new-va", "disk.test", "n1", "pv-1")
	va.CreationTimestamp = metav1.Now()
	turn := &turn{actor: &actor{parts: partsOver(nil, node)}, fence: fence, node: node, mem: &memory{}}
	if left := turn.ofBoot(&storagev1.VolumeAttachmentList{Items: []storagev1.VolumeAttachment{*va}}); len(left) > 0 {
		t.Errorf("%v counts as the old machine's, and is deleted", left)
	}
	va.Annotations = map[string]string{kube.BootIDAnnotation: "boot-old"}
	if left := turn.ofBoot(&storagev1.VolumeAttachmentList{Items: []storagev1.VolumeAttachment{*va}}); len(left) != 1 {
		t.Errorf("%v: the old machine's is left", left)
	}
}

// The ClusterRole for people who may state that a machine is off lets them create NodeFences too. Recovery creates them, and who may ask for a power-off: one that
// another person creates passes by the detector, and with it the brakes and the exclusion of control-plane nodes. What a request says is held to bounds by
// the policy belay-fence-request (TestWhoMayAskForAPowerOff), and the fencer decides again (TestFencerDecidesItself).
func TestHostileConfirmingDoesNotCreateFences(t *testing.T) {
	for _, role := range apiserver.Decode[rbacv1.ClusterRole](t, apiserver.Manifests(t, rbac+"admission.yaml"), "ClusterRole") {
		for _, rule := range role.Rules {
			asks := slices.Contains(rule.Verbs, "power-off")
			if slices.Contains(rule.Resources, "nodefences") && slices.Contains(rule.Verbs, "create") && (!asks || slices.Contains(rule.Verbs, "confirm")) {
				t.Errorf("ClusterRole %s may create nodefences", role.Name)
			}
		}
	}
}

// evidenceOf is one entry of the record.
func evidenceOf(f *fencingv1.NodeFence, class, power string) fencingv1.Evidence {
	return fencingv1.Evidence{Class: class, Power: power, BootID: f.Spec.BootID, Time: metav1.NowMicro()}
}

// What is about single volumes, says that nothing is to be taken at all, or is a person's word without a statement, satisfies the rule that "nothing is evicted or detached without
// evidence of this boot": neither may (hole 10, hole 9).
func TestHostileCRDEvictingNeedsEvidenceAboutTheNode(t *testing.T) {
	s := newSite(t)
	for i, class := range []fencing.Class{fencing.StorageFenced, fencing.Restarted, fencing.Stated} {
		m := s.machine("n" + strconv.Itoa(i))
		f := m.makeFence(fencing.Tainting)
		f.Status.Evidence = []fencingv1.Evidence{evidenceOf(f, string(class), "")}
		f.Status.Phase = fencingv1.Phase(fencing.Evicting)
		if err := s.client.Status().Update(t.Context(), f); err == nil {
			t.Errorf("Evicting with evidence of the class %s alone", class)
		}
	}
}

// The transitions are checked against the phase before, and a fence without a phase has none: it may begin with any.
func TestHostileCRDFirstPhase(t *testing.T) {
	s := newSite(t)
	m := s.machine("n1")
	f := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: fencingv1.NodeFenceSpec{
		NodeName: "n1", NodeUID: string(m.node().UID), BootID: m.boot, MachineID: m.uuid, Epoch: 1,
	}}
	must(t, s.client.Create(t.Context(), f))
	f.Status.Evidence = []fencingv1.Evidence{evidenceOf(f, string(fencing.Stated), "")}
	f.Status.Phase = fencingv1.Phase(fencing.Detaching)
	if err := s.client.Status().Update(t.Context(), f); err == nil {
		t.Error("the first phase of a fence is Detaching")
	}
}

// The record keeps 32 answers. After a change of leader in Evicting or Detaching the switch is asked once a second, and a machine that starts
// says On for minutes: the entry with which the fence began to evict is pushed out. Expected: the API server accepts the answers all the same.
func TestHostileAnswersDoNotPushOutTheEvidence(t *testing.T) {
	s := newSite(t)
	m := s.machine("n1")
	f := m.makeFence(fencing.Tainting)
	f.Status.Evidence = []fencingv1.Evidence{evidenceOf(f, string(fencing.PoweredOff), powerOff)}
	f.Status.Phase = fencingv1.Phase(fencing.Evicting)
	must(t, s.client.Status().Update(t.Context(), f))
	p := partsOver(nil)
	p.client = s.client
	n := newFencer(p)
	for i := range maxEvidence + 1 {
		if err := n.answer(t.Context(), n.state("n1"), f, "nonce-"+strconv.Itoa(i), reply{power: fencing.PowerOn}); err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
	}
}
