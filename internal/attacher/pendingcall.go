package attacher

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
)

const (
	// slowAfter is how long a call is in flight or held back before that is written on its VolumeAttachment.
	slowAfter = 10 * time.Second
	// heldFor is how long it counts that a call is held back. Then it is written again.
	heldFor = 10 * time.Minute
	// pendingTimeout bounds the request: the result of the call waits for it.
	pendingTimeout = 2 * time.Second
)

// holdsBack are the reasons of calls that were not sent, and of which the status has no error.
var holdsBack = []publication.Reason{publication.CallInFlight, publication.DriverBusy, publication.NodeHeldBack, publication.VolumeHeldBack, publication.DriverGone}

// pendingCalls are the calls that take long, or may.
//
// They are written as an annotation (ADR 32). In attachError, upstream's controller would take them for a failure of the attach, report it and back
// off (k/k v1.36.3 pkg/volume/csi/csi_attacher.go:641), and the driver's last error would be lost.
type pendingCalls struct {
	mu sync.Mutex
	// begun has the calls that began less than slowAfter ago, in order.
	begun []*begunCall
	slow  map[types.UID]*pendingCall                     // in flight for slowAfter
	held  map[publication.Key]map[types.UID]*pendingCall // held back
}

type pendingCall struct {
	reason publication.Reason
	verb   publication.Verb // of a call that is in flight
	since  time.Time
	until  time.Time // as it was written; zero if it was not
}

// watchSlow has a call written that is about to be sent, if it is still in flight after slowAfter. Call ended when it has returned. Calls are looked at in
// the order in which they began, by one timer: what runs by itself for each would run in any order, and a seed of the simulation could not be replayed.
func (a *Attacher) watchSlow(try attempt) (ended func()) {
	if !a.annotates {
		return func() {}
	}
	p := &a.longCalls
	p.mu.Lock()
	defer p.mu.Unlock()
	call := &begunCall{key: try.key, uid: try.uid, verb: try.verb, since: time.Now()}
	p.begun = append(p.begun, call)
	if len(p.begun) == 1 {
		time.AfterFunc(slowAfter, a.lookAtSlow)
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		call.ended = true
		delete(p.slow, call.uid)
	}
}

// lookAtSlow takes the calls that began slowAfter ago, and looks again when the next one has.
func (a *Attacher) lookAtSlow() {
	p := &a.longCalls
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.begun) > 0 {
		call := p.begun[0]
		if left := slowAfter - time.Since(call.since); left > 0 && !call.ended {
			time.AfterFunc(left, a.lookAtSlow)
			return
		}
		p.begun = p.begun[1:]
		if call.ended {
			continue
		}
		p.slow[call.uid] = &pendingCall{reason: publication.CallInFlight, verb: call.verb, since: call.since}
		a.queue.Add(call.key)
	}
}

// begunCall is a call that was sent less than slowAfter ago.
type begunCall struct {
	key   publication.Key
	uid   types.UID
	verb  publication.Verb
	since time.Time
	ended bool
}

// hold keeps which calls of a key are held back, by the attachment's UID, and returns whether one of them was not before.
func (p *pendingCalls) hold(key publication.Key, reasons map[types.UID]publication.Reason) (began bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.held[key]
	delete(p.held, key)
	if len(reasons) == 0 {
		return false
	}
	p.held[key] = make(map[types.UID]*pendingCall, len(reasons))
	for uid, reason := range reasons {
		one := before[uid]
		if one == nil || one.reason != reason {
			one, began = &pendingCall{reason: reason, since: time.Now()}, true
		}
		p.held[key][uid] = one
	}
	return began
}

// due returns what has to be written about an attachment; nil for nothing.
func (p *pendingCalls) due(key publication.Key, uid types.UID) *pendingCall {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.slow[uid]
	if one == nil {
		one = p.held[key][uid]
	}
	if one == nil || time.Since(one.since) < slowAfter || time.Now().Before(one.until) {
		return nil
	}
	return one
}

// writePending writes which calls of a key take long. They are for a reader: nothing is decided by them, and what cannot be written now is
// written later.
func (a *Attacher) writePending(ctx context.Context, snap snapshot, waits []publication.Wait) {
	switch {
	case !a.annotates:
		return
	case len(waits) == 0:
		a.longCalls.hold(snap.key, nil)
		return
	}
	waiting, reasons := snap.waiting(), map[types.UID]publication.Reason{}
	for _, w := range waits {
		if subj := waiting[w.Attachment]; subj != nil && !subj.record.call.InFlight && slices.Contains(holdsBack, w.Reason) {
			reasons[subj.uid()] = w.Reason
		}
	}
	if a.longCalls.hold(snap.key, reasons) {
		a.queue.AddAfter(snap.key, slowAfter)
	}
	if a.draining.Load() {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(waiting)) {
		subj := waiting[name]
		one := a.longCalls.due(snap.key, subj.uid())
		switch {
		case one == nil || subj.record.call.Cancelled:
		case !a.writePendingCall(ctx, subj, one):
			a.queue.AddAfter(snap.key, slowAfter)
		case one.verb == publication.NoCall:
			a.queue.AddAfter(snap.key, heldFor)
		}
	}
}

// waiting returns the attachments that have to be attached or detached, by name.
func (s snapshot) waiting() map[string]*subject {
	found := make(map[string]*subject, len(s.subjects))
	for _, subj := range s.subjects {
		if subj.attachment != nil && (!subj.seen.Attached || subj.seen.Deleting) {
			found[subj.seen.Name] = subj
		}
	}
	return found
}

// writePendingCall writes one of them, unless other requests have to wait for the rate limit.
func (a *Attacher) writePendingCall(ctx context.Context, subj *subject, one *pendingCall) (written bool) {
	if a.limit != nil && !a.limit.TryAccept() {
		return false
	}
	call := kube.PendingCall{Reason: one.reason, Since: one.since, Until: time.Now().Add(heldFor)}
	if one.verb != publication.NoCall {
		call.Call, call.Until = one.verb.String(), one.since.Add(a.timeout+writeTimeout) // reading its Secret comes before
	}
	body, err := json.Marshal(object{"metadata": object{"uid": subj.uid(), "annotations": object{kube.PendingCallAnnotation: call.Encode()}}})
	if err != nil {
		return false
	}
	short, cancel := context.WithTimeoutCause(ctx, pendingTimeout, errRequestTimeout)
	defer cancel()
	stored, err := a.client.StorageV1().VolumeAttachments().Patch(short, subj.attachment.Name, types.MergePatchType, body, metav1.PatchOptions{})
	if err != nil {
		log.FromContext(ctx).V(1).Info("Failed to write on the VolumeAttachment that a call takes long", append(subj.logValues(), "err", err)...)
		return false
	}
	a.objects.attachments.Wrote(a.objects.trimAttachment(stored))
	a.longCalls.mu.Lock()
	defer a.longCalls.mu.Unlock()
	one.until = call.Until
	return true
}
