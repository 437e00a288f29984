package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
)

// Reconcile observes a volume, decides, and acts, until only a wait is left.
func (c *Controller) Reconcile(ctx context.Context, k key) (reconcile.Result, error) {
	select {
	case <-c.ready:
	case <-ctx.Done():
		return reconcile.Result{}, context.Cause(ctx)
	}
	if c.rivals.check() != nil {
		return reconcile.Result{}, nil // halted until a restart
	}
	if c.volumeActive != nil {
		c.volumeActive(1)
		defer c.volumeActive(-1)
	}
	w := &work{Controller: c, key: k, reads: &nodeReads{}, failed: map[attachment.NodeName]error{}, log: log.FromContext(ctx)}
	w.applyLateAnswers()
	if err := w.readPendingCreates(ctx); err != nil {
		return reconcile.Result{}, err
	}
	for range maxDecisions {
		w.now = c.state.observe(k, w.reads, c)
		now := c.clock.Now()
		decision := attachment.Decide(now, w.now.want, w.now.seen, c.policy)
		c.metrics.Decided(time.Now(), w.volume(), w.now.want, w.now.seen, decision)
		if wait := c.rivals.holdBack(k, decision.Steps); wait > 0 {
			return reconcile.Result{RequeueAfter: wait}, nil
		}
		if !w.act(ctx, decision.Steps) {
			return w.end(decision)
		}
	}
	return reconcile.Result{}, w.errorOf(fmt.Errorf("decide on volume %s of %s: %w", k.Handle, k.Driver, errUnsettled))
}

// end completes a Reconcile after its last decision and returns when to requeue.
func (w *work) end(decision attachment.Decision) (reconcile.Result, error) {
	err := errors.Join(slices.Collect(maps.Values(w.failed))...)
	next := w.recheck(decision.RecheckAt, w.emitEvents(decision.Steps, err), w.now.driverAgain)
	if err != nil {
		return w.retry(err, next)
	}
	w.refusals.Forget(w.key)
	if w.log.V(1).Enabled() {
		w.logger().V(1).Info("Decided", "reason", decision.Reason, "steps", len(decision.Steps))
	}
	return next, nil
}

// recheck requeues at the earliest of the times, ignoring zero.
func (c *Controller) recheck(times ...time.Time) reconcile.Result {
	times = slices.DeleteFunc(times, time.Time.IsZero)
	if len(times) == 0 {
		return reconcile.Result{}
	}
	at := slices.MinFunc(times, time.Time.Compare)
	return reconcile.Result{RequeueAfter: max(at.Sub(c.clock.Now()), time.Millisecond)}
}

var errUnsettled = errors.New("its nodes kept changing")

// work is one volume in one Reconcile.
type work struct {
	*Controller
	key   attachment.VolumeKey
	reads *nodeReads
	now   snapshot
	// failed holds the nodes at which a step failed. Other nodes continue.
	failed map[attachment.NodeName]error
	log    logr.Logger // names no PersistentVolume yet: see logger
}

func (w *work) step(ctx context.Context, step attachment.Step) (again bool, err error) {
	switch s := step.(type) {
	case attachment.Attach:
		return w.attach(ctx, s)
	case attachment.Report:
		return w.report(ctx, s)
	case attachment.WithdrawReport:
		return w.withdraw(ctx, s)
	case attachment.Check:
		out := w.reporter.check(ctx, string(s.Node))
		w.reads.record(s.Node, out)
		return true, out.err
	case attachment.CheckKubelet:
		return w.checkKubelet(ctx, s)
	case attachment.Detach:
		w.loggerAt(s.Node).Info("Detaching volume", "attachment", s.Attachment.Name)
		return w.detach(ctx, attachment.ForceDetach{Node: s.Node, Attachment: s.Attachment})
	case attachment.ForceDetach:
		w.loggerAt(s.Node).Error(nil, "Detaching volume by force from a node that may still use it",
			"attachment", s.Attachment.Name, "policy", s.Authority.String(), "reason", s.Reason, "remedy", explain.CheckMachineIsOff)
		return w.detach(ctx, s)
	case attachment.AnnotateAttachment:
		return false, w.annotateAttachment(ctx, s)
	case attachment.RecordSameMachine:
		return true, w.recordSameMachine(ctx, s)
	case attachment.AnnotateNode:
		return w.annotateNode(ctx, s)
	case attachment.Wait:
	}
	return false, nil
}

// Back-off of a volume after the API server rejected a request, for example by an admission policy or missing
// permissions, which quick retries do not fix. Upstream's maximum is the same. An event of the volume still enqueues it
// at once.
const minRefusalRetry, maxRefusalRetry = time.Second, 2 * time.Minute

// retry returns when to retry after an error: with the queue's short back-off, or with the long one if the API server
// rejected all failed requests. Thousands of volumes that cannot be attached must not overload the API server.
func (w *work) retry(err error, next reconcile.Result) (reconcile.Result, error) {
	if !refused(err) {
		return reconcile.Result{}, w.errorOf(err) // controller-runtime logs it
	}
	after := w.refusals.When(w.key)
	if next.RequeueAfter > 0 {
		after = min(after, next.RequeueAfter)
	}
	w.logger().Error(err, "API server refused a request, retrying", "retryAfter", after)
	return reconcile.Result{RequeueAfter: after}, nil
}

// refused reports whether all errors in err are rejections.
func refused(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			if !refused(e) {
				return false
			}
		}
		return true
	}
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsRequestEntityTooLargeError(err)
}
