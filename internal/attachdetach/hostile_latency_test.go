package attachdetach

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kube"
)

// slowStatus answers writes to a Node's status after a while: with the Node, which lists
// nothing.
type slowStatus struct {
	client.SubResourceWriter
	m     *model
	takes time.Duration
	sent  *int
}

func (s slowStatus) Patch(_ context.Context, obj client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
	time.Sleep(s.takes)
	*s.sent++
	s.m.version++
	aNode(obj.GetName(), isReady).DeepCopyInto(obj.(*corev1.Node))
	obj.SetUID("uid-*v1.Node--a")
	obj.SetResourceVersion("1")
	s.m.put(obj)
	return nil
}

type slowClient struct {
	*hungClient
	status slowStatus
}

func (c slowClient) Status() client.SubResourceWriter { return c.status }

// Each write to a Node's status takes a little more than a second: an API server under load,
// or a Node behind other writes. A shared volume that nobody wants must still be detached.
// The answer to the withdrawal comes after the others stopped waiting for it, and is not kept
// for the decision that it was asked for: the next decision asks again, for ever.
func TestHostileSlowAPIServerNeverDetachesShared(t *testing.T) {
	m, k := newModel(t), key{Driver: driver, Handle: "h"}
	m.put(aVolume("pv", k.Handle, corev1.ReadWriteMany))
	m.put(aClaim("pv"))
	m.put(aNode("a", isReady, listing(nil, []string{kube.UniqueVolumeName(k.Driver, k.Handle)})))
	va := sharedAttachment(k, "a")
	va.Spec.Source.PersistentVolumeName = new("pv")
	m.put(va)
	c, hung := m.hungController(t, func(string, string) bool { return false })
	sent := 0
	slow := slowClient{hung, slowStatus{m: m, takes: tooSlow + 200*time.Millisecond, sent: &sent}}
	c.client, c.reporter.client = slow, slow
	for range 5 {
		if _, err := c.Reconcile(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		if hung.has("delete " + va.Name) {
			return
		}
		next, _ := c.stragglers.queue.Get() // the late answer
		c.stragglers.queue.Done(next)
	}
	t.Errorf("not detached after %d answered withdrawals", sent)
}
