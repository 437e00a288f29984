package recovery

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// ask has a person ask for the power-off of a node: also of one that lives, because a client of the API can ask at any time. The oracle holds S8 for such a fence as
// for any other (judgeOffSent).
func (w *world) ask(m *hardware) {
	node := w.node(m.name)
	if node == nil {
		return
	}
	boot, said := bootOf(node), ""
	place, free := kube.PlaceFence(storedAs[*fencingv1.NodeFence](w, "NodeFence"), boot)
	if !free {
		return
	}
	for _, old := range place.Over {
		if old.Name == place.Name {
			must2(w.t, w.api.Delete(context.Background(), old.DeepCopy()))
			w.changed("NodeFence")
		}
	}
	if l := w.leases[m.name]; l != nil {
		said = renewal(l)
	}
	f := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: place.Name, Finalizers: []string{finalizer}}, Spec: fencingv1.NodeFenceSpec{
		NodeName: m.name, NodeUID: boot.NodeUID, BootID: boot.ID, MachineID: boot.Machine, Epoch: fencing.NextEpoch(time.Now(), place.Epoch, shownEpoch(node)),
		Trigger: fencingv1.TriggerRequested, LastRenewal: said, Release: fencingv1.ReleaseAuto, Request: &fencingv1.Request{By: "jo", Reason: "kubelet is dead"},
	}}
	w.say("a person asks for the power-off of %s (on: %t, cut off: %t)", m, m.on, m.cut)
	w.count["requests"]++
	_, err := w.create(nil, f)
	must2(w.t, err)
}
