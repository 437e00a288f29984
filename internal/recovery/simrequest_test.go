package recovery

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// ask has a person ask for the power-off of a node: also of one that lives, because a client of the API can ask at any time. The oracle holds S8 for such a fence as
// for any other (judgeOffSent).
func (w *world) ask(m *hardware) {
	node, old := w.node(m.name), w.fence(m.name)
	if node == nil || old != nil && !finished(old) {
		return
	}
	if old == nil {
		old = &fencingv1.NodeFence{}
	} else {
		must2(w.t, w.api.Delete(context.Background(), old))
		w.changed("NodeFence")
	}
	boot, said := bootOf(node), ""
	if l := w.leases[m.name]; l != nil {
		said = renewal(l)
	}
	f := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: m.name, Finalizers: []string{finalizer}}, Spec: fencingv1.NodeFenceSpec{
		NodeName: m.name, NodeUID: boot.NodeUID, BootID: boot.ID, MachineID: boot.Machine, Epoch: fencing.NextEpoch(time.Now(), old.Spec.Epoch, shownEpoch(node)),
		Trigger: fencingv1.TriggerRequested, LastRenewal: said, Release: fencingv1.ReleaseAuto, Request: &fencingv1.Request{By: "jo", Reason: "kubelet is dead"},
	}}
	w.say("a person asks for the power-off of %s (on: %t, cut off: %t)", m, m.on, m.cut)
	w.count["requests"]++
	_, err := w.create(nil, f)
	must2(w.t, err)
}
