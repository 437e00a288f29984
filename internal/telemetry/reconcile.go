package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"belay.dev/belay/internal/publication"
)

// passBuckets are for lists that take from milliseconds to minutes, in seconds.
var passBuckets = []float64{.01, .05, .1, .5, 1, 5, 10, 30, 60, 120, 300, 600}

// Reconcile has the metrics of the comparison of attachments with the driver's list. A nil *Reconcile counts nothing, and every
// method may be called on it.
type Reconcile struct {
	passes  *prometheus.HistogramVec
	entries prometheus.Gauge
	drifts  *prometheus.CounterVec
}

// NewReconcile registers the metrics.
func NewReconcile(registry prometheus.Registerer) *Reconcile {
	r := &Reconcile{
		passes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "attacher_reconcile_duration_seconds",
			Help:    "How long comparisons with the driver's list of volumes took; a list that could not be read whole is failed and nothing comes of it.",
			Buckets: passBuckets,
		}, []string{"result"}),
		entries: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "attacher_reconcile_entries",
			Help: "Entries in the last whole list of volumes that the driver gave.",
		}),
		drifts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "attacher_reconcile_drifts_total",
			Help: "Attachments that the driver's list does not agree with: seen in one list, confirmed by a second one, repaired, or repeated although the driver had confirmed the repair.",
		}, []string{"drift", "result"}),
	}
	for _, result := range []string{"complete", "failed"} {
		r.passes.WithLabelValues(result)
	}
	for _, drift := range []publication.Drift{publication.NotPublished, publication.StillPublished, publication.Abandoned, publication.HalfPublished} {
		for _, result := range []string{"seen", "confirmed", "repaired", "repeated"} {
			r.drifts.WithLabelValues(string(drift), result)
		}
	}
	for _, result := range []string{"seen", "confirmed"} { // nothing is done about the one, and the other's attachment is gone
		r.drifts.WithLabelValues(string(publication.PublishedElsewhere), result)
		r.drifts.WithLabelValues(string(publication.Vanished), result)
	}
	registry.MustRegister(r.passes, r.entries, r.drifts)
	return r
}

// Failed counts a list that could not be read.
func (r *Reconcile) Failed(took time.Duration) {
	if r != nil {
		r.passes.WithLabelValues("failed").Observe(took.Seconds())
	}
}

// Compared counts a comparison.
func (r *Reconcile) Compared(took time.Duration, entries int, result publication.Result) {
	if r == nil {
		return
	}
	r.passes.WithLabelValues("complete").Observe(took.Seconds())
	r.entries.Set(float64(entries))
	for word, counts := range map[string]map[publication.Drift]int{"seen": result.Seen, "repaired": result.Repaired, "repeated": result.Repeated} {
		for drift, n := range counts {
			r.drifts.WithLabelValues(string(drift), word).Add(float64(n))
		}
	}
	for _, drift := range result.Confirmed {
		r.drifts.WithLabelValues(string(drift), "confirmed").Inc()
	}
}
