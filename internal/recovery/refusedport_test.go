package recovery

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// TestOneLookWithoutARefusalEndsNoChance: a kubelet is stopped, as for its upgrade, and its containers run on. The machine refuses the connection at each look, so
// the node has a chance of five minutes. One look of hundreds learns nothing: a lost SYN, which is sent again after a second and so after kubeletWithin, or a
// read of the API server that takes too long. A refusal counts for the node's limit, as an answer does, and what could not be asked ends no chance.
func TestOneLookWithoutARefusalEndsNoChance(t *testing.T) {
	dark, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // accepts, and says nothing
	must(t, err)
	t.Cleanup(func() { _ = dark.Close() })
	const aLook = int(fencing.MaxTickGap / tickEvery) // ticks from one look at the node to the next
	for name, disturb := range map[string]func(w *watched, port func(int)){
		"a lost packet": func(w *watched, port func(int)) {
			port(dark.Addr().(*net.TCPAddr).Port)
			w.looks(aLook)
			port(1)
		},
		"a slow read of the API server": func(w *watched, _ func(int)) {
			slow, live := true, w.live
			w.live = interceptor.NewClient(live.(client.WithWatch), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, more ...client.GetOption) error {
					if _, node := o.(*corev1.Node); node && key.Name == "n1" && slow {
						slow = false
						return errors.New("context deadline exceeded")
					}
					return c.Get(ctx, key, o, more...)
				},
			})
			w.looks(aLook)
			w.live = live
		},
	} {
		w := watch(t, fencing.Brakes{Share: 1, ZoneShare: 1, Window: 10 * time.Minute, Fences: 9, InFlight: 9}, "n1", "n2")
		w.Profile = fencing.Default
		w.ear.silences.Forget("n2")
		lease := leaseOf("n1")
		must(t, w.live.Get(t.Context(), client.ObjectKeyFromObject(lease), lease))
		w.ear.silences.Forget("n1")
		w.ear.silences.Renewed(w.clock.Add(-time.Minute), "n1", renewal(lease), 40*time.Second)
		port := func(p int) {
			node := &corev1.Node{}
			must(t, w.live.Get(t.Context(), client.ObjectKey{Name: "n1"}, node))
			node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
			node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(p)
			must(t, w.client.Status().Update(t.Context(), node))
		}
		fenced := func() bool {
			return w.live.Get(t.Context(), client.ObjectKey{Name: "n1"}, &fencingv1.NodeFence{}) == nil
		}
		port(1) // where nothing listens
		w.looks(60)
		if fenced() {
			t.Fatalf("%s: it is fenced while it refuses: the test shows nothing", name)
		}
		disturb(w, port)
		w.looks(4)
		if fenced() {
			t.Errorf("%s: the looks of 30 s were refused, one was not: after %v of silence the machine of a stopped kubelet is fenced, and its chance is %v", name, 92*time.Second, w.Profile.Chance)
		}
	}
}
