package simulation

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kind is a kind of object, by its name in the API.
type kind string

const (
	pods        kind = "Pod"
	nodes       kind = "Node"
	claims      kind = "PersistentVolumeClaim"
	volumes     kind = "PersistentVolume"
	attachments kind = "VolumeAttachment"
	drivers     kind = "CSIDriver"
	csiNodes    kind = "CSINode"
)

var allKinds = []kind{pods, nodes, claims, volumes, attachments, drivers, csiNodes}

func kindOf(obj any) kind { return kind(reflect.TypeOf(obj).Elem().Name()) }

func keyOf(obj client.Object) string {
	if obj.GetNamespace() != "" {
		return obj.GetNamespace() + "/" + obj.GetName()
	}
	return obj.GetName()
}

// event is one change of one object. The object is never changed afterwards.
type event struct {
	version int
	object  client.Object
	deleted bool
}

// server is the API server: all kinds count their versions together, as etcd does.
type server struct {
	// mu is for the attacher, whose lists and watches read beside the scheduler, which
	// alone writes.
	mu      sync.Mutex
	version int
	uids    int
	objects map[kind]map[string]client.Object
	history map[kind][]event
	// judge is asked about each write before it takes effect; after is nil for a delete
	// that ends the object.
	judge func(w write)
	// changed is called after each write.
	changed func(e event)
}

// write is one change that a client requested.
type write struct {
	by            *actor // nil: a model
	request       *request
	before, after client.Object
}

// firstVersion is that of an API server that has been up for a while: 0 means something
// else to clients.
const firstVersion = 1000

func newServer() *server {
	s := &server{version: firstVersion, objects: map[kind]map[string]client.Object{}, history: map[kind][]event{}, judge: func(write) {}, changed: func(event) {}}
	for _, k := range allKinds {
		s.objects[k] = map[string]client.Object{}
	}
	return s
}

// get returns the stored object; it is shared.
func get[T client.Object](s *server, key string) (T, bool) {
	var none T
	obj, ok := s.objects[kindOf(none)][key].(T)
	return obj, ok
}

// list returns all stored objects of a kind in the order of their names.
func list[T client.Object](s *server) []T {
	var none T
	of := s.objects[kindOf(none)]
	found := make([]T, 0, len(of))
	for _, key := range slices.Sorted(maps.Keys(of)) {
		found = append(found, of[key].(T))
	}
	return found
}

// at is what the kind was like at a version.
func (s *server) at(k kind, version int) map[string]client.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	then := map[string]client.Object{}
	for _, e := range s.history[k] {
		if e.version > version {
			break
		}
		if e.deleted {
			delete(then, keyOf(e.object))
		} else {
			then[keyOf(e.object)] = e.object
		}
	}
	return then
}

// now is the newest version.
func (s *server) now() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

func (s *server) put(obj client.Object) { s.changed(s.store(obj, false)) }

func (s *server) drop(obj client.Object) {
	s.changed(s.store(obj.DeepCopyObject().(client.Object), true))
}

func (s *server) store(obj client.Object, deleted bool) event {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	obj.SetResourceVersion(strconv.Itoa(s.version))
	k := kindOf(obj)
	e := event{version: s.version, object: obj, deleted: deleted}
	if s.history[k] = append(s.history[k], e); deleted {
		delete(s.objects[k], keyOf(obj))
	} else {
		s.objects[k][keyOf(obj)] = obj
	}
	return e
}

// change lets a model change an object.
func change[T client.Object](s *server, obj T, with func(T)) T {
	changed := obj.DeepCopyObject().(T)
	with(changed)
	s.put(changed)
	return changed
}

func resource(k kind) schema.GroupResource { return schema.GroupResource{Resource: string(k)} }

// create makes an object, for whom it may concern.
func (s *server) create(by *actor, r *request, obj client.Object) (client.Object, error) {
	k := kindOf(obj)
	if _, ok := s.objects[k][keyOf(obj)]; ok {
		return nil, apierrors.NewAlreadyExists(resource(k), obj.GetName())
	}
	made := obj.DeepCopyObject().(client.Object)
	s.uids++
	made.SetUID(types.UID(fmt.Sprint("uid-", s.uids)))
	made.SetCreationTimestamp(metav1.Time{Time: time.Now().Truncate(time.Second)})
	s.judge(write{by: by, request: r, after: made})
	s.put(made)
	return made, nil
}

// remove deletes an object, or marks it where finalizers keep it.
func (s *server) remove(by *actor, r *request, k kind, key string, p *metav1.Preconditions) error {
	obj, ok := s.objects[k][key]
	if !ok {
		return apierrors.NewNotFound(resource(k), key)
	}
	if p != nil && (p.UID != nil && *p.UID != obj.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != obj.GetResourceVersion()) {
		return apierrors.NewConflict(resource(k), key, fmt.Errorf("the precondition does not hold"))
	}
	if obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) > 0 {
		return nil
	}
	marked := obj.DeepCopyObject().(client.Object)
	marked.SetDeletionTimestamp(&metav1.Time{Time: time.Now().Truncate(time.Second)})
	s.judge(write{by: by, request: r, before: obj, after: marked})
	if len(obj.GetFinalizers()) > 0 {
		s.put(marked)
	} else {
		s.drop(obj)
	}
	return nil
}

// patch applies a patch. One that changes nothing makes no version.
func (s *server) patch(by *actor, r *request, k kind, key string, form types.PatchType, body []byte) (client.Object, error) {
	obj, ok := s.objects[k][key]
	if !ok {
		return nil, apierrors.NewNotFound(resource(k), key)
	}
	patched, err := apply(obj, form, body)
	if err != nil {
		return nil, err
	}
	switch {
	case patched.GetUID() != obj.GetUID(): // the field is immutable
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: string(k)}, key, nil)
	case patched.GetResourceVersion() != obj.GetResourceVersion():
		return nil, apierrors.NewConflict(resource(k), key, fmt.Errorf("the object has been modified"))
	case obj.GetDeletionTimestamp() != nil && len(patched.GetFinalizers()) > len(obj.GetFinalizers()):
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: string(k)}, key, nil)
	}
	s.judge(write{by: by, request: r, before: obj, after: patched})
	if reflect.DeepEqual(obj, patched) {
		return obj, nil
	}
	if patched.GetDeletionTimestamp() != nil && len(patched.GetFinalizers()) == 0 {
		s.drop(patched)
		return patched, nil
	}
	s.put(patched)
	return patched, nil
}

func apply(obj client.Object, form types.PatchType, body []byte) (client.Object, error) {
	before, err := json.Marshal(obj)
	if err != nil {
		return nil, err
	}
	var after []byte
	switch form {
	case types.MergePatchType:
		var document, patch map[string]any
		if err := cmp.Or(json.Unmarshal(before, &document), json.Unmarshal(body, &patch)); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		after, err = json.Marshal(merge(document, patch))
	case types.StrategicMergePatchType:
		after, err = strategicpatch.StrategicMergePatch(before, body, obj)
	default:
		err = apierrors.NewBadRequest("the simulation knows no patch of this form: " + string(form))
	}
	if err != nil {
		return nil, err
	}
	patched := empty(kindOf(obj))
	if err := json.Unmarshal(after, patched); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return patched, nil
}

// merge is RFC 7386.
func merge(document, patch map[string]any) map[string]any {
	if document == nil {
		document = map[string]any{}
	}
	for name, value := range patch {
		switch v := value.(type) {
		case nil:
			delete(document, name)
		case map[string]any:
			inner, _ := document[name].(map[string]any)
			document[name] = merge(inner, v)
		default:
			document[name] = v
		}
	}
	return document
}

func empty(k kind) client.Object {
	switch k {
	case pods:
		return &corev1.Pod{}
	case nodes:
		return &corev1.Node{}
	case claims:
		return &corev1.PersistentVolumeClaim{}
	case volumes:
		return &corev1.PersistentVolume{}
	case attachments:
		return &storagev1.VolumeAttachment{}
	case drivers:
		return &storagev1.CSIDriver{}
	case csiNodes:
		return &storagev1.CSINode{}
	}
	panic("no such kind: " + k)
}
