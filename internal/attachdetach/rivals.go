package attachdetach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/telemetry"
)

// ForeignWriterReason is the reason of the event on a Node that reports a write that only
// the leading attach/detach controller may make.
const ForeignWriterReason = "ForeignAttachDetachWriter"

// ErrHalted is the reason why nothing is written any more.
var ErrHalted = errors.New("another attach/detach controller is running")

const (
	// settleTime is how long after the start, and after each probe, none begins. A
	// controller that was just disabled may still have requests in flight: the API server
	// abandons a request after a minute.
	settleTime = time.Minute
	// A probe holds an attach back for a random time in this range. Upstream's controller
	// needs 0.2 s. Of two belays that probe at once, the one with the longer time halts.
	leastHold, mostHold = 2 * time.Second, 4 * time.Second
	// warnAgain is how often writes to the same resource on the same node are reported.
	warnAgain = 5 * time.Minute
	// makerTimeout bounds the question who created a VolumeAttachment.
	makerTimeout = 5 * time.Second
)

// rivals looks for another attach/detach controller while this one leads. What it sees
// are signs: a report on a Node that another component changed, an event that another
// component emitted as an attach/detach controller, a VolumeAttachment that this process
// did not create. One node's credentials suffice to fake the first two, so signs only
// cause a warning and, but for the first, a probe: the next attach is held back. Another
// controller then creates that VolumeAttachment, which no node may do. Only this halts.
type rivals struct {
	recorder record.EventRecorder
	metrics  *telemetry.Controller
	log      logr.Logger
	warnOnly bool
	settle   time.Duration
	// maker returns the creator of a VolumeAttachment; the cache does not keep it.
	maker func(name string) string
	// nodeOf returns the node of a pod, "" if unknown.
	nodeOf func(namespace, pod string) string
	// named makes the logger of a PersistentVolume.
	named func(logger logr.Logger, volume string) logr.Logger

	mu    sync.Mutex
	began time.Time // zero until this process leads
	// sinceAttachments and sinceNodes are the versions that were current when it began.
	sinceAttachments, sinceNodes string
	// sent counts, by name, the creates whose VolumeAttachment may still appear.
	sent      map[string]int
	suspected bool                 // a probe is due
	probe     probe                // the last one
	warned    map[string]time.Time // by resource and node
	halted    error
}

// probe is an attach that is held back, to see whether another controller makes it.
type probe struct {
	key   key
	names []string // of the VolumeAttachments
	until time.Time
}

// sign is one write of another component.
type sign struct{ resource, node, writer, what string }

// watch subscribes to the caches.
func (r *rivals) watch(nodes, attachments toolscache.SharedIndexInformer) error {
	_, err := nodes.AddEventHandler(toolscache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
		was, okWas := before.(*corev1.Node)
		is, okIs := after.(*corev1.Node)
		if okWas && okIs {
			r.nodeChanged(was, is)
		}
	}})
	if err != nil {
		return fmt.Errorf("watch nodes for another attach/detach controller: %w", err)
	}
	_, err = attachments.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
		if va, ok := obj.(*storagev1.VolumeAttachment); ok {
			r.attachmentAdded(va)
		}
	}})
	if err != nil {
		return fmt.Errorf("watch volumeattachments for another attach/detach controller: %w", err)
	}
	return nil
}

// begin starts to look for writes that are newer than these versions.
func (r *rivals) begin(sinceAttachments, sinceNodes string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began = time.Now()
	r.sinceAttachments, r.sinceNodes = sinceAttachments, sinceNodes
}

// follow watches the events of attach/detach controllers until the context ends: upstream
// emits one for each attach, also if belay was always faster.
func (r *rivals) follow(events typedcorev1.EventsGetter) func(context.Context) error {
	return func(ctx context.Context) error {
		for retry := time.Second; ; retry = min(2*retry, warnAgain) {
			began := time.Now()
			if err := kube.WatchEvents(ctx, events, r.eventSeen); err != nil && ctx.Err() == nil {
				r.log.Error(err, "Cannot look for events of another attach/detach controller", "retry", retry)
			}
			if time.Since(began) > settleTime {
				retry = time.Second // the API server ends each watch after a while
			}
			select {
			case <-time.After(retry):
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// nodeChanged looks for a report that another component changed. An empty list has no
// writer. The decisions about its volumes restore the report.
func (r *rivals) nodeChanged(before, after *corev1.Node) {
	writer, ok := kube.ReportWriter(after)
	if !ok || writer.Manager == kube.FieldManager ||
		slices.Equal(before.Status.VolumesAttached, after.Status.VolumesAttached) {
		return
	}
	r.mu.Lock()
	old := r.began.IsZero() || !newer(after.ResourceVersion, r.sinceNodes)
	r.mu.Unlock()
	if !old {
		r.warn(sign{"nodes/status", after.Name, writer.Manager, "changed status.volumesAttached of the node"})
	}
}

// eventSeen looks for an event that another component emitted as an attach/detach
// controller.
func (r *rivals) eventSeen(e *corev1.Event) {
	writer, ok := kube.EventWriter(e)
	if !ok || writer.Manager == kube.FieldManager || !r.suspect() {
		return
	}
	about := e.InvolvedObject
	r.warn(sign{
		"events", r.nodeOf(about.Namespace, about.Name), writer.Manager,
		fmt.Sprintf("emitted %s as %s on %s %s/%s", e.Reason, kube.EventComponent, about.Kind, about.Namespace, about.Name),
	})
}

// attachmentAdded looks for a VolumeAttachment that this process did not create. What
// the object says about itself does not count: admission may change it.
func (r *rivals) attachmentAdded(va *storagev1.VolumeAttachment) {
	if kube.IsAttachmentName(va.Name) && !r.forgetCreate(va.Name) && newer(va.ResourceVersion, r.since()) {
		r.foreignAttachment(va.Name, va.Spec.NodeName)
	}
}

func (r *rivals) since() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sinceAttachments
}

func (r *rivals) foreignAttachment(name, node string) {
	r.mu.Lock()
	proof := slices.Contains(r.probe.names, name) && time.Now().Before(r.probe.until)
	r.mu.Unlock()
	if !r.suspect() {
		return
	}
	s := sign{"volumeattachments", node, r.maker(name), "created VolumeAttachment " + name}
	if proof {
		r.halt(s)
	} else {
		r.warn(s)
	}
}

// suspect asks for a probe. It does nothing, and returns false, while the writes of the
// controller that led before may still be in flight.
func (r *rivals) suspect() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.began.IsZero() || time.Since(r.began) < r.settle {
		return false
	}
	r.suspected = true
	return true
}

// warn counts a sign and reports it, unless the same was reported a moment ago: a node
// may write as often as it likes.
func (r *rivals) warn(s sign) {
	r.metrics.Foreign(s.resource)
	r.mu.Lock()
	now := time.Now()
	maps.DeleteFunc(r.warned, func(_ string, at time.Time) bool { return now.Sub(at) >= warnAgain })
	subject := s.resource + " " + s.node // a node may choose the rest
	_, again := r.warned[subject]
	silent := again || r.halted != nil
	if !silent {
		r.warned[subject] = now
	}
	r.mu.Unlock()
	if silent {
		return
	}
	r.log.Error(nil, "Another component acts as an attach/detach controller", "resource", s.resource, "node", s.node, "writer", s.writer, "what", s.what)
	r.event(s, "Only one attach/detach controller may run: if this was another one, disable it")
}

// halt ends all writes of this process: another controller answered the probe.
func (r *rivals) halt(s sign) {
	r.metrics.Foreign(s.resource)
	r.mu.Lock()
	first := r.halted == nil
	if first {
		r.halted = fmt.Errorf("%w: %q %s", ErrHalted, s.writer, s.what)
	}
	r.mu.Unlock()
	if !first {
		return
	}
	r.metrics.Halted()
	r.log.Error(ErrHalted, "Halted attach and detach until restart", "resource", s.resource, "node", s.node, "writer", s.writer, "what", s.what)
	r.event(s, "belay-controller held back its own: another attach/detach controller is running. belay-controller has halted; disable one of the two, and if belay stays, restart it")
}

func (r *rivals) event(s sign, advice string) {
	if s.node != "" {
		about := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.node}}
		r.recorder.Eventf(about, corev1.EventTypeWarning, ForeignWriterReason, "%q %s. %s", s.writer, s.what, advice)
	}
}

// holdBack returns for how long a decision that attaches the volume must wait, so that
// another controller, if there is one, creates the VolumeAttachment.
func (r *rivals) holdBack(k key, steps []attachment.Step) time.Duration {
	var names []string
	var first attachment.Attach
	for _, step := range steps {
		if s, ok := step.(attachment.Attach); ok {
			first = cmp.Or(first, s)
			names = append(names, kube.AttachmentName(k.Handle, k.Driver, string(s.Node)))
		}
	}
	if len(names) == 0 || r.warnOnly {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.suspected && now.Sub(r.probe.until) >= r.settle {
		r.suspected = false
		hold := leastHold + rand.N(mostHold-leastHold) //nolint:gosec // only tells two belays apart
		r.probe = probe{key: k, names: names, until: now.Add(hold)}
		r.named(r.log, first.PersistentVolume).Info("Holding back an attach to see whether another controller makes it",
			"driver", k.Driver, "handle", k.Handle, "node", first.Node)
	}
	if r.probe.key != k {
		return 0
	}
	return max(0, r.probe.until.Sub(now))
}

// check returns why nothing may be written, nil if it may.
func (r *rivals) check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.halted
}

func (r *rivals) stopped() bool { return r.check() != nil }

// sending notes that a create is about to be sent.
func (r *rivals) sending(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent[name]++
}

// forgetCreate takes one create of that name off the list, because its object has
// appeared or never will. It returns false if there is none.
func (r *rivals) forgetCreate(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sent[name] == 0 {
		return false
	}
	if r.sent[name]--; r.sent[name] == 0 {
		delete(r.sent, name)
	}
	return true
}

// newer is like after, for versions that may be missing.
func newer(version, since string) bool { return since == "" || after(version, since) }

// makerOf asks the API server who created a VolumeAttachment.
func makerOf(ctx context.Context, live client.Reader) func(name string) string {
	return func(name string) string {
		ctx, cancel := context.WithTimeout(ctx, makerTimeout)
		defer cancel()
		va := &storagev1.VolumeAttachment{}
		if err := live.Get(ctx, client.ObjectKey{Name: name}, va); err == nil {
			if w, ok := kube.AttachmentCreator(va); ok {
				return w.Manager
			}
		}
		return "an unknown component"
	}
}

// gated refuses writes once the controller has halted, and knows what it creates.
type gated struct {
	client.Client
	rivals *rivals
}

// Create is client.Client's.
func (g gated) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	if err := g.rivals.check(); err != nil {
		return err
	}
	g.rivals.sending(obj.GetName())
	err := g.Client.Create(ctx, obj, opts...)
	if !kube.MayBeCommitted(err) && !g.rivals.forgetCreate(obj.GetName()) && apierrors.IsAlreadyExists(err) {
		// It appeared while the create was in flight, and was taken for its object.
		if va, ok := obj.(*storagev1.VolumeAttachment); ok {
			g.rivals.foreignAttachment(va.Name, va.Spec.NodeName)
		}
	}
	return err
}

// Delete is client.Client's.
func (g gated) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	if err := g.rivals.check(); err != nil {
		return err
	}
	return g.Client.Delete(ctx, obj, opts...)
}

// Patch is client.Client's.
func (g gated) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if err := g.rivals.check(); err != nil {
		return err
	}
	return g.Client.Patch(ctx, obj, patch, opts...)
}

// Status is client.Client's.
func (g gated) Status() client.SubResourceWriter {
	return gatedStatus{g.Client.Status(), g.rivals.check}
}

type gatedStatus struct {
	client.SubResourceWriter
	check func() error
}

// Patch is client.SubResourceWriter's.
func (g gatedStatus) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	if err := g.check(); err != nil {
		return err
	}
	return g.SubResourceWriter.Patch(ctx, obj, patch, opts...)
}

// rivalsFor makes the detection from the parts of a process.
func rivalsFor(ctx context.Context, w *clusterState, p Parts, o Options) *rivals {
	return &rivals{
		recorder: p.Recorder, metrics: o.Metrics, warnOnly: o.WarnOfRivals, settle: cmp.Or(o.Settle, settleTime),
		log: log.FromContext(ctx).WithName(Name), maker: makerOf(ctx, p.Live), nodeOf: w.nodeOfPod, named: w.named,
		sent: map[string]int{}, warned: map[string]time.Time{},
	}
}

// nodeOfPod returns the node of a pod, "" if there is none.
func (w *clusterState) nodeOfPod(namespace, name string) string {
	if pod, ok := get[*corev1.Pod](w.pods, namespace+"/"+name); ok {
		return pod.Spec.NodeName
	}
	return ""
}
