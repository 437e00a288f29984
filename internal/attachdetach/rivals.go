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
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/telemetry"
)

// ForeignWriterReason is the reason of the event on a Node about a write that only the leading attach/detach controller
// may make.
const ForeignWriterReason = "ForeignAttachDetachWriter"

// ErrHalted is the error of all writes after a halt.
var ErrHalted = errors.New("another attach/detach controller is running")

const (
	// settleTime is the delay before the first probe and between probes. A controller that was just disabled may still
	// have requests in flight; the API server aborts a request after a minute.
	settleTime = time.Minute
	// A probe delays an attach by a random time in this range. Upstream's controller needs 0.2 s. If two instances of
	// belay probe at once, the one with the longer delay halts.
	minHold, maxHold = 2 * time.Second, 4 * time.Second
	// warnInterval is the minimum time between two reports of writes to the same resource and node.
	warnInterval = 5 * time.Minute
	// creatorTimeout bounds the read of the creator of a VolumeAttachment.
	creatorTimeout = 5 * time.Second
)

// rivals detects another attach/detach controller while this one leads. There are three signs: another component
// changed the report on a Node, emitted an event as an attach/detach controller, or created a VolumeAttachment. One
// node's credentials suffice to fake the first two, so a sign only causes a warning and, except for the first, a probe:
// the next attach is delayed. If another controller then creates the VolumeAttachment, which no node may do, this one
// halts. A component that is not known as one must answer two probes in a row: a restore tool creates VolumeAttachments
// too, but not those that the next probe waits for.
type rivals struct {
	recorder record.EventRecorder
	metrics  *telemetry.Controller
	log      logr.Logger
	warnOnly bool
	settle   time.Duration
	// creator returns the creator of a VolumeAttachment, which is not cached.
	creator func(name string) string
	// nodeOf returns the node of a pod, or "" if unknown.
	nodeOf func(namespace, pod string) string
	// named returns a logger with a PersistentVolume.
	named func(logger logr.Logger, volume string) logr.Logger

	mu    sync.Mutex
	began time.Time // zero before this process leads
	// sinceAttachments and sinceNodes are the resource versions at the start of leading.
	sinceAttachments, sinceNodes string
	// sent counts, by name, the creates whose VolumeAttachment may still appear.
	sent      map[string]int
	suspected bool                 // a probe is due
	probe     probe                // the last one
	previous  string               // who answered the one before; empty for none
	warned    map[string]time.Time // by resource and node
	halted    error
}

// probe is a delayed attach, to see whether another controller creates the VolumeAttachment.
type probe struct {
	key   key
	names []string // of the VolumeAttachments
	until time.Time
	// answeredBy is the component that created one of them; empty for none.
	answeredBy string
}

// foreignWrite is a write of another component.
type foreignWrite struct{ resource, node, writer, what string }

// logValues returns the log keys and values of a write.
func (s foreignWrite) logValues() []any {
	values := []any{"resource", s.resource, "writer", s.writer, "write", s.what}
	if s.node != "" {
		values = append(values, "node", s.node)
	}
	return values
}

// watch registers the event handlers.
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

// begin starts the detection of writes that are newer than these resource versions.
func (r *rivals) begin(sinceAttachments, sinceNodes string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began = time.Now()
	r.sinceAttachments, r.sinceNodes = sinceAttachments, sinceNodes
}

// follow watches the events of attach/detach controllers until ctx is done. Upstream emits one for each attach, even if
// belay attached first.
func (r *rivals) follow(events typedcorev1.EventsGetter) func(context.Context) error {
	return func(ctx context.Context) error {
		for retry := time.Second; ; retry = min(2*retry, warnInterval) {
			began := time.Now()
			if err := kube.WatchEvents(ctx, events, r.eventSeen); err != nil && ctx.Err() == nil {
				r.log.Error(err, "Failed to watch the events of other attach/detach controllers, retrying", "retryAfter", retry)
			}
			if time.Since(began) > settleTime {
				retry = time.Second // watches end regularly
			}
			select {
			case <-time.After(retry):
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// nodeChanged detects a report that another component changed. An empty list has no writer. The decisions on its
// volumes restore the report.
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
		r.warn(foreignWrite{"nodes/status", after.Name, writer.Manager, explain.ChangedReport})
	}
}

// eventSeen detects an event that another component emitted as an attach/detach controller.
func (r *rivals) eventSeen(e *corev1.Event) {
	writer, ok := kube.EventWriter(e)
	if !ok || writer.Manager == kube.FieldManager || !r.suspect() {
		return
	}
	about := e.InvolvedObject
	r.warn(foreignWrite{
		"events", r.nodeOf(about.Namespace, about.Name), writer.Manager,
		explain.EmittedEvent(e.Reason, kube.EventComponent, about.Kind, about.Namespace, about.Name),
	})
}

// attachmentAdded detects a VolumeAttachment that this process did not create. The content of the object does not
// count, because admission may change it.
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
	answer := slices.Contains(r.probe.names, name) && time.Now().Before(r.probe.until)
	r.mu.Unlock()
	if !r.suspect() {
		return
	}
	s := foreignWrite{"volumeattachments", node, r.creator(name), explain.CreatedAttachment(name)}
	if answer && r.answered(s.writer) {
		r.halt(s)
	} else {
		r.warn(s)
	}
}

// answered records the answer to the last probe, and reports whether it proves that another controller is running.
func (r *rivals) answered(writer string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.probe.answeredBy = writer
	return kube.AttachesVolumes(writer) || writer == r.previous
}

// suspect requests a probe. It does nothing and returns false while writes of the previous leader may still be in
// flight.
func (r *rivals) suspect() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.began.IsZero() || time.Since(r.began) < r.settle {
		return false
	}
	r.suspected = true
	return true
}

// warn counts a sign and reports it, at most once per warnInterval for a resource and node: a node may write often.
func (r *rivals) warn(s foreignWrite) {
	r.metrics.Foreign(s.resource)
	r.mu.Lock()
	now := time.Now()
	maps.DeleteFunc(r.warned, func(_ string, at time.Time) bool { return now.Sub(at) >= warnInterval })
	subject := s.resource + " " + s.node // a node controls the other fields
	_, again := r.warned[subject]
	silent := again || r.halted != nil
	if !silent {
		r.warned[subject] = now
	}
	r.mu.Unlock()
	if silent {
		return
	}
	r.log.Error(nil, "Another component acts as an attach/detach controller", append(s.logValues(), "remedy", explain.DisableForeign)...)
	r.event(s, explain.ForeignWrite(s.writer, s.what))
}

// halt stops all writes of this process: another controller answered a probe.
func (r *rivals) halt(s foreignWrite) {
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
	r.log.Error(ErrHalted, "Halted attach and detach until restart", append(s.logValues(), "remedy", explain.EndHalt)...)
	r.event(s, explain.Halted(s.writer, s.what))
}

func (r *rivals) event(s foreignWrite, text string) {
	if s.node != "" {
		about := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.node}}
		r.recorder.Event(about, corev1.EventTypeWarning, ForeignWriterReason, text)
	}
}

// holdBack returns how long an attach is delayed by a probe.
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
		r.suspected, r.previous = false, r.probe.answeredBy
		hold := minHold + rand.N(maxHold-minHold) //nolint:gosec // only tells two belays apart
		r.probe = probe{key: k, names: names, until: now.Add(hold)}
		r.named(r.log, first.PersistentVolume).Info("Delaying an attach to detect another attach/detach controller",
			"driver", k.Driver, "handle", k.Handle, "node", first.Node)
	}
	if r.probe.key != k {
		return 0
	}
	return max(0, r.probe.until.Sub(now))
}

// check returns why writes are not allowed, or nil.
func (r *rivals) check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.halted
}

// sending records that a create is about to be sent.
func (r *rivals) sending(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent[name]++
}

// forgetCreate removes one create of that name, because its object has appeared or never will. It returns false if
// there is none.
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

// newer is after, but true if there is no version to compare with.
func newer(version, since string) bool { return since == "" || after(version, since) }

// creatorOf reads the creator of a VolumeAttachment from the API server.
func creatorOf(ctx context.Context, live client.Reader) func(name string) string {
	return func(name string) string {
		ctx, cancel := context.WithTimeout(ctx, creatorTimeout)
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

// haltingClient rejects writes after a halt, and tracks creates.
type haltingClient struct {
	client.Client
	rivals *rivals
}

// Create is client.Client's.
func (g haltingClient) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	if err := g.rivals.check(); err != nil {
		return err
	}
	g.rivals.sending(obj.GetName())
	err := g.Client.Create(ctx, obj, opts...)
	if !kube.MayBeCommitted(err) && !g.rivals.forgetCreate(obj.GetName()) && apierrors.IsAlreadyExists(err) {
		// It appeared while the create was in flight and was mistaken for its object.
		if va, ok := obj.(*storagev1.VolumeAttachment); ok {
			g.rivals.foreignAttachment(va.Name, va.Spec.NodeName)
		}
	}
	return err
}

// Delete is client.Client's.
func (g haltingClient) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	if err := g.rivals.check(); err != nil {
		return err
	}
	return g.Client.Delete(ctx, obj, opts...)
}

// Patch is client.Client's.
func (g haltingClient) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if err := g.rivals.check(); err != nil {
		return err
	}
	return g.Client.Patch(ctx, obj, patch, opts...)
}

// Status is client.Client's.
func (g haltingClient) Status() client.SubResourceWriter {
	return haltingStatusWriter{g.Client.Status(), g.rivals.check}
}

type haltingStatusWriter struct {
	client.SubResourceWriter
	check func() error
}

// Patch is client.SubResourceWriter's.
func (g haltingStatusWriter) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	if err := g.check(); err != nil {
		return err
	}
	return g.SubResourceWriter.Patch(ctx, obj, patch, opts...)
}

func rivalsFor(ctx context.Context, w *clusterState, p Parts, o Options) *rivals {
	return &rivals{
		recorder: p.Recorder, metrics: o.Metrics, warnOnly: o.WarnOfRivals, settle: cmp.Or(o.Settle, settleTime),
		log: log.FromContext(ctx).WithName(Name), creator: creatorOf(ctx, p.Live), nodeOf: w.nodeOfPod, named: w.named,
		sent: map[string]int{}, warned: map[string]time.Time{},
	}
}

// nodeOfPod returns the node of a pod, or "".
func (w *clusterState) nodeOfPod(namespace, name string) string {
	if pod, ok := get[*corev1.Pod](w.pods, namespace+"/"+name); ok {
		return pod.Spec.NodeName
	}
	return ""
}
