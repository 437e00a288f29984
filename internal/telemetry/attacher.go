package telemetry

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"belay.dev/belay/internal/publication"
)

// Calls counts an attacher's calls to the driver.
type Calls struct {
	Limit       int
	Attaching   int
	Detaching   int
	Unanswered  int // of both: for volumes whose last call was not answered in time
	NodesHeld   int // held back after RESOURCE_EXHAUSTED
	VolumesHeld int // held back after ABORTED
	// PendingAttach and PendingDetach are the ages of the oldest VolumeAttachment that is not attached yet, and of the oldest
	// deletion of one that is not detached yet.
	PendingAttach, PendingDetach time.Duration
}

// Attacher has the metrics of the attacher. A nil *Attacher measures nothing, and every method may be called on it.
type Attacher struct {
	calls   atomic.Pointer[func() Calls]
	trusted atomic.Int64
	mu      sync.Mutex
	waits   map[publication.Key]map[string]attachmentWait // by key, and VolumeAttachment's name
}

// Waiting is why one attachment waits.
type Waiting struct {
	Attachment string // name
	Detach     bool
	Reason     publication.Reason
}

type attachmentWait struct {
	Waiting
	since time.Time
}

// NewAttacher registers the attacher's metrics.
func NewAttacher(registry prometheus.Registerer) *Attacher {
	a := &Attacher{waits: map[publication.Key]map[string]attachmentWait{}}
	registry.MustRegister(a)
	return a
}

// CountCalls sets the function that counts the calls at each scrape. Before that, and so on a standby, there are no such metrics:
// sums over all replicas are then right.
func (a *Attacher) CountCalls(count func() Calls) {
	if a != nil {
		a.calls.Store(&count)
	}
}

// TrustedDetach counts a detach that the driver confirmed after an attach without a final answer, and that is taken for the end of both: the
// driver is not known to answer too early.
func (a *Attacher) TrustedDetach() {
	if a != nil {
		a.trusted.Add(1)
	}
}

// Waits records why the attachments of a key wait now, for all of them. A wait continues as long as its reason is the same. It
// returns the names of those whose reason has changed; all names without metrics.
func (a *Attacher) Waits(now time.Time, key publication.Key, waiting []Waiting) (changed map[string]bool) {
	changed = make(map[string]bool, len(waiting))
	if a == nil {
		for _, w := range waiting {
			changed[w.Attachment] = true
		}
		return changed
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.waits[key]
	delete(a.waits, key)
	if len(waiting) == 0 {
		return changed
	}
	a.waits[key] = make(map[string]attachmentWait, len(waiting))
	for _, w := range waiting {
		since := now
		if old, ok := before[w.Attachment]; ok && old.Waiting == w {
			since = old.since
		} else {
			changed[w.Attachment] = true
		}
		a.waits[key][w.Attachment] = attachmentWait{Waiting: w, since: since}
	}
	return changed
}

var (
	callsLimit = prometheus.NewDesc("attacher_calls_limit",
		"How many calls to the driver may be in flight, without those that hang: --worker-threads.", nil, nil)
	callsInFlight = prometheus.NewDesc("attacher_calls_in_flight",
		"Calls to the driver that are in flight.", []string{"operation"}, nil)
	callsHanging = prometheus.NewDesc("attacher_calls_hanging",
		"Calls in flight for volumes whose last call was not answered in time. They can use at most a quarter of the limit.", nil, nil)
	heldBack = prometheus.NewDesc("attacher_held_back",
		"Nodes that the driver calls full, and shared volumes that it calls busy: one call is sent after each pause.", []string{"scope"}, nil)
	pendingLongest = prometheus.NewDesc("attacher_attachment_pending_longest_seconds",
		"How long ago the oldest VolumeAttachment was created, or deleted, that is not attached, or detached.", []string{"operation"}, nil)
	detachesTrusted = prometheus.NewDesc("attacher_detaches_after_unanswered_attach_total",
		"Detaches that the driver confirmed after an attach without a final answer, of a driver that is not known to answer too early.", nil, nil)
	attachmentsWaiting = prometheus.NewDesc("attacher_attachments_blocked",
		"VolumeAttachments that wait now, by what is to be done and by reason.", []string{"operation", "reason"}, nil)
	attachmentsLongest = prometheus.NewDesc("attacher_attachment_blocked_longest_seconds",
		"How long the one that waits longest has waited for this reason.", []string{"operation", "reason"}, nil)
)

// Describe is part of prometheus.Collector.
func (a *Attacher) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{callsLimit, callsInFlight, callsHanging, heldBack, pendingLongest, detachesTrusted, attachmentsWaiting, attachmentsLongest} {
		out <- desc
	}
}

// Collect visits what waits now, not all attachments.
func (a *Attacher) Collect(out chan<- prometheus.Metric) {
	count := a.calls.Load()
	if count == nil {
		return
	}
	calls, gauge := (*count)(), gaugesTo(out)
	gauge(callsLimit, float64(calls.Limit))
	gauge(callsInFlight, float64(calls.Attaching), "attach")
	gauge(callsInFlight, float64(calls.Detaching), "detach")
	gauge(callsHanging, float64(calls.Unanswered))
	gauge(heldBack, float64(calls.NodesHeld), "node")
	gauge(heldBack, float64(calls.VolumesHeld), "volume")
	gauge(pendingLongest, calls.PendingAttach.Seconds(), "attach")
	gauge(pendingLongest, calls.PendingDetach.Seconds(), "detach")
	out <- prometheus.MustNewConstMetric(detachesTrusted, prometheus.CounterValue, float64(a.trusted.Load()))

	type label struct {
		detach bool
		reason publication.Reason
	}
	waiting, longest, now := map[label]int{}, map[label]time.Duration{}, time.Now()
	a.mu.Lock()
	for _, waits := range a.waits {
		for _, w := range waits {
			l := label{w.Detach, w.Reason}
			waiting[l]++
			longest[l] = max(longest[l], now.Sub(w.since))
		}
	}
	a.mu.Unlock()
	for _, reason := range publication.Reasons() {
		for operation, detach := range map[string]bool{"attach": false, "detach": true} {
			l := label{detach, reason}
			gauge(attachmentsWaiting, float64(waiting[l]), operation, string(reason))
			gauge(attachmentsLongest, longest[l].Seconds(), operation, string(reason))
		}
	}
}
