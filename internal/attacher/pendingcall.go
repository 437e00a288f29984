package attacher

import (
	"cmp"
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
	// heldAtMost is how many calls say that they are held back, those that are longest, and how many requests in heldFor do: thousands may be, for one
	// reason.
	heldAtMost = 100
	// pendingTimeout bounds the request.
	pendingTimeout = 2 * time.Second
	// lookEvery is how often the calls are looked at, while there are any.
	lookEvery = time.Second
	// apart is how long after a full second that is. No other timer of the attacher is due then: what is due at one instant runs in any order, and a seed
	// of the simulation could not be replayed.
	apart = 617 * time.Microsecond
)

// holdsBack are the reasons of calls that were not sent, and of which the status has no error.
var holdsBack = []publication.Reason{publication.CallInFlight, publication.DriverBusy, publication.NodeHeldBack, publication.VolumeHeldBack, publication.DriverGone}

// pendingCalls are the calls that take long, or may.
//
// They are written as an annotation (ADR 32). In attachError, upstream's controller would take them for a failure of the attach, report it and back
// off (k/k v1.36.3 pkg/volume/csi/csi_attacher.go:641), and the driver's last error would be lost.
type pendingCalls struct {
	mu       sync.Mutex
	inFlight map[types.UID]pendingCall
	held     map[publication.Key]map[types.UID]pendingCall
	added    chan struct{} // receives after there are any

	// noted and what follows is of noteCalls alone: the calls as it saw them last.
	noted      map[types.UID]*notedCall
	heldSince  time.Time // when heldAtMost was counted from
	heldWrites int
}

type pendingCall struct {
	name   string // of the VolumeAttachment
	reason publication.Reason
	verb   publication.Verb // of a call that is in flight
	since  time.Time
}

// notedCall is a call that has to be written.
type notedCall struct {
	pendingCall

	uid  types.UID
	next time.Time // when it is written again
}

func newPendingCalls() pendingCalls {
	return pendingCalls{inFlight: map[types.UID]pendingCall{}, held: map[publication.Key]map[types.UID]pendingCall{},
		added: make(chan struct{}, 1), noted: map[types.UID]*notedCall{}}
}

// watchSlow has a call written that is about to be sent, if it is still in flight after slowAfter. Call ended when it has returned.
func (a *Attacher) watchSlow(try attempt) (ended func()) {
	if !a.annotates || try.attachment == nil {
		return func() {}
	}
	p := &a.longCalls
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight[try.uid] = pendingCall{name: try.attachment.Name, reason: publication.CallInFlight, verb: try.verb, since: time.Now()}
	kube.Signal(p.added)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.inFlight, try.uid)
	}
}

// holdCalls keeps which calls of a key are held back.
func (a *Attacher) holdCalls(snap snapshot, waits []publication.Wait) {
	if !a.annotates {
		return
	}
	reasons := map[string]publication.Reason{}
	for _, w := range waits {
		if slices.Contains(holdsBack, w.Reason) {
			reasons[w.Attachment] = w.Reason
		}
	}
	held := map[types.UID]pendingCall{}
	if len(reasons) > 0 {
		for _, subj := range snap.subjects {
			reason, waits := reasons[subj.seen.Name]
			if waits && subj.attachment != nil && !subj.record.call.InFlight && (!subj.seen.Attached || subj.seen.Deleting) {
				held[subj.uid()] = pendingCall{name: subj.seen.Name, reason: reason, since: time.Now()}
			}
		}
	}
	a.longCalls.hold(snap.key, held)
}

// hold keeps the calls of a key that are held back.
func (p *pendingCalls) hold(key publication.Key, held map[types.UID]pendingCall) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.held[key]
	if delete(p.held, key); len(held) == 0 {
		return
	}
	for uid, was := range before {
		if is, ok := held[uid]; ok && is.reason == was.reason {
			held[uid] = was
		}
	}
	p.held[key] = held
	kube.Signal(p.added)
}

// noteCalls writes which calls take long, one after another, until ctx is done. They are for a reader: nothing is decided by them, and what cannot be
// written now is written later.
func (a *Attacher) noteCalls(ctx context.Context) {
	for p := &a.longCalls; a.annotates; {
		if p.none() {
			select {
			case <-ctx.Done():
				return
			case <-p.added:
			}
		}
		now := time.Now()
		select {
		case <-ctx.Done():
			return
		case <-time.After(now.Truncate(lookEvery).Add(lookEvery + apart).Sub(now)):
		}
		for _, call := range p.due(time.Now()) {
			if !a.noteCall(ctx, call) {
				break
			}
		}
	}
}

func (p *pendingCalls) none() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.inFlight)+len(p.held) == 0
}

// due are the calls that have to be written: those in flight first, and those that take longest. Of those that are held back only the first ones are.
func (p *pendingCalls) due(now time.Time) (due []*notedCall) {
	p.mu.Lock()
	defer p.mu.Unlock()
	current := maps.Clone(p.inFlight)
	for _, held := range p.held {
		for uid, call := range held {
			if _, sent := current[uid]; !sent {
				current[uid] = call
			}
		}
	}
	maps.DeleteFunc(p.noted, func(uid types.UID, was *notedCall) bool {
		is := current[uid]
		return is.reason != was.reason || is.verb != was.verb || is.verb != publication.NoCall && is.since != was.since
	})
	for uid, call := range current {
		if p.noted[uid] == nil {
			p.noted[uid] = &notedCall{pendingCall: call, uid: uid}
		}
		if one := p.noted[uid]; now.Sub(one.since) >= slowAfter {
			due = append(due, one)
		}
	}
	slices.SortFunc(due, func(x, y *notedCall) int {
		return cmp.Or(-cmp.Compare(x.verb, y.verb), x.since.Compare(y.since), cmp.Compare(x.name, y.name))
	})
	if held := slices.IndexFunc(due, func(one *notedCall) bool { return one.verb == publication.NoCall }); held >= 0 {
		due = due[:min(len(due), held+heldAtMost)]
	}
	return slices.DeleteFunc(due, func(one *notedCall) bool { return now.Before(one.next) })
}

// mayWrite reports whether another request may say that a call is held back.
func (p *pendingCalls) mayWrite(now time.Time) bool {
	if now.Sub(p.heldSince) >= heldFor {
		p.heldSince, p.heldWrites = now, 0
	}
	return p.heldWrites < heldAtMost
}

// noteCall writes one call on its VolumeAttachment. It returns false if nothing more can be written now: other requests have to wait for the rate limit,
// the API server does not take it, or enough was written.
func (a *Attacher) noteCall(ctx context.Context, one *notedCall) (more bool) {
	now, p := time.Now(), &a.longCalls
	va, ok := a.objects.attachments.Get(one.name)
	if !ok || va.UID != one.uid || va.Status.Attached && va.DeletionTimestamp == nil || a.calls.of(one.uid).call.Cancelled {
		return true // the caches show by now that it is over
	}
	call := kube.PendingCall{Reason: one.reason, Since: one.since, Until: now.Add(heldFor)}
	if one.verb != publication.NoCall {
		call.Call, call.Until = one.verb.String(), one.since.Add(a.timeout+writeTimeout) // reading its Secret comes before
	} else if !p.mayWrite(now) {
		return false
	}
	if a.limit != nil && !a.limit.TryAccept() {
		return false
	}
	body, err := json.Marshal(object{"metadata": object{"uid": one.uid, "annotations": object{kube.PendingCallAnnotation: call.Encode()}}})
	if err != nil {
		return false
	}
	if one.next = call.Until; one.verb == publication.NoCall {
		p.heldWrites++
	}
	short, cancel := context.WithTimeoutCause(ctx, pendingTimeout, errRequestTimeout)
	defer cancel()
	stored, err := a.client.StorageV1().VolumeAttachments().Patch(short, one.name, types.MergePatchType, body, metav1.PatchOptions{})
	if err != nil {
		one.next = now.Add(slowAfter)
		log.FromContext(ctx).V(1).Info("Failed to write on the VolumeAttachment that a call takes long", "attachment", one.name, "err", err)
		return false
	}
	a.objects.attachments.Wrote(a.objects.trimAttachment(stored))
	return true
}
