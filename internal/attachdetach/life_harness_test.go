package attachdetach

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

var update = flag.Bool("update", false, "write the transcripts of lives anew")

// life plays the controller against an API server in memory, on fake time and in one goroutine, and records what each
// component did. Each action ends when nothing is left to do but wait.
type life struct {
	*testing.T
	policy attachment.Policy
	begun  time.Time
	script strings.Builder

	objects map[string]client.Object // the API server's, by kind and name
	version int
	model   *model
	control *Controller
	logger  logr.Logger // the controller's; discards by default

	// forbids, if set, is the API server's answer because of an admission rule or missing permissions.
	forbids func(verb string, obj client.Object) error

	woken  []key
	timers map[key]time.Time
	waits  map[key]string // what the script says last of each volume
}

// playLife runs a life in a bubble and compares its transcript with the stored one.
func playLife(t *testing.T, name string, policy attachment.Policy, play func(*life)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &life{T: t, policy: policy, begun: time.Now(), objects: map[string]client.Object{}, version: 100}
		l.lead()
		play(l)
		file := filepath.Join("testdata", "lives", name+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(l.script.String()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(l.script.String(), "\n")); diff != "" {
			t.Errorf("%s; -update writes it again (-want +got):\n%s", file, diff)
		}
	})
}

func (l *life) say(who, format string, args ...any) {
	fmt.Fprintf(&l.script, "%8s  %-10s  %s\n", "+"+time.Since(l.begun).String(), who, fmt.Sprintf(format, args...))
}

// lead starts a controller that knows only the content of the API server.
func (l *life) lead() {
	l.model, l.timers, l.waits, l.woken = newModel(l.T), map[key]time.Time{}, map[key]string{}, nil
	server := toyClient{life: l}
	parts := Parts{Client: server, Live: server, Recorder: lifeRecorder{l}}
	l.control = assemble(l.model.clusterState, &rivals{}, parts, Options{Policy: l.policy})
	l.model.end = l.control.attachmentDeleted
	l.control.stepsAtOnce = 1 // a transcript has one order
	since := strconv.Itoa(l.version)
	l.control.sinceAttachments, l.control.sinceNodes = since, since
	close(l.control.ready)
	for _, name := range slices.Sorted(maps.Keys(l.objects)) {
		l.woken = append(l.woken, l.model.event(copyOf(l.objects[name]), false)...)
	}
	l.model.adopt(true)
	l.settle()
}

func (l *life) restart() {
	l.say("controller", "restarts")
	l.lead()
}

func copyOf[T client.Object](obj T) T { return obj.DeepCopyObject().(T) }

func nameOf(obj client.Object) string {
	return fmt.Sprintf("%T %s", obj, client.ObjectKeyFromObject(obj))
}

// store gives the object a new version and shows it to the controller's cache.
func (l *life) store(obj client.Object) {
	l.version++
	if obj.GetUID() == "" {
		obj.SetUID(types.UID(fmt.Sprintf("uid-%d", l.version)))
	}
	if at := obj.GetCreationTimestamp(); at.IsZero() {
		obj.SetCreationTimestamp(metav1.Now())
	}
	obj.SetResourceVersion(strconv.Itoa(l.version))
	l.objects[nameOf(obj)] = obj
	l.woken = append(l.woken, l.model.event(copyOf(obj), false)...)
}

func (l *life) remove(obj client.Object) {
	delete(l.objects, nameOf(obj))
	l.woken = append(l.woken, l.model.event(copyOf(obj), true)...)
}

// settle lets the controller process the woken volumes, until all that is left is to wait.
func (l *life) settle() {
	l.Helper()
	for len(l.woken) > 0 {
		k := l.woken[0]
		l.woken = slices.DeleteFunc(l.woken, func(other key) bool { return other == k })
		result, err := l.control.Reconcile(log.IntoContext(context.Background(), logConstructor(l.logger)(&k)), k)
		if err != nil {
			l.Errorf("at +%v: %v", time.Since(l.begun), err)
		}
		delete(l.timers, k)
		if result.RequeueAfter > 0 {
			l.timers[k] = time.Now().Add(result.RequeueAfter)
		}
		l.sayWaits(k)
	}
}

// sayWaits records what the volume waits for, if that has changed.
func (l *life) sayWaits(k key) {
	s := l.control.state.observe(k, &nodeReads{}, l.control)
	var words []string
	for _, step := range attachment.Decide(time.Now(), s.want, s.seen, l.policy).Steps {
		if hold, ok := step.(attachment.Wait); ok {
			words = append(words, fmt.Sprintf("%s on %s", hold.Reason, hold.Node))
		}
	}
	text := strings.Join(words, ", ")
	if at, ok := l.timers[k]; ok && text != "" {
		text += fmt.Sprintf("; looks again at +%v", at.Sub(l.begun))
	}
	if text != l.waits[k] && text != "" {
		l.say("controller", "waits: %s", text)
	}
	l.waits[k] = text
}

// pass lets time pass. Nothing but the controller's own timers may wake it.
func (l *life) pass(d time.Duration) {
	l.Helper()
	end := time.Now().Add(d)
	for {
		var next key
		at := end
		for k, due := range l.timers {
			if !due.After(at) {
				next, at = k, due
			}
		}
		time.Sleep(time.Until(at))
		if next == (key{}) {
			l.say("time", "%v have passed", d)
			return
		}
		delete(l.timers, next)
		l.woken = append(l.woken, next)
		l.settle()
	}
}

// The people and programs around.

func (l *life) did(who, format string, args ...any) {
	l.Helper()
	l.say(who, format, args...)
}

func (l *life) node(name string) {
	l.did("node "+name, "registers")
	l.store(aNode(name, func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	}))
	l.settle()
}

func (l *life) onNode(name string, change func(n *corev1.Node)) {
	l.Helper()
	old, ok := l.objects["*v1.Node /"+name]
	if !ok {
		l.Fatalf("no node %s", name)
	}
	n := copyOf(old.(*corev1.Node))
	change(n)
	l.store(n)
	l.settle()
}

func (l *life) ready(name string, status corev1.ConditionStatus) {
	l.did("node "+name, "is Ready: %s", status)
	l.onNode(name, func(n *corev1.Node) { n.Status.Conditions[0].Status = status })
}

func (l *life) use(name string, volumes ...key) {
	var names []corev1.UniqueVolumeName
	for _, k := range volumes {
		names = append(names, corev1.UniqueVolumeName(kube.UniqueVolumeName(k.Driver, k.Handle)))
	}
	l.did("node "+name, "lists in use: %v", names)
	l.onNode(name, func(n *corev1.Node) { n.Status.VolumesInUse = names })
}

func (l *life) outOfService(name string) {
	l.did("admin", "puts %s out of service", name)
	l.onNode(name, func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: kube.OutOfServiceTaint}} })
}

func (l *life) deleteNode(name string) {
	l.did("admin", "deletes Node %s", name)
	l.remove(l.objects["*v1.Node /"+name])
	l.settle()
}

// comeBack registers the machine again: after a boot, or as it was.
func (l *life) comeBack(name string, booted bool) {
	l.did("node "+name, "registers anew, booted: %v", booted)
	l.store(aNode(name, func(n *corev1.Node) {
		if booted {
			n.Status.NodeInfo.BootID += "-2"
		}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	}))
	l.settle()
}

// volume makes a PersistentVolume of the CSI driver with its claim.
func (l *life) volume(name string) key {
	l.store(aVolume(name, name))
	l.store(aClaim(name))
	l.settle()
	return key{Driver: driver, Handle: name}
}

// fibreChannel makes a PersistentVolume that the node connects by itself.
func (l *life) fibreChannel(name string) key {
	pv := aVolume(name, name)
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{name}, Lun: new(int32(1))}}
	l.store(pv)
	l.store(aClaim(name))
	l.settle()
	return key{Driver: kube.FibreChannelPlugin, Handle: "[" + name + "]:1"}
}

func (l *life) driverAttaches(required bool) {
	l.did("admin", "sets attachRequired of the driver: %v", required)
	l.store(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: &required}})
	l.settle()
}

func (l *life) pod(name, node, claim string) {
	l.did("user", "pod %s on %s wants %s", name, node, claim)
	l.store(aPod(name, node, byClaimOf(claim)))
	l.settle()
}

func (l *life) podGone(name string) {
	l.did("user", "pod %s is gone", name)
	l.remove(l.objects["*v1.Pod ns/"+name])
	l.settle()
}

func (l *life) attachment(k key, node string) *storagev1.VolumeAttachment {
	l.Helper()
	obj, ok := l.objects["*v1.VolumeAttachment /"+kube.AttachmentName(k.Handle, k.Driver, node)]
	if !ok {
		l.Fatalf("at +%v: %s has no attachment to %s\n%s", time.Since(l.begun), k.Handle, node, l.script.String())
	}
	return copyOf(obj.(*storagev1.VolumeAttachment))
}

// attached is the attacher: the driver has published the volume.
func (l *life) attached(k key, node string) {
	l.Helper()
	va := l.attachment(k, node)
	l.did("attacher", "has attached %s to %s", k.Handle, node)
	va.Status = storagev1.VolumeAttachmentStatus{Attached: true}
	l.store(va)
	l.settle()
}

// detached is the attacher: the driver has unpublished the volume.
func (l *life) detached(k key, node string) {
	l.Helper()
	va := l.attachment(k, node)
	if va.DeletionTimestamp == nil {
		l.Fatalf("at +%v: the detach was not requested from %s\n%s", time.Since(l.begun), node, l.script.String())
	}
	l.did("attacher", "has detached %s from %s", k.Handle, node)
	l.remove(va)
	l.settle()
}

// deletesAttachment is a person: the attacher's finalizer keeps the object until it has
// detached the volume.
func (l *life) deletesAttachment(k key, node string) {
	l.Helper()
	va := l.attachment(k, node)
	l.did("admin", "deletes VolumeAttachment %s on %s", k.Handle, node)
	va.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	l.store(va)
	l.settle()
}

// cannotAttach is the attacher: whether the driver has published the volume is not known.
func (l *life) cannotAttach(k key, node, message string) {
	l.Helper()
	va := l.attachment(k, node)
	l.did("attacher", "cannot attach %s to %s: %s", k.Handle, node, message)
	va.Status.AttachError = &storagev1.VolumeError{Message: message}
	l.store(va)
	l.settle()
}

func (l *life) refusesDetach(k key, node, message string) {
	l.Helper()
	va := l.attachment(k, node)
	l.did("attacher", "cannot detach %s from %s: %s", k.Handle, node, message)
	va.Status.DetachError = &storagev1.VolumeError{Message: message}
	l.store(va)
	l.settle()
}

// lifeRecorder writes events into the script.
type lifeRecorder struct{ *life }

func (r lifeRecorder) Event(obj runtime.Object, kind, reason, message string) {
	what, name := "", ""
	switch o := obj.(type) {
	case *corev1.ObjectReference:
		what, name = o.Kind, o.Name
	case client.Object:
		what, name = reflect.TypeOf(o).Elem().Name(), o.GetName()
	}
	r.say("event", "%s %s on %s %s: %s", kind, reason, what, name, message)
}

func (r lifeRecorder) Eventf(obj runtime.Object, kind, reason, format string, args ...any) {
	r.Event(obj, kind, reason, fmt.Sprintf(format, args...))
}

func (r lifeRecorder) AnnotatedEventf(obj runtime.Object, notes map[string]string, kind, reason, format string, args ...any) {
	r.Event(obj, kind, reason, fmt.Sprintf(format, args...)+" ["+notes[kube.ReasonAnnotation]+"]")
}

// toyClient is the API server's side of the controller's requests.
type toyClient struct {
	client.Client
	*life
}

func kindOf(obj client.Object) string { return reflect.TypeOf(obj).Elem().Name() }

func (c toyClient) found(name string, obj client.Object) (client.Object, error) {
	obj.SetName(name)
	there, ok := c.objects[nameOf(obj)]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: kindOf(obj)}, name)
	}
	return there, nil
}

func (c toyClient) Get(_ context.Context, name client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	c.say("controller", "reads %s %s", kindOf(obj), c.short(name.Name))
	if err := c.refuses("get", obj); err != nil {
		return err
	}
	if lease, ok := obj.(*coordinationv1.Lease); ok { // of a kubelet that renews it every 10 s
		lease.ResourceVersion = strconv.Itoa(1 + int(time.Since(c.begun)/(10*time.Second)))
		return nil
	}
	there, err := c.found(name.Name, obj)
	if err == nil {
		reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(copyOf(there)).Elem())
	}
	return err
}

// refuses is the answer of an API server that forbids the request.
func (c toyClient) refuses(verb string, obj client.Object) error {
	if c.forbids == nil || c.forbids(verb, obj) == nil {
		return nil
	}
	c.say("API server", "refuses")
	return apierrors.NewForbidden(schema.GroupResource{Resource: kindOf(obj)}, "", c.forbids(verb, obj))
}

// short names an attachment by its node.
func (c toyClient) short(name string) string {
	for _, obj := range c.objects {
		if va, ok := obj.(*storagev1.VolumeAttachment); ok && va.Name == name {
			return volumeIn(va) + " on " + va.Spec.NodeName
		}
	}
	return name
}

// volumeIn is the volume as the attachment names it.
func volumeIn(va *storagev1.VolumeAttachment) string {
	if inline := va.Spec.Source.InlineVolumeSpec; inline != nil {
		return inline.CSI.VolumeHandle
	}
	return kube.SourceName(va)
}

func (c toyClient) Create(_ context.Context, obj client.Object, _ ...client.CreateOption) error {
	if _, ok := c.objects[nameOf(obj)]; ok {
		return apierrors.NewAlreadyExists(schema.GroupResource{Resource: kindOf(obj)}, obj.GetName())
	}
	c.store(obj)
	c.say("controller", "creates %s %s", kindOf(obj), c.short(obj.GetName()))
	c.objects[nameOf(obj)] = copyOf(obj)
	return nil
}

func (c toyClient) Delete(_ context.Context, obj client.Object, options ...client.DeleteOption) error {
	there, err := c.found(obj.GetName(), obj)
	if err != nil {
		return err
	}
	var o client.DeleteOptions
	o.ApplyOptions(options)
	if p := o.Preconditions; p == nil || ptr.Deref(p.UID, "") != there.GetUID() || ptr.Deref(p.ResourceVersion, "") != there.GetResourceVersion() {
		return apierrors.NewConflict(schema.GroupResource{Resource: kindOf(obj)}, obj.GetName(), fmt.Errorf("preconditions %v", p))
	}
	c.say("controller", "deletes %s %s", kindOf(obj), c.short(obj.GetName()))
	if err := c.refuses("delete", obj); err != nil {
		return err
	}
	gone := copyOf(there)
	if va, ok := gone.(*storagev1.VolumeAttachment); ok && kube.NoAttacher(kube.DriverOf(va.Spec.Attacher)) {
		c.remove(gone)
		return nil
	}
	gone.SetDeletionTimestamp(&metav1.Time{Time: time.Now()})
	c.store(gone) // until the attacher removes its finalizer
	return nil
}

func (c toyClient) Status() client.SubResourceWriter { return toyStatus{toy: c} }

type toyStatus struct {
	client.SubResourceWriter
	toy toyClient
}

func (s toyStatus) Patch(ctx context.Context, obj client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.toy.Patch(ctx, obj, patch)
}

func (c toyClient) Patch(_ context.Context, obj client.Object, patch client.Patch, _ ...client.PatchOption) error {
	there, err := c.found(obj.GetName(), obj)
	if err != nil {
		return err
	}
	body, err := patch.Data(obj)
	c.check(err)
	var change struct {
		Metadata struct{ UID, ResourceVersion string }
	}
	c.check(json.Unmarshal(body, &change))
	if change.Metadata.UID != string(there.GetUID()) || change.Metadata.ResourceVersion != there.GetResourceVersion() {
		return apierrors.NewConflict(schema.GroupResource{Resource: kindOf(obj)}, obj.GetName(), fmt.Errorf("bound to %v", change))
	}
	before, err := json.Marshal(there)
	c.check(err)
	var merged, delta map[string]any
	c.check(json.Unmarshal(before, &merged))
	c.check(json.Unmarshal(body, &delta))
	merge(merged, delta)
	after, err := json.Marshal(merged)
	c.check(err)
	changed := reflect.New(reflect.TypeOf(there).Elem()).Interface().(client.Object)
	c.check(json.Unmarshal(after, changed))
	c.sayPatch(there, changed)
	if !reflect.DeepEqual(there, changed) { // what changes nothing keeps its version
		c.store(changed)
	}
	reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(copyOf(changed)).Elem())
	return nil
}

func (c toyClient) check(err error) {
	if err != nil {
		c.Fatal(err)
	}
}

// merge is RFC 7386.
func merge(into, change map[string]any) {
	for name, value := range change {
		part, ok := value.(map[string]any)
		old, was := into[name].(map[string]any)
		switch {
		case value == nil:
			delete(into, name)
		case ok && was:
			merge(old, part)
		default:
			into[name] = value
		}
	}
}

func (c toyClient) sayPatch(before, after client.Object) {
	var words []string
	if n, ok := after.(*corev1.Node); ok && !reflect.DeepEqual(n.Status.VolumesAttached, before.(*corev1.Node).Status.VolumesAttached) {
		var names []string
		for _, v := range n.Status.VolumesAttached {
			names = append(names, string(v.Name))
		}
		words = append(words, fmt.Sprintf("volumesAttached %v", names))
	}
	all := map[string]bool{}
	for name := range before.GetAnnotations() {
		all[name] = true
	}
	for name := range after.GetAnnotations() {
		all[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if value, ok := after.GetAnnotations()[name]; value != before.GetAnnotations()[name] {
			text := "removed"
			if ok {
				text = c.relative(value)
			}
			words = append(words, strings.TrimPrefix(name, "belay.dev/")+" "+text)
		}
	}
	if len(words) == 0 {
		words = []string{"nothing to change"}
	}
	c.say("controller", "patches %s %s: %s", kindOf(after), c.short(after.GetName()), strings.Join(words, ", "))
}

// relative writes the times in a text as the script does.
func (c toyClient) relative(text string) string {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return "+" + at.Sub(c.begun).String()
	}
	var many map[string]string
	if json.Unmarshal([]byte(text), &many) != nil {
		return text
	}
	var words []string
	for _, name := range slices.Sorted(maps.Keys(many)) {
		words = append(words, name+" "+c.relative(many[name]))
	}
	return "{" + strings.Join(words, ", ") + "}"
}
