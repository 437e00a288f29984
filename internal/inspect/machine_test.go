package inspect

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kube"
)

// TestMachine: the object of a machine is read where the node is lost or being taken down, with one request, and nothing that is in it is longer than it may be.
func TestMachine(t *testing.T) {
	disrupted := func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/disrupted"}} }
	karpenter := func(n *corev1.Node) {
		n.OwnerReferences = []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: "default-x1"}}
	}
	capi := func(n *corev1.Node) {
		n.Annotations = map[string]string{"cluster.x-k8s.io/machine": "m1", "cluster.x-k8s.io/cluster-namespace": "capi"}
	}
	unready := func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }
	const being = `{"metadata":{"name":"x","deletionTimestamp":"2026-11-30T08:00:00Z"},"status":{"conditions":[{"type":"VolumesDetached","status":"Unknown","reason":"AwaitingVolumeDetachment"}]}}`
	for name, c := range map[string]struct {
		node    []func(*corev1.Node)
		status  int
		answer  string
		asked   string
		deleted bool
		unread  string
	}{
		"a node that is well":     {[]func(*corev1.Node){karpenter}, 200, being, "", false, ""},
		"one that Karpenter ends": {[]func(*corev1.Node){karpenter, disrupted}, 200, being, "/apis/karpenter.sh/v1/nodeclaims/default-x1", true, ""},
		"one that is lost":        {[]func(*corev1.Node){capi, unready}, 200, being, "/apis/cluster.x-k8s.io/v1beta2/namespaces/capi/machines/m1", true, ""},
		"its kind is elsewhere":   {[]func(*corev1.Node){capi, unready}, 404, "404 page not found", "/apis/cluster.x-k8s.io/v1beta2/namespaces/capi/machines/m1", false, ""},
		"forbidden":               {[]func(*corev1.Node){karpenter, disrupted}, 403, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`, "/apis/karpenter.sh/v1/nodeclaims/default-x1", false, "you may not get nodeclaims.karpenter.sh"},
		"what is no object":       {[]func(*corev1.Node){karpenter, disrupted}, 200, "<html>", "/apis/karpenter.sh/v1/nodeclaims/default-x1", false, "invalid character"},
		"a name that leads elsewhere": {[]func(*corev1.Node){unready, func(n *corev1.Node) {
			n.Annotations = map[string]string{"cluster.x-k8s.io/machine": "m1", "cluster.x-k8s.io/cluster-namespace": ".."}
		}}, 200, being, "", false, ""},
	} {
		asked := ""
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked += r.URL.Path
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(c.answer))
		}))
		client, err := fenceClient(&rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		x := (&Reader{fences: client, clock: &kube.ServerClock{}}).start()
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
		for _, change := range c.node {
			change(node)
		}
		x.add(func(s *diagnosis.Snapshot) { s.Nodes = append(s.Nodes, node) })
		x.machine(t.Context(), "n")
		server.Close()
		machine := &diagnosis.Machine{}
		if len(x.into.Machines) > 0 {
			machine = x.into.Machines[0]
		}
		if asked != c.asked || (machine.DeletionTimestamp != nil) != c.deleted || !strings.Contains(machine.Unread, c.unread) || c.unread == "" && machine.Unread != "" {
			t.Errorf("%s: asked for %q, and has %+v", name, asked, machine)
		}
		if c.deleted && (len(machine.Conditions) != 1 || machine.Conditions[0].Reason != "AwaitingVolumeDetachment") {
			t.Errorf("%s: conditions %+v", name, machine.Conditions)
		}
	}
}
