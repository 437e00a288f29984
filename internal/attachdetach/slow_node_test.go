package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// The API server does not answer writes to one Node's status (because its webhook hangs, for example). As many
// exclusive volumes wait there as there are workers. "No driver, node or volume that hangs blocks another": a volume on
// another node is still attached.
func TestHungNodeLeavesWorkersForOthers(t *testing.T) {
	l := newLab(t)
	l.readyNode("slow", "good")
	release := make(chan struct{})
	l.intercept = func(r *http.Request) error {
		if !isReport(r) || !strings.HasSuffix(r.URL.Path, "/nodes/"+l.name("slow")+"/status") {
			return nil
		}
		select {
		case <-release:
			return nil
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
	stop := l.run()
	defer stop()
	defer close(release)
	for i := range workers {
		name := fmt.Sprintf("v%d", i)
		l.volume(name)
		l.pod("on-slow-"+name, "slow", name)
	}
	l.await("all attached to the slow node", func() bool {
		for i := range workers {
			va := l.attachment(fmt.Sprintf("v%d", i), "slow")
			if va == nil || !va.Status.Attached {
				return false
			}
		}
		return true
	})
	l.settled("good") // behind all of them
}

// brokenClient is an API server whose webhook for VolumeAttachments is down.
type brokenClient struct{ client.Client }

func (brokenClient) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return apierrors.NewInternalError(errors.New("failed calling webhook: connection refused"))
}

// A volume is in use on a; a pod on b waits for it. Recording on a's VolumeAttachment since when the detach is
// requested fails for as long as a webhook is down. The pod on b gets an event about what it waits for nevertheless, as
// from upstream (Multi-Attach).
func TestWaitingPodGetsAnEventWhileWritesFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no answer comes after slowAfter
		m, k := newModel(t), key{Driver: driver, Handle: "h"}
		unique := []string{kube.UniqueVolumeName(k.Driver, k.Handle)}
		m.put(aVolume("pv", k.Handle))
		m.put(aClaim("pv"))
		m.put(aNode("a", isReady, listing(unique, unique)))
		m.put(aNode("b", isReady))
		va := sharedAttachment(k, "a")
		va.Spec.Source.PersistentVolumeName = new("pv")
		m.put(va)
		m.put(aPod("p", "b", byClaimOf("pv")))
		c := m.controllerOf()
		c.client = brokenClient{}
		events := record.NewFakeRecorder(10)
		c.eventEmitter = newEventEmitter(events)
		for range 3 {
			_, err := c.Reconcile(t.Context(), k)
			if err == nil {
				t.Fatal("nothing failed")
			}
		}
		select {
		case <-events.Events:
		default:
			t.Error("the pod on b has no event")
		}
	})
}

// A Node is recreated (same boot) and lists the volume before anything is reported to it. The report does not come (it
// fails, or no controller leads), and kubelet restarts: of the volumes that it finds mounted it lists only those that
// are reported (docs/not-guaranteed.md). The missing entry does not mean that the volume is unmounted.
func TestInUseEntryLostWithoutAReportIsNoUnmount(t *testing.T) {
	m, k := newModel(t), key{Driver: driver, Handle: "h"}
	unique := []string{kube.UniqueVolumeName(k.Driver, k.Handle)}
	m.put(aVolume("pv", k.Handle))
	m.put(aClaim("pv"))
	m.put(aNode("a", isReady, listing(unique, unique)))
	va := sharedAttachment(k, "a")
	va.Spec.Source.PersistentVolumeName = new("pv")
	m.put(va)
	second := func(n *corev1.Node) { n.UID = "second" }
	m.remove(aNode("a"))
	m.put(aNode("a", isReady, second, listing(unique, nil)))
	m.put(aNode("a", isReady, second)) // kubelet restarted
	s := m.observe(k, &nodeReads{answered: map[attachment.NodeName]bool{"a": true}}, noDoubts{})
	if d := attachment.Decide(modelTime, s.want, s.seen, attachment.Policy{}); does[attachment.Detach](d) {
		t.Errorf("detached under the mount: %+v", d.Steps)
	}
}
