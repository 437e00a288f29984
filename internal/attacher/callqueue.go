package attacher

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/publication"
	"belay.dev/belay/internal/telemetry"
)

// hangingShare is the share of the calls (one in four) for volumes that hang: those whose last call timed out have a queue with so many workers,
// and so many calls that hang now are not counted in the bound.
const hangingShare = 4

// hangsAfter is how long a call is in flight before it counts as hanging. Charts of drivers allow six minutes for a call.
const hangsAfter = 30 * time.Second

// limiter bounds the calls in flight, without up to a quarter of the bound that hang.
type limiter struct {
	bound int

	mu                sync.Mutex
	ended             *sync.Cond // or counts as hanging
	inFlight, hanging int
}

func newLimiter(bound int) *limiter {
	l := &limiter{bound: bound}
	l.ended = sync.NewCond(&l.mu)
	return l
}

// full reports whether another call has to wait; hold the lock.
func (l *limiter) full() bool { return l.inFlight-min(l.hanging, l.bound/hangingShare) >= l.bound }

func (l *limiter) free() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.full()
}

// begin waits until a call may begin; call end when it has ended.
func (l *limiter) begin() (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.full() {
		l.ended.Wait()
	}
	l.inFlight++
	over, hung := false, false
	timer := time.AfterFunc(hangsAfter, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !over {
			hung = true
			l.hanging++
			l.ended.Broadcast()
		}
	})
	return func() {
		timer.Stop()
		l.mu.Lock()
		defer l.mu.Unlock()
		over = true
		l.inFlight--
		if hung {
			l.hanging--
		}
		l.ended.Broadcast()
	}
}

// callQueue holds the keys that wait for a CSI call. Its workers make the calls themselves, within the limiter that
// both queues share, so the number of calls in flight is bounded even if all of them hang.
type callQueue struct {
	workqueue.TypedInterface[publication.Key]

	workers  int
	limiter  *limiter
	turns    turns
	inFlight [publication.Unpublish + 1]atomic.Int64 // calls, by verb

	mu      sync.Mutex
	waiting map[publication.Key]struct{} // keys that wait for a worker
	busy    int                          // workers that process a key
}

func newCallQueue(name string, workers int, limiter *limiter, detaches func(publication.Key) bool) *callQueue {
	return &callQueue{
		TypedInterface: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[publication.Key]{Name: name, Queue: newFairQueue(detaches)}),
		workers:        workers, limiter: limiter, turns: newTurns(), waiting: map[publication.Key]struct{}{},
	}
}

// newCallQueues returns the queue for regular calls and the one for volumes whose last call timed out. The second has
// fewer workers, so that hanging volumes delay only each other.
func newCallQueues(bound int, detaches func(publication.Key) bool) (well, suspect *callQueue) {
	limiter, share := newLimiter(bound), bound/hangingShare
	return newCallQueue("belay-attacher-calls", bound+share, limiter, detaches),
		newCallQueue("belay-attacher-calls-suspect", max(1, share), limiter, detaches)
}

// reserve registers a key that is about to be added, and reports whether a worker is free for it.
func (q *callQueue) reserve(key publication.Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, waits := q.waiting[key]; !waits && q.busy+len(q.waiting) >= q.workers {
		return false
	}
	q.waiting[key] = struct{}{}
	return q.busy+len(q.waiting) <= q.workers && q.limiter.free()
}

// join registers a key that is about to be added.
func (q *callQueue) join(key publication.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting[key] = struct{}{}
}

// isWaiting reports whether a key waits for a worker.
func (q *callQueue) isWaiting(key publication.Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, waits := q.waiting[key]
	return waits
}

// take waits for the next key; closed reports that the queue was shut down.
func (q *callQueue) take() (key publication.Key, closed bool) {
	key, closed = q.Get()
	q.mu.Lock()
	defer q.mu.Unlock()
	if !closed {
		delete(q.waiting, key)
		q.busy++
	}
	return key, closed
}

func (q *callQueue) done(key publication.Key) {
	q.mu.Lock()
	q.busy--
	q.mu.Unlock()
	q.Done(key)
}

// turns lets one worker of a queue at a time take a key and decide on it, so that first decisions are made, and calls that need no request
// before them begin, in the order of the queue.
type turns chan struct{}

func newTurns() turns { return make(turns, 1) }

// take waits for the turn. The worker passes it on before it waits for anything that the next one does not wait for too.
func (t turns) take() (pass func()) {
	t <- struct{}{}
	return sync.OnceFunc(func() { <-t })
}

// callDelay is why a call may not start now and when to check again; a zero time means that an event will end the wait.
type callDelay struct {
	reason publication.Reason
	until  time.Time
}

// queueFor returns the call queue for an attachment.
func (a *Attacher) queueFor(subj *subject) *callQueue {
	if subj.record.call.Unanswered {
		return a.suspectCalls
	}
	return a.regularCalls
}

// decideExclusively runs decide unless another worker is deciding on the key. It synchronizes the workers of the work
// queue with those of the call queues, so that no other decision is made between the observation and the action: no
// call starts for an attachment whose finalizer is being removed. A worker that finds the key taken skips it; the
// worker that has it enqueues it again.
func (a *Attacher) decideExclusively(key publication.Key, decide func()) (did bool) {
	if _, taken := a.deciding.LoadOrStore(key, nil); taken {
		return false
	}
	defer a.deciding.Delete(key)
	decide()
	return true
}

// workCalls makes calls until the queue is shut down.
func (a *Attacher) workCalls(ctx context.Context, queue *callQueue) {
	for {
		pass := queue.turns.take()
		key, closed := queue.take()
		if closed {
			pass()
			return
		}
		end := queue.limiter.begin() // blocks at most for --timeout
		var send func()
		var again time.Duration
		if a.decideExclusively(key, func() { send, again = a.prepareCall(ctx, queue, key) }) {
			a.queue.AddAfter(key, again) // for the remaining steps
		}
		pass()
		if send != nil {
			send()
			a.queue.Add(key)
		}
		end()
		queue.done(key)
	}
}

// conflictPause is the delay of a call that conflicts with a call under another key of the same volume, or whose key is
// outdated.
const conflictPause = time.Second

// prepareCall decides again on a key when a call worker has it, because the state may have changed since it was queued.
// It records the call and returns the function that makes it, or else the delay until the next decision.
//
// A call for another place than the key's, as for the ID by which the driver knew the node before, is decided on with both: that place may be
// needed by then.
func (a *Attacher) prepareCall(ctx context.Context, queue *callQueue, key publication.Key) (send func(), again time.Duration) {
	snap, decision := a.decide(key)
	step, ok := firstCall(decision)
	if !ok || !key.Shared() || step.NodeID == key.NodeID {
		return a.beginCall(ctx, queue, snap, decision)
	}
	other := publication.Key{Volume: key.Volume, NodeID: step.NodeID}
	decided := a.decideExclusively(other, func() {
		snap, decision := a.decide(key)
		if now, ok := firstCall(decision); ok && now.NodeID == step.NodeID {
			send, again = a.beginCall(ctx, queue, snap, decision)
		}
	})
	if !decided {
		return nil, conflictPause
	}
	a.queue.Add(other) // for a worker that found it taken
	return send, again
}

func firstCall(decision publication.Decision) (publication.CallDriver, bool) {
	for _, step := range decision.Steps {
		if call, ok := step.(publication.CallDriver); ok {
			return call, true
		}
	}
	return publication.CallDriver{}, false
}

// beginCall records the call that was decided on and returns the function that makes it, or else the delay until the next decision.
func (a *Attacher) beginCall(ctx context.Context, queue *callQueue, snap snapshot, decision publication.Decision) (send func(), again time.Duration) {
	step, ok := firstCall(decision)
	if !ok {
		return nil, 0
	}
	subj := snap.subjects[step.Target()]
	try := attemptOf(snap.key, subj, step)
	if a.absence.hold(snap.key, a.controller.Present) || !a.throttle.begin(time.Now(), try) {
		return nil, 0
	}
	try.inputs, try.due = inputsOf(subj, a.finalizer), a.policy.Due(string(try.uid), subj.record.call, try.verb, try.nodeID)
	ctx, abandon := context.WithCancelCause(ctx)
	try.abandon = abandon
	if !a.calls.begin(try, func() bool { return a.isOutdated(snap) }) {
		abandon(nil)
		return nil, conflictPause
	}
	return func() {
		defer abandon(nil)
		queue.inFlight[step.Verb].Add(1)
		defer queue.inFlight[step.Verb].Add(-1)
		a.call(ctx, subj, step, try)
	}, 0
}

// attemptOf returns the attempt for a step.
func attemptOf(key publication.Key, subj *subject, step publication.CallDriver) attempt {
	since := subj.record.call.Ended
	if since.IsZero() {
		since = subj.seen.Created
	}
	return attempt{key: key, uid: subj.uid(), attachment: subj.attachment, volume: subj.source.identity, node: subj.seen.Node,
		verb: step.Verb, nodeID: step.NodeID, left: subj.left,
		begunAlone: subj.seen.Finalizer && (!subj.seen.Attached || subj.seen.AttachError != "") && !subj.seen.Untouched, elsewhere: subj.seen.Elsewhere(step), attached: subj.seen.Attached, waitsSince: since}
}

// call makes a CSI call and records its outcome.
func (a *Attacher) call(ctx context.Context, subj *subject, step publication.CallDriver, try attempt) {
	logger := log.FromContext(ctx).WithValues(subj.callLogValues(a.nodeOf(subj, step.NodeID))...)
	ctx = log.IntoContext(ctx, logger)
	logger.Info(verbs[step.Verb].start, "call", step.Verb, "nodeID", step.NodeID)
	traced, span := a.startSpan(ctx, subj, try)
	returned := a.watchSlow(try)
	ended := a.send(traced, subj, step)
	returned()
	span.End(ended.err)
	a.throttle.end(time.Now(), try, ended.err)
	a.finish(logger, try, ended)
	if ended.err == nil {
		a.retryAfter(step)
	}
	keys := []publication.Key{a.objects.keyOfRecord(a.calls.of(try.uid))}
	if va, ok := a.objects.attachments.Get(subj.seen.Name); ok && try.key.Shared() {
		keys = append(keys, a.keysBeside(try.volume.handle, va, try.nodeID)...) // they waited for the call
	}
	a.enqueue(slices.DeleteFunc(keys, func(key publication.Key) bool { return key == try.key })) // which workCalls enqueues
}

// retryAfter retries what a confirmed call gives reason to: the attaches that a full node rejected, after a detach from it, and calls that
// failed because the node was busy or the driver could not work.
func (a *Attacher) retryAfter(confirmed publication.CallDriver) {
	now := time.Now()
	if confirmed.Verb == publication.Unpublish {
		for i, r := range a.calls.release(confirmed.NodeID, now, a.policy.RetryStart) {
			a.queue.AddAfter(a.objects.keyOfRecord(r), time.Duration(i)*a.policy.RetryStart)
		}
	}
	for _, r := range a.calls.succeeded(confirmed.NodeID, now) {
		a.queue.Add(a.objects.keyOfRecord(r))
	}
}

// flow returns the number of calls in flight and of throttled nodes and volumes, for metrics.
func (a *Attacher) flow() telemetry.Calls {
	f := telemetry.Calls{Limit: a.regularCalls.limiter.bound}
	for _, queue := range a.callQueues() {
		attaching, detaching := int(queue.inFlight[publication.Publish].Load()), int(queue.inFlight[publication.Unpublish].Load())
		f.Attaching, f.Detaching = f.Attaching+attaching, f.Detaching+detaching
		if queue == a.suspectCalls {
			f.Unanswered = attaching + detaching
		}
	}
	f.NodesHeld, f.VolumesHeld = a.throttle.count(time.Now())
	f.PendingAttach, f.PendingDetach = a.pending(time.Now())
	return f
}

// pending returns the age of the oldest unfinished attach and detach.
func (a *Attacher) pending(now time.Time) (attach, detach time.Duration) {
	for _, item := range a.objects.attachmentInformer.GetStore().List() {
		va, ok := item.(*storagev1.VolumeAttachment)
		switch {
		case !ok || va.Spec.Attacher != a.driver:
		case va.DeletionTimestamp == nil && !va.Status.Attached:
			attach = max(attach, now.Sub(va.CreationTimestamp.Time))
		case va.DeletionTimestamp != nil && slices.Contains(va.Finalizers, a.finalizer): // else it waits for another finalizer
			detach = max(detach, now.Sub(va.DeletionTimestamp.Time))
		}
	}
	return attach, detach
}

func (a *Attacher) callQueues() []*callQueue { return []*callQueue{a.regularCalls, a.suspectCalls} }
