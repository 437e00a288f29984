package inspect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kube"
)

// Reader reads one cluster.
type Reader struct {
	clients kubernetes.Interface
	// fences serves NodeFences and FenceSources, where recovery is installed.
	fences rest.Interface
	clock  *kube.ServerClock
	// Progress, if not nil, is called with what is being read; it must be safe for concurrent use.
	Progress func(what string, objects int)
	// Sources is set to read all FenceSources too, with all objects of a cluster.
	Sources bool
}

// New returns a reader. It copies the configuration, asks for protobuf, and leaves it to the API server to limit requests.
func New(config *rest.Config) (*Reader, error) {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.QPS = -1
	clock := &kube.ServerClock{}
	config = clock.Follow(config)
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	fences, err := fenceClient(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for NodeFences: %w", err)
	}
	return &Reader{clients: clients, fences: fences, clock: clock}, nil
}

// run is one reading. Its methods may be called in parallel.
type run struct {
	*Reader

	// history is set to keep what only the past needs.
	history bool

	mu   sync.Mutex
	into diagnosis.Snapshot
	read map[diagnosis.Ref]bool // what was asked for already
	// podsKept holds the pods of the snapshot: a pod may be in several lists.
	podsKept map[types.UID]bool
	// pages limits how many pages are in memory.
	pages chan struct{}
}

func (r *Reader) start() *run {
	return &run{Reader: r, read: map[diagnosis.Ref]bool{}, podsKept: map[types.UID]bool{}, pages: make(chan struct{}, pagesAtOnce)}
}

// finish returns what was read.
func (r *run) finish() *diagnosis.Snapshot {
	into := r.into // a pointer into r would keep all of it in memory
	into.Now = r.clock.Now()
	slices.SortStableFunc(into.Unread, func(a, b diagnosis.Unread) int { return strings.Compare(a.Rule(), b.Rule()) })
	return &into
}

// once reports whether the object was not asked for before.
func (r *run) once(ref diagnosis.Ref) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.read[ref] {
		return false
	}
	r.read[ref] = true
	return true
}

// add stores objects.
func (r *run) add(store func(s *diagnosis.Snapshot)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	store(&r.into)
}

// failed stores that something could not be read, or does not exist. A namespaced object that does not exist is only known to be
// absent if reads of the namespace are allowed, which the answer itself shows.
func (r *run) failed(ref diagnosis.Ref, verb string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if verb == "get" && apierrors.IsNotFound(err) {
		r.into.Absent = append(r.into.Absent, ref)
		return
	}
	r.into.Unread = append(r.into.Unread, diagnosis.Unread{Ref: ref, Verb: verb, Forbidden: apierrors.IsForbidden(err), Message: message(err)})
}

// message is the error without what the reader of the output knows already.
func message(err error) string {
	if apierrors.IsForbidden(err) {
		return "forbidden"
	}
	return err.Error()
}

// get reads one object, and reports whether it exists.
func get[T any](ctx context.Context, r *run, ref diagnosis.Ref, read func(context.Context, string, metav1.GetOptions) (*T, error), store func(*diagnosis.Snapshot, *T)) *T {
	if ref.Name == "" || !r.once(ref) {
		return nil
	}
	object, err := read(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		r.failed(ref, "get", err)
		return nil
	}
	cut(object)
	r.add(func(s *diagnosis.Snapshot) { store(s, object) })
	return object
}

// listAll reads all objects of a resource, and records it if it has.
func listAll[T any](ctx context.Context, r *run, resource diagnosis.Resource, read pager[T], store func(*diagnosis.Snapshot, *T)) {
	if list(ctx, r, diagnosis.Ref{Resource: resource}, metav1.ListOptions{}, read, store) {
		r.whole(resource)
	}
}

func (r *run) progress(what string, n int) {
	if r.Progress != nil {
		r.Progress(what, n)
	}
}

// whole records that all objects of a resource were read.
func (r *run) whole(resource diagnosis.Resource) {
	r.add(func(s *diagnosis.Snapshot) { s.Whole = append(s.Whole, resource) })
}

// mayName records that objects of the namespace may be named in an output.
func (r *run) mayName(namespace string) {
	r.add(func(s *diagnosis.Snapshot) {
		if namespace == "" {
			s.AllNamespaces = true
		} else if !slices.Contains(s.Namespaces, namespace) {
			s.Namespaces = append(s.Namespaces, namespace)
		}
	})
}

// parallel calls the functions at the same time and waits for all.
func parallel(calls ...func()) {
	var group sync.WaitGroup
	for _, call := range calls {
		group.Go(call)
	}
	group.Wait()
}

// Timeout is how long one reading may take.
const Timeout = time.Minute
