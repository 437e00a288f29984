package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/wait"
)

// TestNewLeaderWithStaleCache shows, for the kinds that say where a volume is, what a new leader would decide without waiting for them:
// the volume is attached on a, and the lagging cache does not contain that yet (S1).
func TestNewLeaderWithStaleCache(t *testing.T) {
	k := key{Driver: driver, Handle: "h"}
	for kind, tt := range map[string]struct {
		fresh, stale client.Object
		world        func(m *model)
	}{
		"VolumeAttachment": {anAttachment(k, "a", "v", true), nil, func(m *model) { m.put(aVolume("v", "h")) }},
		"PersistentVolume": {aVolume("v", "h"), aVolume("v", "h", corev1.ReadWriteMany), func(m *model) {
			m.put(anAttachment(k, "a", "v", true))
		}},
	} {
		for which, object := range map[string]client.Object{"fresh": tt.fresh, "stale": tt.stale} {
			m := newModel(t)
			m.put(aNode("a"))
			m.put(aNode("b"))
			m.put(aClaim("v"))
			m.put(aPod("q", "b", byClaimOf("v")))
			tt.world(m)
			if object != nil {
				m.put(object)
			}
			d := m.decide(k)
			if acts := len(attaches(d)) > 0 || reports(d); acts != (which == "stale") {
				t.Errorf("%s %s: attached to b as well: %v: %+v", which, kind, acts, d.Steps)
			}
		}
	}
}

// failover is a leader and its standby, whose caches of some kinds can be held back.
type failover struct {
	*lab
	stopLeader func()
	held       *heldWatches
	seen       chan string // what the standby sends besides watches, once held
}

// startFailover starts the leader and waits until the standby has read everything.
func startFailover(l *lab) *failover {
	l.Helper()
	f := &failover{lab: l, held: newHeldWatches(), seen: make(chan string, 1000)}
	l.node("led")
	l.volume("led")
	f.stopLeader = l.run()
	l.pod("led", "led", "led")
	l.awaitReported("led", "led") // it leads
	config := rest.CopyConfig(controllerConfig)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if !strings.Contains(r.URL.Path, "/leases") && r.URL.Query().Get("watch") == "" {
				select {
				case f.seen <- r.Method + " " + r.URL.RequestURI():
				default:
				}
			}
			return f.held.roundTrip(next, r)
		})
	})
	mgr, err := kube.NewManager(config, kube.ManagerConfig{
		Lease: &kube.LeaseConfig{
			Namespace: "kube-system", Name: "belay-controller", RenewDeadline: wait.Timeout, Identity: l.prefix + "-standby",
		},
		LeaseDuration: wait.Timeout + 5*time.Second, RetryPeriod: 100 * time.Millisecond,
	})
	l.must(err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(l.Context()))
	options := l.options
	options.WarnOfRivals = true
	l.must(Setup(ctx, mgr, options))
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	l.Cleanup(func() {
		f.held.release()
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			l.Errorf("standby ended: %v", err)
		}
	})
	if !mgr.GetCache().WaitForCacheSync(l.ctx) {
		l.Fatal("the standby does not read")
	}
	return f
}

// awaitSent returns once the standby has sent a request that contains the text.
func (f *failover) awaitSent(text string) {
	f.Helper()
	for !strings.Contains(wait.For(f, "the standby to send "+text, f.seen), text) {
		continue
	}
}

// heldWatches holds back the events of the watches of some resources.
type heldWatches struct {
	mu       sync.Mutex
	changed  *sync.Cond
	resource string
}

func newHeldWatches() *heldWatches {
	h := &heldWatches{}
	h.changed = sync.NewCond(&h.mu)
	return h
}

func (h *heldWatches) hold(resource string) { h.set(resource) }
func (h *heldWatches) release()             { h.set("") }

func (h *heldWatches) set(resource string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.resource = resource
	h.changed.Broadcast()
}

func (h *heldWatches) roundTrip(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	answer, err := next.RoundTrip(r)
	if err == nil && r.URL.Query().Get("watch") != "" {
		resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		answer.Body = &heldBody{ReadCloser: answer.Body, of: h, resource: resource}
	}
	return answer, err
}

type heldBody struct {
	io.ReadCloser
	of       *heldWatches
	resource string
	closed   bool
}

// Read returns the events once they are not held back any more.
func (b *heldBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	for b.of.resource == b.resource && !b.closed {
		b.of.changed.Wait()
	}
	return n, err
}

func (b *heldBody) Close() error {
	b.of.mu.Lock()
	b.closed = true
	b.of.changed.Broadcast()
	b.of.mu.Unlock()
	return b.ReadCloser.Close()
}

// A new leader whose cache of pods, claims or drivers lags acts immediately, and takes no volume away that is in use:
// it does not know the pod that uses the volume, or its claim, or that the driver requires attach (S2).
func TestStaleCacheIsHarmless(t *testing.T) {
	for resource, tt := range map[string]struct{ before, after func(l *lab, k key) }{
		"pods": {
			func(l *lab, _ key) { l.claim("v") },
			func(l *lab, k key) { l.persistentVolume("v", k.Driver); l.bindLate("v"); l.pod("p", "a", "v") },
		},
		"persistentvolumeclaims": {
			func(l *lab, k key) { l.persistentVolume("v", k.Driver); l.pod("p", "a", "v") },
			func(l *lab, _ key) { l.claim("v") },
		},
		"persistentvolumes": {
			func(l *lab, _ key) { l.claim("v"); l.pod("p", "a", "v") },
			func(l *lab, k key) { l.persistentVolume("v", k.Driver); l.bindLate("v") },
		},
		"csidrivers": {
			func(l *lab, k key) {
				l.must(l.Create(l.ctx, &storagev1.CSIDriver{
					ObjectMeta: metav1.ObjectMeta{Name: k.Driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)},
				}))
				l.persistentVolume("v", k.Driver)
				l.claim("v")
				l.pod("p", "a", "v")
			},
			func(l *lab, k key) {
				d := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: k.Driver}}
				l.must(l.Delete(l.ctx, d))
				l.must(l.Create(l.ctx, &storagev1.CSIDriver{ObjectMeta: d.ObjectMeta}))
			},
		},
	} {
		t.Run(resource, func(t *testing.T) {
			l := newLab(t)
			k := key{Driver: driver, Handle: l.name("v")}
			if resource == "csidrivers" {
				k.Driver = l.prefix + ".test"
			}
			l.node("a")
			tt.before(l, k)
			f := startFailover(l)
			f.held.hold(resource)
			tt.after(l, k)
			l.awaitListed(k, "a")
			l.inUse("a", k)
			l.mounted("p") // until then a driver without attach keeps what it has
			l.mu.Lock()
			uid := l.vaOf(k, "a").UID
			l.mu.Unlock()
			f.stopLeader()
			waits := func() bool {
				va := l.vaOf(k, "a")
				return va != nil && va.Annotations[kube.DetachRequestedAnnotation] != ""
			}
			l.await("the new leader acts, and waits for the volume", waits)
			f.held.release()
			l.await("the volume is wanted again", func() bool { return !waits() })
			l.mu.Lock()
			defer l.mu.Unlock()
			if va := l.vaOf(k, "a"); va == nil || va.UID != uid || va.DeletionTimestamp != nil || !l.listed(k, "a") {
				t.Errorf("S2: taken from the node that uses it: %v", l.history)
			}
		})
	}
}

// A new leader that still sees a pod that is gone, and not yet the one that waits
// elsewhere, attaches nothing twice (S1).
func TestStalePodsAttachNothingTwice(t *testing.T) {
	l := newLab(t)
	l.node("a")
	l.node("b")
	l.volume("v")
	l.volume("w")
	l.pod("p", "a", "v")
	f := startFailover(l)
	l.awaitReported("v", "a")
	l.use("a", "v")
	f.held.hold("pods")
	l.gone("p")
	l.pod("q", "b", "v")
	l.pod("r", "a", "w")
	l.awaitReported("w", "a")
	l.use("a", "v", "w")
	f.stopLeader()
	l.awaitWaiting("w", "a") // it leads
	l.use("a", "w")
	f.held.release()
	l.awaitReported("v", "b")
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.attachment("w", "a") == nil {
		t.Error("S2: detached while in use")
	}
	of := slices.DeleteFunc(slices.Clone(l.history), func(s string) bool { return !strings.HasPrefix(s, "b ") && s != "a deleting" && s != "a gone" })
	of = slices.Compact(of) // entries of the other volume may have stood between equal ones
	if diff := cmp.Diff([]string{"a deleting", "a gone", "b made", "b attached"}, of); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
}

// A new leader decides nothing before its cache of attachments has the last one that
// the previous leader made.
func TestNewLeaderKnowsAttachments(t *testing.T) {
	l := newLab(t)
	l.node("a")
	l.node("b")
	l.volume("v")
	f := startFailover(l)
	f.held.hold("volumeattachments")
	l.attacher.set(func() { l.attacher.stalled = true }) // nothing else says that it is on a
	l.pod("p", "a", "v")
	l.await("the previous leader attaches", func() bool { return l.attachment("v", "a") != nil })
	f.stopLeader()
	l.gone("p")
	l.pod("q", "b", "v")
	f.awaitSent("PATCH /apis/storage.k8s.io/v1/volumeattachments/")
	f.awaitSent("PATCH /apis/storage.k8s.io/v1/volumeattachments/") // a second later
	l.mu.Lock()
	if l.attachment("v", "b") != nil {
		t.Error("S1: attached to b while its attachment to a exists")
	}
	l.mu.Unlock()
	f.held.release()
	l.attacher.set(func() { l.attacher.stalled = false })
	l.awaitReported("v", "b")
	l.mu.Lock()
	defer l.mu.Unlock()
	gone, made := slices.Index(l.history, "a gone"), slices.Index(l.history, "b made")
	if gone < 0 || made < gone {
		t.Errorf("S1: attached twice: %v", l.history)
	}
}

// A new leader decides nothing before its cache of Nodes has the last report that the
// previous leader made: for Fibre Channel that is the attachment.
func TestNewLeaderKnowsReports(t *testing.T) {
	l := newLab(t)
	l.node("a")
	l.node("b")
	k := key{Driver: kube.FibreChannelPlugin, Handle: "[" + l.name("w") + "]:1"}
	l.volumeOf("v", corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{l.name("w")}, Lun: new(int32(1))}}, corev1.ReadWriteOnce)
	f := startFailover(l)
	f.held.hold("nodes")
	l.pod("p", "a", "v")
	l.awaitListed(k, "a")
	l.inUse("a", k)
	f.stopLeader()
	l.gone("p")
	l.pod("q", "b", "v")
	f.awaitSent("PATCH /api/v1/nodes/")
	f.awaitSent("PATCH /api/v1/nodes/") // a second later
	l.mu.Lock()
	if l.listed(k, "b") {
		t.Error("S1: reported to b while a uses it")
	}
	l.mu.Unlock()
	f.held.release()
	l.await("q has the event", func() bool { return len(l.messages("q", explain.FailedAttachVolume)) > 0 })
	l.inUse("a") // what comes then, TestLives/fibre-channel shows
}

// A new leader whose cache still has a volume as shared that has become exclusive reads it before it decides anything.
func TestNewLeaderKnowsWhatIsExclusive(t *testing.T) {
	l := newLab(t)
	l.node("a")
	l.node("b")
	l.volume("v", corev1.ReadWriteMany)
	f := startFailover(l)
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	l.use("a", "v")
	f.held.hold("persistentvolumes")
	pv := &corev1.PersistentVolume{}
	l.must(l.Get(l.ctx, client.ObjectKey{Name: l.name("v")}, pv))
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	l.must(l.Update(l.ctx, pv))
	f.stopLeader()
	l.pod("q", "b", "v")
	f.awaitSent("/persistentvolumes?fieldSelector=metadata.name%3D" + l.name("v"))
	f.held.release()
	l.await("q has the event", func() bool { return len(l.messages("q", explain.FailedAttachVolume)) > 0 })
	l.mu.Lock()
	if l.attachment("v", "b") != nil || slices.Contains(l.history, "b made") {
		t.Error("S1: attached to b while a uses it")
	}
	l.mu.Unlock()
	l.gone("p")
	l.use("a")
	l.awaitReported("v", "b")
}

// TestStartReadsLittle counts the reads of a new leader past its caches before it acts. Their number must not depend on
// how many objects exist.
func TestStartReadsLittle(t *testing.T) {
	l := newLab(t)
	objects := 100
	if text := os.Getenv("BELAY_START_OBJECTS"); text != "" {
		var err error
		objects, err = strconv.Atoi(text)
		l.must(err)
	}
	made := l.crowd(objects)
	var requests, bytes atomic.Int64
	l.transport = func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			answer, err := next.RoundTrip(r)
			if err == nil && strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata") {
				requests.Add(1)
				answer.Body = countedBody{answer.Body, &bytes}
			}
			return answer, err
		})
	}
	l.node("a")
	l.volume("v")
	l.run()
	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	t.Logf("of %d objects: %d requests, %d bytes", made, requests.Load(), bytes.Load())
	if requests.Load() > 3 || bytes.Load() > 10_000 {
		t.Errorf("%d requests with %d bytes", requests.Load(), bytes.Load())
	}
}

// crowd makes PersistentVolumes and attachments that do not concern the controller.
func (l *lab) crowd(each int) (objects int) {
	var group errgroup.Group
	group.SetLimit(32)
	for i := range each {
		name := fmt.Sprintf("%s-crowd-%d", l.prefix, i)
		va := &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: "other.test", NodeName: "none", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name},
			},
		}
		pv := aVolume(name, name)
		pv.Spec.ClaimRef, pv.Spec.Capacity = nil, storage().Requests
		for _, object := range []client.Object{va, pv} {
			group.Go(func() error { return l.Create(l.ctx, object) })
			l.Cleanup(func() { _ = l.Delete(context.Background(), object) })
			objects++
		}
	}
	l.must(group.Wait())
	return objects
}

type countedBody struct {
	io.ReadCloser
	bytes *atomic.Int64
}

func (b countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.bytes.Add(int64(n))
	return n, err
}
