package diagnosis

import (
	"cmp"
	"slices"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/drivers"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
)

// holdsCallBack are the reasons for which belay-attacher has not sent a call, as it writes on the VolumeAttachment.
var holdsCallBack = []decision.Reason{publication.CallInFlight, publication.DriverBusy, publication.NodeHeldBack, publication.VolumeHeldBack, publication.DriverGone}

// pendingCall explains a call that is in flight, or is held back, as belay-attacher has written on the VolumeAttachment: what failed before is not what
// it waits for now. It counts as long as the attacher that wrote it may still have the call.
func (x *state) pendingCall(w wait, va *storagev1.VolumeAttachment, call drivers.Call) (wait, bool) {
	pending, ok := kube.PendingCallOf(va, x.Now)
	if !ok || !slices.Contains(holdsCallBack, pending.Reason) {
		return w, false
	}
	runs, _ := x.attacherState(va.Spec.Attacher)
	if lease := x.attacherLease(va.Spec.Attacher); runs == decision.No || lease != nil && lease.Spec.AcquireTime != nil && lease.Spec.AcquireTime.After(pending.Since) {
		return w, false // another process leads, or none
	}
	if pending.Call != "" {
		w.answer.Until = stamp(pending.Until)
		return x.unansweredCall(w, va, call, "the call has been in flight since "+stamp(pending.Since)), true
	}
	w.reason, w.detail = pending.Reason, "held back since "+stamp(pending.Since)
	w.answer.Call, w.answer.NotSent = operations[call], true
	key, _ := x.volumeOf(va)
	x.askable(&w, va.Spec.Attacher, key.Handle)
	return w, true
}

// unansweredCall explains a call that has no answer yet. The error of the one before it is not what is now, and comes behind that.
func (x *state) unansweredCall(w wait, va *storagev1.VolumeAttachment, call drivers.Call, since string) wait {
	w.reason, w.detail, w.answer.Call = publication.CallInFlight, since, operations[call]
	if e := lastError(va, call); e != nil {
		before := hear(kube.ErrorText(e))
		w.failed = true
		if w.detail += ", and the one before it "; abandoned.MatchString(before.own) {
			w.detail += "had no answer"
		} else {
			w.detail += "failed: " + w.says(drivers.Shorten(x.foreign(cmp.Or(before.text, before.own)), shown))
		}
	}
	key, _ := x.volumeOf(va)
	x.askable(&w, va.Spec.Attacher, key.Handle)
	return w
}

// lastError is the error of the last attempt that has ended.
func lastError(va *storagev1.VolumeAttachment, call drivers.Call) *storagev1.VolumeError {
	if call == drivers.Unpublish {
		return va.Status.DetachError
	}
	return va.Status.AttachError
}

// rightTo is what the storage of a driver calls the permission that a call needs; empty if that is unknown.
func rightTo(driver string, call drivers.Call) string {
	facts, _ := drivers.Of(driver)
	return facts.Rights.For[call]
}

// askable adds how the storage can be asked about a volume.
func (x *state) askable(w *wait, driver, handle string) {
	if facts, ok := drivers.Of(driver); ok {
		w.answer.Ask, w.answer.AskSource = explain.AskWith(facts.Ask.Command, handle), facts.Ask.Documentation
		w.answer.AskPlace, w.answer.AskNone = facts.Ask.Place, explain.AskWith(facts.Ask.None, handle)
	}
	w.answer.Handle = x.foreign(handle)
}
