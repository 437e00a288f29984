package hollow

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// node is one hollow kubelet. One goroutine does its work; mu guards what the
// informers hand to it.
type node struct {
	fleet   *Fleet
	name    string
	wake    chan struct{}
	waiting atomic.Bool // a pod's claim or volume was not there

	mu     sync.Mutex
	pods   map[types.UID]*corev1.Pod
	newest *corev1.Node

	// Of the goroutine alone.
	mounted  map[string]volume
	volumes  map[types.UID][]volume // of the pods whose claims were found bound
	reported map[string]bool        // volumes whose early withdrawal is on record
	running  map[types.UID]bool     // pods that were marked Running
	ended    map[types.UID]bool     // pods that were deleted at the API
}

func newNode(f *Fleet, name string) *node {
	return &node{
		fleet: f, name: name, wake: make(chan struct{}, 1), pods: map[types.UID]*corev1.Pod{},
		mounted: map[string]volume{}, volumes: map[types.UID][]volume{}, reported: map[string]bool{}, running: map[types.UID]bool{}, ended: map[types.UID]bool{},
	}
}

func (n *node) kick() {
	select {
	case n.wake <- struct{}{}:
	default: // it will look anyway
	}
}

func (n *node) setPod(pod *corev1.Pod, gone bool) {
	n.mu.Lock()
	if gone {
		delete(n.pods, pod.UID)
	} else {
		n.pods[pod.UID] = pod
	}
	n.mu.Unlock()
	n.kick()
}

// saw takes a version of the Node from the watch or from the answer to a write.
func (n *node) saw(fresh *corev1.Node) {
	n.mu.Lock()
	newer := n.newest == nil || n.newest.UID != fresh.UID
	if !newer {
		order, err := resourceversion.CompareResourceVersion(n.newest.ResourceVersion, fresh.ResourceVersion)
		newer = err == nil && order < 0
	}
	if newer {
		n.newest = fresh
	}
	n.mu.Unlock()
	if newer {
		n.kick()
	}
}

// lost takes notice that the Node was deleted: there is nothing to write to until one
// of its name is made.
func (n *node) lost(gone *corev1.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.newest != nil && n.newest.UID == gone.UID {
		n.newest = nil
	}
}

// state is what the goroutine works on in one turn.
type state struct {
	node *corev1.Node
	pods []*corev1.Pod
}

func (n *node) state() (state, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := state{node: n.newest, pods: slices.SortedFunc(maps.Values(n.pods), func(a, b *corev1.Pod) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})}
	return s, n.newest != nil
}

// run works until ctx ends.
func (n *node) run(ctx context.Context) {
	n.kick()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		}
		s, able := n.state()
		if !able {
			continue
		}
		if err := n.sync(ctx, s); err != nil && ctx.Err() == nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(retryPause):
				n.kick()
			}
		}
	}
}

// sync does what can be done now, in kubelet's order: list in use, mount, run; end,
// unmount, clear the list, let the pod go.
func (n *node) sync(ctx context.Context, s state) error {
	wanted := n.wanted(s.pods)
	for name := range n.mounted {
		if _, ok := wanted[name]; !ok {
			n.fleet.unmounted(n.name, name)
			delete(n.mounted, name)
		}
	}
	fresh, err := n.listInUse(ctx, s.node, wanted)
	if err != nil {
		return err
	}
	n.mount(fresh, wanted)
	for _, pod := range s.pods {
		if err := n.settle(ctx, pod); err != nil {
			return err
		}
	}
	n.forget(s.pods)
	return n.stayReady(ctx, fresh)
}

// wanted are the volumes of the pods that stay.
func (n *node) wanted(pods []*corev1.Pod) map[string]volume {
	// Set before the look: a claim that is bound in between wakes us again.
	n.waiting.Store(true)
	all, waiting := map[string]volume{}, false
	for _, pod := range pods {
		if isLeaving(pod) {
			continue
		}
		volumes, known := n.volumes[pod.UID]
		if !known {
			if volumes, known = n.fleet.objects.volumesOf(pod); !known {
				waiting = true
				continue
			}
			n.volumes[pod.UID] = volumes
		}
		for _, v := range volumes {
			all[v.name] = v
		}
	}
	n.waiting.Store(waiting)
	return all
}

func isLeaving(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// listInUse makes volumesInUse what is mounted or about to be, and returns the newest Node.
func (n *node) listInUse(ctx context.Context, newest *corev1.Node, wanted map[string]volume) (*corev1.Node, error) {
	list := slices.Sorted(maps.Keys(wanted))
	have := make([]string, 0, len(newest.Status.VolumesInUse))
	for _, name := range newest.Status.VolumesInUse {
		have = append(have, string(name))
	}
	slices.Sort(have)
	if slices.Equal(have, list) {
		return newest, nil
	}
	fresh, err := n.patch(ctx, newest, map[string]any{"volumesInUse": list})
	if err != nil {
		return nil, fmt.Errorf("list volumes in use: %w", err)
	}
	return fresh, nil
}

func (n *node) patch(ctx context.Context, of *corev1.Node, status map[string]any) (*corev1.Node, error) {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": of.UID}, "status": status})
	if err != nil {
		return nil, fmt.Errorf("encode status of node %s: %w", n.name, err)
	}
	fresh, err := n.fleet.client.CoreV1().Nodes().Patch(ctx, n.name, types.MergePatchType, body, metav1.PatchOptions{}, "status")
	if err != nil {
		return nil, fmt.Errorf("write status of node %s: %w", n.name, err)
	}
	n.saw(fresh)
	return fresh, nil
}

// mount mounts what one and the same version of the Node lists as in use and as
// attached: a controller that withdraws the report later must have seen that it is in use.
func (n *node) mount(fresh *corev1.Node, wanted map[string]volume) {
	attached := make(map[string]bool, len(fresh.Status.VolumesAttached))
	for _, v := range fresh.Status.VolumesAttached {
		attached[string(v.Name)] = true
	}
	for name, v := range wanted {
		_, mounted := n.mounted[name]
		switch {
		case attached[name] && !mounted:
			n.mounted[name] = v
			n.fleet.mounted(n.name, v)
		case !attached[name] && mounted && !n.reported[name]:
			n.reported[name] = true
			n.fleet.violation("the report of volume %s was withdrawn from %s while it was mounted and in use", name, n.name)
		case attached[name]:
			delete(n.reported, name)
		}
	}
}

// settle brings a pod's status to what it is, and deletes it once it has left.
func (n *node) settle(ctx context.Context, pod *corev1.Pod) error {
	switch {
	case pod.DeletionTimestamp != nil:
		if n.ended[pod.UID] {
			return nil
		}
		err := n.fleet.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("let pod %s/%s go: %w", pod.Namespace, pod.Name, err)
		}
		n.ended[pod.UID] = true
		return nil
	case isLeaving(pod) || n.running[pod.UID] || pod.Status.Phase == corev1.PodRunning:
		return nil
	}
	volumes, known := n.volumes[pod.UID]
	if !known {
		return nil
	}
	for _, v := range volumes {
		if _, ok := n.mounted[v.name]; !ok {
			return nil
		}
	}
	if err := n.markRunning(ctx, pod); err != nil {
		return err
	}
	n.running[pod.UID] = true
	return nil
}

// forget drops what was kept of pods that are gone.
func (n *node) forget(pods []*corev1.Pod) {
	there := make(map[types.UID]bool, len(pods))
	for _, pod := range pods {
		there[pod.UID] = true
	}
	maps.DeleteFunc(n.volumes, func(uid types.UID, _ []volume) bool { return !there[uid] })
	for _, kept := range []map[types.UID]bool{n.running, n.ended} {
		maps.DeleteFunc(kept, func(uid types.UID, _ bool) bool { return !there[uid] })
	}
}
