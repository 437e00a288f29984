package attachdetach

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/wait"
)

// lab is one test's view of the cluster, with the parts that upstream plays.
type lab struct {
	*testing.T
	client.Client
	ctx      context.Context
	prefix   string // of all names, as tests share the API server
	attacher *fakeAttacher

	// intercept, if set before run, sees each request of the controller before it is
	// sent. An error is returned in place of an answer.
	intercept func(*http.Request) error
	// lose, if set before run, chooses requests that are carried out and whose answer
	// does not arrive.
	lose func(*http.Request) bool
	// options are those of the controllers that run starts.
	options Options
	// transport, if set before run, sees all requests of the controller.
	transport func(next http.RoundTripper) http.RoundTripper
	// scene is where a scenario is played, nil for other tests.
	scene *scene

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each event
	vas     map[string]*storagev1.VolumeAttachment
	last    map[string]*storagev1.VolumeAttachment // of those that are gone, the last version
	nodes   map[string]*corev1.Node
	events  map[string]*corev1.Event
	history []string // what became visible, in order
}

func newLab(t *testing.T) *lab {
	t.Helper()
	cluster.Start(t)
	prefix := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
	if len(prefix) > 36 { // with a suffix, the name of a CSI driver has at most 63
		prefix = prefix[len(prefix)-36:]
	}
	prefix = fmt.Sprintf("t%s-%d", notNameChar.ReplaceAllString(prefix, ""), runs.Add(1)) // -count runs it again
	l := &lab{
		T: t, Client: cluster.Client, ctx: t.Context(), prefix: prefix, changed: make(chan struct{}),
		options: Options{Policy: attachment.Policy{OutOfService: true}},
		vas:     map[string]*storagev1.VolumeAttachment{}, last: map[string]*storagev1.VolumeAttachment{}, nodes: map[string]*corev1.Node{}, events: map[string]*corev1.Event{},
	}
	l.must(l.Create(l.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: prefix}}))
	l.Cleanup(l.sweep)
	l.watch()
	l.attacher = &fakeAttacher{lab: l, finalizer: kube.AttacherFinalizer(driver)}
	return l
}

// sweep removes the attachments that the test leaves: a controller of the next one
// would work on them.
func (l *lab) sweep() {
	ctx := context.WithoutCancel(l.ctx)
	all := &storagev1.VolumeAttachmentList{}
	if err := l.List(ctx, all); err != nil {
		l.Error(err)
	}
	for i := range all.Items {
		va := &all.Items[i]
		if !strings.HasPrefix(va.Spec.NodeName, l.prefix+"-") {
			continue
		}
		bare := client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`))
		if err := client.IgnoreNotFound(l.Patch(ctx, va, bare)); err != nil {
			l.Error(err)
		}
		if err := client.IgnoreNotFound(l.Delete(ctx, va)); err != nil {
			l.Error(err)
		}
	}
}

const driver = "disk.test"

var runs atomic.Int32

var notNameChar = regexp.MustCompile("[^a-z0-9-]")

func (l *lab) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// observer watches the objects that tests assert on, once for all tests.
var observer = sync.OnceValues(func() (informers.SharedInformerFactory, error) {
	clients, err := kubernetes.NewForConfig(cluster.Config())
	if err != nil {
		return nil, err
	}
	return informers.NewSharedInformerFactory(clients, 0), nil
})

// watch follows the objects that the test asserts on.
func (l *lab) watch() {
	factory, err := observer()
	l.must(err)
	var synced []toolscache.InformerSynced
	add := func(informer toolscache.SharedIndexInformer, see func(obj any, gone bool)) {
		registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { see(obj, false) },
			UpdateFunc: func(_, obj any) { see(obj, false) },
			DeleteFunc: func(obj any) { see(obj, true) },
		})
		l.must(err)
		synced = append(synced, registration.HasSynced)
		l.Cleanup(func() { _ = informer.RemoveEventHandler(registration) })
	}
	add(factory.Storage().V1().VolumeAttachments().Informer(), func(obj any, gone bool) {
		if va, ok := obj.(*storagev1.VolumeAttachment); ok && strings.HasPrefix(va.Spec.NodeName, l.prefix+"-") {
			l.see(func() { l.seeAttachment(va, gone) })
			if !gone {
				l.attacher.notice(va)
			}
		}
	})
	add(factory.Core().V1().Nodes().Informer(), func(obj any, gone bool) {
		if node, ok := obj.(*corev1.Node); ok && strings.HasPrefix(node.Name, l.prefix+"-") {
			l.see(func() { remember(l.nodes, node.Name, node, gone) })
		}
	})
	add(factory.Core().V1().Events().Informer(), func(obj any, gone bool) {
		if event, ok := obj.(*corev1.Event); ok &&
			(strings.HasPrefix(event.Namespace, l.prefix) || strings.HasPrefix(event.InvolvedObject.Name, l.prefix+"-")) {
			l.see(func() { remember(l.events, event.Namespace+"/"+event.Name, event, gone) })
		}
	})
	factory.Start(cluster.Done())
	toolscache.WaitForCacheSync(l.ctx.Done(), synced...)
}

func remember[T any](m map[string]T, name string, obj T, gone bool) {
	if gone {
		delete(m, name)
	} else {
		m[name] = obj
	}
}

func (l *lab) seeAttachment(va *storagev1.VolumeAttachment, gone bool) {
	remember(l.vas, va.Name, va, gone)
	remember(l.last, va.Name, va, !gone)
	word := "made"
	switch {
	case gone:
		word = "gone"
	case va.DeletionTimestamp != nil:
		word = "deleting"
	case va.Status.Attached:
		word = "attached"
	}
	entry := strings.TrimPrefix(va.Spec.NodeName, l.prefix+"-") + " " + word
	if len(l.history) == 0 || l.history[len(l.history)-1] != entry {
		l.history = append(l.history, entry)
	}
}

func (l *lab) see(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

// await returns once the condition holds for the observed objects.
func (l *lab) await(what string, holds func() bool) {
	l.Helper()
	deadline := time.NewTimer(wait.Timeout)
	defer deadline.Stop()
	for {
		l.mu.Lock()
		ok, changed := holds(), l.changed
		l.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-deadline.C:
			l.mu.Lock()
			defer l.mu.Unlock()
			l.Fatalf("waited in vain: %s\n%s", what, l.describe())
		}
	}
}

func (l *lab) describe() string {
	var b strings.Builder
	fmt.Fprintln(&b, "history:", l.history)
	for _, va := range l.vas {
		fmt.Fprintf(&b, "attachment %s node %s attached %v deleting %v %v\n", va.Name, va.Spec.NodeName, va.Status.Attached, va.DeletionTimestamp, va.Annotations)
	}
	for _, n := range l.nodes {
		if strings.HasPrefix(n.Name, l.prefix) {
			fmt.Fprintf(&b, "node %s attached %v in use %v\n", n.Name, n.Status.VolumesAttached, n.Status.VolumesInUse)
		}
	}
	for _, e := range l.events {
		var writers []string
		for _, f := range e.ManagedFields {
			writers = append(writers, f.Manager)
		}
		fmt.Fprintf(&b, "event on %s by %v: %s %q\n", e.InvolvedObject.Name, writers, e.Reason, e.Message)
	}
	return b.String()
}

// run starts a controller, with the shipped rights; stop ends it.
func (l *lab) run() (stop func()) {
	l.Helper()
	intercept, lose, transport := l.intercept, l.lose, l.transport
	return launch(l.T, l.options, func(next http.RoundTripper) http.RoundTripper {
		if transport != nil {
			next = transport(next)
		}
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if intercept != nil {
				if err := intercept(r); err != nil {
					return nil, err
				}
			}
			answer, err := next.RoundTrip(r)
			if err == nil && lose != nil && lose(r) {
				_ = answer.Body.Close()
				return nil, errors.New("the answer was lost")
			}
			return answer, err
		})
	})
}

// launch starts a controller, with the shipped rights, whose requests pass through
// what wrap makes; stop ends it.
func launch(t *testing.T, o Options, wrap func(http.RoundTripper) http.RoundTripper) (stop func()) {
	t.Helper()
	o.WarnOfRivals = true // the tests write as other controllers do
	return launchAs(t, o, wrap)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Requests of the controller, for intercept.

// isReport tells a write of volumesAttached from the mark that a new leader puts on a Node.
func isReport(r *http.Request) bool {
	if r.Method != http.MethodPatch || !strings.HasSuffix(r.URL.Path, "/status") {
		return false
	}
	sent, err := r.GetBody()
	if err != nil {
		return false
	}
	body, err := io.ReadAll(sent)
	return err == nil && bytes.Contains(body, []byte(`"volumesAttached"`))
}

func isDetach(r *http.Request) bool {
	return r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/volumeattachments/")
}

func isAttach(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/volumeattachments")
}

func (l *lab) name(s string) string { return l.prefix + "-" + s }

// node makes a node whose volumes the controller manages.
func (l *lab) node(name string) {
	l.Helper()
	l.must(l.Create(l.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: l.name(name), Annotations: map[string]string{kube.ManagedAttachAnnotation: "true"},
	}}))
	l.patchStatus(&corev1.Node{}, "", l.name(name), map[string]any{
		"nodeInfo": map[string]any{"bootID": "boot-" + name, "systemUUID": "hw-" + name},
	})
	l.Cleanup(func() {
		_ = l.Delete(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: l.name(name)}})
	})
}

func (l *lab) patchStatus(obj client.Object, namespace, name string, status map[string]any) {
	l.Helper()
	obj.SetNamespace(namespace)
	obj.SetName(name)
	body, err := json.Marshal(map[string]any{"status": status})
	l.must(err)
	l.must(l.Status().Patch(context.WithoutCancel(l.ctx), obj, client.RawPatch(types.MergePatchType, body)))
}

// use plays kubelet: it reports the volumes that its node uses.
func (l *lab) use(node string, volumes ...string) {
	l.Helper()
	var list any
	if len(volumes) > 0 {
		var names []string
		for _, v := range volumes {
			names = append(names, l.unique(v))
		}
		list = names
	}
	l.patchStatus(&corev1.Node{}, "", l.name(node), map[string]any{"volumesInUse": list})
}

func (l *lab) unique(volume string) string { return kube.UniqueVolumeName(driver, l.name(volume)) }

// volume makes a PersistentVolume and the claim that is bound to it.
func (l *lab) volume(name string, modes ...corev1.PersistentVolumeAccessMode) {
	l.Helper()
	l.persistentVolume(name, driver, modes...)
	l.claim(name)
}

func (l *lab) claim(name string) {
	l.Helper()
	pvc := fixture.Claim(l.prefix, name, fixture.PersistentVolume(l.name(name), driver, ""))
	l.must(l.Create(l.ctx, pvc))
	l.patchStatus(&corev1.PersistentVolumeClaim{}, l.prefix, name, map[string]any{"phase": corev1.ClaimBound})
	l.bind(pvc)
}

// bindLate binds a PersistentVolume that came after its claim.
func (l *lab) bindLate(name string) {
	l.Helper()
	pvc := &corev1.PersistentVolumeClaim{}
	if err := l.Get(l.ctx, client.ObjectKey{Namespace: l.prefix, Name: name}, pvc); err != nil {
		l.must(client.IgnoreNotFound(err))
		return
	}
	l.bind(pvc)
}

func (l *lab) bind(pvc *corev1.PersistentVolumeClaim) {
	l.Helper()
	body, err := json.Marshal(map[string]any{"spec": map[string]any{"claimRef": map[string]any{
		"namespace": l.prefix, "name": pvc.Name, "uid": pvc.UID,
	}}})
	l.must(err)
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: l.name(pvc.Name)}}
	if err := l.Patch(l.ctx, pv, client.RawPatch(types.MergePatchType, body)); client.IgnoreNotFound(err) != nil {
		l.Fatal(err)
	}
}

// taint puts a node out of service.
func (l *lab) taint(node string) {
	l.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: l.name(node)}}
	body := fmt.Appendf(nil, `{"spec": {"taints": [{"key": %q, "value": "nodeshutdown", "effect": "NoExecute"}]}}`, kube.OutOfServiceTaint)
	l.must(l.Patch(l.ctx, n, client.RawPatch(types.MergePatchType, body)))
}

// manage hands attach and detach of a node to the controller, or to its kubelet.
func (l *lab) manage(node string, managed bool) {
	l.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: l.name(node)}}
	value := "null"
	if managed {
		value = `"true"`
	}
	body := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %s}}}`, kube.ManagedAttachAnnotation, value)
	l.must(l.Patch(l.ctx, n, client.RawPatch(types.MergePatchType, body)))
}

func (l *lab) persistentVolume(name, driver string, modes ...corev1.PersistentVolumeAccessMode) {
	l.Helper()
	l.must(l.Create(l.ctx, fixture.PersistentVolume(l.name(name), driver, l.name(name), modes...)))
}

// pod makes a pod on a node that uses the claims.
func (l *lab) pod(name, node string, claims ...string) {
	l.Helper()
	l.must(l.Create(l.ctx, fixture.Pod(l.prefix, name, l.name(node), claims...)))
	l.Cleanup(func() { _ = l.deletePod(name) })
}

// mounted plays kubelet: it has mounted the volumes of the pod, and made its sandbox.
func (l *lab) mounted(pod string) {
	l.Helper()
	l.patchStatus(&corev1.Pod{}, l.prefix, pod, map[string]any{"conditions": []map[string]any{
		{"type": corev1.PodReadyToStartContainers, "status": corev1.ConditionTrue},
	}})
}

// gone is kubelet and user together: the pod is deleted and has ended.
func (l *lab) gone(pod string) {
	l.Helper()
	l.must(l.deletePod(pod))
}

func (l *lab) deletePod(name string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: l.prefix, Name: name}}
	return l.Delete(context.Background(), pod, client.GracePeriodSeconds(0))
}

// attachment gives the attachment of a volume to a node; hold l.mu.
func (l *lab) attachment(volume, node string) *storagev1.VolumeAttachment {
	return l.vas[kube.AttachmentName(l.name(volume), driver, l.name(node))]
}

// seenNode is the newest version of a Node that was seen; do not hold l.mu.
func (l *lab) seenNode(name string) *corev1.Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nodes[l.name(name)]
}

func (l *lab) isReported(volume, node string) bool {
	n := l.nodes[l.name(node)]
	return n != nil && slices.ContainsFunc(n.Status.VolumesAttached, func(v corev1.AttachedVolume) bool {
		return string(v.Name) == l.unique(volume)
	})
}

func (l *lab) awaitReported(volume, node string) {
	l.Helper()
	l.await(volume+" attached and reported on "+node, func() bool {
		va := l.attachment(volume, node)
		return va != nil && va.Status.Attached && l.isReported(volume, node)
	})
}

func (l *lab) awaitDetached(volume, node string) {
	l.Helper()
	l.await(volume+" detached from "+node, func() bool {
		return l.attachment(volume, node) == nil && !l.isReported(volume, node)
	})
}

// awaitWaiting returns once the controller has written that a detach waits. Where that does not take long, the VolumeAttachment may be gone
// before the test looks.
func (l *lab) awaitWaiting(volume, node string) {
	l.Helper()
	begun := false
	l.await("detach of "+volume+" from "+node+" waits", func() bool {
		va := cmp.Or(l.attachment(volume, node), l.last[kube.AttachmentName(l.name(volume), driver, l.name(node))])
		waits := va != nil && va.Annotations[kube.DetachRequestedAnnotation] != ""
		begun = va != nil && va.DeletionTimestamp != nil && !waits
		return waits || begun
	})
	if begun {
		l.Fatalf("S2: the detach of %s from %s does not wait", volume, node)
	}
}

// messages returns the messages of the events with a reason that a pod got; hold l.mu.
func (l *lab) messages(pod, reason string) []string {
	var found []string
	for _, e := range l.events {
		if e.InvolvedObject.Namespace == l.prefix && e.InvolvedObject.Name == pod && e.Reason == reason && e.Source.Component == EventComponent {
			found = append(found, e.Message)
		}
	}
	return found
}

func (l *lab) awaitPodEvent(pod, reason, message string) {
	l.Helper()
	l.await(fmt.Sprintf("pod %s has the event %s %q", pod, reason, message), func() bool {
		return slices.Contains(l.messages(pod, reason), message)
	})
}

// read gives the attachment as the API server has it, nil if it has none.
func (l *lab) read(volume, node string) *storagev1.VolumeAttachment {
	l.Helper()
	va := &storagev1.VolumeAttachment{}
	name := kube.AttachmentName(l.name(volume), driver, l.name(node))
	if err := l.Get(l.ctx, client.ObjectKey{Name: name}, va); err != nil {
		l.must(client.IgnoreNotFound(err))
		return nil
	}
	return va
}

// fakeAttacher answers attachments as csi-attacher with an instant driver does.
type fakeAttacher struct {
	*lab
	finalizer string

	guard   sync.Mutex
	refusal string // attachError of every attach, "" for none
	stalled bool   // nothing is answered
	// mood, if set, is called before each answer and returns whether to stay silent, or an error to answer.
	mood func(va *storagev1.VolumeAttachment) (silent bool, refusal string)
}

func (a *fakeAttacher) set(f func()) {
	a.guard.Lock()
	f()
	a.guard.Unlock()
	a.mu.Lock()
	all := slices.Collect(maps.Values(a.vas))
	a.mu.Unlock()
	for _, va := range all {
		a.notice(va)
	}
}

// notice does the attacher's next step for the attachment.
func (a *fakeAttacher) notice(va *storagev1.VolumeAttachment) {
	a.guard.Lock()
	defer a.guard.Unlock()
	finalized := slices.Contains(va.Finalizers, a.finalizer)
	ctx := context.WithoutCancel(a.ctx)
	target := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: va.Name}}
	patch := func(status bool, format string, args ...any) {
		p := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, args...))
		var err error
		if status {
			err = a.Status().Patch(ctx, target, p)
		} else {
			err = a.Patch(ctx, target, p)
		}
		if client.IgnoreNotFound(err) != nil {
			fmt.Fprintln(os.Stderr, "fake attacher:", err)
		}
	}
	refusal, silent := a.refusal, a.stalled
	if a.mood != nil {
		silent, refusal = a.mood(va)
	}
	switch {
	case silent:
	case va.DeletionTimestamp != nil && finalized && a.mood != nil && refusal != "":
		if e := va.Status.DetachError; e == nil || e.Message != refusal {
			patch(true, `{"metadata": {"uid": %q}, "status": {"detachError": {"message": %q}}}`, va.UID, refusal)
		}
	case va.DeletionTimestamp != nil && finalized:
		patch(false, `{"metadata": {"uid": %q, "finalizers": null}}`, va.UID)
	case va.DeletionTimestamp != nil || va.Status.Attached:
	case !finalized:
		patch(false, `{"metadata": {"uid": %q, "finalizers": [%q]}}`, va.UID, a.finalizer)
	case refusal != "":
		if e := va.Status.AttachError; e == nil || e.Message != refusal {
			patch(true, `{"metadata": {"uid": %q}, "status": {"attachError": {"message": %q}}}`, va.UID, refusal)
		}
	default:
		patch(true, `{"metadata": {"uid": %q}, "status": {"attached": true, "attachError": null}}`, va.UID)
	}
}
