package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/informer"
)

// floorWrites is how many writes the floor has in flight at most.
const floorWrites = 64

// floor makes the API writes of attach and detach at the first moment at which they can be
// made: it is woken by watches, decides in a map, writes, and checks nothing. It is no controller:
// it would lose data in a cluster. It is what a controller's latency is to be measured against.
type floor struct {
	objects
	inFlight chan struct{} // limits the writes
	fail     context.CancelCauseFunc

	mu      sync.Mutex
	volumes map[string]*floorVolume // a shared volume is one for each node
	nodes   map[string]*floorNode
}

// floorVolume is one volume: who wants it, and where it is.
type floorVolume struct {
	name     string
	pods     map[string]int // how many pods want it, by node
	node     string         // of its attachment, also of one that is being made; empty if there is none
	attached bool
	leaving  bool // withdrawal or delete are under way, until the attachment is gone
}

// floorNode is one node with its self-clocking writer: what comes while a write is in flight
// goes into the next.
type floorNode struct {
	reported map[string]bool
	inUse    []string
	dirty    bool
	writing  bool
	after    []func() // to do after the next write
}

// runFloor works with a credential until ctx ends or a write fails.
func runFloor(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("reading kubeconfig %s: %w", kubeconfig, err)
	}
	config = kube.WithProtobuf(config)
	config.QPS, config.UserAgent = -1, "belay-bench-floor"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	return floorWith(ctx, client)
}

func floorWith(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f := &floor{
		objects: objects{client: client}, inFlight: make(chan struct{}, floorWrites), fail: cancel,
		volumes: map[string]*floorVolume{}, nodes: map[string]*floorNode{},
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	_, nodes := informer.OnChange(factory.Core().V1().Nodes().Informer(), func(_, after *corev1.Node) { f.nodeChanged(ctx, after) })
	_, pods := informer.OnChange(factory.Core().V1().Pods().Informer(), func(before, after *corev1.Pod) { f.podChanged(ctx, before, after) })
	_, attachments := informer.OnChange(factory.Storage().V1().VolumeAttachments().Informer(), func(before, after *storagev1.VolumeAttachment) {
		f.attachmentChanged(ctx, before, after)
	})
	if err := errors.Join(nodes, pods, attachments); err != nil {
		return fmt.Errorf("watching the API server: %w", err)
	}
	factory.StartWithContext(ctx)
	<-ctx.Done()
	factory.Shutdown()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// volume is the state of a volume. Of a shared one each node has its own.
func (f *floor) volume(name, node string) *floorVolume {
	id := name
	if isShared(name) {
		id += " on " + node
	}
	if f.volumes[id] == nil {
		f.volumes[id] = &floorVolume{name: name, pods: map[string]int{}}
	}
	return f.volumes[id]
}

func (f *floor) node(name string) *floorNode {
	if f.nodes[name] == nil {
		f.nodes[name] = &floorNode{reported: map[string]bool{}}
	}
	return f.nodes[name]
}

func (f *floor) podChanged(ctx context.Context, before, after *corev1.Pod) {
	is, pod := after != nil, after
	if !is {
		pod = before
	}
	if pod.Spec.NodeName == "" || is && before != nil && before.Spec.NodeName != "" {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		volume := f.volume(v.PersistentVolumeClaim.ClaimName, pod.Spec.NodeName) // the claim has its volume's name
		if is {
			volume.pods[pod.Spec.NodeName]++
		} else if volume.pods[pod.Spec.NodeName]--; volume.pods[pod.Spec.NodeName] <= 0 {
			delete(volume.pods, pod.Spec.NodeName)
		}
		f.step(ctx, volume)
	}
}

func (f *floor) attachmentChanged(ctx context.Context, before, after *storagev1.VolumeAttachment) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if after == nil {
		v := f.volume(sourceOf(before), before.Spec.NodeName)
		v.node, v.attached, v.leaving = "", false, false
		f.step(ctx, v)
		return
	}
	v := f.volume(sourceOf(after), after.Spec.NodeName)
	v.node, v.attached = after.Spec.NodeName, after.Status.Attached
	v.leaving = v.leaving || after.DeletionTimestamp != nil
	f.step(ctx, v)
}

func (f *floor) nodeChanged(ctx context.Context, after *corev1.Node) {
	if after == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	node := f.node(after.Name)
	node.inUse = inUse(after)
	for name := range node.reported {
		f.step(ctx, f.volume(name, after.Name))
	}
}

// step begins the next write for a volume, if one can be made. It needs the lock.
func (f *floor) step(ctx context.Context, v *floorVolume) {
	name := v.name
	switch {
	case v.leaving:
	case v.node == "" && len(v.pods) > 0:
		for node := range v.pods {
			v.node = node
			break
		}
		node := v.node
		f.write(ctx, func() error { return f.makeAttachment(ctx, name, driverName, node) })
	case v.node == "":
	case v.pods[v.node] > 0:
		if node := f.node(v.node); v.attached && !node.reported[name] {
			node.reported[name] = true
			f.report(ctx, v.node, nil)
		}
	case v.attached && !slices.Contains(f.node(v.node).inUse, name):
		v.leaving = true
		node := v.node
		delete(f.node(node).reported, name)
		f.report(ctx, node, func() { f.write(ctx, func() error { return f.deleteAttachment(ctx, name, driverName, node) }) })
	}
}

// write makes a write in the background.
func (f *floor) write(ctx context.Context, do func() error) {
	go func() {
		f.inFlight <- struct{}{}
		defer func() { <-f.inFlight }()
		if err := do(); err != nil && ctx.Err() == nil {
			f.fail(err)
		}
	}()
}

// report sees to it that the node's list is written, and then does after. It needs the lock.
func (f *floor) report(ctx context.Context, name string, after func()) {
	node := f.node(name)
	node.dirty = true
	if after != nil {
		node.after = append(node.after, after)
	}
	if node.writing {
		return
	}
	node.writing = true
	f.write(ctx, func() error { return f.writeNode(ctx, name) })
}

// writeNode writes the node's list until there is no change left.
func (f *floor) writeNode(ctx context.Context, name string) error {
	for {
		f.mu.Lock()
		node := f.node(name)
		if !node.dirty {
			node.writing = false
			f.mu.Unlock()
			return nil
		}
		list, after := slices.Sorted(maps.Keys(node.reported)), node.after
		node.dirty, node.after = false, nil
		f.mu.Unlock()
		attached := make([]corev1.AttachedVolume, len(list))
		for i, volume := range list {
			attached[i].Name = corev1.UniqueVolumeName(unique(volume))
		}
		if err := setList(ctx, f.client, name, "volumesAttached", attached); err != nil {
			return err
		}
		for _, do := range after {
			do()
		}
	}
}
