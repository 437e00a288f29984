package hollow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/utils/clock"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/informer"
)

// Options say how hollow nodes behave. Only Drivers must be set.
type Options struct {
	// Drivers are the CSI drivers that each node has; its id at each is its name. A pod
	// with a volume of another driver waits for an attach that never comes.
	Drivers []string
	// MaxPods each node takes; default 110, kubelet's.
	MaxPods int64
	// Heartbeat is how often each node renews its Lease; 0, the default, is never, for
	// labs in which no controller looks (kube-controller-manager's node lifecycle does:
	// 10 s is kubelet's pace). The Lease lasts four times as long.
	Heartbeat time.Duration
}

func (o Options) withDefaults() (Options, error) {
	if len(o.Drivers) == 0 {
		return o, errors.New("hollow nodes need at least one driver")
	}
	if o.MaxPods == 0 {
		o.MaxPods = 110
	}
	return o, nil
}

// retryPause is the pause after a write that failed.
const retryPause = 100 * time.Millisecond

// Fleet is a number of hollow nodes. Its methods may be called from any goroutine.
type Fleet struct {
	*Record
	options Options
	client  kubernetes.Interface
	factory informers.SharedInformerFactory
	objects objects
	nodes   map[string]*node
	running sync.WaitGroup
}

// Start registers the nodes, or takes over those that are there, and plays their
// kubelets until ctx ends; Wait then waits for the last goroutine. It returns when
// all are registered and every pod that is bound to one of them is known.
func Start(ctx context.Context, config *rest.Config, names []string, o Options) (*Fleet, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	config = kube.WithProtobuf(config)
	config.QPS = -1
	config.UserAgent = "hollow-nodes"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the client of the hollow nodes: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(withoutManagedFields))
	f := &Fleet{
		Record: newRecord(), options: o, client: client, factory: factory,
		objects: objects{factory: factory}, nodes: map[string]*node{},
	}
	for _, name := range names {
		f.nodes[name] = newNode(f, name)
	}
	if err := f.register(ctx); err != nil {
		return nil, err
	}
	if err := f.follow(ctx); err != nil {
		return nil, err
	}
	for _, n := range f.nodes {
		f.running.Go(func() { n.run(ctx) })
		if o.Heartbeat > 0 {
			f.running.Go(func() { f.heartbeat(ctx, n) })
		}
	}
	return f, nil
}

// Wait returns when all that Start began has ended, after its context has.
func (f *Fleet) Wait() {
	f.running.Wait()
	f.factory.Shutdown()
}

func withoutManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

func (f *Fleet) register(ctx context.Context) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for _, n := range f.nodes {
		group.Go(func() error { return n.register(groupCtx) })
	}
	return group.Wait()
}

// follow hands each change of the cluster to the node that it concerns.
func (f *Fleet) follow(ctx context.Context) error {
	core := f.factory.Core().V1()
	pods, podsErr := informer.OnChange(core.Pods().Informer(), f.podChanged)
	nodes, nodesErr := informer.OnChange(core.Nodes().Informer(), f.nodeChanged)
	claims, claimsErr := informer.OnChange(core.PersistentVolumeClaims().Informer(), func(_, _ *corev1.PersistentVolumeClaim) { f.wakeWaiting() })
	volumes, volumesErr := informer.OnChange(core.PersistentVolumes().Informer(), func(_, _ *corev1.PersistentVolume) { f.wakeWaiting() })
	if err := errors.Join(podsErr, nodesErr, claimsErr, volumesErr); err != nil {
		return fmt.Errorf("watch for the hollow nodes: %w", err)
	}
	f.factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced, nodes.HasSynced, claims.HasSynced, volumes.HasSynced) {
		return fmt.Errorf("wait for the first lists of the hollow nodes: %w", context.Cause(ctx))
	}
	return nil
}

func (f *Fleet) podChanged(before, after *corev1.Pod) {
	pod := cmp.Or(after, before)
	if n := f.nodes[pod.Spec.NodeName]; n != nil {
		n.setPod(pod, after == nil)
	}
}

func (f *Fleet) nodeChanged(before, after *corev1.Node) {
	n := f.nodes[cmp.Or(after, before).Name]
	switch {
	case n == nil:
	case after == nil:
		n.lost(before)
	default:
		n.saw(after)
	}
}

// wakeWaiting wakes the nodes with pods whose claims or volumes were not there.
func (f *Fleet) wakeWaiting() {
	for _, n := range f.nodes {
		if n.waiting.Load() {
			n.kick()
		}
	}
}

// heartbeat renews the node's Lease.
func (f *Fleet) heartbeat(ctx context.Context, n *node) {
	seconds := int32(max(4*f.options.Heartbeat/time.Second, 1))
	lease.NewController(clock.RealClock{}, f.client, n.name, seconds, nil, f.options.Heartbeat, n.name,
		corev1.NamespaceNodeLease, nil).Run(ctx)
}

// machineID is the same for each node of that name, as a machine's is over reboots.
func machineID(name string) string { return uuid.NewSHA1(uuid.NameSpaceDNS, []byte(name)).String() }
