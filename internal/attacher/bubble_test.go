package attacher

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/fixture"
)

// bubble is an attacher in fake time (testing/synctest), with its API server and its driver.
type bubble struct {
	t        *testing.T
	api      *memoryAPI
	driver   *csidriver.Driver
	attacher *Attacher
	log      *logged
	logger   klog.Logger

	mu       sync.Mutex
	inFlight int
	most     int // calls in flight at once, ever
}

const bubbleDriver = "bubble.csi.test"

// newBubble makes what an attacher needs; call it in fake time.
func newBubble(t *testing.T) *bubble {
	t.Helper()
	b := &bubble{t: t, api: newMemoryAPI(), driver: &csidriver.Driver{Name: bubbleDriver, ControllerServices: canAttach}}
	w := &world{t: t}
	b.log, b.logger = w.logs(), w.logger
	b.answers(func(context.Context, call) error { return nil })
	return b
}

// inBubble runs a test in fake time against an attacher that has begun.
func inBubble(t *testing.T, workerThreads int, test func(b *bubble)) {
	t.Helper()
	inBubbleWith(t, func(c *Config) { c.WorkerThreads = workerThreads }, test)
}

func inBubbleWith(t *testing.T, change func(*Config), test func(b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.logger = logr.Discard() // logs of thousands of volumes take time
		defer b.start(change)()
		b.pass(time.Second) // it looks for its caches each 100 ms
		test(b)
	})
}

// start runs an attacher, with the defaults of the flags, until the function that is returned is called.
func (b *bubble) start(change ...func(*Config)) (stop func()) {
	b.t.Helper()
	clean := b.create(change...)
	warm, cold := context.WithCancel(context.Background())
	b.attacher.Warm(warm)
	ctx, cancel := context.WithCancel(log.IntoContext(context.Background(), b.logger))
	ended := make(chan error, 1)
	go func() { ended <- b.attacher.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			b.t.Errorf("Run: %v", err)
		}
		cold()
		clean()
	}
}

// create makes an attacher that does not run yet. Call the function that is returned when it has ended.
func (b *bubble) create(change ...func(*Config)) (clean func()) {
	b.t.Helper()
	conn := b.driver.Connect(b.t)
	controller, err := csi.NewController(b.t.Context(), conn)
	must(b.t, err)
	clients, err := b.api.client()
	must(b.t, err)
	c := Config{
		Client: clients, Driver: b.driver.Name, Controller: controller, Timeout: 15 * time.Second,
		RetryStart: time.Second, RetryMax: 5 * time.Minute, WorkerThreads: defaultWorkerThreads, DrainTimeout: time.Second, AnnotateCalls: true,
	}
	for _, f := range change {
		f(&c)
	}
	if b.attacher, err = New(c); err != nil {
		b.t.Fatal(err)
	}
	return func() {
		b.attacher.objects.factory.Shutdown()
		_ = conn.Close()
	}
}

// volume makes a PersistentVolume whose name is also its handle.
func (b *bubble) volume(name string, modes ...corev1.PersistentVolumeAccessMode) {
	b.api.put("persistentvolumes", fixture.PersistentVolume(name, bubbleDriver, name, modes...))
}

// node makes the CSINode of a node.
func (b *bubble) node(name, id string) {
	b.api.put("csinodes", &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{
		Drivers: []storagev1.CSINodeDriver{{Name: bubbleDriver, NodeID: id}},
	}})
}

func bubbleName(volume, node string) string { return kube.AttachmentName(volume, bubbleDriver, node) }

// attach makes a VolumeAttachment, and what it needs where that does not exist.
func (b *bubble) attach(volume, node string, change ...func(*storagev1.VolumeAttachment)) {
	if _, ok := b.api.get("persistentvolumes", volume); !ok {
		b.volume(volume)
	}
	if _, ok := b.api.get("csinodes", node); !ok {
		b.node(node, "id-"+node)
	}
	va := fixture.Attachment(bubbleName(volume, node), bubbleDriver, node, volume)
	for _, f := range change {
		f(va)
	}
	b.api.put(resourceAttachments, va)
}

// worked adds what an earlier process left on a VolumeAttachment that it processed.
func worked(va *storagev1.VolumeAttachment) {
	va.Finalizers = []string{kube.AttacherFinalizer(bubbleDriver)}
	va.Annotations = map[string]string{kube.NodeIDAnnotation: "id-" + va.Spec.NodeName}
}

func attached(va *storagev1.VolumeAttachment) { va.Status.Attached = true }

// attachedBefore makes a VolumeAttachment that an earlier process attached.
func (b *bubble) attachedBefore(volume, node string) { b.attach(volume, node, worked, attached) }

// attachment is the VolumeAttachment as the API server has it, nil if it has none.
func (b *bubble) attachment(volume, node string) *storagev1.VolumeAttachment {
	o, _ := b.api.get(resourceAttachments, bubbleName(volume, node))
	va, _ := o.(*storagev1.VolumeAttachment)
	return va
}

// change changes a VolumeAttachment.
func (b *bubble) change(volume, node string, with func(*storagev1.VolumeAttachment)) {
	va := b.attachment(volume, node).DeepCopy()
	with(va)
	b.api.put(resourceAttachments, va)
}

func (b *bubble) detach(volume, node string) {
	b.change(volume, node, func(va *storagev1.VolumeAttachment) { va.DeletionTimestamp = new(metav1.Now()) })
}

// end removes a VolumeAttachment, whatever its finalizers.
func (b *bubble) end(volume, node string) {
	b.change(volume, node, func(va *storagev1.VolumeAttachment) {
		va.Finalizers, va.DeletionTimestamp = nil, new(metav1.Now())
	})
}

// annotate sets an annotation, or removes it where there is no value.
func (b *bubble) annotate(volume, node, name, value string) {
	b.change(volume, node, func(va *storagev1.VolumeAttachment) {
		if metav1.SetMetaDataAnnotation(&va.ObjectMeta, name, value); value == "" {
			delete(va.Annotations, name)
		}
	})
}

func (b *bubble) isAttached(volume, node string) bool {
	va := b.attachment(volume, node)
	return va != nil && va.Status.Attached
}

func (b *bubble) isGone(volume, node string) bool { return b.attachment(volume, node) == nil }

// pass lets time pass, and everything happen that becomes due.
func (b *bubble) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// within fails the test if something is not so at the end of that time.
func (b *bubble) within(d time.Duration, what string, is func() bool) {
	b.t.Helper()
	b.pass(d)
	if !is() {
		b.t.Errorf("%s: not after %v", what, d)
	}
}

// answers sets what the driver does from now on.
func (b *bubble) answers(f func(context.Context, call) error) {
	b.driver.SetAnswer(func(ctx context.Context, c call, _ int) (map[string]string, error) {
		b.mu.Lock()
		b.inFlight++
		b.most = max(b.most, b.inFlight)
		b.mu.Unlock()
		err := f(ctx, c)
		b.mu.Lock()
		b.inFlight--
		b.mu.Unlock()
		return nil, err
	})
}

// received lists the calls for a volume in words, all calls without one.
func (b *bubble) received(volume string) (words []string) {
	for _, c := range b.driver.Calls() {
		if volume == "" || c.Volume == volume {
			words = append(words, c.Method+" "+c.Node)
		}
	}
	return words
}

// atOnce is how many calls were in flight at once, at most.
func (b *bubble) atOnce() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.most
}

// slow makes the API server take so long for each patch.
func (b *bubble) slow(d time.Duration) {
	b.api.mu.Lock()
	defer b.api.mu.Unlock()
	b.api.delay = d
}

// unanswered is a driver that does not answer.
func unanswered(ctx context.Context) error { return lasting(ctx, time.Hour) }

// lasting is a driver that takes so long for a call.
func lasting(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}
