package kube

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
)

// PendingCallAnnotation on a VolumeAttachment is a PendingCall of belay-attacher. It is written once for a call that takes long, and not removed:
// PendingCallOf says whether it still counts.
const PendingCallAnnotation = "belay.dev/pending-call"

// The calls, by their names in the CSI specification.
const (
	publishCall   = "ControllerPublishVolume"
	unpublishCall = "ControllerUnpublishVolume"
)

// PendingCall is a call to the driver that has not returned, or that is held back.
type PendingCall struct {
	// Reason is why the attacher waits: publication.CallInFlight with the Call, or what holds the call back.
	Reason decision.Reason `json:"reason"`
	// Call is the call that is in flight, by the name of the CSI specification; empty if none is for this VolumeAttachment.
	Call string `json:"call,omitempty"`
	// Since is when the call was sent, or when it was held back first.
	Since time.Time `json:"since"`
	// Until is when the attacher has ended the call, or writes again: a process that was killed writes no end.
	Until time.Time `json:"until"`
}

// Encode returns the value of the annotation. Times are in seconds, as those of errors in the status.
func (c PendingCall) Encode() string {
	c.Since, c.Until = c.Since.UTC().Truncate(time.Second), c.Until.UTC().Truncate(time.Second)
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // strings and times of this century
	}
	return string(text)
}

// String says in an event what is known about the call.
func (c PendingCall) String() string {
	if c.Call != "" {
		return c.Call + " has been in flight since " + c.Since.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("the call has been held back since %s (%s)", c.Since.UTC().Format(time.RFC3339), c.Reason)
}

// PendingCallOf returns the pending call of a VolumeAttachment, unless it is over by now: the attacher has ended it, or has recorded an attempt since.
func PendingCallOf(va *storagev1.VolumeAttachment, now time.Time) (call PendingCall, pending bool) {
	call, ok := pendingCallOf(va)
	if !ok || now.After(call.Until) || call.Until.After(now.Add(attachment.MaxPending)) { // by a process that was killed, or by no attacher
		return PendingCall{}, false
	}
	return call, true
}

const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// isReason reports whether a text reads as a reason: it is quoted in events, and others may write it.
func isReason(text decision.Reason) bool {
	return text != "" && len(text) <= MaxName && strings.Trim(string(text), letters) == ""
}

// pendingCallOf is PendingCallOf at a time at which it counts.
func pendingCallOf(va *storagev1.VolumeAttachment) (call PendingCall, ok bool) {
	text, deleting := va.Annotations[PendingCallAnnotation], va.DeletionTimestamp != nil
	if text == "" || json.Unmarshal([]byte(text), &call) != nil || !isReason(call.Reason) || !slices.Contains([]string{"", publishCall, unpublishCall}, call.Call) {
		return PendingCall{}, false
	}
	for _, e := range []*storagev1.VolumeError{va.Status.AttachError, va.Status.DetachError} {
		if e != nil && e.Time.After(call.Since) {
			return PendingCall{}, false
		}
	}
	switch {
	case !deleting && va.Status.Attached, deleting && call.Call == publishCall: // the deletion ends an attach
	case !UnpublishPrecedesRemoval(va) && (deleting || call.Call != ""): // no call is sent without the finalizer (S10)
	default:
		return call, true
	}
	return PendingCall{}, false
}
