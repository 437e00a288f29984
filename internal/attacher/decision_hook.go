package attacher

import (
	"fmt"
	"slices"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/publication"
)

// Overlooked names what is left to be done although nothing but the next event will have it
// looked at: an event that made it due did not wake its key. The simulation asks for it
// when the caches have caught up and no request is on its way.
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

// isUnderway: the key was looked at and will be again, for a call in flight or in line, or for a request that failed.
func (a *Attacher) isUnderway(key publication.Key) bool {
	for _, queue := range a.callQueues() {
		if queue.isWaiting(key) {
			return true
		}
	}
	if a.queue.NumRequeues(key) > 0 {
		return true
	}
	for _, r := range a.calls.ofVolume(key.Volume) {
		if r.call.InFlight {
			return true
		}
	}
	return false
}

// due are the steps that would be taken now for an attachment.
func (a *Attacher) due(now time.Time, va *storagev1.VolumeAttachment) (steps []publication.Step) {
	key := a.objects.keyOf(va)
	shot := a.observe(key)
	for _, step := range publication.Decide(now, shot.seen, a.policy).Steps {
		one := shot.subjects[step.Target()]
		if call, ok := step.(publication.CallDriver); ok && a.holds.wait(now, attemptOf(key, one, call)).reason != "" {
			continue // a time ends it
		}
		if step.Target() == string(va.UID) {
			steps = append(steps, step)
		}
	}
	return steps
}
