package telemetry

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"belay.dev/belay/internal/attachment"
)

// Census is a count of all volumes, by the name of their driver.
type Census struct {
	// Desired and Actual count pairs of a volume and a node: those that pods want, and those that are or may be attached.
	Desired, Actual map[string]int
	// InUse counts the attachable volumes of the pods of a node.
	InUse map[attachment.NodeName]map[string]int
}

// census counts at each scrape, so that events cost nothing.
type census struct{ take atomic.Pointer[func() Census] }

// CountVolumes sets the function that counts the volumes at each scrape. Before that, and so on a standby, there are no such
// metrics: sums over all replicas are then right.
func (c *Controller) CountVolumes(take func() Census) {
	if c != nil {
		c.census.take.Store(&take)
	}
}

var (
	volumesInUse = prometheus.NewDesc("storage_count_attachable_volumes_in_use",
		"Attachable volumes that the pods of a node name.", []string{"node", "volume_plugin"}, nil)
	totalVolumes = prometheus.NewDesc("attachdetach_controller_total_volumes",
		"Pairs of a volume and a node: in the desired state of the world those that pods ask for, in the actual state those that are or may be attached.",
		[]string{"plugin_name", "state"}, nil)
)

// Describe is part of prometheus.Collector.
func (c *census) Describe(out chan<- *prometheus.Desc) {
	out <- volumesInUse
	out <- totalVolumes
}

// Collect counts the volumes.
func (c *census) Collect(out chan<- prometheus.Metric) {
	take := c.take.Load()
	if take == nil {
		return
	}
	counted, gauge := (*take)(), gaugesTo(out)
	for node, drivers := range counted.InUse {
		for driver, n := range drivers {
			gauge(volumesInUse, float64(n), string(node), pluginOf(driver))
		}
	}
	for state, drivers := range map[string]map[string]int{
		"desired_state_of_world": counted.Desired, "actual_state_of_world": counted.Actual,
	} {
		for driver, n := range drivers {
			gauge(totalVolumes, float64(n), pluginOf(driver), state)
		}
	}
}

// gaugesTo returns a function that sends gauges to a collection.
func gaugesTo(out chan<- prometheus.Metric) func(desc *prometheus.Desc, value float64, labels ...string) {
	return func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
}

// lease exports the age of the last renewal of the leader lease.
type lease struct{ renewed atomic.Pointer[time.Time] }

// LeaseRenewed records when the lease was last renewed; the zero time means that it is not held.
func (c *Controller) LeaseRenewed(at time.Time) {
	if c != nil {
		c.lease.renewed.Store(&at)
	}
}

var leaseAge = prometheus.NewDesc("attachdetach_lease_age_seconds",
	"How long ago this process renewed the leader lease; absent while it does not hold it.", nil, nil)

// Describe is part of prometheus.Collector.
func (l *lease) Describe(out chan<- *prometheus.Desc) { out <- leaseAge }

// Collect is part of prometheus.Collector.
func (l *lease) Collect(out chan<- prometheus.Metric) {
	if renewed := l.renewed.Load(); renewed != nil && !renewed.IsZero() {
		gaugesTo(out)(leaseAge, time.Since(*renewed).Seconds())
	}
}
