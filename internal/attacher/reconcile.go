package attacher

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/publication"
	"belay.dev/belay/internal/telemetry"
)

// process decides on a key and takes the steps, until only a wait or a call to the driver is left. It passes its turn before it waits.
func (a *Attacher) process(ctx context.Context, key publication.Key, pass func()) (err error) {
	if !a.controller.Capabilities().Attach {
		pass()
		return a.markTrivially(ctx, key)
	}
	if key.Volume == "" {
		pass()
		if wait := a.objects.searchVolumeOf(key.Attachment); wait > 0 {
			a.queue.AddAfter(key, wait)
		}
	}
	var queue *callQueue
	// If another worker is deciding on the key, it starts a call and enqueues the key again.
	a.decideExclusively(key, func() { queue, err = a.reconcile(ctx, key, pass) })
	if queue != nil {
		queue.Add(key) // after decideExclusively has released the key
	}
	return err
}

// reconcile decides and takes steps. It returns the queue for the call that is left, if there is one.
func (a *Attacher) reconcile(ctx context.Context, key publication.Key, pass func()) (*callQueue, error) {
	for range maxDecisions {
		snap, decision := a.decide(key)
		if a.isOutdated(snap) {
			a.rekey(key)
			a.metrics.Waits(time.Now(), key, nil)
			a.longCalls.hold(key, nil)
			return nil, nil
		}
		queue := a.queueOfCall(snap, &decision)
		if queue != nil && queue.reserve(key) {
			return queue, nil // the call starts at once; the other steps are taken meanwhile
		}
		progressed, err := a.act(ctx, snap, &decision, pass)
		if err == nil && progressed {
			continue
		}
		if queue != nil {
			queue.join(key)
		}
		a.scheduleRecheck(ctx, snap, decision)
		return queue, err
	}
	a.queue.Add(key) // let other keys be processed first
	return nil, nil
}

// isOutdated reports whether a decision lacks attachments that it must consider: its key is that of an attachment whose
// volume was unknown and has been identified, or its volume became exclusive or shared. Check it after the snapshot was
// taken, because either may happen between the two.
func (a *Attacher) isOutdated(snap snapshot) bool {
	if snap.key.Volume != "" {
		return a.objects.exclusive(snap.key.Volume) != snap.seen.Exclusive
	}
	for _, subj := range snap.subjects {
		if subj.sourceErr == nil {
			return true
		}
	}
	return false
}

func (a *Attacher) decide(key publication.Key) (snapshot, publication.Decision) {
	snap := a.observe(key)
	snap.seen.Draining = a.draining.Load()
	return snap, publication.Decide(time.Now(), snap.seen, a.policy)
}

// queueOfCall returns the queue for the call in a decision, or nil if there is none or it may not start now. It adds
// the reason of the wait to the decision.
func (a *Attacher) queueOfCall(snap snapshot, decision *publication.Decision) *callQueue {
	step, ok := firstCall(*decision)
	if !ok {
		return nil
	}
	subj := snap.subjects[step.Target()]
	queue, no := a.queueFor(subj), a.throttle.wait(time.Now(), attemptOf(snap.key, subj, step))
	switch {
	case a.absence.hold(snap.key, a.controller.Present):
		queue, no = nil, callDelay{reason: publication.DriverGone}
	case no.reason != "":
		queue = nil
	default:
		no.reason = publication.DriverBusy
	}
	decision.Wait(publication.Wait{Attachment: subj.seen.Name, Reason: no.reason, Until: no.until})
	return queue
}

// rekey enqueues the current keys of the attachments and records of an outdated key.
func (a *Attacher) rekey(outdated publication.Key) {
	if outdated.Volume != "" && a.objects.exclusive(outdated.Volume) {
		a.queue.Add(publication.Key{Volume: outdated.Volume})
		return
	}
	outdated.NodeID, outdated.Node = "", ""
	var keys []publication.Key
	for _, va := range a.attachmentsOf(outdated) {
		keys = append(keys, a.objects.keyOf(va))
	}
	if outdated.Volume != "" {
		keys = append(keys, a.keysOfRecords(outdated.Volume)...)
	}
	a.enqueue(keys)
}

// scheduleRecheck enqueues the key for the next decision, and records why its attachments wait.
func (a *Attacher) scheduleRecheck(ctx context.Context, snap snapshot, decision publication.Decision) {
	detaches := make(map[string]bool, len(snap.seen.Attachments))
	for _, seen := range snap.seen.Attachments {
		detaches[seen.Name] = seen.Deleting || seen.Gone
	}
	var waiting []telemetry.Waiting
	for _, w := range decision.Waits {
		waiting = append(waiting, telemetry.Waiting{Attachment: w.Attachment, Detach: detaches[w.Attachment], Reason: w.Reason})
	}
	snap.logWaits(ctx, decision.Waits, a.metrics.Waits(time.Now(), snap.key, waiting))
	a.holdCalls(snap, decision.Waits)
	if !decision.RecheckAt.IsZero() {
		a.queue.AddAfter(snap.key, time.Until(decision.RecheckAt))
	}
}

// work processes keys until the queue is shut down.
func (a *Attacher) work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[publication.Key]) {
	for {
		pass := a.turns.take()
		key, closed := queue.Get()
		if closed {
			pass()
			return
		}
		err := a.process(ctx, key, pass)
		pass()
		if err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "API request failed, retrying", a.logValues(key)...)
			queue.AddRateLimited(key)
		} else {
			queue.Forget(key)
		}
		queue.Done(key)
	}
}
