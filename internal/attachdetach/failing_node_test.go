package attachdetach

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kube"
)

// failingAt refuses writes to the status of one Node, and answers others at once.
type failingAt struct {
	*hungClient
	status failingStatus
}

func (c failingAt) Status() client.SubResourceWriter { return c.status }

type failingStatus struct {
	client.SubResourceWriter
	m    *model
	node string
}

func (s failingStatus) Patch(_ context.Context, obj client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
	if obj.GetName() == s.node {
		return apierrors.NewInternalError(errors.New("failed calling webhook"))
	}
	old, _ := s.m.nodes.Get(obj.GetName())
	next := aNode(obj.GetName(), isReady)
	next.UID = old.UID
	s.m.put(next)
	now, _ := s.m.nodes.Get(obj.GetName())
	now.DeepCopyInto(obj.(*corev1.Node))
	return nil
}

// A volume on two nodes: a releases it, b is due to be reported to, and writes to b's Node fail (because of a webhook
// that is down for it, or a node that writes its own Node so often that each write of belay's conflicts). The answer
// for a counts nevertheless.
func TestOneNodesErrorDoesNotBlockOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no answer comes after slowAfter
		m, k := newModel(t), key{Driver: driver, Handle: "h"}
		m.put(aVolume("pv", k.Handle, corev1.ReadWriteMany))
		m.put(aClaim("pv"))
		m.put(aNode("a", isReady, listing(nil, []string{kube.UniqueVolumeName(k.Driver, k.Handle)})))
		m.put(aNode("b", isReady))
		for _, name := range []string{"a", "b"} {
			va := sharedAttachment(k, name)
			va.Spec.Source.PersistentVolumeName = new("pv")
			m.put(va)
		}
		m.put(aPod("p", "b", byClaimOf("pv")))
		c, hung := m.hungController(t, func(string, string) bool { return false })
		api := failingAt{hung, failingStatus{m: m, node: "b"}}
		c.client, c.reporter.client = api, api
		for range 20 {
			if _, err := c.Reconcile(t.Context(), k); err == nil {
				t.Fatal("nothing failed")
			}
		}
		if toA := kube.AttachmentName(k.Handle, k.Driver, "a"); !hung.has("delete " + toA) {
			t.Error("after 20 turns a is not detached, because b's Node cannot be written")
		}
	})
}

// The same for an exclusive volume and by one node's credentials: evil lists the volume as
// attached in its own status, which belay tries to take back, and fails for as long as evil
// likes (here: always). The volume still leaves a.
func TestFailingWithdrawalDoesNotBlockAMove(t *testing.T) {
	m, k := newModel(t), key{Driver: driver, Handle: "h"}
	unique := []string{kube.UniqueVolumeName(k.Driver, k.Handle)}
	m.put(aVolume("pv", k.Handle))
	m.put(aClaim("pv"))
	m.put(aNode("a", isReady, listing(nil, unique)))
	m.put(aNode("b", isReady))
	m.put(aNode("evil", isReady, listing(nil, unique)))
	va := sharedAttachment(k, "a")
	va.Spec.Source.PersistentVolumeName = new("pv")
	m.put(va)
	m.put(aPod("p", "b", byClaimOf("pv")))
	c, hung := m.hungController(t, func(string, string) bool { return false })
	api := failingAt{hung, failingStatus{m: m, node: "evil"}}
	c.client, c.reporter.client = api, api
	for range 20 {
		_, _ = c.Reconcile(t.Context(), k)
	}
	if !hung.has("delete " + va.Name) {
		t.Error("after 20 turns the volume is still at a, because of a Node that never had it")
	}
}
