package inspect

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kube"
)

// pageSize is the number of objects in a page. 20,000 VolumeAttachments are ten pages of about 2 MB.
const pageSize = 2000

// Reader reads one cluster.
type Reader struct {
	clients kubernetes.Interface
	clock   *kube.ServerClock
	// Progress, if not nil, is called with what is being read; it must be safe for concurrent use.
	Progress func(what string, objects int)
}

// New returns a reader. It copies the configuration, asks for protobuf, and leaves it to the API server to limit requests.
func New(config *rest.Config) (*Reader, error) {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.QPS = -1
	clock := &kube.ServerClock{}
	clients, err := kubernetes.NewForConfig(clock.Follow(config))
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return &Reader{clients: clients, clock: clock}, nil
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
}

func (r *Reader) start() *run {
	return &run{Reader: r, read: map[diagnosis.Ref]bool{}, podsKept: map[types.UID]bool{}}
}

// finish returns what was read.
func (r *run) finish() *diagnosis.Snapshot {
	r.into.Now = r.clock.Now()
	return &r.into
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
	r.add(func(s *diagnosis.Snapshot) { store(s, object) })
	return object
}

// list reads objects in pages, and reports whether all were read. What is kept of an object is what keep returns, nil for nothing.
func list[L runtime.Object, T any](ctx context.Context, r *run, ref diagnosis.Ref, options metav1.ListOptions,
	read func(context.Context, metav1.ListOptions) (L, error), store func(*diagnosis.Snapshot, *T),
) bool {
	n := 0
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		page, err := read(ctx, o)
		return page, err
	})
	pages.PageSize = pageSize
	err := pages.EachListItem(ctx, options, func(o runtime.Object) error {
		object, ok := any(o).(*T)
		if !ok {
			return fmt.Errorf("the list of %s has an object of type %T", ref.Resource, o)
		}
		r.add(func(s *diagnosis.Snapshot) { store(s, object) })
		if n++; n%pageSize == 0 {
			r.progress(string(ref.Resource), n)
		}
		return nil
	})
	if err != nil {
		r.failed(ref, "list", err)
		return false
	}
	r.progress(string(ref.Resource), n)
	return true
}

// listAll reads all objects of a resource, and records it if it has.
func listAll[L runtime.Object, T any](ctx context.Context, r *run, resource diagnosis.Resource,
	read func(context.Context, metav1.ListOptions) (L, error), store func(*diagnosis.Snapshot, *T),
) {
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

// keepPod drops what a diagnosis does not need, which is most of a pod. With history it keeps all conditions.
func keepPod(pod *corev1.Pod, history bool) *corev1.Pod {
	kept := &corev1.Pod{ObjectMeta: keepMeta(pod.ObjectMeta)}
	if hash, ok := pod.Labels["pod-template-hash"]; ok {
		kept.Labels = map[string]string{"pod-template-hash": hash}
	}
	kept.Spec.NodeName, kept.Spec.Tolerations = pod.Spec.NodeName, pod.Spec.Tolerations
	kept.Spec.Volumes = kube.StripPod(pod).Spec.Volumes
	kept.Status.Phase, kept.Status.Reason = pod.Status.Phase, pod.Status.Reason
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled || history {
			kept.Status.Conditions = append(kept.Status.Conditions, c)
		}
	}
	kept.Status.InitContainerStatuses, kept.Status.ContainerStatuses = keepStatuses(pod.Status.InitContainerStatuses), keepStatuses(pod.Status.ContainerStatuses)
	return kept
}

func keepStatuses(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	kept := make([]corev1.ContainerStatus, 0, len(statuses))
	for _, s := range statuses {
		kept = append(kept, corev1.ContainerStatus{Name: s.Name, State: s.State, LastTerminationState: s.LastTerminationState, RestartCount: s.RestartCount})
	}
	return kept
}

func keepMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	m.ManagedFields, m.Labels, m.Annotations, m.GenerateName = nil, nil, nil, ""
	return m
}
