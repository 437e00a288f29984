package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"belay.dev/belay/internal/attachment"
)

// Names of upstream's operations, for storage_operation_duration_seconds.
const (
	operationAttach = "volume_attach"
	operationDetach = "volume_detach"
)

// storageBuckets are upstream's, in seconds (k/k pkg/volume/util/metrics.go).
var storageBuckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}

// waitBuckets start below upstream's, which cannot distinguish short waits, in seconds.
var waitBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}

// Controller has the metrics of the attach/detach controller. A nil *Controller counts nothing, and every method may be called on
// it.
type Controller struct {
	operations *prometheus.HistogramVec
	forced     *prometheus.CounterVec
	blocked    *prometheus.HistogramVec
	phases     *prometheus.HistogramVec
	writes     *prometheus.CounterVec
	foreign    *prometheus.CounterVec
	halted     prometheus.Gauge

	waits  waits
	census census
	lease  lease
}

// NewController registers the controller's metrics.
func NewController(registry prometheus.Registerer) *Controller {
	c := &Controller{
		operations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "storage_operation_duration_seconds",
			Help:    "How long attaches and detaches took, from the request to the attacher's answer.",
			Buckets: storageBuckets,
		}, []string{"volume_plugin", "operation_name", "status", "migrated"}),
		forced: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "attach_detach_controller_attachdetach_controller_forced_detaches",
			Help: "Detaches of volumes that may have been in use, by the policy that allowed them.",
		}, []string{"reason"}),
		blocked: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "volume_blocked_seconds",
			Help:    "How long a volume waited for one reason at one node, observed when that wait ended.",
			Buckets: waitBuckets,
		}, []string{"reason"}),
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "volumeattachment_phase_seconds",
			Help:    "How long each phase of an attachment's life took, observed when the next one began.",
			Buckets: waitBuckets,
		}, []string{"phase"}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "attachdetach_api_writes_total",
			Help: "Writes sent to the API server, by resource, verb and HTTP status (0: no answer).",
		}, []string{"resource", "verb", "code"}),
		foreign: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "attachdetach_foreign_writes_total",
			Help: "Writes of other components that only the leading attach/detach controller may make, by resource.",
		}, []string{"resource"}),
		halted: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "attachdetach_halted",
			Help: "1 while the controller writes nothing because another attach/detach controller is running, else 0.",
		}),
	}
	for _, authority := range []attachment.Authority{
		attachment.OutOfServiceTaint{}, attachment.UnmountTimeout{}, attachment.DeletedNode{}, attachment.Fenced{}, attachment.StorageFenced{},
	} {
		c.forced.WithLabelValues(authority.String())
	}
	for _, resource := range []string{"nodes/status", "volumeattachments", "events"} {
		c.foreign.WithLabelValues(resource)
	}
	for _, reason := range attachment.Reasons() {
		if reason != attachment.Settled {
			c.blocked.WithLabelValues(string(reason))
		}
	}
	for _, phase := range []string{phaseCreate, phaseAttach, phaseReport, phaseRelease, phaseDelete, phaseDetach} {
		c.phases.WithLabelValues(phase)
	}
	registry.MustRegister(c.operations, c.forced, c.blocked, c.phases, c.writes, c.foreign, c.halted,
		&c.waits, &c.census, &c.lease)
	return c
}

// Forced counts a detach of a volume that may have been in use.
func (c *Controller) Forced(authority attachment.Authority) {
	if c != nil {
		c.forced.WithLabelValues(authority.String()).Inc()
	}
}

// Refused counts an attach that the API server refused.
func (c *Controller) Refused(v Volume, took time.Duration) {
	if c != nil {
		c.operation(v, operationAttach, false, took)
	}
}

func (c *Controller) operation(v Volume, name string, success bool, took time.Duration) {
	status := "success"
	if !success {
		status = "fail-unknown" // upstream has no other
	}
	c.operations.WithLabelValues(v.plugin(), name, status, strconv.FormatBool(v.Migrated)).Observe(took.Seconds())
}

// Write counts a write that was sent to the API server. The code is the HTTP status, 0 without an answer.
func (c *Controller) Write(resource, verb string, code int) {
	if c != nil {
		c.writes.WithLabelValues(resource, verb, strconv.Itoa(code)).Inc()
	}
}

// Foreign counts a write of another client that only the leading attach/detach controller may make.
func (c *Controller) Foreign(resource string) {
	if c != nil {
		c.foreign.WithLabelValues(resource).Inc()
	}
}

// Halted reports that the controller has halted.
func (c *Controller) Halted() {
	if c != nil {
		c.halted.Set(1)
	}
}
