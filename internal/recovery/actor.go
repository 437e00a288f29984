package recovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

const (
	// maxDecisions bounds how often one Reconcile decides. A fence that needs more is decided again at once.
	maxDecisions = 16
	// sendWithin is how long a command is waited for that the fencer has not recorded as sent, before the switch is asked for its state. A fence is
	// looked at again that often.
	sendWithin = 15 * time.Second
	// unaskedWithin is how soon it is noticed that no remediation asks for a fence any more, which is no event for the actor.
	unaskedWithin = 5 * time.Second
)

// actor decides on fences, and carries out what was decided.
type actor struct {
	*parts

	mu    sync.Mutex
	known map[types.UID]*memory
	// epochs has the highest epoch of each boot whose NodeFence this process saw lately.
	epochs map[fencing.Boot]lastEpoch
}

type lastEpoch struct {
	epoch int64
	of    types.UID
	at    time.Time // when it was last seen
}

// memory is what this process knows about a fence and does not store: what authorizes must be its own (fencing.FreshFor).
type memory struct {
	// fence is the name of the NodeFence.
	fence string
	// asked has when this process made each nonce, to store it.
	asked map[string]time.Time
	// tainted is when this process first saw the taint out-of-service of this value.
	tainted     time.Time
	taintedWith string
	ended       bool
	// alive is since when this process has seen that the lease was renewed since the fence was created, under the Node object aliveAs, and without a silence.
	alive   time.Time
	aliveAs string
	// news is since when nothing of the fence has changed.
	news fencing.News
	// cut is how many volumes could be taken one by one then.
	cut int
	// refused is the expiry of the statement that was reported as no evidence, and why.
	refused       time.Time
	refusedReason string
	// waits is the reason that was reported last.
	waits decision.Reason
	// left is what is left of the boot, as the API server itself said; nil if it was not asked since the last write.
	left *remains
	// bound has the pods that the first list had after the taint that was seen at boundAt.
	bound   map[types.UID]bool
	boundAt time.Time
}

type remains struct {
	pods        []fencing.Pod
	attachments []fencing.Attachment
}

// turn is one Reconcile of one fence.
type turn struct {
	*actor

	fence *fencingv1.NodeFence
	node  *corev1.Node // nil if there is none, or it could not be read
	mem   *memory
	// cause is why the last decision cancels the fence, if it does.
	cause fencing.Cause
	// latest is the highest epoch of the fences of the boot, and later is set when another machine of the name has a later one that is not over.
	latest int64
	later  bool
	// sent is the command that the fencer last recorded before it sent it, and answerWithin how long it may take to answer.
	sent         string
	answerWithin time.Duration
}

// Reconcile decides on a fence until it waits.
func (a *actor) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	t := &turn{actor: a, fence: &fencingv1.NodeFence{}}
	err := a.live.Get(ctx, client.ObjectKey{Name: r.Name}, t.fence)
	if err == nil || apierrors.IsNotFound(err) {
		a.forgetOthers(r.Name, t.fence.UID)
	}
	if apierrors.IsNotFound(err) {
		a.Metrics.Forget(r.Name)
		a.Proofs.decided(r.Name, fencing.Decision{})
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read NodeFence %s: %w", r.Name, err)
	}
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithValues("node", t.fence.Spec.NodeName, "fence", t.fence.Name))
	t.latest = a.latestEpoch(t.fence)
	if finished(t.fence) {
		a.Proofs.decided(r.Name, fencing.Decision{})
		a.forget(t.fence.UID)
		return reconcile.Result{}, nil
	}
	t.mem = a.remember(t.fence)
	t.mem.left = nil
	for range maxDecisions {
		d, done, err := t.decide(ctx)
		switch {
		case apierrors.IsConflict(err): // another writer was first: read again
			return again, nil
		case err != nil:
			return reconcile.Result{}, fmt.Errorf("fence node %s (NodeFence %s, %s): %w", t.fence.Spec.NodeName, t.fence.Name, t.fence.Status.Phase, err)
		}
		if done {
			return t.result(d), nil
		}
	}
	return again, nil
}

// again has an object read and decided on again at once.
var again = reconcile.Result{RequeueAfter: time.Millisecond}

// decide takes one decision and carries out its steps. done: there is nothing to do but to wait.
func (t *turn) decide(ctx context.Context) (d fencing.Decision, done bool, err error) {
	seen, err := t.observe(ctx)
	if err != nil {
		return d, true, err
	}
	if err := t.recordTaint(ctx, seen); err != nil {
		return d, true, err
	}
	if err := t.recordStatement(ctx); err != nil {
		return d, true, err
	}
	state := fenceState(t.fence)
	t.judgeStatement(ctx, state.Statement)
	seen.News = t.mem.news.Since(t.now(), state, seen)
	d, t.cause = fencing.Decide(t.now(), state, seen), fencing.CancelledBy(state, seen)
	if c := d.Proof.Class(); c != "" && c != fencing.StorageFenced {
		t.mem.ended = true
	}
	t.Proofs.decided(t.fence.Name, d)
	if len(d.Steps) == 0 {
		return d, true, t.waiting(ctx, d.Reason, seen)
	}
	var failed error
	for _, s := range d.Steps { // there are several only to delete, and one that is refused keeps none of the others
		failed = errors.Join(failed, t.act(ctx, s))
	}
	if failed != nil {
		return d, true, failed
	}
	// A question has been stored: its answer is an event.
	_, asked := d.Steps[0].(fencing.Ask)
	return d, asked, nil
}

// recordStatement stores when a statement was written, before it counts.
func (t *turn) recordStatement(ctx context.Context) error {
	s, r := t.fence.Spec.Statement, t.fence.Status.Statement
	if s == nil || r != nil && r.Expires.Equal(&s.Expires) {
		return nil
	}
	made := metav1.NewTime(kube.StatementMade(t.fence))
	return t.patchStatus(ctx, func(status *fencingv1.NodeFenceStatus) {
		status.Statement = &fencingv1.StatementRecord{Expires: s.Expires, Made: made}
	})
}

// result says when to decide again without an event.
func (t *turn) result(d fencing.Decision) reconcile.Result {
	if finished(t.fence) {
		return reconcile.Result{}
	}
	after := sendWithin
	if t.fence.Spec.Trigger == fencingv1.TriggerRemediation && fenceState(t.fence).MayEnd() {
		after = unaskedWithin
	}
	if !d.RecheckAt.IsZero() {
		after = min(after, d.RecheckAt.Sub(t.now()))
	}
	return reconcile.Result{RequeueAfter: max(after, time.Millisecond)}
}

func (a *actor) remember(f *fencingv1.NodeFence) *memory {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.known[f.UID]
	if m == nil {
		m = &memory{fence: f.Name, asked: map[string]time.Time{}}
		a.known[f.UID] = m
	}
	return m
}

// forgetOthers drops what is known about NodeFences that had the name before: one whose finalizer a client has removed ends without the actor.
func (a *actor) forgetOthers(fence string, uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.known, func(other types.UID, m *memory) bool { return m.fence == fence && other != uid })
}

// latestEpoch returns the highest epoch of the other NodeFences of a boot that this process saw lately: for as long as a create that was sent before one of them
// may still be carried out. Two detectors may give one number, of which the first to be seen has it.
func (a *actor) latestEpoch(f *fencingv1.NodeFence) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	boot := kube.FencedBoot(f)
	maps.DeleteFunc(a.epochs, func(_ fencing.Boot, e lastEpoch) bool { return a.now().Sub(e.at) >= requestLifetime })
	last := a.epochs[boot]
	if f.Spec.Epoch > last.epoch || f.UID == last.of {
		if a.epochs == nil {
			a.epochs = map[fencing.Boot]lastEpoch{}
		}
		a.epochs[boot], last = lastEpoch{f.Spec.Epoch, f.UID, a.now()}, lastEpoch{}
	}
	return last.epoch
}

func (a *actor) forget(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.known, uid)
}

// waiting stores what the fence waits for, and what a person can do about it, once for each reason.
func (t *turn) waiting(ctx context.Context, r decision.Reason, seen fencing.Observed) error {
	if t.mem.waits == r && t.mem.cut == len(seen.Cut) {
		return nil
	}
	if r == fencing.Contradicted && t.now().Before(seen.AliveSince.Add(fencing.ContradictedAfter)) &&
		!meta.IsStatusConditionTrue(t.fence.Status.Conditions, conditionContradicted) {
		return nil // perhaps it is the next boot that renewed, and the Node does not show it yet
	}
	t.mem.waits, t.mem.cut = r, len(seen.Cut)
	t.Metrics.Waits(t.fence.Name, r)
	if r == fencing.AwaitingSource {
		return nil // for less than a second, unless the fencer is down
	}
	if r != fencing.Settled {
		log.FromContext(ctx).Info("Fence waits", "phase", t.fence.Status.Phase, "reason", r)
	}
	err := t.patchStatus(ctx, func(s *fencingv1.NodeFenceStatus) { describeWait(s, r, seen, t.fence.Spec.NodeName) })
	if err != nil {
		t.mem.waits = "" // another writer was first: it is stored with the next decision
		return err
	}
	if r == fencing.Contradicted {
		t.events.Eventf(t.regarding(), t.fence, corev1.EventTypeWarning, string(fencing.Contradicted), "Fence", "%s", explain.FenceContradicted())
	}
	return nil
}
