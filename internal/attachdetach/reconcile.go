package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"belay.dev/belay/internal/attachment"
)

// Reconcile looks at one volume, decides, and acts, until there is nothing to do but
// wait.
func (c *Controller) Reconcile(ctx context.Context, k key) (reconcile.Result, error) {
	select {
	case <-c.ready:
	case <-ctx.Done():
		return reconcile.Result{}, context.Cause(ctx)
	}
	if c.rivals.stopped() {
		return reconcile.Result{}, nil // until a restart
	}
	if c.worksOn != nil {
		c.worksOn(1)
		defer c.worksOn(-1)
	}
	w := &work{Controller: c, key: k, at: &turn{}, failed: map[attachment.NodeName]error{}, log: log.FromContext(ctx)}
	w.heedLate()
	if err := w.lookForAttempts(ctx); err != nil {
		return reconcile.Result{}, err
	}
	for range turnLimit {
		w.now = c.state.observe(k, w.at, c)
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

// end ends the work on a volume with the last decision on it, and says when to look again.
func (w *work) end(decision attachment.Decision) (reconcile.Result, error) {
	err := errors.Join(slices.Collect(maps.Values(w.failed))...)
	next := w.recheck(decision.RecheckAt, w.announce(decision.Steps, err))
	if err != nil {
		return w.retry(err, next)
	}
	w.refusals.Forget(w.key)
	if w.log.V(1).Enabled() {
		w.logger().V(1).Info("Decided", "reason", decision.Reason, "steps", len(decision.Steps))
	}
	return next, nil
}

// recheck comes back at the first of the times, zero being none.
func (c *Controller) recheck(times ...time.Time) reconcile.Result {
	times = slices.DeleteFunc(times, time.Time.IsZero)
	if len(times) == 0 {
		return reconcile.Result{}
	}
	at := slices.MinFunc(times, time.Time.Compare)
	return reconcile.Result{RequeueAfter: max(at.Sub(c.clock.Now()), time.Millisecond)}
}

var errUnsettled = errors.New("its nodes kept changing")

// work is one volume in the hands of one worker.
type work struct {
	*Controller
	key attachment.VolumeKey
	at  *turn
	now snapshot
	// failed are the nodes at which a step failed: they must not keep the volume from others.
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
		out := w.reporter.look(ctx, string(s.Node))
		w.at.heed(s.Node, out)
		return true, out.err
	case attachment.CheckKubelet:
		return w.checkKubelet(ctx, s)
	case attachment.Detach:
		w.loggerAt(s.Node).Info("Detaching volume", "attachment", s.Attachment.Name)
		return w.detach(ctx, attachment.ForceDetach{Node: s.Node, Attachment: s.Attachment})
	case attachment.ForceDetach:
		w.loggerAt(s.Node).Info("Detaching volume by force", "attachment", s.Attachment.Name, "authority", s.Authority.String())
		return w.detach(ctx, s)
	case attachment.AnnotateAttachment:
		return false, w.note(ctx, s)
	case attachment.AnnotateNode:
		return w.noteNode(ctx, s)
	case attachment.Wait:
	}
	return false, nil
}
