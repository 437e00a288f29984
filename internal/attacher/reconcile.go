package attacher

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/publication"
	"belay.dev/belay/internal/telemetry"
)

// process decides about a key and does what was decided, until nothing is left
// to do but wait, or to call the driver.
func (a *Attacher) process(ctx context.Context, key publication.Key) (err error) {
	if !a.controller.Capabilities().Attach {
		return a.markTrivially(ctx, key)
	}
	if a.isIdentified(key) {
		return nil
	}
	var queue *callQueue
	// If another worker decides about it, a call is about to begin, and the key is queued again.
	a.decideAlone(key, func() { queue, err = a.reconcile(ctx, key) })
	if queue != nil {
		queue.Add(key) // now that its worker does not find it taken
	}
	return err
}

// isIdentified reports whether the volume of an attachment was found since its key was queued, and
// queues the volume's key.
func (a *Attacher) isIdentified(key publication.Key) bool {
	va, ok := a.objects.attachments.Get(key.Attachment)
	if !ok {
		return false
	}
	a.objects.search(va.Name)
	known := a.objects.keyOf(va)
	if known == key {
		return false
	}
	a.queue.Add(known)
	a.metrics.Waits(time.Now(), key, nil)
	return true
}

// reconcile returns the queue for the call that remains to be sent, if one does.
func (a *Attacher) reconcile(ctx context.Context, key publication.Key) (*callQueue, error) {
	if a.isOutdated(key) {
		a.rekey(key.Volume)
		a.metrics.Waits(time.Now(), key, nil)
		return nil, nil
	}
	for range maxTurns {
		shot, decision := a.decide(key)
		queue := a.queueOfCall(shot, &decision)
		if queue != nil && queue.reserve(key) {
			return queue, nil // the call begins at once; the other steps are done beside it
		}
		progressed, err := a.act(ctx, shot, &decision)
		if err == nil && progressed {
			continue
		}
		if queue != nil {
			queue.join(key)
		}
		a.rest(ctx, shot, decision)
		return queue, err
	}
	a.queue.Add(key) // others first
	return nil, nil
}

// isOutdated reports whether a volume was made exclusive, or shared, since its key was queued.
func (a *Attacher) isOutdated(key publication.Key) bool {
	return key.Volume != "" && a.objects.exclusive(key.Volume) != (key.Node == "")
}

func (a *Attacher) decide(key publication.Key) (snapshot, publication.Decision) {
	shot := a.observe(key)
	shot.seen.Draining = a.draining.Load()
	return shot, publication.Decide(time.Now(), shot.seen, a.policy)
}

// queueOfCall is the queue for the call that was decided on; nil if there is none, or if it cannot be sent now. The decision gets
// why the attachment waits.
func (a *Attacher) queueOfCall(shot snapshot, decision *publication.Decision) *callQueue {
	for _, step := range decision.Steps {
		step, ok := step.(publication.CallDriver)
		if !ok {
			continue
		}
		one := shot.subjects[step.Target()]
		queue, no := a.queueFor(one), a.holds.wait(time.Now(), attemptOf(shot.key, one, step))
		switch {
		case a.absence.hold(shot.key, a.controller.Present):
			queue, no = nil, refusal{reason: publication.DriverGone}
		case no.reason != "":
			queue = nil
		default:
			no.reason = publication.DriverBusy
		}
		decision.Wait(publication.Wait{Attachment: one.seen.Name, Reason: no.reason, Until: no.until})
		return queue
	}
	return nil
}

// rekey queues everything of a volume that was made exclusive, or shared, since
// its key was queued.
func (a *Attacher) rekey(volume string) {
	for _, va := range a.attachmentsOf(publication.Key{Volume: volume}) {
		a.wakeAttachment(va)
	}
	for _, r := range a.calls.ofVolume(volume) {
		a.queue.Add(a.objects.keyOfVolume(volume, r.node))
	}
}

// rest has the key looked at again when the decision said so, and says why it waits.
func (a *Attacher) rest(ctx context.Context, shot snapshot, decision publication.Decision) {
	detaches := make(map[string]bool, len(shot.seen.Attachments))
	for _, seen := range shot.seen.Attachments {
		detaches[seen.Name] = seen.Deleting || seen.Gone
	}
	var waiting []telemetry.Waiting
	for _, w := range decision.Waits {
		waiting = append(waiting, telemetry.Waiting{Attachment: w.Attachment, Detach: detaches[w.Attachment], Reason: w.Reason})
	}
	shot.logWaits(ctx, decision.Waits, a.metrics.Waits(time.Now(), shot.key, waiting))
	if !decision.RecheckAt.IsZero() {
		a.queue.AddAfter(shot.key, time.Until(decision.RecheckAt))
	}
}

// work takes keys off the queue until it is shut down.
func (a *Attacher) work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[publication.Key], process func(context.Context, publication.Key) error) {
	for {
		key, closed := queue.Get()
		if closed {
			return
		}
		if err := process(ctx, key); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "API request failed, retrying", a.about(key)...)
			queue.AddRateLimited(key)
		} else {
			queue.Forget(key)
		}
		queue.Done(key)
	}
}
