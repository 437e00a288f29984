package attachdetach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
)

// objectMessages returns the messages of the events of a reason about an object, each as often as it was sent;
// hold l.mu.
func (l *lab) objectMessages(kind, name, reason string) []string {
	var found []string
	for _, e := range l.events {
		if e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name && e.Reason == reason && e.Source.Component == EventComponent {
			found = append(found, slices.Repeat([]string{e.Message}, max(1, int(e.Count)))...)
		}
	}
	return found
}

func (l *lab) awaitObjectEvent(kind, name, reason, message string) {
	l.Helper()
	l.await(fmt.Sprintf("%s %s has one event %s %q", kind, name, reason, message), func() bool {
		got := l.objectMessages(kind, name, reason)
		return len(got) == 1 && got[0] == message
	})
}

// heldBy is the event on a pod that waits for a volume which a pod of another node has.
func (l *lab) heldBy(volume, node, pod string) string {
	l.Helper()
	return explain.MultiAttach(l.name(volume), driver, l.prefix, []explain.Pod{{Namespace: l.prefix, Name: pod}}, []attachment.Blocker{{
		Node: attachment.NodeName(l.name(node)), Kind: attachment.ByAttachment,
		Cause: attachment.Cause{Since: l.read(volume, node).CreationTimestamp.Time},
	}})
}

// detachError is an attacher whose driver refuses to detach.
func (l *lab) detachError(volume, node, message string) {
	l.Helper()
	body, err := json.Marshal(map[string]any{"status": map[string]any{"attached": true, "detachError": map[string]any{"message": message}}})
	l.must(err)
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: kube.AttachmentName(l.name(volume), driver, l.name(node))}}
	l.must(l.Status().Patch(l.ctx, va, client.RawPatch(types.MergePatchType, body)))
}

func TestDetachEmitsEventOnClaim(t *testing.T) {
	l := newLab(t)
	l.runAttachedOnA()

	l.attacher.set(func() { l.attacher.stalled = true })
	l.gone("p")
	node := attachment.NodeName(l.name("a"))
	l.awaitObjectEvent("PersistentVolumeClaim", "v", explain.DetachingVolume, explain.DetachStarted(l.name("v"), node, nil, ""))
	l.detachError("v", "a", "busy")
	l.awaitObjectEvent("PersistentVolumeClaim", "v", explain.FailedDetachVolume, explain.DetachFailed(l.name("v"), node, "busy"))
	for _, message := range []string{"busy", "still busy"} { // a retry is no news
		l.detachError("v", "a", message)
	}
	l.await("each failure has one event", func() bool {
		got := l.objectMessages("PersistentVolumeClaim", "v", explain.FailedDetachVolume)
		slices.Sort(got)
		return slices.Equal(got, []string{
			explain.DetachFailed(l.name("v"), node, "busy"), explain.DetachFailed(l.name("v"), node, "still busy"),
		})
	})
	l.attacher.set(func() { l.attacher.stalled = false })
	l.awaitDetached("v", "a")
	l.awaitObjectEvent("PersistentVolumeClaim", "v", explain.SuccessfulDetachVolume, explain.DetachSucceeded(l.name("v"), node))
}

// A finalizer that is removed by force, because the detach takes so long, does not confirm the detach: an event on the
// claim reports so.
func TestUnconfirmedDetachEmitsEventOnClaim(t *testing.T) {
	l := newLab(t)
	l.runAttachedOnA()
	patch := func(kind types.PatchType, body string) {
		va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: kube.AttachmentName(l.name("v"), driver, l.name("a"))}}
		l.must(l.Patch(l.ctx, va, client.RawPatch(kind, []byte(body))))
	}
	patch(types.MergePatchType, `{"metadata": {"annotations": {"`+kube.PublishedHandleAnnotation+`": "`+l.name("v")+`"}}}`)
	l.attacher.set(func() { l.attacher.stalled = true })
	l.gone("p")
	node := attachment.NodeName(l.name("a"))
	l.awaitObjectEvent("PersistentVolumeClaim", "v", explain.DetachingVolume, explain.DetachStarted(l.name("v"), node, nil, ""))
	l.detachError("v", "a", "busy")
	l.awaitObjectEvent("PersistentVolumeClaim", "v", explain.FailedDetachVolume, explain.DetachFailed(l.name("v"), node, "busy"))
	patch(types.MergePatchType, `{"metadata": {"finalizers": null}}`)
	name := kube.AttachmentName(l.name("v"), driver, l.name("a"))
	l.awaitObjectEvent("PersistentVolumeClaim", "v", explain.VolumeDetachUnconfirmed, explain.DetachUnconfirmed(l.name("v"), node, name))
	l.mu.Lock()
	defer l.mu.Unlock()
	if got := l.objectMessages("PersistentVolumeClaim", "v", explain.SuccessfulDetachVolume); len(got) != 0 {
		t.Errorf("the claim has an event that reports success: %q", got)
	}
}

func TestDetachEmitsEventOnVolumeWithoutClaim(t *testing.T) {
	l := newLab(t)
	l.runAttachedOnA()
	l.use("a", "v")
	l.gone("p")
	l.awaitWaiting("v", "a")
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: l.prefix, Name: "v"}}
	l.must(l.Patch(l.ctx, pvc, client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`))))
	l.must(client.IgnoreNotFound(l.Delete(l.ctx, pvc)))
	l.settled("a") // the controller has seen that
	l.use("a")
	node := attachment.NodeName(l.name("a"))
	l.awaitObjectEvent("PersistentVolume", l.name("v"), explain.SuccessfulDetachVolume, explain.DetachSucceeded(l.name("v"), node))
}

// The response to the DELETE may come when its worker has moved on, and the watch has delivered the deletion long before.
func TestLateResponseKeepsTheEventsOfADetach(t *testing.T) {
	l := newLab(t)
	l.transport = func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			answer, err := next.RoundTrip(r)
			if isDetach(r) {
				time.Sleep(3 * slowAfter)
			}
			return answer, err
		})
	}
	l.runAttachedOnA()
	l.gone("p")
	node := attachment.NodeName(l.name("a"))
	l.awaitObjectEvent("PersistentVolumeClaim", "v", explain.DetachingVolume, explain.DetachStarted(l.name("v"), node, nil, ""))
	l.awaitObjectEvent("PersistentVolumeClaim", "v", explain.SuccessfulDetachVolume, explain.DetachSucceeded(l.name("v"), node))
}

// deleteFails answers deletes with an error.
type deleteFails struct {
	failingAt
	err error
}

func (c deleteFails) Delete(context.Context, client.Object, ...client.DeleteOption) error {
	return c.err
}

// A refused delete ends nothing when another client's delete does later; one without a response may have been carried out.
func TestRefusedDeleteIsNoDetach(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want []string
	}{
		"conflict":    {apierrors.NewConflict(schema.GroupResource{Resource: "volumeattachments"}, "x", errors.New("changed")), nil},
		"refused":     {apierrors.NewForbidden(schema.GroupResource{Resource: "volumeattachments"}, "x", errors.New("no")), nil},
		"no response": {context.DeadlineExceeded, []string{"Normal SuccessfulDetachVolume " + explain.DetachSucceeded("pv", "a")}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, k := newModel(t), key{Driver: driver, Handle: "h"}
				m.put(aVolume("pv", k.Handle))
				m.put(aClaim("pv"))
				m.put(aNode("a", isReady, listing(nil, []string{kube.UniqueVolumeName(k.Driver, k.Handle)})))
				va := sharedAttachment(k, "a")
				va.Spec.Source.PersistentVolumeName = new("pv")
				m.put(va)
				c, hung := m.hungController(t, func(string, string) bool { return false })
				api := deleteFails{failingAt{hung, failingStatus{m: m}}, tt.err}
				c.client, c.reporter.client = api, api
				recorder := record.NewFakeRecorder(10)
				c.eventEmitter, m.end = newEventEmitter(recorder), c.attachmentDeleted
				if _, err := c.Reconcile(t.Context(), k); err == nil && !refused(tt.err) {
					t.Fatal("nothing failed")
				}
				m.remove(va)
				if _, err := c.Reconcile(t.Context(), k); err != nil {
					t.Fatal(err)
				}
				close(recorder.Events)
				var got []string
				for e := range recorder.Events {
					got = append(got, e)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
				if n := len(c.eventEmitter.of(k).detaches); n != 0 {
					t.Errorf("%d volumes are still tracked", n)
				}
			})
		})
	}
}

// warnings keeps the warnings that are emitted: the kind and the name of the object, the reasons of event and wait, and the text.
type warnings struct {
	record.FakeRecorder

	got []string
}

func (w *warnings) AnnotatedEventf(about runtime.Object, annotations map[string]string, kind, reason, format string, args ...any) {
	name := ""
	switch o := about.(type) {
	case *corev1.Pod:
		name = "Pod " + o.Name
	case *corev1.ObjectReference:
		name = o.Kind + " " + o.Name
	}
	w.got = append(w.got, fmt.Sprintf("%s %s: %s %s: %s", kind, name, reason, annotations[kube.ReasonAnnotation], fmt.Sprintf(format, args...)))
}

// The users of a volume whose detach the driver has confirmed too early are warned, once: on the claim, on a pod that waits at the same node,
// and on one that waits at another. No text calls that a failure.
func TestDetachInDoubtWarnsUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, k := newModel(t), key{Driver: driver, Handle: "h"}
		m.put(aVolume("pv", k.Handle))
		m.put(aClaim("pv"))
		for _, node := range []string{"a", "b"} {
			m.put(aNode(node, isReady))
			m.put(aPod("on-"+node, node, byClaimOf("pv")))
		}
		va := sharedAttachment(k, "a")
		va.Spec.Source.PersistentVolumeName, va.Status.Attached = new("pv"), false
		asked := time.Now().Add(-time.Minute).Truncate(time.Second)
		va.DeletionTimestamp, va.Finalizers = &metav1.Time{Time: asked}, []string{kube.AttacherFinalizer(driver)}
		until := asked.Add(5 * time.Minute).UTC().Format(time.RFC3339)
		doubt := publication.MayStillAttach + ": the volume is detached again at " + until
		va.Status.DetachError = &storagev1.VolumeError{Message: doubt, Time: metav1.Now()}
		m.put(va)
		c, hung := m.hungController(t, func(string, string) bool { return false })
		defer close(hung.release)
		recorder := &warnings{}
		c.eventEmitter = newEventEmitter(recorder)
		for range 2 {
			if _, err := c.Reconcile(t.Context(), k); err != nil {
				t.Fatal(err)
			}
		}
		waiting := "waiting since " + asked.UTC().Format(time.RFC3339) + ` for the detach from node "a": ` + doubt
		want := []string{
			`Warning PersistentVolumeClaim pv: FailedDetachVolume PublishInDoubt: DetachVolume.Detach has not ended for volume "pv" from node "a" : ` + doubt,
			`Warning Pod on-a: FailedAttachVolume PublishInDoubt: AttachVolume.Attach failed for volume "pv" : volume attachment is being deleted: ` + doubt,
			`Warning Pod on-b: FailedAttachVolume OtherWriterDetaching: Multi-Attach error for volume "pv" Volume is already used by pod(s) on-a (` + waiting + ")",
		}
		slices.Sort(recorder.got)
		if diff := cmp.Diff(want, recorder.got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestForcedDetachEmitsEventOnClaim(t *testing.T) {
	l := newLab(t)
	l.runAttachedOnA()
	l.use("a", "v")
	l.gone("p")
	l.awaitWaiting("v", "a")
	l.taint("a")
	node := attachment.NodeName(l.name("a"))
	l.awaitObjectEvent("PersistentVolumeClaim", "v", explain.DetachingVolume,
		explain.DetachStarted(l.name("v"), node, attachment.OutOfServiceTaint{}, attachment.StillInUse))
	l.awaitDetached("v", "a")
}

// TestEventsCarryTheReason that logs and metrics have too.
func TestEventsCarryTheReason(t *testing.T) {
	l := newLab(t)
	l.node("a")
	l.node("b")
	l.volume("v")
	l.run()
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	l.pod("q", "b", "v")
	l.await("the second pod has an event with the reason", func() bool {
		for _, e := range l.events {
			if e.InvolvedObject.Name == "q" && e.Reason == explain.FailedAttachVolume {
				return e.Annotations[kube.ReasonAnnotation] == string(attachment.OtherWriterAttached)
			}
		}
		return false
	})
}

// TestAttachmentRemembersTheRequest of a volume that the node connects by itself, through a restart of the controller.
func TestAttachmentRemembersTheRequest(t *testing.T) {
	l := newLab(t)
	l.options.Policy.UnmountTimeout = time.Second
	l.readyNode("a")
	l.readyNode("b")
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: l.name("v")},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Capacity: storage().Requests,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				FC: &corev1.FCVolumeSource{TargetWWNs: []string{l.name("wwn")}, Lun: new(int32(1))},
			},
		},
	}
	k := key{Driver: kube.FibreChannelPlugin, Handle: fmt.Sprintf("[%s]:1", l.name("wwn"))}
	unique := kube.UniqueVolumeName(k.Driver, k.Handle)
	l.must(l.Create(l.ctx, pv))
	l.claim("v")
	stop := l.run()
	on := func(node string) bool { return l.reports(node, unique) }
	l.pod("p", "a", "v")
	l.await("reported on a", func() bool { return on("a") })
	l.patchStatus(&corev1.Node{}, "", l.name("a"), map[string]any{"volumesInUse": []string{unique}})
	l.gone("p")
	request := func() string {
		if va := l.vaOf(k, "a"); va != nil {
			return va.Annotations[kube.DetachRequestedAnnotation]
		}
		return ""
	}
	l.await("the request is noted on the attachment", func() bool { return request() != "" })
	l.mu.Lock()
	first := request()
	l.mu.Unlock()
	stop()
	l.run()
	l.pod("q", "b", "v")
	l.await("an event names the holder", func() bool { return len(l.messages("q", explain.FailedAttachVolume)) > 0 })
	l.mu.Lock()
	if now := request(); now != first || on("b") {
		t.Errorf("request of %s became %s; reported on b: %v", first, now, on("b"))
	}
	l.mu.Unlock()
	// The clock has long run out, but the node was healthy.
	l.patchStatus(&corev1.Node{}, "", l.name("a"), map[string]any{"conditions": []map[string]any{{"type": "Ready", "status": "Unknown"}}})
	l.await("reported on b", func() bool { return on("b") && !on("a") })
}

// proofs is recovery as far as the controller sees it.
type proofs struct {
	mu    sync.Mutex
	proof fencing.Proof
	life  fencing.Life
	wake  func(node string)
}

func (p *proofs) Of(node string) []fencing.Proof {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proof.Boot().Node != node {
		return nil
	}
	return []fencing.Proof{p.proof}
}

func (p *proofs) OnNew(wake func(node string)) { p.wake = wake }

func (p *proofs) Lives(fencing.Boot) []fencing.Life {
	p.mu.Lock()
	defer p.mu.Unlock()
	return []fencing.Life{p.life}
}

// TestProofForcesDetach: a proof wakes the volumes of its node, and permits their detach although the node is still shown as Ready.
func TestProofForcesDetach(t *testing.T) {
	l := newLab(t)
	recovery := &proofs{}
	l.options.Proofs = recovery
	l.runAttachedOnA()
	l.use("a", "v")
	l.gone("p")
	l.awaitWaiting("v", "a")
	name := l.name("a")
	m := kube.MachineOf(l.seenNode("a"))
	boot := fencing.Boot{Node: name, NodeUID: m.NodeUID, ID: m.BootID, Machine: m.SystemUUID}
	ended := fencing.Decide(time.Now(), fencing.Fence{Phase: fencing.Evicting, Boot: boot, Evidence: fencing.PoweredOff}, fencing.Observed{Exists: fencing.No, Ended: true})
	recovery.mu.Lock()
	recovery.proof = ended.Proof
	recovery.mu.Unlock()
	recovery.wake(name)
	l.awaitObjectEvent("PersistentVolumeClaim", "v", explain.DetachingVolume,
		explain.DetachStarted(l.name("v"), attachment.NodeName(name), attachment.Fenced{}, attachment.StillInUse))
	l.awaitDetached("v", "a")
}
