package simulation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	storagev1client "k8s.io/client-go/kubernetes/typed/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attacher"
)

// attacherProcess is one process of belay-attacher.
type attacherProcess struct {
	*actor

	sim    *sim
	driver *driver
	real   *attacher.Attacher
	// overlooked is what it has not been woken for, and since when that is so.
	overlooked map[string]time.Time
	cancel     context.CancelFunc
	ended      sync.WaitGroup

	mu       sync.Mutex
	watchers map[kind]*watcher
	stale    map[kind]int // the version that a first list shows
}

func (s *sim) startAttacher(d *driver) {
	s.started++
	p := &attacherProcess{
		sim: s, driver: d, actor: s.newActor(fmt.Sprint("attacher-", s.started)),
		watchers: map[kind]*watcher{}, stale: map[kind]int{},
	}
	for _, k := range allKinds {
		p.stale[k] = s.api.version
		if !s.calm && s.chance(50) {
			p.stale[k] = max(0, s.api.version-s.rng.IntN(12))
		}
	}
	controller, err := realController()
	if err != nil {
		panic(err) // the driver of the simulation answers
	}
	real, err := attacher.New(attacher.Config{
		Client: clientset{p: p}, Driver: d.name, Controller: controller,
		Timeout: 15 * time.Second, RetryStart: time.Second, RetryMax: 5 * time.Minute,
		WorkerThreads: 10, DefaultFSType: "ext4", DrainTimeout: time.Second, ReconcileSync: time.Minute,
		EarlyOKFor: d.okTooEarly, AnnotateCalls: true,
	})
	if err != nil {
		panic(err) // the configuration is complete
	}
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), processKey{}, p))
	warm, cold := context.WithCancel(context.Background())
	p.cancel = func() { cancel(); cold() }
	p.real = real
	real.Warm(warm)
	synctest.Wait() // the first lists are there: Run looks for them at once, or in 100 ms
	p.ended.Go(func() { _ = real.Run(ctx) })
	s.say("%s starts, for %s", p.name, d.name)
	d.attacher = p
}

// kill crashes the attacher. A driver works on one call per volume at a time, so what
// the dead process sent lands before its successor's first call.
func (s *sim) kill(p *attacherProcess) {
	s.storage.mu.Lock()
	s.crash(p.actor)
	for _, c := range append(s.storage.arrived, s.storage.running...) {
		if c.by == p && !c.gone.Load() {
			c.gone.Store(true)
			c.gaveUp = time.Now()
			c.reply <- context.Canceled
		}
	}
	s.storage.arrived = slices.DeleteFunc(s.storage.arrived, func(c *call) bool { return c.by == p })
	s.storage.mu.Unlock()
	p.cancel()
	s.dead = append(s.dead, p.ended.Wait)
	s.say("%s is killed", p.name)
}

// catchUp moves some of the watches on, or all of them. Between two events everybody
// does what he does about the first.
func (p *attacherProcess) catchUp(fully bool) (did bool) {
	p.mu.Lock()
	watchers := maps.Clone(p.watchers)
	p.mu.Unlock()
	for _, k := range allKinds {
		w := watchers[k]
		if w == nil {
			continue
		}
		behind := len(p.sim.api.history[k]) - w.next
		n := behind
		if behind > 0 && !fully {
			n = p.sim.rng.IntN(behind + 1)
			p.sim.say("%s sees %d of %d %ss", p.name, n, behind, k)
		}
		for range n {
			w.deliver(p.sim.api.history[k])
			synctest.Wait()
		}
		did = did || n > 0
	}
	return did
}

// behind: there are events that the process has not seen.
func (p *attacherProcess) behind() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(allKinds, func(k kind) bool {
		return p.watchers[k] != nil && p.watchers[k].next < len(p.sim.api.history[k])
	})
}

// watcher is one watch. The process sees an event when the scheduler delivers it.
type watcher struct {
	events chan watch.Event
	next   int
	once   sync.Once
	known  map[string]bool
}

func (w *watcher) Stop()                          { w.once.Do(func() { close(w.events) }) }
func (w *watcher) ResultChan() <-chan watch.Event { return w.events }

func (w *watcher) deliver(history []event) {
	e := history[w.next]
	w.next++
	form := watch.Added
	switch key := keyOf(e.object); {
	case e.deleted:
		form = watch.Deleted
		delete(w.known, key)
	case w.known[key]:
		form = watch.Modified
	default:
		w.known[key] = true
	}
	w.events <- watch.Event{Type: form, Object: e.object.DeepCopyObject()}
}

// list answers a first list from a cache that may lag, and any other one at quorum.
func (p *attacherProcess) list(k kind, o metav1.ListOptions) (map[string]client.Object, metav1.ListMeta, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return nil, metav1.ListMeta{}, errLost
	}
	version := p.sim.api.now()
	if o.ResourceVersion == "0" {
		version = p.stale[k]
	}
	return p.sim.api.at(k, version), metav1.ListMeta{ResourceVersion: strconv.Itoa(version)}, nil
}

func (p *attacherProcess) watch(k kind, o metav1.ListOptions) (watch.Interface, error) {
	from, err := strconv.Atoi(o.ResourceVersion)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return nil, errLost
	}
	w := &watcher{events: make(chan watch.Event, 1), known: map[string]bool{}}
	for key := range p.sim.api.at(k, from) {
		w.known[key] = true
	}
	for w.next < len(p.sim.api.history[k]) && p.sim.api.history[k][w.next].version <= from {
		w.next++
	}
	p.watchers[k] = w
	return w, nil
}

// clientset is what the attacher uses of a real one.
type clientset struct {
	kubernetes.Interface

	p *attacherProcess
}

// IsWatchListSemanticsUnSupported makes informers list before they watch.
func (c clientset) IsWatchListSemanticsUnSupported() bool { return true }

func (c clientset) StorageV1() storagev1client.StorageV1Interface { return storageClient{p: c.p} }
func (c clientset) CoreV1() corev1client.CoreV1Interface          { return coreClient{p: c.p} }

type storageClient struct {
	storagev1client.StorageV1Interface

	p *attacherProcess
}

func (c storageClient) VolumeAttachments() storagev1client.VolumeAttachmentInterface {
	return attachmentClient{p: c.p}
}
func (c storageClient) CSINodes() storagev1client.CSINodeInterface { return csiNodeClient{p: c.p} }

type attachmentClient struct {
	storagev1client.VolumeAttachmentInterface

	p *attacherProcess
}

func (c attachmentClient) List(_ context.Context, o metav1.ListOptions) (*storagev1.VolumeAttachmentList, error) {
	found, meta, err := c.p.list(attachments, o)
	out := &storagev1.VolumeAttachmentList{ListMeta: meta}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if out.Items = append(out.Items, *found[name].(*storagev1.VolumeAttachment).DeepCopy()); len(out.Items) == int(o.Limit) {
			break // the informer's list has no limit
		}
	}
	return out, err
}

func (c attachmentClient) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.p.watch(attachments, o)
}

func (c attachmentClient) Get(ctx context.Context, name string, _ metav1.GetOptions) (*storagev1.VolumeAttachment, error) {
	answer, err := c.p.send(ctx, "GET VolumeAttachment "+short(name), true, func(*request) (any, error) {
		va, ok := get[*storagev1.VolumeAttachment](c.p.sim.api, name)
		if !ok {
			return nil, apierrors.NewNotFound(resource(attachments), name)
		}
		return va, nil
	})
	if err != nil {
		return nil, err
	}
	return answer.(*storagev1.VolumeAttachment).DeepCopy(), nil
}

func (c attachmentClient) Patch(ctx context.Context, name string, form types.PatchType, body []byte, _ metav1.PatchOptions, _ ...string) (*storagev1.VolumeAttachment, error) {
	answer, err := c.p.sendPatch(ctx, c.p.sim, attachments, name, form, body, false)
	if err != nil {
		return nil, err
	}
	return answer.(*storagev1.VolumeAttachment).DeepCopy(), nil
}

type csiNodeClient struct {
	storagev1client.CSINodeInterface

	p *attacherProcess
}

func (c csiNodeClient) List(_ context.Context, o metav1.ListOptions) (*storagev1.CSINodeList, error) {
	found, meta, err := c.p.list(csiNodes, o)
	out := &storagev1.CSINodeList{ListMeta: meta}
	for _, obj := range found {
		out.Items = append(out.Items, *obj.(*storagev1.CSINode).DeepCopy())
	}
	return out, err
}

func (c csiNodeClient) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.p.watch(csiNodes, o)
}

type coreClient struct {
	corev1client.CoreV1Interface

	p *attacherProcess
}

func (c coreClient) PersistentVolumes() corev1client.PersistentVolumeInterface {
	return volumeClient{p: c.p}
}

func (c coreClient) Nodes() corev1client.NodeInterface { return nodeClient{p: c.p} }

type nodeClient struct {
	corev1client.NodeInterface

	p *attacherProcess
}

func (c nodeClient) Get(ctx context.Context, name string, _ metav1.GetOptions) (*corev1.Node, error) {
	answer, err := c.p.send(ctx, "GET Node "+name, true, func(*request) (any, error) {
		node, ok := get[*corev1.Node](c.p.sim.api, name)
		if !ok {
			return nil, apierrors.NewNotFound(resource(nodes), name)
		}
		return node, nil
	})
	if err != nil {
		return nil, err
	}
	return answer.(*corev1.Node).DeepCopy(), nil
}

type volumeClient struct {
	corev1client.PersistentVolumeInterface

	p *attacherProcess
}

func (c volumeClient) List(_ context.Context, o metav1.ListOptions) (*corev1.PersistentVolumeList, error) {
	found, meta, err := c.p.list(volumes, o)
	out := &corev1.PersistentVolumeList{ListMeta: meta}
	for _, obj := range found {
		out.Items = append(out.Items, *obj.(*corev1.PersistentVolume).DeepCopy())
	}
	return out, err
}

func (c volumeClient) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return c.p.watch(volumes, o)
}

func (c volumeClient) Patch(ctx context.Context, name string, form types.PatchType, body []byte, _ metav1.PatchOptions, _ ...string) (*corev1.PersistentVolume, error) {
	answer, err := c.p.sendPatch(ctx, c.p.sim, volumes, name, form, body, false)
	if err != nil {
		return nil, err
	}
	return answer.(*corev1.PersistentVolume).DeepCopy(), nil
}
