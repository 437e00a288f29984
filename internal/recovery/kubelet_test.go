package recovery

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/testing/fixture"
)

// kubeletOf starts what answers at the address that a Node names.
func kubeletOf(t *testing.T, node *corev1.Node) *httptest.Server {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	t.Cleanup(server.Close)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(server.Listener.Addr().(*net.TCPAddr).Port)
	return server
}

// TestAnotherMachineAtTheAddress: a node is dead, and its address is another machine's by now, which answers on the kubelet's port. The key that
// the kubelet had while the node lived distinguishes them.
func TestAnotherMachineAtTheAddress(t *testing.T) {
	for name, c := range map[string]struct {
		remembered func(answers string) string
		boot       string
		fenced     bool
	}{
		"another key":                     {func(string) string { return "sha256:0" }, "boot-n1", true},
		"the kubelet itself":              {func(answers string) string { return answers }, "boot-n1", false},
		"no key is known":                 {func(string) string { return "" }, "boot-n1", false},
		"another key, of an earlier boot": {func(string) string { return "sha256:0" }, "boot-n0", false},
	} {
		n1 := nodeOf("n1", 0)
		setReady(n1, corev1.ConditionUnknown)
		answers := keyOf(kubeletOf(t, n1).Certificate())
		source := sourceOf("n1", "bmc")
		source.Status.Bound = &fencingv1.Bound{NodeUID: "uid-n1", BootID: c.boot, KubeletKey: c.remembered(answers)}
		p := partsOver(nil, n1, leaseOf("n1"), source, fixture.Pod("default", "db-0", "n1", "data"), nodeOf("n2", 0), nodeOf("n3", 0), nodeOf("n4", 0))
		p.events, p.Profile, p.Brakes = events.NewFakeRecorder(100), fencing.Default, fencing.DefaultBrakes()
		d := &detector{parts: p, held: map[string]hold{}}
		lease := leaseOf("n1")
		must(t, p.client.Get(t.Context(), client.ObjectKeyFromObject(lease), lease))
		p.ear.silences.Renewed(time.Now().Add(-time.Minute), "n1", renewal(lease), 40*time.Second)
		for range 5 {
			for _, other := range []string{"n2", "n3", "n4"} {
				p.ear.silences.Renewed(time.Now(), other, time.Now().String(), 40*time.Second)
			}
			must(t, d.look(t.Context()))
		}
		if fenced := p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, &fencingv1.NodeFence{}) == nil; fenced != c.fenced {
			t.Errorf("%s: fenced %v, want %v (%s)", name, fenced, c.fenced, d.held["n1"].reason)
		}
	}
}

// TestKubeletKeyIsRemembered: the fencer records the key of a kubelet that lives, whenever it is another one, and forgets it with the boot.
func TestKubeletKeyIsRemembered(t *testing.T) {
	n1 := nodeOf("n1", 0)
	setReady(n1, corev1.ConditionTrue)
	kubelet := kubeletOf(t, n1)
	key := keyOf(kubelet.Certificate())
	source := sourceOf("n1", "bmc")
	p := partsOver(dialing(map[string]Switch{"bmc": &machine{uuid: "hw-n1", power: fencing.PowerOn}}), n1, source)
	f := newFencer(p)
	remembers := func(want, when string) {
		t.Helper()
		f.check(t.Context(), source, n1, false)
		if b := source.Status.Bound; b == nil || b.KubeletKey != want {
			t.Errorf("%s: %+v, want the key %q", when, b, want)
		}
	}
	remembers(key, "a kubelet that answers")
	source.Status.Bound.KubeletKey = "sha256:0"
	remembers(key, "its certificate was renewed")
	source.Status.Bound.KubeletKey = "sha256:0"
	setReady(n1, corev1.ConditionUnknown)
	must(t, p.client.Status().Update(t.Context(), n1))
	remembers("sha256:0", "the node is not Ready")
	setReady(n1, corev1.ConditionTrue)
	must(t, p.client.Status().Update(t.Context(), n1))
	kubelet.Close()
	remembers("sha256:0", "no answer")
	n1.Status.NodeInfo.BootID = "boot-2"
	must(t, p.client.Status().Update(t.Context(), n1))
	remembers("", "no answer under another boot")
}
