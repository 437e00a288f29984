package attachdetach

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kube"
)

// nodeServer is an API server whose Node a may be newer than the cache's. Deletes and creates succeed.
type nodeServer struct {
	*hungClient
	stored  *corev1.Node
	failure error // of all requests about the Node
}

func (s *nodeServer) Status() client.SubResourceWriter { return nodeServerStatus{server: s} }

func (s *nodeServer) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if s.failure == nil {
		s.stored.DeepCopyInto(obj.(*corev1.Node))
	}
	return s.failure
}

func (s *nodeServer) Patch(_ context.Context, obj client.Object, _ client.Patch, _ ...client.PatchOption) error {
	return s.does(context.Background(), "annotate", obj.GetName())
}

// nodeServerStatus is its status subresource.
type nodeServerStatus struct {
	client.SubResourceWriter
	server *nodeServer
}

// Patch replaces volumesAttached at the version that the patch is bound to.
func (w nodeServerStatus) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	s := w.server
	body, err := patch.Data(obj)
	if err != nil {
		return err
	}
	var sent corev1.Node
	if err := json.Unmarshal(body, &sent); err != nil {
		return err
	}
	switch {
	case s.failure != nil:
		return s.failure
	case sent.ResourceVersion != s.stored.ResourceVersion:
		return apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, obj.GetName(), errors.New("another version"))
	}
	s.stored.Status.VolumesAttached = sent.Status.VolumesAttached
	s.stored.ResourceVersion += "0"
	s.stored.DeepCopyInto(obj.(*corev1.Node))
	return nil
}

func outOfService(n *corev1.Node) {
	n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: kube.OutOfServiceTaint, Effect: corev1.TaintEffectNoExecute})
}

// What the API server says of the Node decides on a force by the out-of-service taint, not the cache, which shows the
// taint and a node that is not Ready (k/k#142331; upstream's change k/k#141888 reads the Node again).
func TestTaintIsReadLiveBeforeForce(t *testing.T) {
	k := key{Driver: driver, Handle: "h"}
	unique := []string{kube.UniqueVolumeName(k.Driver, k.Handle)}
	inUse, idle := listing(unique, unique), listing(nil, unique)
	for name, tt := range map[string]struct {
		server   []func(*corev1.Node) // the newest Node; nil for the cached one
		failure  error
		detaches bool
	}{
		"the cache is current":          {nil, nil, true},
		"a newer Node with the taint":   {[]func(*corev1.Node){inUse, outOfService}, nil, true},
		"the taint is gone":             {[]func(*corev1.Node){inUse}, nil, false},
		"the taint is gone, and Ready":  {[]func(*corev1.Node){inUse, isReady}, nil, false},
		"tainted, and Ready again":      {[]func(*corev1.Node){inUse, outOfService, isReady}, nil, false},
		"unmounted, and no taint":       {[]func(*corev1.Node){idle, isReady}, nil, true},
		"the API server does not know":  {nil, apierrors.NewTimeoutError("etcd", 1), false},
		"the API server does not reply": {nil, context.DeadlineExceeded, false},
	} {
		for _, reported := range []bool{true, false} { // a leader before may have withdrawn the report
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := newModel(t)
					m.put(aVolume("pv", k.Handle))
					m.put(aClaim("pv"))
					cached := aNode("a", inUse, outOfService)
					if !reported {
						cached.Status.VolumesAttached = nil
					}
					m.put(cached)
					va := sharedAttachment(k, "a")
					va.Spec.Source.PersistentVolumeName = new("pv")
					m.put(va)
					c, sent := m.hungController(t, func(string, string) bool { return false })
					s := &nodeServer{hungClient: sent, failure: tt.failure}
					s.stored, _ = m.nodes.Get("a")
					s.stored = s.stored.DeepCopy()
					if tt.server != nil {
						newer := aNode("a", tt.server...)
						newer.UID, newer.ResourceVersion = s.stored.UID, s.stored.ResourceVersion+"0"
						s.stored = newer
					}
					c.client, c.reporter.client, c.live, c.reporter.live = s, s, s, s
					for range 3 {
						_, _ = c.Reconcile(t.Context(), k)
					}
					if got := sent.has("delete " + va.Name); got != tt.detaches {
						t.Errorf("reported %v: detaches %v; sent %v", reported, got, sent.sent)
					}
					if kept := kube.Reported(s.stored, unique[0]); tt.failure == nil && reported && kept == tt.detaches {
						t.Errorf("the report stays: %v", kept)
					}
				})
			})
		}
	}
}
