package attacher

import (
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/decision"
	known "belay.dev/belay/internal/drivers"
	"belay.dev/belay/internal/publication"
)

// lateByDefault is how long a publish that was abandoned may take effect, if a driver is known to confirm an unpublish before and its end is
// not: as long as GCE PD's driver waits for an operation of its cloud (WaitForOpBackoff, 100 times 3 s; v1.28.1,
// pkg/gce-cloud-provider/compute/gce-compute.go).
const lateByDefault = 5 * time.Minute

// earlyOKFor is Config.EarlyOKFor of a driver. An unknown one counts as one that keeps the order, as docs/drivers.md demands.
func earlyOKFor(driver string) time.Duration {
	facts, ok := known.Of(driver)
	if !ok || facts.OKTooEarly() != decision.Yes {
		return 0
	}
	if ends, ok := facts.EndsAfter(); ok {
		return ends
	}
	return lateByDefault
}

// mayBeLate records that the last publish may still take effect; hold the lock.
func (l *ledger) mayBeLate(r *record, now time.Time) {
	if r.open = true; l.doubtful > 0 {
		r.call = r.call.DoubtUntil(now.Add(l.doubtful), l.sole(r))
	}
}

// sole reports whether nothing but the last publish can have brought the exclusive volume to the node; hold the lock. A volume that was
// unpublished there may still be there: the driver's OK may have come too early.
func (l *ledger) sole(r *record) bool {
	return r.exclusive && !r.call.Republish && !slices.ContainsFunc(l.unpublished[r.handle], func(u unpublished) bool { return u.NodeID == r.call.NodeID })
}

// settleDoubts has the doubts about publishes follow the driver's list.
func (r *reconciler) settleDoubts(logger logr.Logger, list publication.Listing, expected []publication.ExpectedAttachment) {
	for i := range expected { // they are large
		want := &expected[i]
		if want.Call.Doubt == nil {
			continue
		}
		changed, over := false, false
		r.attacher.calls.change(types.UID(want.UID), func(of *record) {
			of.call, changed = of.call.Listed(list, want.Handle)
			over = of.call.Doubt == nil
		})
		if changed {
			logger.Info(doubts[over], r.attacher.expectedLogValues(*want)...)
			r.attacher.enqueueCompared(want)
		}
	}
}

// doubts are the log messages for what a list shows, by whether the doubt is over.
var doubts = map[bool]string{
	false: "The driver's list shows that an attach without a final answer took effect, unpublishing it",
	true:  "The driver's list shows that an attach without a final answer was undone",
}

// enqueueCompared enqueues the volume of a compared attachment.
func (a *Attacher) enqueueCompared(want *publication.ExpectedAttachment) {
	if va, ok := a.objects.attachments.Get(want.Name); ok && string(va.UID) == want.UID {
		a.queue.Add(a.objects.keyOf(va))
	}
}
