// Package nodestatus writes node.status.volumesInUse, and caches what the Node says of its volumes. It knows neither pods nor drivers.
package nodestatus

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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodeagent/worker"
	"belay.dev/belay/internal/nodevolume"
)

// Status is what one Node says of its volumes. All methods may be called at any time, also with the lock of a caller held.
type Status struct {
	config Config
	on     Handlers
	// due wakes the writer of volumesInUse.
	due worker.Signal

	mu sync.Mutex
	// Under mu:
	inUse nodevolume.InUseList
	// early is the last version that the watch delivered before the first live read.
	early *nodevolume.NodeStatus
	// labels are the labels of the latest version of the Node.
	labels map[string]string
}

// Config is what a Status needs.
type Config struct {
	NodeName string
	// VolumesRoot is the value of kube.VolumesRootAnnotation; empty for none.
	VolumesRoot string
	Client      kubernetes.Interface
	Log         logr.Logger
}

// Handlers are called on changes of the Node, without a lock.
type Handlers struct {
	// Observed is called with every version of the Node that the watch delivers.
	Observed func(*corev1.Node)
	// VolumesChanged is called with the volumes whose entries in the Node's status have changed.
	VolumesChanged func(volumes []string)
	// Relabelled is called when the labels of the Node have changed.
	Relabelled func()
	// Handshakes returns which of the volumes listed in use at start-up were mounted under the handshake.
	Handshakes func(volumes []string) map[string]nodevolume.Knowledge
	// Started is called after the first read of the Node, with the volumes that it lists in use.
	Started func(volumes []string)
	// Blocked is called with the error that prevents reading or writing volumesInUse; nil after a success.
	Blocked func(error)
}

// New returns a Status that knows nothing before Run.
func New(config Config, on Handlers) *Status {
	return &Status{config: config, on: on, due: worker.NewSignal()}
}

// Run watches the Node and writes volumesInUse until ctx ends.
func (s *Status) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { s.watch(ctx) })
	running.Go(func() { s.write(ctx) })
	running.Wait()
}

// View returns the state of a volume in the Node's status.
func (s *Status) View(volume string) nodevolume.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inUse.View(volume)
}

// Started reports whether the Node has been read.
func (s *Status) Started() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inUse.Started()
}

// Labels returns the labels of the Node, and whether it has been read.
func (s *Status) Labels() (labels map[string]string, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.labels, s.inUse.Started()
}

// Decide runs a decision and adds its change of volumesInUse to the next write. It holds the lock throughout, so that no write can follow
// an outdated decision.
func (s *Status) Decide(volume string, decide func(nodevolume.Node) nodevolume.Decision) nodevolume.Decision {
	s.mu.Lock()
	defer s.mu.Unlock()
	decision := decide(s.inUse.View(volume))
	if decision.InUse != nodevolume.Unknown && s.inUse.Want(volume, decision.InUse == nodevolume.Yes) {
		s.due.Wake()
	}
	if decision.Forget {
		s.inUse.Forget(volume)
	}
	return decision
}

// watch delivers every version of the Node to observe.
func (s *Status) watch(ctx context.Context) {
	informer := worker.NewInformer(s.config.Client.CoreV1().RESTClient(), "nodes",
		fields.OneTermEqualSelector(metav1.ObjectNameField, s.config.NodeName), &corev1.Node{})
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
func (s *Status) requireRead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inUse.RequireRead()
	s.due.Wake()
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
func (s *Status) observe(node *corev1.Node) {
	s.on.Observed(node)
	s.mu.Lock()
	relabelled := !maps.Equal(s.labels, node.Labels)
	s.labels = node.Labels
	var changed []string
	if status := statusOf(node); s.inUse.Started() {
		changed = s.inUse.Observe(status)
	} else { // the first live read may return an older version
		s.early = &status
	}
	s.due.Wake()
	s.mu.Unlock()
	if relabelled {
		s.on.Relabelled()
	}
	s.on.VolumesChanged(changed)
}

// write is the only writer of node.status.volumesInUse. It writes the first change at once, and batches those that come during a write.
func (s *Status) write(ctx context.Context) {
	s.due.Serve(ctx, func(failures int) error {
		err := s.writeDue(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.on.Blocked(err)
		if err != nil {
			s.config.Log.Error(err, "Failed to update status.volumesInUse, retrying", "failures", failures+1)
		}
		return err
	})
}

// writeDue reads and writes until the Node is up to date. After a conflict it retries once; then the caller backs off.
func (s *Status) writeDue(ctx context.Context) error {
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
func (s *Status) read(ctx context.Context) (gone bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, worker.APITimeout)
	defer cancel()
	s.mu.Lock()
	since := s.inUse.Version()
	s.mu.Unlock()
	node, err := s.config.Client.CoreV1().Nodes().Get(ctx, s.config.NodeName, metav1.GetOptions{})
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
		return false, fmt.Errorf("read node %s: %w", s.config.NodeName, err)
	}
	status := statusOf(node)
	s.mu.Lock()
	start := !s.inUse.Started()
	if s.inUse.HistoryReset(since, status) {
		s.config.Log.Info("Node has an older version than before, reading it again",
			"knownResourceVersion", since, "resourceVersion", node.ResourceVersion)
		start = true
	}
	s.mu.Unlock()
	if !start {
		s.update(func() []string { return s.inUse.ObserveLive(status) })
		return false, nil
	}
	recorded := s.on.Handshakes(status.InUse)
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
	s.on.Started(status.InUse)
	return false, nil
}

// update changes the cached state and wakes the affected volumes.
func (s *Status) update(change func() (changed []string)) {
	s.mu.Lock()
	changed := change()
	s.mu.Unlock()
	s.on.VolumesChanged(changed)
}

// patch sends one PATCH and caches the Node in its response.
func (s *Status) patch(ctx context.Context, write nodevolume.Write) error {
	metadata := map[string]any{"uid": write.UID, "resourceVersion": write.ResourceVersion}
	if s.config.VolumesRoot != "" {
		// plugins writes it too, but at any time: a Node that lists a volume must also say where that is recorded (recordOwner.checkRoot).
		metadata["annotations"] = map[string]any{kube.VolumesRootAnnotation: s.config.VolumesRoot}
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata, "status": map[string]any{"volumesInUse": write.InUse}})
	if err != nil {
		return fmt.Errorf("encode volumesInUse of node %s: %w", s.config.NodeName, err)
	}
	ctx, cancel := context.WithTimeout(ctx, worker.APITimeout)
	defer cancel()
	node, err := s.config.Client.CoreV1().Nodes().Patch(ctx, s.config.NodeName, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.inUse.NotApplied() // a live read comes next
		return fmt.Errorf("write volumesInUse of node %s: %w", s.config.NodeName, err)
	}
	s.update(func() []string { return s.inUse.Applied(statusOf(node)) })
	s.config.Log.Info("Updated status.volumesInUse", "volumes", len(write.InUse), "resourceVersion", node.ResourceVersion)
	return nil
}
