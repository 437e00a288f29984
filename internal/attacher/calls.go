package attacher

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/publication"
)

// record is what this process knows of the calls for one attachment.
type record struct {
	identity
	uid     types.UID
	name    string
	node    string
	created time.Time

	call publication.Call
	// unsure: a write of the finalizer or the node ID got no answer.
	unsure bool
	// untouched: see publication.Attachment, but for what was sent.
	untouched bool
	// publishContext is the driver's reply to a confirmed Publish that is not
	// recorded yet.
	publishContext map[string]string
	err            error  // of the last attempt
	keptOut        string // the ID of the node that was full at the last attempt; empty if it was not
	// drift: what the driver's list says against the attachment, until a call that
	// mends it was confirmed and recorded.
	drift publication.Drift
	// driftNodeID is the node that keeps the volume, where it is Abandoned.
	driftNodeID string
}

// ledger remembers calls by the UID of their attachment. It begins empty in each
// process: what an earlier one called is known from the finalizers alone.
type ledger struct {
	mu       sync.Mutex
	byUID    map[types.UID]*record
	byVolume map[string][]*record
	// full are the attachments that a full node keeps out (RESOURCE_EXHAUSTED), by node ID.
	full map[string]map[types.UID]*record
}

func newLedger() *ledger {
	return &ledger{byUID: map[types.UID]*record{}, byVolume: map[string][]*record{}, full: map[string]map[types.UID]*record{}}
}

// of returns what is known of an attachment's calls.
func (l *ledger) of(uid types.UID) record {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r, ok := l.byUID[uid]; ok {
		return *r
	}
	return record{}
}

// ofVolume returns what is known of the calls for a volume.
func (l *ledger) ofVolume(handle string) []record {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := make([]record, 0, len(l.byVolume[handle]))
	for _, r := range l.byVolume[handle] {
		found = append(found, *r)
	}
	return found
}

// attempt is one call for an attachment.
type attempt struct {
	key        publication.Key // that it was decided under
	uid        types.UID
	attachment *storagev1.VolumeAttachment // nil if it is gone
	volume     identity
	node       string
	verb       publication.Verb
	nodeID     string
	inputs     string
	attached   bool // recorded as attached
}

// begin records that a call is about to be sent. It refuses while another call excludes it. The queue's key prevents that,
// except while a volume changes between exclusive and shared.
func (l *ledger) begin(a attempt, exclusive bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.byVolume[a.volume.handle] {
		if r.call.Excludes(exclusive, r.node == a.node) {
			return false
		}
	}
	r := l.recordFor(a)
	r.call = r.call.Begin(a.verb, a.nodeID, a.inputs, a.attached)
	r.publishContext, r.err = nil, nil
	l.fits(r)
	return true
}

// recordFor finds or makes the record of an attempt's attachment. What nothing was sent for may be another volume's by now.
func (l *ledger) recordFor(a attempt) *record {
	r, ok := l.byUID[a.uid]
	switch {
	case !ok:
		r = &record{uid: a.uid, identity: a.volume, node: a.node}
		if a.attachment != nil {
			r.name, r.created = a.attachment.Name, a.attachment.CreationTimestamp.Time
		}
		l.byUID[a.uid] = r
	case a.volume.handle == "" || r.handle == a.volume.handle || r.call.Sent:
		return r
	default:
		l.unfile(r)
		r.identity = a.volume
	}
	l.byVolume[r.handle] = append(l.byVolume[r.handle], r)
	return r
}

// unfile takes a record from its volume's.
func (l *ledger) unfile(r *record) {
	left := slices.DeleteFunc(l.byVolume[r.handle], func(o *record) bool { return o == r })
	if l.byVolume[r.handle] = left; len(left) == 0 {
		delete(l.byVolume, r.handle)
	}
}

// confirm notes that the driver said OK.
func (l *ledger) confirm(uid types.UID, publishContext map[string]string, now time.Time) {
	l.change(uid, func(r *record) {
		r.call = r.call.Confirm(now)
		r.publishContext = publishContext
		if r.drift != publication.NotPublished && r.call.Verb == publication.Unpublish {
			r.drift = publication.NoDrift // there is nothing to record
		}
	})
}

// fail notes that an attempt ended without OK: nothing is known of its effect.
func (l *ledger) fail(uid types.UID, err error, now time.Time) {
	l.change(uid, func(r *record) {
		r.call, r.err = r.call.Fail(now, err.Error(), csi.IsUnanswered(err)), err
		if code, _ := csi.Code(err); code == codes.ResourceExhausted && r.call.Verb == publication.Publish {
			l.fits(r)
			r.keptOut = r.call.NodeID
			if l.full[r.keptOut] == nil {
				l.full[r.keptOut] = map[types.UID]*record{}
			}
			l.full[r.keptOut][uid] = r
		}
	})
}

// fits notes that a node does not keep an attachment out, as far as is known; hold the lock.
func (l *ledger) fits(r *record) {
	if delete(l.full[r.keptOut], r.uid); len(l.full[r.keptOut]) == 0 {
		delete(l.full, r.keptOut)
	}
	r.keptOut = ""
}

// release ends the back-off of those that a full node keeps out: of the one that has waited longest now, and of one more after
// each pause. It returns them in this order.
func (l *ledger) release(nodeID string, now time.Time, pause time.Duration) (released []record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting := slices.SortedFunc(maps.Values(l.full[nodeID]), func(a, b *record) int {
		return cmp.Or(a.call.Ended.Compare(b.call.Ended), cmp.Compare(a.uid, b.uid))
	})
	for i, r := range waiting {
		r.call = r.call.RetryFrom(now.Add(time.Duration(i) * pause))
		released = append(released, *r)
	}
	return released
}

// refuse notes an attempt that failed before anything was sent.
func (l *ledger) refuse(a attempt, err error, now time.Time) {
	l.mu.Lock()
	r := l.recordFor(a)
	r.call = r.call.Refuse(a.verb, a.nodeID, a.inputs)
	l.mu.Unlock()
	l.fail(a.uid, err, now)
}

// recorded notes that the result of the last call is in the status.
func (l *ledger) recorded(uid types.UID) {
	l.change(uid, func(r *record) {
		r.call.Recorded, r.publishContext = true, nil
		if r.call.Confirmed {
			r.drift = publication.NoDrift
		}
	})
}

// protected notes that our finalizer was stored on an attachment that had neither it nor a node ID.
func (l *ledger) protected(a attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recordFor(a).untouched = true
}

// answered notes whether a write of the finalizer and the node ID got an answer.
func (l *ledger) answered(a attempt, yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r, ok := l.byUID[a.uid]; ok || !yes {
		if !ok {
			r = l.recordFor(a)
		}
		r.unsure = !yes
	}
}

// forget drops an attachment that is gone and of which nothing is published.
func (l *ledger) forget(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.byUID[uid]
	if !ok {
		return
	}
	delete(l.byUID, uid)
	l.unfile(r)
	l.fits(r)
}

func (l *ledger) change(uid types.UID, apply func(*record)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r, ok := l.byUID[uid]; ok {
		apply(r)
	}
}
