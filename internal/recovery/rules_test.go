package recovery

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// Tests of the rules of ADR 23 that need no API server, for hack/mutants.

// partsOver are parts over objects that a fake client holds.
func partsOver(dial Dial, objects ...client.Object) *parts {
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&storagev1.VolumeAttachment{}, byNode, nodeOfAttachment).
		WithIndex(&fencingv1.NodeFence{}, byNode, nodeOfFence).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(object client.Object) []string { return []string{object.(*corev1.Pod).Spec.NodeName} }).
		WithStatusSubresource(&corev1.Node{}, &fencingv1.NodeFence{}, &fencingv1.FenceSource{}).Build()
	p := &parts{client: c, live: c, events: &events.FakeRecorder{}, now: time.Now, identity: "test", Options: Options{Profile: quick, Brakes: fencing.DefaultBrakes(), Dial: dial}}
	p.ear = &listener{parts: p}
	return p
}

// hears has the parts find n1 silent for an hour, and n9 alive.
func (p *parts) hears(lease *coordinationv1.Lease) {
	p.ear.silences.Renewed(p.now().Add(-time.Hour), "n1", renewal(lease), time.Second)
	p.ear.silences.Renewed(p.now(), "n9", "", time.Hour)
}

func nodeOf(name string, epoch int64) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Annotations: map[string]string{}}}
	n.Status.NodeInfo = corev1.NodeSystemInfo{BootID: "boot-" + name, SystemUUID: "hw-" + name}
	if epoch > 0 {
		n.Annotations[kube.FenceEpochAnnotation] = strconv.FormatInt(epoch, 10)
	}
	return n
}

// TestEpoch (hole 13): no epoch is used twice, whether the fence before is there or was deleted. The finalizer keeps a fence, with which a
// client could lose sight of its taints.
func TestEpoch(t *testing.T) {
	node := nodeOf("n1", 6)
	old := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: fencingv1.NodeFenceSpec{NodeName: "n1", Epoch: 8}}
	old.Status.Phase = fencingv1.Phase(fencing.Released)
	shows := func(epoch string) *corev1.Node {
		n := nodeOf("n1", 0)
		n.Annotations[kube.FenceEpochAnnotation] = epoch
		return n
	}
	const now = 5
	for _, c := range []struct {
		want    int64
		objects []client.Object
	}{
		{7, []client.Object{node}}, {9, []client.Object{node.DeepCopy(), old}}, {now, []client.Object{nodeOf("n1", 0)}},
		{now, []client.Object{shows("9223372036854775807")}}, {now, []client.Object{shows("99999999999999999999999")}}, {now, []client.Object{shows("-9")}},
		{now, []client.Object{shows("8 or so")}}, {9, []client.Object{shows("9223372036854775807"), old.DeepCopy()}},
	} {
		want := c.want
		p := partsOver(nil, c.objects...)
		p.now = func() time.Time { return time.Unix(now, 0) }
		d := &detector{parts: p, held: map[string]hold{}}
		must(t, d.suspect(t.Context(), fencing.Node{Boot: bootOf(node)}))
		f := &fencingv1.NodeFence{}
		must(t, p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, f))
		if f.Spec.Epoch != want || len(f.Finalizers) != 1 || finished(f) {
			t.Errorf("epoch %d with finalizers %v, want %d", f.Spec.Epoch, f.Finalizers, want)
		}
	}
}

// TestEpochOfARecreatedNode (hole 13): a Node that was deleted and registered again has no epoch, and is looked at in a moment in which it
// changes. The record of the fence before stays until the next fence takes its epoch over.
func TestEpochOfARecreatedNode(t *testing.T) {
	old := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: fencingv1.NodeFenceSpec{NodeName: "n1", Epoch: 8}}
	old.Status.Phase = fencingv1.Phase(fencing.Released)
	again := nodeOf("n1", 0)
	p := partsOver(nil, again, old)
	p.now = func() time.Time { return time.Unix(5, 0) }
	d := &detector{parts: p, held: map[string]hold{}}
	before := bootOf(again)
	before.ID = "boot-before"
	must(t, d.suspect(t.Context(), fencing.Node{Boot: before}))
	must(t, p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, old))
	must(t, d.suspect(t.Context(), fencing.Node{Boot: bootOf(again)}))
	f := &fencingv1.NodeFence{}
	must(t, p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, f))
	if f.Spec.Epoch != 9 {
		t.Errorf("epoch %d after 8", f.Spec.Epoch)
	}
}

// TestDeletedFenceStays (hole 13): the finalizer goes only when the fence has ended.
func TestDeletedFenceStays(t *testing.T) {
	f := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1", Finalizers: []string{finalizer}}}
	f.Status.Phase = fencingv1.Phase(fencing.Cancelled)
	if finished(f) {
		t.Error("a fence with its finalizer counts as finished")
	}
}

// TestReturns (hole 20): a pod that tolerates every taint is deleted too; one that claims to be a mirror pod, or of a DaemonSet, may be left.
func TestReturns(t *testing.T) {
	owned := func(kind string) func(*corev1.Pod) {
		yes := true
		return func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Controller: &yes}} }
	}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"bare":                 {func(*corev1.Pod) {}, false},
		"tolerates everything": {func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }, false},
		"of a StatefulSet":     {owned("StatefulSet"), false},
		"of a DaemonSet":       {owned("DaemonSet"), true},
		"mirror":               {func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }, true},
	} {
		pod := &corev1.Pod{}
		if c.change(pod); returns(pod) != c.want {
			t.Errorf("%s: %t, want %t", name, !c.want, c.want)
		}
	}
}

// TestForgottenNodes: the silence of a node is known as long as it has a lease, a Node object or a fence, and is forgotten after that.
func TestForgottenNodes(t *testing.T) {
	node, lease, fence := nodeOf("n1", 0), leaseOf("n1"), &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: fencingv1.NodeFenceSpec{NodeName: "n1"}}
	p := partsOver(nil, node, lease, fence)
	for _, goes := range []client.Object{nil, lease, node, fence} {
		if goes != nil {
			must(t, p.client.Delete(t.Context(), goes))
		}
		must(t, p.ear.tick(t.Context()))
		if _, _, known := p.ear.of("n1"); known == (goes == fence) {
			t.Errorf("after the delete of %T: known %t", goes, known)
		}
	}
}

// TestReasonsOfASourceThatCannotBeAsked: an agent that is not there, an option that it does not have and a Secret that cannot be read each have
// a reason of their own.
func TestReasonsOfASourceThatCannotBeAsked(t *testing.T) {
	for want, c := range map[string]struct {
		failed error
		secret *fencingv1.SecretReference
	}{
		"AgentUnusable":    {fmt.Errorf("%w: agent fence_x is not in /usr/sbin", ErrNoAgent), nil},
		"OptionsRefused":   {errors.New("agent fence_x has no option colour"), nil},
		"OffUntested":      {fmt.Errorf("%w: agent fence_x", ErrOffUntested), nil},
		"SecretUnreadable": {nil, &fencingv1.SecretReference{Namespace: "default", Name: "none"}},
	} {
		source := sourceOf("n1", "bmc")
		source.Spec.Levels[0].Feeds[0].SecretRef = c.secret
		p := partsOver(func(fencingv1.Feed, map[string][]byte) (Switch, error) { return nil, c.failed }, source, nodeOf("n1", 0))
		f := newFencer(p)
		f.check(t.Context(), source, nodeOf("n1", 0), false)
		got := meta.FindStatusCondition(source.Status.Conditions, conditionFenceReady)
		if got == nil || got.Reason != want || got.Status != metav1.ConditionFalse || c.failed != nil && !strings.Contains(got.Message, c.failed.Error()) {
			t.Errorf("%+v, want %s", got, want)
		}
	}
}

// TestSecretCorrectedDuringAFence: a fence that waits because its switch is locked asks nothing, so the fencer itself looks whether the Secret
// has changed. It logs in only then.
func TestSecretCorrectedDuringAFence(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "bmc", Annotations: map[string]string{kube.AddressesAnnotation: "fence_test"}}, Data: map[string][]byte{"password": []byte("wrong")}}
	source := &fencingv1.FenceSource{ObjectMeta: metav1.ObjectMeta{Name: "n1", Generation: 1}, Spec: fencingv1.FenceSourceSpec{Levels: []fencingv1.FenceLevel{{
		Feeds: []fencingv1.Feed{{Agent: "fence_test", SecretRef: &fencingv1.SecretReference{Namespace: "default", Name: "bmc"}}},
	}}}}
	bmc := &machine{uuid: "hw-n1", power: fencing.PowerOff}
	fence := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: fencingv1.NodeFenceSpec{NodeName: "n1", BootID: "boot-n1", MachineID: "hw-n1"}}
	p := partsOver(func(fencingv1.Feed, map[string][]byte) (Switch, error) { return bmc, nil }, nodeOf("n1", 0), source, secret, fence)
	f := newFencer(p)
	must(t, p.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "bmc"}, secret))
	must(t, p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, source))
	source.Status = fencingv1.FenceSourceStatus{
		Refused: []fencingv1.RefusedLogins{{Times: maxLogins, SecretVersion: secret.ResourceVersion, Generation: 1}},
		Bound:   &fencingv1.Bound{NodeUID: "uid-n1", BootID: "boot-n1", MachineID: "hw-n1", HardwareID: "hw-n1", Generation: 1},
	}
	setFenceReady(source, metav1.ConditionFalse, reasonLocked, lockedMessage)
	must(t, p.client.Status().Update(t.Context(), source))
	serve := func() (locked bool) {
		t.Helper()
		must(t, p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, source))
		_, err := f.serve(t.Context(), f.state("n1"), source, fence)
		must(t, err)
		must(t, p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, source))
		return boundSource(source).Locked
	}
	if asked, _ := bmc.count(); !serve() || asked != 0 {
		t.Fatalf("with the same Secret: asked %d times", asked)
	}
	secret.Data["password"] = []byte("right")
	must(t, p.client.Update(t.Context(), secret))
	if serve() {
		t.Error("the corrected Secret is not tried while the node is being fenced")
	}
}

// TestNoTaintWithoutItsFence: after etcd was restored, the fence that was decided on may be gone, or another one of the same name; another process may have
// cancelled it. A taint without a fence that removes it would stay on a healthy node.
func TestNoTaintWithoutItsFence(t *testing.T) {
	for name, stored := range map[string]client.Object{
		"gone": nil, "another": &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "another"}},
		"cancelled": &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "decided"}, Status: fencingv1.NodeFenceStatus{Phase: fencingv1.Phase(fencing.Cancelled)}},
	} {
		objects := []client.Object{nodeOf("n1", 1)}
		if stored != nil {
			objects = append(objects, stored)
		}
		p := partsOver(nil, objects...)
		turn := &turn{actor: &actor{parts: p}, fence: &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "decided"}}, mem: &memory{}}
		turn.readNode(t.Context(), &fencing.Observed{})
		for _, step := range []fencing.Step{fencing.Isolate{}, fencing.Taint{}} {
			if err := turn.act(t.Context(), step); err == nil {
				t.Errorf("%s: %T succeeds", name, step)
			}
		}
		node := &corev1.Node{}
		must(t, p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, node))
		if len(node.Spec.Taints) > 0 {
			t.Errorf("%s: %v", name, node.Spec.Taints)
		}
	}
}

// TestContradictionIsAnEvent: once, with what to do.
func TestContradictionIsAnEvent(t *testing.T) {
	fence := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	p := partsOver(nil, nodeOf("n1", 1), fence)
	recorder := events.NewFakeRecorder(10)
	p.events = recorder
	turn := &turn{actor: &actor{parts: p}, fence: fence, mem: &memory{}}
	must(t, p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, fence))
	for range 3 {
		must(t, turn.waiting(t.Context(), fencing.Contradicted, fencing.Observed{}))
	}
	if n := len(recorder.Events); n != 1 {
		t.Fatalf("%d events", n)
	}
	if text := <-recorder.Events; !strings.Contains(text, "Warning Contradicted") || !strings.Contains(text, "Find out which machine runs") {
		t.Error(text)
	}
}
