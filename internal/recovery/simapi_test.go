package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
)

// The API server of the simulation is controller-runtime's fake client, behind a network that loses and delays.

// errLost is what a client sees of a request whose answer did not come.
var errLost = errors.New("read tcp: connection reset by peer")

// call is one request of a process, to the API server or to a power switch.
type call struct {
	by    *process
	label string // which reconcile sent it
	what  string
	do    func() (any, error)
	// toSwitch: it dies with its process.
	toSwitch bool
	reply    chan answered
	gone     bool // its sender waits no more
}

type answered struct {
	value any
	err   error
}

// network holds the calls that wait for the scheduler.
type network struct {
	mu       sync.Mutex
	waiting  []*call
	replies  []func() // of calls that were carried out, and whose answers are in flight
	late     []*call  // their senders do not wait any more
	abandons []*call
}

type labelKey struct{}

// send puts a call in flight, and waits for what the scheduler makes of it.
func (p *process) send(ctx context.Context, what string, toSwitch bool, do func() (any, error)) (any, error) {
	label, _ := ctx.Value(labelKey{}).(string)
	c := &call{by: p, label: label, what: what, do: do, toSwitch: toSwitch, reply: make(chan answered, 1)}
	n := &p.world.net
	n.mu.Lock()
	if p.dead {
		n.mu.Unlock()
		return nil, errLost
	}
	n.waiting = append(n.waiting, c)
	n.mu.Unlock()
	select {
	case r := <-c.reply:
		return r.value, r.err
	case <-ctx.Done():
		n.mu.Lock()
		defer n.mu.Unlock()
		c.gone = true
		n.abandons = append(n.abandons, c)
		return nil, context.Cause(ctx)
	}
}

// ready are the calls that can be carried out, in an order that does not depend on how Go schedules.
func (w *world) ready() []*call {
	w.net.mu.Lock()
	defer w.net.mu.Unlock()
	slices.SortStableFunc(w.net.abandons, inOrder)
	for _, c := range w.net.abandons { // some never arrive, some do later; an agent ends with its caller
		i := slices.Index(w.net.waiting, c)
		if i < 0 {
			continue
		}
		w.net.waiting = slices.Delete(w.net.waiting, i, i+1)
		if !c.toSwitch && w.chance(50) {
			w.net.late = append(w.net.late, c)
		}
	}
	w.net.abandons = nil
	slices.SortStableFunc(w.net.waiting, inOrder)
	return slices.DeleteFunc(slices.Clone(w.net.waiting), func(c *call) bool { return time.Now().Before(c.by.stalled) })
}

// inOrder is an order of calls that does not depend on how Go schedules those who make them, or end.
func inOrder(a, b *call) int {
	return cmp.Or(cmp.Compare(a.by.name, b.by.name), cmp.Compare(a.label, b.label), cmp.Compare(a.what, b.what))
}

// serve ends one call, in a way that the seed chooses.
func (w *world) serve(c *call) {
	w.net.mu.Lock()
	i := slices.Index(w.net.waiting, c)
	if i < 0 {
		w.net.mu.Unlock()
		return
	}
	w.net.waiting = slices.Delete(w.net.waiting, i, i+1)
	w.net.mu.Unlock()
	fate := w.rng.IntN(100)
	switch {
	case w.outage() && !c.toSwitch:
		c.reply <- answered{err: errLost}
	case w.calm || fate >= w.losses:
		v, err := c.do()
		c.reply <- answered{v, err}
	case fate%4 == 0:
		w.say("%s: %s: lost", c.by.name, c.what)
		c.reply <- answered{err: errLost}
	case fate%4 == 1 && !c.toSwitch:
		w.say("%s: %s: slow, timed out", c.by.name, c.what)
		w.net.late = append(w.net.late, c)
		c.reply <- answered{err: errLost}
	case fate%4 == 2:
		v, err := c.do()
		w.say("%s: %s: done, the answer is in flight", c.by.name, c.what)
		w.net.replies = append(w.net.replies, func() { c.reply <- answered{v, err} })
	default:
		w.say("%s: %s: done, answer lost", c.by.name, c.what)
		_, _ = c.do()
		c.reply <- answered{err: errLost}
	}
}

// deliver lets what is in flight arrive.
func (w *world) deliver() {
	for len(w.net.replies) > 0 && (w.calm || w.chance(60)) {
		i := w.rng.IntN(len(w.net.replies))
		w.net.replies[i]()
		w.net.replies = slices.Delete(w.net.replies, i, i+1)
		w.settle()
	}
	for len(w.net.late) > 0 && (w.calm || w.chance(10)) {
		i := w.rng.IntN(len(w.net.late))
		c := w.net.late[i]
		w.net.late = slices.Delete(w.net.late, i, i+1)
		if _, err := c.do(); !w.outage() {
			w.say("late, from %s: %s: %v", c.by.name, c.what, err)
		}
	}
}

// simKinds are those that the processes watch; BelayRemediations where NodeHealthCheck is installed.
var simKinds = []string{"Node", "Lease", "NodeFence", "FenceSource", "VolumeAttachment", "Pod", "CSIDriver"}

func (w *world) watched() []string {
	if w.nhc == nil {
		return simKinds
	}
	return append(slices.Clone(simKinds), "BelayRemediation")
}

func kindOf(object any) string { return reflect.TypeOf(object).Elem().Name() }

func newList(kind string) client.ObjectList {
	return map[string]func() client.ObjectList{
		"Node": func() client.ObjectList { return &corev1.NodeList{} }, "Lease": func() client.ObjectList { return &coordinationv1.LeaseList{} },
		"NodeFence":        func() client.ObjectList { return &fencingv1.NodeFenceList{} },
		"FenceSource":      func() client.ObjectList { return &fencingv1.FenceSourceList{} },
		"VolumeAttachment": func() client.ObjectList { return &storagev1.VolumeAttachmentList{} },
		"Pod":              func() client.ObjectList { return &corev1.PodList{} },
		"CSIDriver":        func() client.ObjectList { return &storagev1.CSIDriverList{} },
		"BelayRemediation": func() client.ObjectList { return &fencingv1.BelayRemediationList{} },
	}[kind]()
}

// simScheme has only the kinds of the simulation: the fake client makes a RESTMapper of the whole scheme for each write.
var simScheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for gv, kinds := range map[schema.GroupVersion][]runtime.Object{
		corev1.SchemeGroupVersion:         {&corev1.Node{}, &corev1.NodeList{}, &corev1.Pod{}, &corev1.PodList{}},
		coordinationv1.SchemeGroupVersion: {&coordinationv1.Lease{}, &coordinationv1.LeaseList{}},
		storagev1.SchemeGroupVersion:      {&storagev1.VolumeAttachment{}, &storagev1.VolumeAttachmentList{}, &storagev1.CSIDriver{}, &storagev1.CSIDriverList{}},
		admissionv1.SchemeGroupVersion:    {&admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}},
		fencingv1.GroupVersion: {
			&fencingv1.NodeFence{}, &fencingv1.NodeFenceList{}, &fencingv1.FenceSource{}, &fencingv1.FenceSourceList{},
			&fencingv1.BelayRemediation{}, &fencingv1.BelayRemediationList{},
		},
	} {
		s.AddKnownTypes(gv, kinds...)
		metav1.AddToGroupVersion(s, gv)
	}
	return s
}()

func newAPI(objects ...client.Object) client.Client {
	return fake.NewClientBuilder().WithScheme(simScheme).WithObjects(objects...).WithObjects(statementGuard()...).
		WithStatusSubresource(&fencingv1.NodeFence{}, &fencingv1.FenceSource{}, &fencingv1.BelayRemediation{}, &corev1.Node{}).
		WithReturnManagedFields().Build() // how old a statement is
}

// stored are the objects of a kind, by namespace and name. They are shared, and never changed.
func (w *world) stored(kind string) []client.Object {
	if at, known := w.listed[kind]; known && at.version == w.versions[kind] {
		return slices.Clone(at.objects)
	}
	objects := w.list(kind)
	w.listed[kind] = listing{w.versions[kind], objects}
	return slices.Clone(objects)
}

// listing is what a kind was like at a version.
type listing struct {
	version int
	objects []client.Object
}

func (w *world) list(kind string) []client.Object {
	if kind == "Lease" {
		var leases []client.Object
		for _, l := range w.leases {
			leases = append(leases, l)
		}
		slices.SortFunc(leases, func(a, b client.Object) int { return cmp.Compare(a.GetName(), b.GetName()) })
		return leases
	}
	list := newList(kind)
	must2(w.t, w.api.List(context.Background(), list))
	items, err := meta.ExtractList(list)
	must2(w.t, err)
	var objects []client.Object
	for _, i := range items {
		objects = append(objects, i.(client.Object))
	}
	return objects
}

func storedAs[T client.Object](w *world, kind string) (all []T) {
	for _, o := range w.stored(kind) {
		all = append(all, o.(T))
	}
	return all
}

// storedCopy is a copy of the object that has a name and no namespace, nil if there is none.
func storedCopy[T client.Object](w *world, kind, name string) (none T) {
	for _, o := range storedAs[T](w, kind) {
		if o.GetName() == name {
			return o.DeepCopyObject().(T)
		}
	}
	return none
}

// simClient is the client of one process: it reads from caches that lag, and writes over the network.
type simClient struct {
	client.Client // what recovery does not use is not there

	p *process
}

func into(to, from runtime.Object) {
	reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from.DeepCopyObject()).Elem())
}

func (c simClient) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	for _, o := range c.p.cache[kindOf(object)] {
		if o.GetName() == key.Name {
			into(object, o)
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: kindOf(object)}, key.Name)
}

func (c simClient) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	kind := kindOf(list)
	return fill(list, c.p.cache[kind[:len(kind)-len("List")]], options)
}

// fill puts the objects that the options select into a list.
func fill(list client.ObjectList, objects []client.Object, options []client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(options)
	var found []runtime.Object
	for _, object := range objects {
		if o.FieldSelector != nil {
			node, _ := o.FieldSelector.RequiresExactMatch("spec.nodeName")
			switch x := object.(type) {
			case *corev1.Pod:
				if x.Spec.NodeName != node {
					continue
				}
			case *storagev1.VolumeAttachment:
				if x.Spec.NodeName != node {
					continue
				}
			case *fencingv1.NodeFence:
				if x.Spec.NodeName != node {
					continue
				}
			}
		}
		found = append(found, object.DeepCopyObject())
	}
	return meta.SetList(list, found)
}

func (c simClient) Create(ctx context.Context, object client.Object, _ ...client.CreateOption) error {
	sent := object.DeepCopyObject().(client.Object)
	made, err := c.p.send(ctx, "CREATE "+kindOf(object)+" "+object.GetName(), false, func() (any, error) {
		return c.p.world.create(c.p, sent)
	})
	if err == nil {
		into(object, made.(client.Object))
	}
	return err
}

func (c simClient) Update(ctx context.Context, object client.Object, _ ...client.UpdateOption) error {
	sent := object.DeepCopyObject().(client.Object)
	_, err := c.p.send(ctx, "UPDATE "+kindOf(object)+" "+object.GetName(), false, func() (any, error) {
		if err := c.p.world.api.Update(context.Background(), sent); err != nil {
			return nil, err
		}
		c.p.world.changed(kindOf(sent))
		return nil, nil
	})
	return err
}

func (c simClient) Delete(ctx context.Context, object client.Object, options ...client.DeleteOption) error {
	o := (&client.DeleteOptions{}).ApplyOptions(options)
	about := c.p.about(ctx)
	_, err := c.p.send(ctx, "DELETE "+kindOf(object)+" "+object.GetName(), false, func() (any, error) {
		return nil, c.p.world.remove(c.p, about, object, o)
	})
	return err
}

func (c simClient) Patch(ctx context.Context, object client.Object, patch client.Patch, _ ...client.PatchOption) error {
	return c.patch(ctx, object, patch, false)
}

func (c simClient) Status() client.SubResourceWriter { return simStatus{c: c} }

type simStatus struct {
	client.SubResourceWriter

	c simClient
}

func (s simStatus) Patch(ctx context.Context, object client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.c.patch(ctx, object, patch, true)
}

func (c simClient) patch(ctx context.Context, object client.Object, patch client.Patch, status bool) error {
	body, err := patch.Data(object)
	if err != nil {
		return err
	}
	what := "PATCH " + kindOf(object) + " " + object.GetName()
	if status {
		what += " status"
	}
	c.p.sends(ctx, object, status)
	key, kind := client.ObjectKeyFromObject(object), object.DeepCopyObject().(client.Object)
	made, err := c.p.send(ctx, what, false, func() (any, error) {
		return c.p.world.patch(c.p, key, kind, client.RawPatch(patch.Type(), body), status)
	})
	if err == nil {
		into(object, made.(client.Object))
	}
	return err
}

// liveReader reads from the API server.
type liveReader struct{ p *process }

func (c liveReader) Get(ctx context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	kind := kindOf(object)
	sought := object.DeepCopyObject().(client.Object)
	found, err := c.p.send(ctx, "GET "+kind+" "+key.Name, false, func() (any, error) {
		if kind != "Lease" || key.Namespace != corev1.NamespaceNodeLease {
			return sought, c.p.world.api.Get(context.Background(), key, sought)
		}
		if l := c.p.world.leases[key.Name]; l != nil {
			return l.DeepCopy(), nil
		}
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: kind}, key.Name)
	})
	if err == nil {
		into(object, found.(client.Object))
	}
	return err
}

func (c liveReader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	kind := kindOf(list)
	kind = kind[:len(kind)-len("List")]
	found, err := c.p.send(ctx, "LIST "+kind, false, func() (any, error) {
		if kind == "Lease" { // the listener asks only whether it is answered
			return []client.Object(nil), nil
		}
		return c.p.world.stored(kind), nil
	})
	if err != nil {
		return err
	}
	return fill(list, found.([]client.Object), options)
}

func (w *world) create(by *process, object client.Object) (client.Object, error) {
	w.uids++
	object.SetUID(types.UID(fmt.Sprint("uid-", w.uids)))
	object.SetCreationTimestamp(nowSeconds())
	if err := w.api.Create(context.Background(), object); err != nil {
		return nil, err
	}
	w.changed(kindOf(object))
	if by != nil {
		w.say("%s creates %s %s", by.name, kindOf(object), object.GetName())
		w.judgeCreate(object)
	}
	return object, nil
}

func (w *world) remove(by *process, about target, object client.Object, o *client.DeleteOptions) error {
	ctx := context.Background()
	current := object.DeepCopyObject().(client.Object)
	if err := w.api.Get(ctx, client.ObjectKeyFromObject(object), current); err != nil {
		return err
	}
	if p := o.Preconditions; p != nil && (p.UID != nil && *p.UID != current.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != current.GetResourceVersion()) {
		return apierrors.NewConflict(schema.GroupResource{Resource: kindOf(object)}, object.GetName(), errors.New("the precondition does not hold"))
	}
	if by != nil {
		w.say("%s deletes %s %s", by.name, kindOf(object), object.GetName())
		w.judgeDelete(by, about, current)
	}
	w.changed(kindOf(object))
	return w.api.Delete(ctx, current)
}

func (w *world) patch(by *process, key client.ObjectKey, object client.Object, patch client.Patch, status bool) (client.Object, error) {
	ctx := context.Background()
	before, after := object.DeepCopyObject().(client.Object), object
	if err := w.api.Get(ctx, key, before); err != nil {
		return nil, err
	}
	after.SetNamespace(key.Namespace)
	after.SetName(key.Name)
	var err error
	if status {
		err = w.api.Status().Patch(ctx, after, patch)
	} else {
		err = w.api.Patch(ctx, after, patch)
	}
	if err != nil {
		return nil, err
	}
	w.changed(kindOf(object))
	w.judgePatch(by, before, after)
	return after, nil
}
