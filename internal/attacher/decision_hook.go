package attacher

import (
	"fmt"
	"slices"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/publication"
)

// Overlooked returns the due steps that no event and no timer will trigger: an event did not enqueue its key. The
// simulation calls it when the caches have caught up and no request is in flight.
func (a *Attacher) Overlooked() (found []string) {
	if !a.running.Load() || a.draining.Load() {
		return nil
	}
	now := time.Now()
	for _, name := range slices.Sorted(slices.Values(a.objects.attachmentInformer.GetStore().ListKeys())) {
		va, ok := a.objects.attachments.Get(name)
		if !ok || va.Spec.Attacher != a.driver || a.isUnderway(a.objects.keyOf(va)) {
			continue
		}
		for _, step := range a.due(now, va) {
			found = append(found, fmt.Sprintf("%T%+v for %s", step, step, name))
		}
	}
	return found
}

// isUnderway reports whether the key will be processed again: a call is queued or in flight, or a request failed.
func (a *Attacher) isUnderway(key publication.Key) bool {
	for _, queue := range a.callQueues() {
		if queue.isWaiting(key) {
			return true
		}
	}
	if a.queue.NumRequeues(key) > 0 {
		return true
	}
	for _, r := range a.calls.ofKey(publication.Key{Volume: key.Volume}) {
		if r.call.InFlight {
			return true
		}
	}
	return false
}

// due returns the steps that would be taken now for an attachment.
func (a *Attacher) due(now time.Time, va *storagev1.VolumeAttachment) (steps []publication.Step) {
	key := a.objects.keyOf(va)
	snap := a.observe(key)
	for _, step := range publication.Decide(now, snap.seen, a.policy).Steps {
		subj := snap.subjects[step.Target()]
		if call, ok := step.(publication.CallDriver); ok && a.throttle.wait(now, attemptOf(key, subj, call)).reason != "" {
			continue // a timer ends it
		}
		if step.Target() == string(va.UID) {
			steps = append(steps, step)
		}
	}
	return steps
}
