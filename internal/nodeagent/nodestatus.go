package nodeagent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodevolume"
)

// nodeStatus writes node.status.volumesInUse and caches the Node. It calls its handlers without its lock.
type nodeStatus struct {
	node string
	// volumesRoot is the value of kube.VolumesRootAnnotation; empty for none.
	volumesRoot string
	client      kubernetes.Interface
	log         logr.Logger
	on          nodeHandlers
	// due wakes the writer of volumesInUse.
	due signal

	mu sync.Mutex
	// Under mu:
	inUse nodevolume.InUseList
	// early is the last version that the watch delivered before the first live read.
	early *nodevolume.NodeStatus
	// labels are the labels of the latest version of the Node.
	labels map[string]string
}

// nodeHandlers are called on changes of the Node.
type nodeHandlers struct {
	// observed is called with every version of the Node that the watch delivers.
	observed func(*corev1.Node)
	// volumesChanged is called with the volumes whose entries in the Node's status have changed.
	volumesChanged func(volumes []string)
	// relabelled is called when the labels of the Node have changed.
	relabelled func()
	// handshakes returns which of the volumes listed in use at start-up were mounted under the handshake.
	handshakes func(volumes []string) map[string]nodevolume.Knowledge
	// started is called after the first read of the Node, with the volumes that it lists in use.
	started func(volumes []string)
	// blocked is called with the error that prevents reading or writing volumesInUse; nil after a success.
	blocked func(error)
}

func newNodeStatus(node string, client kubernetes.Interface, log logr.Logger, on nodeHandlers) *nodeStatus {
	return &nodeStatus{node: node, client: client, log: log, on: on, due: newSignal()}
}

// view returns the state of a volume in the Node's status.
func (s *nodeStatus) view(volume string) nodevolume.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inUse.View(volume)
}

// started reports whether the Node has been read.
func (s *nodeStatus) started() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inUse.Started()
}

// nodeLabels returns the labels of the Node, and whether it has been read.
func (s *nodeStatus) nodeLabels() (labels map[string]string, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.labels, s.inUse.Started()
}

// decide runs a decision and adds its change of volumesInUse to the next write. It holds the lock throughout, so that no write can follow
// an outdated decision.
func (s *nodeStatus) decide(volume string, decide func(nodevolume.Node) nodevolume.Decision) nodevolume.Decision {
	s.mu.Lock()
	defer s.mu.Unlock()
	decision := decide(s.inUse.View(volume))
	if decision.InUse != nodevolume.Unknown && s.inUse.Want(volume, decision.InUse == nodevolume.Yes) {
		s.due.wake()
	}
	if decision.Forget {
		s.inUse.Forget(volume)
	}
	return decision
}

// newInformer creates an informer for the selected objects of one resource. Its first list is consistent (a quorum read), also from an
// API server without watch-list: a stale list may lack a pod, whose volumes would be unmounted.
func newInformer(client rest.Interface, resource string, selector fields.Selector, example runtime.Object) cache.SharedIndexInformer {
	source := cache.NewListWatchFromClient(client, resource, metav1.NamespaceAll, selector)
	list := source.ListWithContextFunc
	source.ListWithContextFunc = func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		if options.ResourceVersion == "0" { // any version in the watch cache
			options.ResourceVersion = ""
		}
		return list(ctx, options)
	}
	informer := cache.NewSharedIndexInformer(source, example, 0, cache.Indexers{})
	_ = informer.SetTransform(func(object any) (any, error) {
		if meta, ok := object.(metav1.Object); ok {
			meta.SetManagedFields(nil)
		}
		if pod, ok := object.(*corev1.Pod); ok { // decoded just now
			kube.CutPod(pod)
		}
		return object, nil
	})
	return informer
}

// watch delivers every version of the Node to observe.
func (s *nodeStatus) watch(ctx context.Context) {
	informer := newInformer(s.client.CoreV1().RESTClient(), "nodes",
		fields.OneTermEqualSelector(metav1.ObjectNameField, s.node), &corev1.Node{})
	see := func(object any) {
		if node, ok := object.(*corev1.Node); ok {
			s.observe(node)
		}
	}
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: see,
		UpdateFunc: func(old, object any) {
			was, is := old.(*corev1.Node), object.(*corev1.Node)
			if nodevolume.Older(is.ResourceVersion, was.ResourceVersion) {
				s.requireRead() // such as after a restore of etcd
			}
			see(object)
		},
		DeleteFunc: func(any) { s.requireRead() },
	})
	informer.RunWithContext(ctx)
}

// requireRead schedules a live read of the Node, as the cached version may be wrong.
func (s *nodeStatus) requireRead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inUse.RequireRead()
	s.due.wake()
}

func statusOf(node *corev1.Node) nodevolume.NodeStatus {
	status := nodevolume.NodeStatus{UID: string(node.UID), ResourceVersion: node.ResourceVersion}
	for _, name := range node.Status.VolumesInUse {
		status.InUse = append(status.InUse, string(name))
	}
	for _, attached := range node.Status.VolumesAttached {
		status.Attached = append(status.Attached, string(attached.Name))
	}
	return status
}

// observe handles a version of the Node from the watch.
func (s *nodeStatus) observe(node *corev1.Node) {
	s.on.observed(node)
	s.mu.Lock()
	relabelled := !maps.Equal(s.labels, node.Labels)
	s.labels = node.Labels
	var changed []string
	if status := statusOf(node); s.inUse.Started() {
		changed = s.inUse.Observe(status)
	} else { // the first live read may return an older version
		s.early = &status
	}
	s.due.wake()
	s.mu.Unlock()
	if relabelled {
		s.on.relabelled()
	}
	s.on.volumesChanged(changed)
}

// write is the only writer of node.status.volumesInUse. It writes the first change at once, and batches those that come during a write.
func (s *nodeStatus) write(ctx context.Context) {
	s.due.serve(ctx, func(failures int) error {
		err := s.writeDue(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.on.blocked(err)
		if err != nil {
			s.log.Error(err, "Failed to update status.volumesInUse, retrying", "failures", failures+1)
		}
		return err
	})
}

// writeDue reads and writes until the Node is up to date. After a conflict it retries once; then the caller backs off.
func (s *nodeStatus) writeDue(ctx context.Context) error {
	again := true
	for ctx.Err() == nil {
		s.mu.Lock()
		read := s.inUse.NeedsRead()
		write, due := s.inUse.Next()
		s.mu.Unlock()
		switch {
		case read:
			if gone, err := s.read(ctx); err != nil || gone {
				return err // the watch reports when the Node is back
			}
		case !due:
			return nil
		default:
			err := s.patch(ctx, write)
			overtaken := apierrors.IsConflict(err) || apierrors.IsNotFound(err)
			if err != nil && (!overtaken || !again) {
				return err
			}
			again = !overtaken
		}
	}
	return ctx.Err()
}

// read reads the Node live.
func (s *nodeStatus) read(ctx context.Context) (gone bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	s.mu.Lock()
	since := s.inUse.Version()
	s.mu.Unlock()
	node, err := s.client.CoreV1().Nodes().Get(ctx, s.node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		s.update(func() []string {
			if s.inUse.Version() != since {
				return nil // meanwhile the watch has delivered a recreated Node
			}
			return s.inUse.NodeDeleted()
		})
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read node %s: %w", s.node, err)
	}
	status := statusOf(node)
	s.mu.Lock()
	start := !s.inUse.Started()
	if s.inUse.HistoryReset(since, status) {
		s.log.Info("Node has an older version than before, reading it again",
			"knownResourceVersion", since, "resourceVersion", node.ResourceVersion)
		start = true
	}
	s.mu.Unlock()
	if !start {
		s.update(func() []string { return s.inUse.ObserveLive(status) })
		return false, nil
	}
	recorded := s.on.handshakes(status.InUse)
	s.update(func() []string {
		if s.early == nil || nodevolume.Older(s.early.ResourceVersion, node.ResourceVersion) {
			s.labels = node.Labels
		}
		s.inUse.Start(status, func(volume string) nodevolume.Knowledge { return recorded[volume] })
		if s.early != nil {
			s.inUse.Observe(*s.early)
			s.early = nil
		}
		return nil
	})
	s.on.started(status.InUse)
	return false, nil
}

// update changes the cached state and wakes the affected volumes.
func (s *nodeStatus) update(change func() (changed []string)) {
	s.mu.Lock()
	changed := change()
	s.mu.Unlock()
	s.on.volumesChanged(changed)
}

// patch sends one PATCH and caches the Node in its response.
func (s *nodeStatus) patch(ctx context.Context, write nodevolume.Write) error {
	metadata := map[string]any{"uid": write.UID, "resourceVersion": write.ResourceVersion}
	if s.volumesRoot != "" {
		// identity writes it too, but at any time: a Node that lists a volume must also say where that is recorded (recordOwner.checkRoot).
		metadata["annotations"] = map[string]any{kube.VolumesRootAnnotation: s.volumesRoot}
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata, "status": map[string]any{"volumesInUse": write.InUse}})
	if err != nil {
		return fmt.Errorf("encode volumesInUse of node %s: %w", s.node, err)
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	node, err := s.client.CoreV1().Nodes().Patch(ctx, s.node, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.inUse.NotApplied() // a live read comes next
		return fmt.Errorf("write volumesInUse of node %s: %w", s.node, err)
	}
	s.update(func() []string { return s.inUse.Applied(statusOf(node)) })
	s.log.Info("Updated status.volumesInUse", "volumes", len(write.InUse), "resourceVersion", node.ResourceVersion)
	return nil
}
