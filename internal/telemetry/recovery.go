package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/fencing"
)

// Recovery has the metrics of recovery. A nil *Recovery counts nothing, and every method may be called on it.
type Recovery struct {
	phases  *prometheus.HistogramVec
	fences  *prometheus.GaugeVec
	silent  *prometheus.GaugeVec
	sources *prometheus.GaugeVec
}

// NewRecovery registers the metrics of recovery.
func NewRecovery(registry prometheus.Registerer) *Recovery {
	r := &Recovery{
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "recovery_phase_reached_seconds",
			Help:    "How long after it was created a NodeFence entered each phase.",
			Buckets: waitBuckets,
		}, []string{"phase"}),
		fences: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "recovery_fence_waits",
			Help: "1 for each node that is being fenced, and the reason why its NodeFence waits.",
		}, []string{"node", "reason"}),
		silent: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "recovery_node_not_fenced",
			Help: "1 for each node that is silent for too long and is not fenced, and the reason why.",
		}, []string{"node", "reason"}),
		sources: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "recovery_fence_source_ready",
			Help: "1 for each node with a FenceSource that could be switched off now, else 0.",
		}, []string{"node"}),
	}
	for _, p := range fencing.Phases() {
		r.phases.WithLabelValues(string(p))
	}
	registry.MustRegister(r.phases, r.fences, r.silent, r.sources)
	return r
}

// Entered records that a fence entered a phase, so long after it was created.
func (r *Recovery) Entered(_ string, p fencing.Phase, after time.Duration) {
	if r != nil {
		r.phases.WithLabelValues(string(p)).Observe(after.Seconds())
	}
}

// Waits records why the fence of a node waits.
func (r *Recovery) Waits(node string, reason decision.Reason) {
	if r == nil {
		return
	}
	r.Forget(node)
	r.fences.WithLabelValues(node, string(reason)).Set(1)
}

// Forget drops the fence of a node.
func (r *Recovery) Forget(node string) {
	if r != nil {
		r.fences.DeletePartialMatch(prometheus.Labels{"node": node})
	}
}

// Suspicion records why a silent node is not fenced.
func (r *Recovery) Suspicion(node string, reason decision.Reason) {
	if r == nil {
		return
	}
	r.silent.DeletePartialMatch(prometheus.Labels{"node": node})
	if fencing.Held(reason) {
		r.silent.WithLabelValues(node, string(reason)).Set(1)
	}
}

// Source records whether a node could be switched off.
func (r *Recovery) Source(node string, ready bool) {
	if r == nil {
		return
	}
	value := 0.0
	if ready {
		value = 1
	}
	r.sources.WithLabelValues(node).Set(value)
}

// SourceGone drops a node without a FenceSource.
func (r *Recovery) SourceGone(node string) {
	if r != nil {
		r.sources.DeleteLabelValues(node)
	}
}
