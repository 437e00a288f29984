package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/telemetry"
)

// ForeignWriterReason is the reason of the event that says that somebody else writes
// what only the leading attach/detach controller writes.
const ForeignWriterReason = "ForeignAttachDetachWriter"

// ErrHalted is why nothing is written any more.
var ErrHalted = errors.New("another attach/detach controller is at work")

const (
	// lateWrites is how long after the start a controller that was just switched off may
	// still be seen to create attachments: the API server gives up a request after a minute.
	lateWrites = time.Minute
	// suspicion is how long one foreign write is remembered. One may be a person's, or
	// have been on its way; the second in this time is another controller's.
	suspicion = 5 * time.Minute
)

// rivals watches for another attach/detach controller while we lead: for reports that
// somebody else changed, and for attachments under computed names that somebody else
// made. What was there when we began to lead is nobody's fault. A write that says the
// same as ours leaves no trace, and is no harm either.
type rivals struct {
	recorder record.EventRecorder
	metrics  *telemetry.Controller
	log      logr.Logger
	warnOnly bool
	// named tells who made an attachment; the cache does not know.
	named func(name string) string

	mu    sync.Mutex
	began time.Time // zero until we lead
	// sinceAttachments and sinceNodes are the versions that were current when we began.
	sinceAttachments, sinceNodes string
	last                         time.Time // of the last foreign write, zero for none
	halted                       error
}

// watch begins to look at the events of the caches.
func (r *rivals) watch(nodes, attachments toolscache.SharedIndexInformer) error {
	_, err := nodes.AddEventHandler(toolscache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
		was, okWas := before.(*corev1.Node)
		is, okIs := after.(*corev1.Node)
		if okWas && okIs {
			r.nodeChanged(was, is)
		}
	}})
	if err != nil {
		return fmt.Errorf("watch for foreign reports: %w", err)
	}
	_, err = attachments.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
		if va, ok := obj.(*storagev1.VolumeAttachment); ok {
			r.attachmentMade(va)
		}
	}})
	if err != nil {
		return fmt.Errorf("watch for foreign attachments: %w", err)
	}
	return nil
}

// begin starts the clock: from now on, what is newer than these versions is watched.
func (r *rivals) begin(sinceAttachments, sinceNodes string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began = time.Now()
	r.sinceAttachments, r.sinceNodes = sinceAttachments, sinceNodes
}

// nodeChanged looks at who changed the report. Only a list with something in it has a
// writer.
func (r *rivals) nodeChanged(before, after *corev1.Node) {
	writer, ok := kube.ReportWriter(after)
	if !ok || writer.Manager == kube.FieldManager ||
		slices.Equal(before.Status.VolumesAttached, after.Status.VolumesAttached) {
		return
	}
	r.mu.Lock()
	ours := r.began.IsZero() || !newer(after.ResourceVersion, r.sinceNodes)
	r.mu.Unlock()
	if !ours {
		r.saw("nodes/status", after.Name, writer.Manager, fmt.Sprintf("%q changed status.volumesAttached of node %s", writer.Manager, after.Name))
	}
}

// attachmentMade looks at who made an attachment: belay's carry its annotation.
func (r *rivals) attachmentMade(va *storagev1.VolumeAttachment) {
	if _, ours := va.Annotations[kube.VolumeHandleAnnotation]; ours || !kube.IsAttachmentName(va.Name) {
		return
	}
	r.mu.Lock()
	old := r.began.IsZero() || time.Since(r.began) < lateWrites || !newer(va.ResourceVersion, r.sinceAttachments)
	r.mu.Unlock()
	if !old {
		maker := r.named(va.Name)
		r.saw("volumeattachments", va.Spec.NodeName, maker,
			fmt.Sprintf("%q created VolumeAttachment %s for node %s", maker, va.Name, va.Spec.NodeName))
	}
}

// saw counts one foreign write, says so, and halts at the second.
func (r *rivals) saw(resource, node, writer, what string) {
	r.metrics.Foreign(resource)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.halted != nil {
		return
	}
	second := !r.last.IsZero() && time.Since(r.last) < suspicion
	byHand := kube.ByHand(writer)
	if !byHand {
		r.last = time.Now()
	}
	about := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if !second || byHand || r.warnOnly {
		r.log.Error(ErrHalted, "Somebody else writes what belay-controller alone may write", "what", what, "stops", false)
		r.recorder.Event(about, corev1.EventTypeWarning, ForeignWriterReason, what+"; only belay-controller may. A second attach/detach controller would stop it")
		return
	}
	r.halted = fmt.Errorf("%w: %s", ErrHalted, what)
	r.metrics.Halted()
	r.log.Error(r.halted, "STOPPED: nothing is attached or detached any more. Switch off the other one, then restart belay-controller", "what", what)
	r.recorder.Event(about, corev1.EventTypeWarning, ForeignWriterReason,
		what+", not for the first time: belay-controller has stopped. Switch off the other attach/detach controller, then restart belay-controller")
}

// check returns why nothing may be written, nil if it may.
func (r *rivals) check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.halted
}

func (r *rivals) stopped() bool { return r.check() != nil }

// newer is like after, for versions that may be missing.
func newer(version, since string) bool { return since == "" || after(version, since) }

// makerOf asks the API server who made an attachment.
func makerOf(ctx context.Context, live client.Reader) func(name string) string {
	return func(name string) string {
		va := &storagev1.VolumeAttachment{}
		if err := live.Get(ctx, client.ObjectKey{Name: name}, va); err == nil {
			if w, ok := kube.AttachmentMaker(va); ok {
				return w.Manager
			}
		}
		return "somebody"
	}
}

// gated refuses to write once the controller has halted.
type gated struct {
	client.Client
	check func() error
}

// Create is client.Client's.
func (g gated) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	if err := g.check(); err != nil {
		return err
	}
	return g.Client.Create(ctx, obj, opts...)
}

// Delete is client.Client's.
func (g gated) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	if err := g.check(); err != nil {
		return err
	}
	return g.Client.Delete(ctx, obj, opts...)
}

// Patch is client.Client's.
func (g gated) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if err := g.check(); err != nil {
		return err
	}
	return g.Client.Patch(ctx, obj, patch, opts...)
}

// Status is client.Client's.
func (g gated) Status() client.SubResourceWriter { return gatedStatus{g.Client.Status(), g.check} }

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

// rivalsFor makes the watch for other controllers from the parts of a process.
func rivalsFor(ctx context.Context, p Parts, o Options) *rivals {
	return &rivals{
		recorder: p.Recorder, metrics: o.Metrics, warnOnly: o.WarnOfRivals,
		log: log.FromContext(ctx).WithName(Name), named: makerOf(ctx, p.Live),
	}
}
