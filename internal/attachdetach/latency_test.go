package attachdetach

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
	obj.SetResourceVersion(strconv.Itoa(s.m.version + 1)) // which put gives
	s.m.put(obj)
	return nil
}

type slowClient struct {
	*hungClient
	status slowStatus
}

func (c slowClient) Status() client.SubResourceWriter { return c.status }

// Each write to a Node's status takes a little more than a second: an API server under load,
// or a Node behind other writes. A shared volume that no pod wants is still detached: the
// answer to the withdrawal comes after the others stopped waiting for it, and is kept for the
// next decision.
func TestLateAnswerToAWithdrawalCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, k := newModel(t), key{Driver: driver, Handle: "h"}
		m.put(aVolume("pv", k.Handle, corev1.ReadWriteMany))
		m.put(aClaim("pv"))
		m.put(aNode("a", isReady, listing(nil, []string{kube.UniqueVolumeName(k.Driver, k.Handle)})))
		va := sharedAttachment(k, "a")
		va.Spec.Source.PersistentVolumeName = new("pv")
		m.put(va)
		c, hung := m.hungController(t, func(string, string) bool { return false })
		sent := 0
		slow := slowClient{hung, slowStatus{m: m, takes: slowAfter + 200*time.Millisecond, sent: &sent}}
		c.client, c.reporter.client = slow, slow
		for range 5 {
			if _, err := c.Reconcile(t.Context(), k); err != nil {
				t.Fatal(err)
			}
			if hung.has("delete " + va.Name) {
				return
			}
			next, _ := c.slowNodes.queue.Get() // the late answer
			c.slowNodes.queue.Done(next)
		}
		t.Errorf("not detached after %d answered withdrawals", sent)
	})
}

// goneClient is an API server that knows no such Node.
type goneClient struct {
	*hungClient
	client.Reader
}

func (goneClient) Status() client.SubResourceWriter { return goneStatus{} }

func (goneClient) Get(_ context.Context, name client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name.Name)
}

func (c goneClient) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

func (goneClient) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return apierrors.NewInternalError(errors.New("no attachments either"))
}

type goneStatus struct{ client.SubResourceWriter }

func (goneStatus) Patch(_ context.Context, obj client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, obj.GetName())
}

// The watch lags: the Node that was reported the volume has listed it in use since, and was deleted. The answer to the
// withdrawal is 404 ("404 is Unknown", design section 5). The cache still has a version of the Node, but that is not
// its last one, and so no check.
func TestDeletedNodeIsNoProofOfUnmount(t *testing.T) {
	m, k := newModel(t), key{Driver: driver, Handle: "h"}
	m.put(aVolume("pv", k.Handle))
	m.put(aClaim("pv"))
	m.put(aNode("a", isReady, listing(nil, []string{kube.UniqueVolumeName(k.Driver, k.Handle)})))
	va := sharedAttachment(k, "a")
	va.Spec.Source.PersistentVolumeName = new("pv")
	m.put(va)
	c, hung := m.hungController(t, func(string, string) bool { return false })
	gone := goneClient{hungClient: hung}
	c.client, c.reporter.client, c.live, c.reporter.live = gone, gone, gone, gone
	_, _ = c.Reconcile(t.Context(), k)
	if hung.has("delete " + va.Name) {
		t.Error("detached although nothing shows that the deleted Node did not use the volume (S2)")
	}
}

// More nodes hang than steps are taken at once (one here, 96 in a process): the nodes behind
// them, for which no request was sent yet, do not wait with them.
func TestHungNodesDoNotBlockOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, k := newModel(t), key{Driver: driver, Handle: "h"}
		m.put(aVolume("pv", k.Handle, corev1.ReadWriteMany))
		m.put(aClaim("pv"))
		for _, name := range []string{"a", "b"} {
			m.put(aNode(name, isReady))
			m.put(aPod("on-"+name, name, byClaimOf("pv")))
		}
		toA, toB := kube.AttachmentName(k.Handle, k.Driver, "a"), kube.AttachmentName(k.Handle, k.Driver, "b")
		first := make(chan string, 1) // whichever is sent first hangs
		c, hung := m.hungController(t, func(verb, name string) bool {
			select {
			case first <- name:
			default:
			}
			hangs := <-first
			first <- hangs
			return hangs == name
		})
		defer close(hung.release)
		c.stepsAtOnce = 1
		if _, err := c.Reconcile(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		if !hung.has("create "+toA) || !hung.has("create "+toB) {
			t.Error("a node that has an answer waits for one that has none")
		}
	})
}
