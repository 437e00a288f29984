package telemetry

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"belay.dev/belay/internal/nodevolume"
)

// Kubelet's names of what is done with a volume, for storage_operation_duration_seconds
// (k/k pkg/volume/util/operationexecutor).
const (
	OperationMount       = "volume_mount" // attachment read, staged and published
	OperationUnmount     = "volume_unmount"
	OperationUnmountBase = "unmount_device" // unstaged
	OperationMap         = "map_volume"     // the same for block volumes
	OperationUnmap       = "unmap_volume"
	OperationUnmapBase   = "unmap_device"
	OperationExpand      = "volume_fs_resize"            // the driver asked to expand it
	OperationGroup       = "volume_apply_access_control" // files given to the pod's fsGroup
)

// CallInFlight is the reason of a volume whose driver has not answered a call yet. No decision waits for it, and so it is
// none of nodevolume's.
const CallInFlight nodevolume.Reason = "CallInFlight"

// alpha begins the help of all metrics that upstream calls alpha.
const alpha = "[ALPHA] "

// NodeCensus is what a node agent counts when it is asked.
type NodeCensus struct {
	// Desired and Mounted count pairs of a pod and a volume, by the name of the driver:
	// those that pods want, and those that are published.
	Desired, Mounted map[string]int
	// Waits are those that go on now.
	Waits map[nodevolume.Reason]NodeWaits
	// PendingMount is how long the longest waiting publication has been wanted that is not ready, and PendingUnmount how
	// long no pod has wanted the longest waiting volume that is still here.
	PendingMount, PendingUnmount time.Duration
	// Present are the registration sockets that are there, Registered those whose driver is.
	Present, Registered []string
	// Claims are the volumes of claims with what their drivers said last.
	Claims []ClaimStats
}

// NodeWaits is how many wait for one reason, and how long the one has that waits longest.
type NodeWaits struct {
	Count   int
	Longest time.Duration
}

// Add counts one more.
func (w NodeWaits) Add(waited time.Duration) NodeWaits {
	return NodeWaits{w.Count + 1, max(w.Longest, waited)}
}

// ClaimStats is what a driver said of one claim's volume; what it did not say is 0, as
// kubelet has it.
type ClaimStats struct {
	Namespace, Claim               string
	Capacity, Available, Used      int64 // bytes
	Inodes, InodesFree, InodesUsed int64
	HealthKnown, Abnormal          bool
}

// Node is what a node agent counts and measures, as one collector. A nil *Node measures
// nothing, and every method may be called on it.
type Node struct {
	operations  *prometheus.HistogramVec
	mounts      *prometheus.HistogramVec
	calls       *prometheus.HistogramVec
	collections *prometheus.HistogramVec
	found       prometheus.Counter
	unreadable  prometheus.Counter
	blocked     *prometheus.HistogramVec

	mu     sync.Mutex
	census func() NodeCensus // under mu
}

// NewNode makes the metrics of one node agent. They are in no registry yet.
func NewNode() *Node {
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	return &Node{
		operations: histogram("storage_operation_duration_seconds", alpha+"Storage operation duration", storageBuckets,
			"volume_plugin", "operation_name", "status", "migrated"),
		mounts: histogram("volume_operation_total_seconds", alpha+"Storage operation end to end duration in seconds", storageBuckets,
			"plugin_name", "operation_name"),
		calls: histogram("csi_operations_seconds", alpha+"Container Storage Interface operation duration with gRPC error code status total",
			storageBuckets, "driver_name", "method_name", "grpc_status_code", "migrated"),
		collections: histogram("kubelet_volume_metric_collection_duration_seconds", alpha+"Duration in seconds to calculate volume stats",
			prometheus.DefBuckets, "metric_source"),
		found: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "reconstruct_volume_operations_total",
			Help: alpha + "The number of volumes that were attempted to be reconstructed from the operating system during kubelet startup. This includes both successful and failed reconstruction.",
		}),
		unreadable: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "reconstruct_volume_operations_errors_total",
			Help: alpha + "The number of volumes that failed reconstruction from the operating system during kubelet startup.",
		}),
		blocked: histogram("nodeagent_volume_blocked_seconds",
			"How long a volume waited for one reason, for one pod or for its unmount, observed when that wait ended.", waitBuckets, "reason"),
	}
}

// Count sets what counts at each scrape.
func (n *Node) Count(census func() NodeCensus) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.census = census
}

// NodeOperation is something that was done with a volume.
type NodeOperation struct {
	Driver   string
	Migrated bool // its PersistentVolume names an in-tree plugin
	Name     string
	Failed   bool
	Took     time.Duration
}

// Operation measures one.
func (n *Node) Operation(o NodeOperation) {
	if n == nil {
		return
	}
	status := "success"
	if o.Failed {
		status = "fail-unknown" // upstream knows no other
	}
	n.operations.WithLabelValues(pluginOf(o.Driver), o.Name, status, strconv.FormatBool(o.Migrated)).Observe(o.Took.Seconds())
}

// Mounted measures how long a pod waited for a volume in all.
func (n *Node) Mounted(driver string, took time.Duration) {
	if n != nil {
		n.mounts.WithLabelValues(pluginOf(driver), "overall_volume_mount").Observe(took.Seconds())
	}
}

// DriverCall is a call to a driver that has ended.
type DriverCall struct {
	Driver, Method string
	Code           string // gRPC's word for how it ended
	Migrated       bool
	Took           time.Duration
}

// Called measures one.
func (n *Node) Called(c DriverCall) {
	if n != nil {
		n.calls.WithLabelValues(c.Driver, c.Method, c.Code, strconv.FormatBool(c.Migrated)).Observe(c.Took.Seconds())
	}
}

// Collected measures how long it took to ask for the stats of one volume.
func (n *Node) Collected(driver string, took time.Duration) {
	if n != nil {
		n.collections.WithLabelValues(driver).Observe(took.Seconds())
	}
}

// Found counts a record that was there at start-up, and whether it could be used.
func (n *Node) Found(usable bool) {
	if n == nil {
		return
	}
	n.found.Inc()
	if !usable {
		n.unreadable.Inc()
	}
}

// Waited measures a wait that has ended.
func (n *Node) Waited(reason nodevolume.Reason, took time.Duration) {
	if n != nil {
		n.blocked.WithLabelValues(string(reason)).Observe(took.Seconds())
	}
}

func claimDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("kubelet_volume_stats_"+name, alpha+help, []string{"namespace", "persistentvolumeclaim"}, nil)
}

var (
	nodeVolumes = prometheus.NewDesc("volume_manager_total_volumes",
		alpha+"Number of volumes in Volume Manager", []string{"plugin_name", "state"}, nil)
	nodePlugins = prometheus.NewDesc("plugin_manager_total_plugins",
		alpha+"Number of plugins in Plugin Manager", []string{"socket_path", "state"}, nil)
	nodeWaiting = prometheus.NewDesc("nodeagent_volumes_blocked",
		"Volumes that wait now, by reason; one that waits for two pods counts twice.", []string{"reason"}, nil)
	nodeLongest = prometheus.NewDesc("nodeagent_volume_blocked_longest_seconds",
		"How long the one that waits longest has waited for this reason.", []string{"reason"}, nil)
	nodePending = prometheus.NewDesc("nodeagent_volume_pending_longest_seconds",
		"How long the volume that waits longest has waited to be mounted, or unmounted, whatever the reason.", []string{"operation"}, nil)

	claimCapacity   = claimDesc("capacity_bytes", "Capacity in bytes of the volume")
	claimAvailable  = claimDesc("available_bytes", "Number of available bytes in the volume")
	claimUsed       = claimDesc("used_bytes", "Number of used bytes in the volume")
	claimInodes     = claimDesc("inodes", "Maximum number of inodes in the volume")
	claimInodesFree = claimDesc("inodes_free", "Number of free inodes in the volume")
	claimInodesUsed = claimDesc("inodes_used", "Number of used inodes in the volume")
	claimAbnormal   = claimDesc("health_status_abnormal",
		"Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is unhealthy, 0 indicates volume is healthy")
)

func (n *Node) vectors() []prometheus.Collector {
	return []prometheus.Collector{n.operations, n.mounts, n.calls, n.collections, n.found, n.unreadable, n.blocked}
}

// Describe is part of prometheus.Collector.
func (n *Node) Describe(out chan<- *prometheus.Desc) {
	for _, vector := range n.vectors() {
		vector.Describe(out)
	}
	for _, desc := range []*prometheus.Desc{
		nodeVolumes, nodePlugins, nodeWaiting, nodeLongest, nodePending,
		claimCapacity, claimAvailable, claimUsed, claimInodes, claimInodesFree, claimInodesUsed, claimAbnormal,
	} {
		out <- desc
	}
}

// Collect takes the census. It calls no driver.
func (n *Node) Collect(out chan<- prometheus.Metric) {
	for _, vector := range n.vectors() {
		vector.Collect(out)
	}
	n.mu.Lock()
	census := n.census
	n.mu.Unlock()
	if census == nil {
		return
	}
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	counted := census()
	for state, drivers := range map[string]map[string]int{"desired_state_of_world": counted.Desired, "actual_state_of_world": counted.Mounted} {
		for driver, count := range drivers {
			gauge(nodeVolumes, float64(count), pluginOf(driver), state)
		}
	}
	for state, sockets := range map[string][]string{"desired_state_of_world": counted.Present, "actual_state_of_world": counted.Registered} {
		for _, socket := range sockets {
			gauge(nodePlugins, 1, socket, state)
		}
	}
	for reason, waits := range counted.Waits {
		gauge(nodeWaiting, float64(waits.Count), string(reason))
		gauge(nodeLongest, waits.Longest.Seconds(), string(reason))
	}
	gauge(nodePending, counted.PendingMount.Seconds(), "mount")
	gauge(nodePending, counted.PendingUnmount.Seconds(), "unmount")
	for _, c := range counted.Claims {
		c.collect(func(desc *prometheus.Desc, value int64) { gauge(desc, float64(value), c.Namespace, c.Claim) })
	}
}

func (c ClaimStats) collect(gauge func(*prometheus.Desc, int64)) {
	gauge(claimCapacity, c.Capacity)
	gauge(claimAvailable, c.Available)
	gauge(claimUsed, c.Used)
	gauge(claimInodes, c.Inodes)
	gauge(claimInodesFree, c.InodesFree)
	gauge(claimInodesUsed, c.InodesUsed)
	switch {
	case !c.HealthKnown:
	case c.Abnormal:
		gauge(claimAbnormal, 1)
	default:
		gauge(claimAbnormal, 0)
	}
}
