package nodeagent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodevolume"
)

// newInformer watches the objects of one kind that the selector takes. Its first list is
// one at quorum, also from an API server that does not stream it: one from a cache that
// lags may lack a pod, whose volumes would be taken down, or have an older CSIDriver.
func newInformer(client rest.Interface, resource string, selector fields.Selector, example runtime.Object) cache.SharedIndexInformer {
	source := cache.NewListWatchFromClient(client, resource, metav1.NamespaceAll, selector)
	list := source.ListWithContextFunc
	source.ListWithContextFunc = func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		if options.ResourceVersion == "0" { // from any cache, however old
			options.ResourceVersion = ""
		}
		return list(ctx, options)
	}
	informer := cache.NewSharedIndexInformer(source, example, 0, cache.Indexers{})
	_ = informer.SetTransform(func(object any) (any, error) {
		if meta, ok := object.(metav1.Object); ok {
			meta.SetManagedFields(nil)
		}
		return object, nil
	})
	return informer
}

// watchNode passes every version of this node's Node on.
func (a *Agent) watchNode(ctx context.Context) {
	informer := newInformer(a.client.CoreV1().RESTClient(), "nodes",
		fields.OneTermEqualSelector(metav1.ObjectNameField, a.config.NodeName), &corev1.Node{})
	see := func(object any) {
		if node, ok := object.(*corev1.Node); ok {
			a.seeNode(node)
		}
	}
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: see,
		UpdateFunc: func(old, object any) {
			was, is := old.(*corev1.Node), object.(*corev1.Node)
			if nodevolume.Older(is.ResourceVersion, was.ResourceVersion) {
				a.doubtNode() // as after etcd was restored from a backup
			}
			see(object)
		},
		DeleteFunc: func(any) { a.doubtNode() },
	})
	informer.RunWithContext(ctx)
}

// doubtNode has the Node read live: what is known of it may not hold any more.
func (a *Agent) doubtNode() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inUse.Doubt()
	a.wakeInUse()
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

// seeNode takes in a version of the Node from the watch.
func (a *Agent) seeNode(node *corev1.Node) {
	a.plugins.seeNode(node)
	a.owner.nodeSeen(node.UID)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !maps.Equal(a.nodeLabels, node.Labels) {
		a.wakeMisplaced()
	}
	a.nodeLabels = node.Labels
	if !a.inUse.Started() {
		a.wakeInUse() // the first version is read live
		return
	}
	a.learned(a.inUse.Observe(statusOf(node)))
	a.wakeInUse()
}

// wakeMisplaced wakes the volumes that some pod waits for and that may be used by some nodes
// only: by its labels this one may have become one of them. The caller holds mu.
func (a *Agent) wakeMisplaced() {
	for name, v := range a.volumes {
		if slices.ContainsFunc(v.pods, func(p *publication) bool {
			return p.want != nil && p.want.affinity != nil && p.Phase != nodevolume.Confirmed
		}) {
			a.wake(name)
		}
	}
}

// learned wakes the volumes about which something new is known. The caller holds mu.
func (a *Agent) learned(names []string) {
	for _, name := range names {
		a.wake(name)
	}
}

func (a *Agent) wakeInUse() {
	select {
	case a.inUseChanged <- struct{}{}:
	default:
	}
}

// keepInUse is the only writer of node.status.volumesInUse. It clocks itself: the
// first wish is written at once, and those that come while a write is under
// way go together into the next.
func (a *Agent) keepInUse(ctx context.Context) {
	failures := 0
	for {
		var retry <-chan time.Time
		if failures > 0 {
			retry = time.After(apiBackOff(failures))
		}
		select {
		case <-ctx.Done():
			return
		case <-a.inUseChanged:
		case <-retry:
		}
		err := a.settleInUse(ctx)
		if ctx.Err() != nil {
			return
		}
		a.hinders(err, nodevolume.NodeUnknown, nodevolume.NotReportedInUse, nodevolume.InUseNotCleared)
		if err != nil {
			failures++
			a.log.Info("volumesInUse not settled", "failures", failures, "problem", err.Error())
			continue
		}
		failures = 0
	}
}

// apiBackOff is how long to wait after a failed call to the API server: 20 ms,
// doubled up to 5 s, stretched by up to a fifth.
func apiBackOff(failures int) time.Duration {
	wait := 5 * time.Second
	if failures < 9 {
		wait = min(wait, 20*time.Millisecond<<(failures-1))
	}
	return wait + time.Duration(rand.Int64N(int64(wait)/5)) //nolint:gosec // spreads retries
}

// settleInUse reads and writes until the Node says what is wanted. A write that another
// writer of the Node was faster than is made anew once; then there is a back-off.
func (a *Agent) settleInUse(ctx context.Context) error {
	again := true
	for ctx.Err() == nil {
		a.mu.Lock()
		read := a.inUse.NeedsRead()
		write, due := a.inUse.Next()
		a.mu.Unlock()
		switch {
		case read:
			if gone, err := a.readNode(ctx); err != nil || gone {
				return err // a Node that is not there is waited for with the watch
			}
		case !due:
			return nil
		default:
			err := a.writeInUse(ctx, write)
			overtaken := apierrors.IsConflict(err) || apierrors.IsNotFound(err)
			if err != nil && (!overtaken || !again) {
				return err
			}
			again = !overtaken
		}
	}
	return ctx.Err()
}

// readNode reads the Node live.
func (a *Agent) readNode(ctx context.Context) (gone bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	a.mu.Lock()
	since := a.inUse.Version()
	a.mu.Unlock()
	node, err := a.client.CoreV1().Nodes().Get(ctx, a.config.NodeName, metav1.GetOptions{})
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case apierrors.IsNotFound(err):
		a.learned(a.inUse.Lost())
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read node %s: %w", a.config.NodeName, err)
	case a.inUse.TurnedBack(since, statusOf(node)):
		a.log.Info("The Node has gone back to an earlier version; all about it is learned anew",
			"known", since, "read", node.ResourceVersion)
	case a.inUse.Started():
		a.learned(a.inUse.ObserveLive(statusOf(node)))
		return false, nil
	}
	a.nodeLabels = node.Labels
	a.inUse.Start(statusOf(node), a.handshakeOf)
	for _, name := range node.Status.VolumesInUse {
		// From here on it is known by name, and spoken of.
		if driver, handle, ok := kube.ParseUniqueVolumeName(string(name)); ok && a.isUnaccounted(string(name)) {
			a.volumeNamed(string(name), driver, handle)
		}
	}
	a.learned(slices.Collect(maps.Keys(a.volumes)))
	return false, nil
}

// handshakeOf says whether a name that the Node lists at start-up has a record here that was made under the handshake.
// One that was mounted without, while its CSIDriver asked for no attachment, is listed anew if it has to be: an agent
// that died may have been taking it out, and that write may still land. Of what cannot be read nobody knows which it
// was. The caller holds mu.
func (a *Agent) handshakeOf(name string) nodevolume.Knowledge {
	v := a.volumes[name]
	doubtful := a.isUnaccounted(name)
	if v == nil {
		v = &volume{}
	}
	return v.life.Handshake(doubtful || v.life.Stage.Phase == nodevolume.Absent && a.mountedByOther(name))
}

// writeInUse sends one PATCH. The Node in its response is what is believed after.
func (a *Agent) writeInUse(ctx context.Context, write nodevolume.Write) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": write.UID, "resourceVersion": write.ResourceVersion},
		"status":   map[string]any{"volumesInUse": write.InUse},
	})
	if err != nil {
		return fmt.Errorf("encode volumesInUse of node %s: %w", a.config.NodeName, err)
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	node, err := a.client.CoreV1().Nodes().Patch(ctx, a.config.NodeName, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.inUse.NotApplied() // the next thing that is done is a live read
		return fmt.Errorf("write volumesInUse of node %s: %w", a.config.NodeName, err)
	}
	a.learned(a.inUse.Applied(statusOf(node)))
	a.log.Info("volumesInUse written", "volumes", len(write.InUse), "resourceVersion", node.ResourceVersion)
	return nil
}
