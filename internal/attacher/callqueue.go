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

// suspectShare: one in so many of the calls in flight may be for volumes whose last call was not answered in time.
const suspectShare = 4

// callQueue holds the keys for which a call to the driver is to be sent. It has one worker for each of its calls that may be
// in flight, and the worker sends the call itself, in one of the places of the limiter that it shares with the other queue: whatever hangs,
// there are never more.
type callQueue struct {
	workqueue.TypedInterface[publication.Key]

	workers  int
	limiter  chan struct{}
	inFlight [publication.Unpublish + 1]atomic.Int64 // calls, by verb

	mu      sync.Mutex
	waiting map[publication.Key]struct{} // for a worker
	busy    int                          // workers with a key
}

func newCallQueue(name string, workers int, limiter chan struct{}, detaches func(publication.Key) bool) *callQueue {
	return &callQueue{
		TypedInterface: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[publication.Key]{Name: name, Queue: newFair(detaches)}),
		workers:        workers, limiter: limiter, waiting: map[publication.Key]struct{}{},
	}
}

// newCallQueues bounds the calls in flight, and beside that those for volumes whose last call was not answered in time, so that
// these hold up only each other.
func newCallQueues(bound int, detaches func(publication.Key) bool) (well, suspect *callQueue) {
	limiter := make(chan struct{}, bound)
	return newCallQueue("belay-attacher-calls", bound, limiter, detaches),
		newCallQueue("belay-attacher-calls-suspect", max(1, bound/suspectShare), limiter, detaches)
}

// reserve counts a key that is about to be added, if a worker is free for it.
func (q *callQueue) reserve(key publication.Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, waits := q.waiting[key]; !waits && q.busy+len(q.waiting) >= q.workers {
		return false
	}
	q.waiting[key] = struct{}{}
	return q.busy+len(q.waiting) <= q.workers && len(q.limiter) < cap(q.limiter)
}

// join counts a key that is about to be added.
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

// take waits for a key; closed reports that there are no more.
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

// refusal is why a call may not begin now, and when to look again; zero if only an event can tell.
type refusal struct {
	reason publication.Reason
	until  time.Time
}

// queueFor is the queue that a call for an attachment waits in.
func (a *Attacher) queueFor(one *subject) *callQueue {
	if one.record.call.Unanswered {
		return a.suspectCalls
	}
	return a.wellCalls
}

// decideAlone runs what decides about a key, unless another worker does now. The workers of the work queue and those of the
// call queues keep apart by it: between what was observed and what is done about it nothing else is decided for the key. So
// no call begins for an attachment whose finalizer is being removed, and none that another call has made obsolete. A worker
// that finds the key taken leaves it: the one that has it queues it for the other afterwards.
func (a *Attacher) decideAlone(key publication.Key, decide func()) (did bool) {
	if _, taken := a.inHand.LoadOrStore(key, nil); taken {
		return false
	}
	defer a.inHand.Delete(key)
	decide()
	return true
}

// workCalls sends calls until the queue is shut down.
func (a *Attacher) workCalls(ctx context.Context, queue *callQueue) {
	for {
		key, closed := queue.take()
		if closed {
			return
		}
		queue.limiter <- struct{}{} // a call ends within --timeout
		var send func()
		var again time.Duration
		if a.decideAlone(key, func() { send, again = a.beginCall(ctx, queue, key) }) {
			a.queue.AddAfter(key, again) // for what there is to be done meanwhile, or instead
		}
		if send != nil {
			send()
			a.queue.Add(key)
		}
		<-queue.limiter
		queue.done(key)
	}
}

// conflictPause is how long a call waits that another one for the volume is in the way of, under another key.
const conflictPause = time.Second

// beginCall decides anew about a key, now that a worker has it: since it was queued, anything may have changed. It notes
// the call that is to be sent, if one is, and returns what sends it; else when the key is to be decided about again.
func (a *Attacher) beginCall(ctx context.Context, queue *callQueue, key publication.Key) (send func(), again time.Duration) {
	if a.isOutdated(key) {
		return nil, 0
	}
	shot, decision := a.decide(key)
	for _, step := range decision.Steps {
		step, ok := step.(publication.CallDriver)
		if !ok {
			continue
		}
		one := shot.subjects[step.Target()]
		try := attemptOf(key, one, step)
		if a.absence.hold(key, a.controller.Present) || !a.holds.begin(time.Now(), try) {
			return nil, 0
		}
		try.inputs = inputsOf(one, a.finalizer)
		if !a.calls.begin(try, shot.seen.Exclusive) {
			return nil, conflictPause
		}
		return func() {
			queue.inFlight[step.Verb].Add(1)
			defer queue.inFlight[step.Verb].Add(-1)
			a.call(ctx, one, step, try)
		}, 0
	}
	return nil, 0
}

// attemptOf is the call that a step asks for.
func attemptOf(key publication.Key, one *subject, step publication.CallDriver) attempt {
	return attempt{key: key, uid: one.uid(), attachment: one.attachment, volume: one.source.identity, node: one.seen.Node,
		verb: step.Verb, nodeID: step.NodeID, attached: one.seen.Attached}
}

// call sends a call and notes how it ended.
func (a *Attacher) call(ctx context.Context, one *subject, step publication.CallDriver, try attempt) {
	logger := log.FromContext(ctx).WithValues(one.aboutCall(a.nodeOf(one, step.NodeID))...)
	ctx = log.IntoContext(ctx, logger)
	logger.Info(verbs[step.Verb].begins, "call", step.Verb, "nodeID", step.NodeID)
	traced, end := trace(ctx, try, a.driver)
	ended := a.send(traced, one, step)
	end(ended.err)
	a.holds.end(time.Now(), try, ended.err)
	a.finish(logger, try, ended)
	if step.Verb == publication.Unpublish && ended.err == nil {
		a.makeRoom(step.NodeID)
	}
	if one.attachment != nil {
		a.wakeAttachment(one.attachment) // the key may be another one by now
	}
}

// makeRoom wakes the attachments that a full node kept out, now that a volume was detached from it.
func (a *Attacher) makeRoom(nodeID string) {
	now := time.Now()
	for i, r := range a.calls.release(nodeID, now, a.policy.RetryStart) {
		a.queue.AddAfter(a.objects.keyOfVolume(r.handle, r.node), time.Duration(i)*a.policy.RetryStart)
	}
}

// flow counts the calls in flight, and what is held back.
func (a *Attacher) flow() telemetry.Calls {
	f := telemetry.Calls{Limit: cap(a.wellCalls.limiter)}
	for _, queue := range a.callQueues() {
		attaching, detaching := int(queue.inFlight[publication.Publish].Load()), int(queue.inFlight[publication.Unpublish].Load())
		f.Attaching, f.Detaching = f.Attaching+attaching, f.Detaching+detaching
		if queue == a.suspectCalls {
			f.Unanswered = attaching + detaching
		}
	}
	f.NodesHeld, f.VolumesHeld = a.holds.count(time.Now())
	f.PendingAttach, f.PendingDetach = a.pending(time.Now())
	return f
}

// pending is how long the oldest attach and the oldest detach have been asked for.
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

func (a *Attacher) callQueues() []*callQueue { return []*callQueue{a.wellCalls, a.suspectCalls} }
