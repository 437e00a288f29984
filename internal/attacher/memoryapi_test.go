package attacher

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// memoryAPI is an API server in memory, for attachers in fake time (testing/synctest): the
// client's requests end in its RoundTrip.
type memoryAPI struct {
	mu      sync.Mutex
	version int                         // one count for all kinds, as etcd
	delay   time.Duration               // of each patch
	refuse  func(r *http.Request) error // may be nil
	kinds   map[string]*memoryKind      // by resource
	limited []time.Time                 // when each request was sent, but for those of informers
}

// memoryKind is what is stored of one kind.
type memoryKind struct {
	objects map[string]client.Object // by name; none is ever changed
	watches []*memoryWatch
	history []memoryEvent
	shown   int // events of the history that watches see
	// stale, if set, is the answer to lists that need not be new.
	stale []byte
}

type memoryEvent struct {
	version int
	line    []byte
}

const resourceAttachments = "volumeattachments"

func newMemoryAPI() *memoryAPI {
	m := &memoryAPI{version: 100, kinds: map[string]*memoryKind{}}
	for _, resource := range []string{resourceAttachments, "persistentvolumes", "csinodes", "nodes", "leases", "secrets"} {
		m.kinds[resource] = &memoryKind{objects: map[string]client.Object{}}
	}
	return m
}

// memoryClient is a client of a memoryAPI.
type memoryClient struct{ *kubernetes.Clientset }

// IsWatchListSemanticsUnSupported makes informers list before they watch.
func (memoryClient) IsWatchListSemanticsUnSupported() bool { return true }

func (m *memoryAPI) client() (kubernetes.Interface, error) { return clientThrough(m) }

// clientThrough is a client whose requests go through a transport that leads to a memoryAPI.
func clientThrough(transport http.RoundTripper) (kubernetes.Interface, error) {
	clients, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "http://memory", QPS: -1}, &http.Client{Transport: transport})
	return memoryClient{clients}, err
}

// get returns the stored object, which is never changed.
func (m *memoryAPI) get(resource, name string) (client.Object, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.kinds[resource].objects[name]
	return o, ok
}

// put creates an object or replaces it; its watches see it.
func (m *memoryAPI) put(resource string, o client.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.store(m.kinds[resource], o)
}

// remove removes an object that no informer watches.
func (m *memoryAPI) remove(resource, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.kinds[resource].objects, name)
}

// store keeps an object, unless it is to be deleted and nothing holds it.
func (m *memoryAPI) store(kind *memoryKind, o client.Object) {
	m.version++
	old, known := kind.objects[o.GetName()]
	if known {
		o.SetUID(old.GetUID())
		o.SetCreationTimestamp(old.GetCreationTimestamp())
	} else {
		o.SetUID(types.UID("uid-" + o.GetName() + "-" + strconv.Itoa(m.version)))
		o.SetCreationTimestamp(metav1.Now())
	}
	kinds, _, _ := scheme.Scheme.ObjectKinds(o)
	o.GetObjectKind().SetGroupVersionKind(kinds[0])
	o.SetResourceVersion(strconv.Itoa(m.version))
	kind.objects[o.GetName()] = o
	what := watch.Added
	switch {
	case o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0:
		what = watch.Deleted
		delete(kind.objects, o.GetName())
	case known:
		what = watch.Modified
	}
	line, _ := json.Marshal(object{"type": what, "object": o})
	if kind.history = append(kind.history, memoryEvent{m.version, line}); kind.stale == nil {
		kind.show()
	}
}

// show has the watches see one more event.
func (k *memoryKind) show() {
	for _, w := range k.watches {
		w.lines <- k.history[k.shown].line
	}
	k.shown++
}

// hold freezes watches of VolumeAttachments, and lists that may be stale, at the present state until proceed.
func (m *memoryAPI) hold() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kinds[resourceAttachments].stale = m.list(m.kinds[resourceAttachments], 0)
}

// proceed delivers one event after another: each is processed before the next.
func (m *memoryAPI) proceed() {
	for more := true; more; synctest.Wait() {
		m.mu.Lock()
		kind := m.kinds[resourceAttachments]
		if more = kind.shown < len(kind.history); more {
			kind.show()
		} else {
			kind.stale = nil
		}
		m.mu.Unlock()
	}
}

// sent tells when each request was sent that is limited: not those of the informers.
func (m *memoryAPI) sent(since time.Time) (times []time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, at := range m.limited {
		if !at.Before(since) {
			times = append(times, at)
		}
	}
	return times
}

// RoundTrip is http.RoundTripper.
func (m *memoryAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	m.mu.Lock()
	delay := m.delay
	m.mu.Unlock()
	if r.Method == http.MethodPatch {
		time.Sleep(delay)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	query := r.URL.Query()
	if query.Get("watch") == "" && query.Get("resourceVersion") != "0" {
		m.limited = append(m.limited, time.Now())
	}
	if m.refuse != nil {
		if err := m.refuse(r); err != nil {
			return nil, err
		}
	}
	parts := strings.Split(strings.TrimSuffix(r.URL.Path, "/status"), "/")
	name := ""
	if m.kinds[parts[len(parts)-1]] == nil {
		name, parts = parts[len(parts)-1], parts[:len(parts)-1]
	}
	resource := parts[len(parts)-1]
	kind := m.kinds[resource]
	if kind == nil {
		return nil, errors.New("nothing serves " + r.URL.Path)
	}
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: r}
	if query.Get("watch") != "" {
		answer.Body = kind.watch(query.Get("resourceVersion"))
		return answer, nil
	}
	body, err := m.answer(r, resource, name)
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		said := status.Status()
		said.Kind, said.APIVersion = "Status", "v1"
		answer.StatusCode = int(said.Code)
		body, err = json.Marshal(said)
	}
	answer.Body = io.NopCloser(bytes.NewReader(body))
	return answer, err
}

func (m *memoryAPI) answer(r *http.Request, resource, name string) ([]byte, error) {
	kind, group := m.kinds[resource], schema.GroupResource{Resource: resource}
	if r.Method == http.MethodPost {
		return m.write(kind, r)
	}
	if name == "" {
		if kind.stale != nil && r.URL.Query().Get("resourceVersion") == "0" {
			return kind.stale, nil
		}
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		return m.list(kind, limit), nil
	}
	stored, ok := kind.objects[name]
	switch {
	case !ok:
		return nil, apierrors.NewNotFound(group, name)
	case r.Method == http.MethodGet:
		return json.Marshal(stored)
	case r.Method == http.MethodPut:
		return m.write(kind, r)
	}
	patched, err := patch(stored, r)
	if err != nil {
		return nil, err
	}
	if patched.GetUID() != stored.GetUID() || patched.GetResourceVersion() != stored.GetResourceVersion() {
		return nil, apierrors.NewConflict(group, name, errors.New("it is another version"))
	}
	m.store(kind, patched)
	return json.Marshal(patched)
}

// write stores the object of a request as it is: one process at a time writes it.
func (m *memoryAPI) write(kind *memoryKind, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	o, ok := decoded.(client.Object)
	if !ok {
		return nil, fmt.Errorf("%T cannot be stored", decoded)
	}
	m.store(kind, o)
	return json.Marshal(o)
}

func (m *memoryAPI) list(kind *memoryKind, limit int) []byte {
	items := []client.Object{}
	for _, name := range slices.Sorted(maps.Keys(kind.objects)) {
		if items = append(items, kind.objects[name]); len(items) == limit {
			break
		}
	}
	body, _ := json.Marshal(object{"metadata": object{"resourceVersion": strconv.Itoa(m.version)}, "items": items})
	return body
}

func patch(stored client.Object, r *http.Request) (client.Object, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	before, err := json.Marshal(stored)
	if err != nil {
		return nil, err
	}
	patched := reflect.New(reflect.TypeOf(stored).Elem()).Interface().(client.Object)
	if r.Header.Get("Content-Type") == string(types.StrategicMergePatchType) {
		if before, err = strategicpatch.StrategicMergePatch(before, body, patched); err != nil {
			return nil, err
		}
		return patched, json.Unmarshal(before, patched)
	}
	var document, changes object
	if err := cmp.Or(json.Unmarshal(before, &document), json.Unmarshal(body, &changes)); err != nil {
		return nil, err
	}
	if before, err = json.Marshal(applyMerge(document, changes)); err != nil {
		return nil, err
	}
	return patched, json.Unmarshal(before, patched)
}

// applyMerge applies a JSON merge patch (RFC 7396).
func applyMerge(document, patch object) object {
	if document == nil {
		document = object{}
	}
	for name, value := range patch {
		switch value := value.(type) {
		case nil:
			delete(document, name)
		case object:
			of, _ := document[name].(object)
			document[name] = applyMerge(of, value)
		default:
			document[name] = value
		}
	}
	return document
}

// memoryWatch is the body of the answer to a watch.
type memoryWatch struct {
	lines chan []byte
	rest  []byte
	done  chan struct{}
	close func()
}

// watch begins a watch with what came after a version.
func (k *memoryKind) watch(from string) *memoryWatch {
	w := &memoryWatch{lines: make(chan []byte, 1<<16), done: make(chan struct{})}
	w.close = sync.OnceFunc(func() { close(w.done) })
	version, _ := strconv.Atoi(from)
	for _, event := range k.history[:k.shown] {
		if event.version > version {
			w.lines <- event.line
		}
	}
	k.watches = append(k.watches, w)
	return w
}

func (w *memoryWatch) Read(p []byte) (int, error) {
	if len(w.rest) == 0 {
		select {
		case w.rest = <-w.lines:
		case <-w.done:
			return 0, io.EOF
		}
	}
	n := copy(p, w.rest)
	w.rest = w.rest[n:]
	return n, nil
}

func (w *memoryWatch) Close() error { w.close(); return nil }
