package attachdetach

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/wait"
)

// TestPromises plays faults that belay had, one subtest for each, named after what
// happened. They use nothing but the API, so that they can be played against any commit.
func TestPromises(t *testing.T) {
	cases := slices.Concat(writerCases(), nodeCases(), listCases(), eventCases())
	if !testing.Short() {
		cases = append(cases, slowCases()...)
	}
	enact(t, upstream(), cases...)
}

// writerCases are faults by which two nodes could write, or none was ever served.
func writerCases() []scenario {
	return []scenario{
		play("report wiped under a Fibre Channel volume", fcReportWiped),
		prepared("volume recreated under its name", volumeRecreated, volumeRecreatedAttached),
		play("node turns NotReady after its VolumeAttachment was removed", lostWake),
		slowNode(),
	}
}

// slowCases take about a minute, most of which they wait.
func slowCases() []scenario {
	return []scenario{
		orphanRecreated(),
		play("create that arrives late", lateCreate),
		play("Node recreated, Ready and silent", returnedSilent),
		play("Node recreated under a Fibre Channel volume", fcNodeRecreated),
	}
}

// registers is a kubelet that creates its Node, with its whole status: by default the
// same boot of the same machine as the harness's node of that name, and Ready.
func (l *lab) registers(name string, change ...func(*corev1.Node)) {
	l.Helper()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: l.name(name), Annotations: map[string]string{kube.ManagedAttachAnnotation: "true"},
		},
		Status: corev1.NodeStatus{
			NodeInfo:   corev1.NodeSystemInfo{BootID: "boot-" + name, SystemUUID: "hw-" + name},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test"}},
		},
	}
	for _, f := range change {
		f(node)
	}
	l.must(l.Create(l.ctx, node))
	l.Cleanup(func() { _ = l.Delete(l.background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}) })
}

// using lists volumes in use, by unique name, from the start.
func using(unique ...string) func(*corev1.Node) {
	return func(node *corev1.Node) {
		for _, name := range unique {
			node.Status.VolumesInUse = append(node.Status.VolumesInUse, corev1.UniqueVolumeName(name))
		}
	}
}

// renews is a kubelet that is alive: it renews the lease of its Node every second.
func (l *lab) renews(node string) {
	l.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: l.name(node)}}
	l.must(l.Create(l.ctx, lease))
	var renewing sync.WaitGroup
	renewing.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-l.ctx.Done():
				return
			case now := <-tick.C:
				body := fmt.Appendf(nil, `{"spec": {"renewTime": %q}}`, now.UTC().Format(metav1.RFC3339Micro))
				err := l.Patch(l.background(), lease.DeepCopy(), client.RawPatch(types.MergePatchType, body))
				if err != nil {
					l.Errorf("renew the lease of node %s: %v", node, err)
					return
				}
			}
		}
	})
	l.Cleanup(func() {
		renewing.Wait()
		_ = l.Delete(l.background(), lease)
	})
}

// awaitLater waits until the API server's clock shows a later second: what it creates
// from now on is younger.
func (l *lab) awaitLater(than metav1.Time) {
	l.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		probe := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: l.name("probe")}}
		l.must(l.Create(l.ctx, probe, client.DryRunAll))
		if than.Time.Before(probe.CreationTimestamp.Time) {
			return
		}
	}
}

// awaitUsing returns once the Node was seen to list the volume in use, and the controller
// has seen it too.
func (l *lab) awaitUsing(volume, node, other string) {
	l.Helper()
	l.use(node, volume)
	l.settled(other)
}

// removed is a person who removes a VolumeAttachment, finalizers and all.
func (l *lab) removed(volume, node string) {
	l.Helper()
	va := l.read(volume, node)
	l.must(l.Patch(l.ctx, va, client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`))))
	l.must(l.Delete(l.ctx, va))
}

// fcInUse has a pod run on the node "holder", which uses an exclusive Fibre Channel
// volume, and an older pod wait for it on the node "elder".
func (l *lab) fcInUse() (unique string) {
	l.Helper()
	fc, unique := l.fcVolume()
	l.pvOf("v", corev1.PersistentVolumeSource{FC: &fc})
	l.pod("old", "elder", "v") // its node is not there yet
	l.readyNode("holder")
	l.pod("p", "holder", "v")
	l.await("reported", func() bool { return l.reports("holder", unique) })
	l.uses("holder", unique)
	l.readyNode("elder")
	l.await("the older pod waits", func() bool { return len(l.messages("old", "FailedAttachVolume")) > 0 })
	l.settled("elder")
	return unique
}

// fcKept checks that the report comes back to the node that uses the volume, and goes to
// the other one only afterwards.
func (l *lab) fcKept(unique string) {
	l.Helper()
	l.await("reported again", func() bool { return l.reports("holder", unique) || l.reports("elder", unique) })
	l.settled("elder")
	l.never("S1: reported to a second node while the first uses it", time.Second, func() bool { return l.reports("elder", unique) })
	l.gone("p")
	l.uses("holder")
	l.await("attached to the other node", func() bool { return l.reports("elder", unique) && !l.reports("holder", unique) })
}

func fcNodeRecreated(l *lab) {
	unique := l.fcInUse()
	l.shut("holder")
	l.settled("elder")
	l.never("S1: reported to a second node while the Node of the first is gone", time.Second,
		func() bool { return l.reports("elder", unique) })
	l.registers("holder", using(unique))
	l.renews("holder")
	l.fcKept(unique)
}

func fcReportWiped(l *lab) {
	unique := l.fcInUse()
	l.lists("holder")
	l.fcKept(unique)
}

// An attachment that upstream created holds only the name of its PersistentVolume, which is another volume by now;
// kubelet lists that one before it may mount it.
func volumeRecreated(l *lab) {
	first, second := key{Driver: driver, Handle: "1" + l.prefix}, key{Driver: driver, Handle: "2" + l.prefix}
	l.readyNode("a")
	l.volumeOf("v", csiSource(first.Handle), corev1.ReadWriteOnce)
	l.attachByHand("v", "a", kube.AttachmentName(first.Handle, driver, l.name("a")))
	l.drop("v")
	l.volumeOf("v", csiSource(second.Handle), corev1.ReadWriteOnce)
	l.inUse("a", second)
	l.pod("p", "a", "v")
}

func volumeRecreatedAttached(l *lab) {
	l.awaitGone(key{Driver: driver, Handle: "1" + l.prefix}, "a")
	l.awaitListed(key{Driver: driver, Handle: "2" + l.prefix}, "a")
}

// The VolumeAttachment and the report are removed by hand while the node uses the volume; the only later event is that
// the node stops being Ready.
func lostWake(l *lab) {
	l.attachedOnA()
	l.readyNode("b")
	l.awaitUsing("v", "a", "b")
	l.gone("p")
	l.awaitWaiting("v", "a")
	l.pod("q", "b", "v")
	l.await("the pod waits", func() bool { return len(l.messages("q", "FailedAttachVolume")) > 0 })
	l.removed("v", "a")
	l.await("removed", func() bool { return l.attachment("v", "a") == nil })
	l.settled("b")
	l.lists("a")
	l.settled("b")
	if l.read("v", "b") != nil {
		l.Fatal("S1: attached elsewhere while a Ready node uses it")
	}
	l.health("a", corev1.ConditionUnknown)
	l.awaitReported("v", "b")
	l.forced("timeout")
}

// holdsReports holds back what the controller writes to the status of the node. The
// channel is closed when the first such write is held.
func (l *lab) holdsReports(node string) (met <-chan struct{}, release func()) {
	first, released := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(first) })
	l.breaks(func(r *http.Request) error {
		if !isReport(r) || !strings.HasSuffix(r.URL.Path, "/nodes/"+l.name(node)+"/status") {
			return nil
		}
		once()
		select {
		case <-released:
			return nil
		case <-r.Context().Done():
			return r.Context().Err()
		}
	})
	return first, func() { close(released) }
}

// Two nodes are due at once, and the write of one of them hangs. A third is due while it does.
func slowNode() scenario {
	var met <-chan struct{}
	var release func()
	return prepared("slow Node of a shared volume", func(l *lab) {
		l.readyNode("a", "b")
		l.volume("v", corev1.ReadWriteMany)
		for _, node := range []string{"a", "b"} {
			l.attached(l.makeAttachment(driver, l.name("v"), node, l.name("v")))
			l.pod("on-"+node, node, "v")
		}
		met, release = l.holdsReports("a")
	}, func(l *lab) {
		l.meet("the write to the slow Node", met)
		l.await("reported to the other node meanwhile", func() bool { return l.isReported("v", "b") })
		l.readyNode("c")
		l.pod("on-c", "c", "v")
		l.await("reported to the node that comes meanwhile", func() bool { return l.isReported("v", "c") })
		if l.onServer("v", "a") {
			l.Error("reported to the slow one: the test did not test what it says")
		}
		release()
		l.awaitReported("v", "a")
	})
}

// orphanRecreated has an attachment that no PersistentVolume and no list names, on a node
// whose Node was recreated for the same boot.
func orphanRecreated() scenario {
	lost := func(l *lab) key { return key{Driver: driver, Handle: "lost-" + l.prefix} }
	leaked := func(l *lab) bool {
		for _, node := range l.nodes {
			for _, v := range node.Status.VolumesAttached {
				if strings.Contains(string(v.Name), "belay.dev") {
					return true
				}
			}
		}
		return false
	}
	return prepared("orphan whose Node was recreated", func(l *lab) {
		l.readyNode("a")
		l.attachByHand("lost", "a", kube.AttachmentName(lost(l).Handle, driver, l.name("a")))
		l.shut("a")
		l.awaitLater(l.seenOf(lost(l), "a").CreationTimestamp)
		l.registers("a")
		l.renews("a")
	}, func(l *lab) {
		seen := false
		l.await("detached", func() bool {
			seen = seen || leaked(l)
			return seen || l.vaOf(lost(l), "a") == nil
		})
		l.readyNode("b")
		l.settled("b")
		l.never("S9: an internal name stands in volumesAttached", time.Second, func() bool { return seen || leaked(l) })
	})
}

// A request to create the VolumeAttachment for node a gets no answer, is delayed in flight, and is carried out after
// the pod has moved to node b.
func lateCreate(l *lab) {
	l.readyNode("a", "b")
	l.volume("v")
	first := make(chan *http.Request, 1)
	l.breaks(func(r *http.Request) error {
		if !isAttach(r) {
			return nil
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if !bytes.Contains(body, []byte(l.name("a"))) {
			return nil
		}
		held := r.Clone(l.background())
		held.Body = io.NopCloser(bytes.NewReader(body))
		select {
		case first <- held:
		default: // a retry, which is lost
		}
		return errors.New("no answer")
	})
	l.pod("p", "a", "v")
	late := wait.For(l, "the create", first)
	l.gone("p")
	l.pod("q", "b", "v")
	l.readyNode("c")
	l.settled("c")
	l.never("S1: attached to b while a request for a may still be carried out", 3*time.Second,
		func() bool { return l.attachment("v", "b") != nil })
	l.awaitEvent("q", fmt.Sprintf("a request to attach it to node %q got no answer", l.name("a")))
	l.carriesOut(late)
	l.awaitReported("v", "b")
	l.mu.Lock()
	defer l.mu.Unlock()
	if made, gone := slices.Index(l.history, "b made"), slices.Index(l.history, "a gone"); gone < 0 || made < gone {
		l.Errorf("S1: attached to b before the late create for a was undone: %v", l.history)
	}
}

// carriesOut sends a request of the controller to the API server, as the controller.
func (l *lab) carriesOut(r *http.Request) {
	l.Helper()
	c, err := rest.HTTPClientFor(controllerConfig)
	l.must(err)
	answer, err := c.Do(r)
	l.must(err)
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusCreated {
		l.Fatalf("the late create: %s", answer.Status)
	}
}
