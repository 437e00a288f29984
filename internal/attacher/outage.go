package attacher

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/publication"
)

// refusal is a node that refused a call because of what it does or has now, and not because of the call.
type refusal struct {
	nodeID string
	full   bool // it has no room (RESOURCE_EXHAUSTED for an attach); otherwise another call for it is in progress
}

// refusalOf returns which node refused a call. Drivers say UNAVAILABLE too for a machine that does one thing at a time ("server is locked").
func refusalOf(failed publication.Call, err error) refusal {
	switch code, _ := csi.Code(err); {
	case code == codes.ResourceExhausted && failed.Verb == publication.Publish:
		return refusal{nodeID: failed.NodeID, full: true}
	case !failed.Unanswered && (code == codes.Aborted || code == codes.Unavailable):
		return refusal{nodeID: failed.NodeID}
	}
	return refusal{}
}

// setRefusal records the node that refused the last attempt for an attachment; hold the lock.
func (l *ledger) setRefusal(r *record, by refusal) {
	if delete(l.byRefusal[r.refused], r.uid); len(l.byRefusal[r.refused]) == 0 {
		delete(l.byRefusal, r.refused)
	}
	if r.refused = by; by == (refusal{}) {
		return
	}
	if l.byRefusal[by] == nil {
		l.byRefusal[by] = map[types.UID]*record{}
	}
	l.byRefusal[by][r.uid] = r
}

// longestWaiting orders records by the end of their last attempt.
func longestWaiting(a, b *record) int {
	return cmp.Or(a.call.Ended.Compare(b.call.Ended), cmp.Compare(a.uid, b.uid))
}

// outage knows which attachments a driver failed since it last succeeded. If there are two or more, it was unable to work for them all, and the first
// success has them tried again, instead of each when its back-off ends.
type outage struct {
	since   map[types.UID]*record // failed since the last success
	waiting []*record             // failed in an outage that has ended, in the order in which they are tried again
}

// perSuccess is how many attachments each success after an outage has tried again: more than one, so that all are after a few calls, and few, so
// that a driver that fails again at once gets few calls.
const perSuccess = 2

// failed records a failure that may be one of the driver as a whole.
func (o *outage) failed(r *record, err error) {
	switch code, _ := csi.Code(err); code {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented,
		codes.ResourceExhausted, codes.Aborted: // it is about this volume or this node
	default:
		o.since[r.uid] = r
	}
}

// succeeded returns the attachments to try again after a success. One that was tried out of turn and failed is left out until it has failed
// in turn, so that a driver that fails again and again gets at most twice the calls.
func (o *outage) succeeded() (again []*record) {
	if len(o.since) > 1 {
		o.waiting = append(o.waiting, slices.SortedFunc(maps.Values(o.since), longestWaiting)...)
	}
	clear(o.since)
	for len(o.waiting) > 0 && len(again) < perSuccess {
		r := o.waiting[0]
		o.waiting = o.waiting[1:]
		if r.call.Failures > 0 && !r.call.InFlight && r.call.Due.IsZero() && r.call.RetryAt.IsZero() {
			again = append(again, r)
		}
	}
	return again
}

// succeeded brings attempts forward after a call for a node was confirmed: the one that has waited longest of those that were refused because that
// node was busy, and those of outage.
func (l *ledger) succeeded(nodeID string, now time.Time) (again []record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	forward := l.outage.succeeded()
	if busy := l.byRefusal[refusal{nodeID: nodeID}]; len(busy) > 0 {
		forward = append(forward, slices.MinFunc(slices.Collect(maps.Values(busy)), longestWaiting))
	}
	for _, r := range forward {
		r.call = r.call.RetryFrom(now)
		again = append(again, *r)
	}
	return again
}
