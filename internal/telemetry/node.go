package telemetry

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"belay.dev/belay/internal/nodevolume"
)

// Kubelet's names of operations on a volume, for storage_operation_duration_seconds (k/k pkg/volume/util/operationexecutor).
const (
	OperationMount       = "volume_mount" // read the VolumeAttachment, stage and publish
	OperationUnmount     = "volume_unmount"
	OperationUnmountBase = "unmount_device" // unstage
	OperationMap         = "map_volume"     // the same for block volumes
	OperationUnmap       = "unmap_volume"
	OperationUnmapBase   = "unmap_device"
	OperationExpand      = "volume_fs_resize"            // ask the driver to expand it
	OperationGroup       = "volume_apply_access_control" // set the pod's fsGroup on the files
)

// CallInFlight is the reason of a volume whose driver has not answered a call yet. It is not a reason of nodevolume, because no
// decision waits for it.
const CallInFlight nodevolume.Reason = "CallInFlight"

// alpha is the prefix of the help of all metrics that upstream calls alpha.
const alpha = "[ALPHA] "

// NodeCensus is what a node agent counts at each scrape.
type NodeCensus struct {
	// Desired and Mounted count pairs of a pod and a volume, by the name of the driver: those that pods want, and those that are
	// published.
	Desired, Mounted map[string]int
	// Waits are the present waits.
	Waits map[nodevolume.Reason]NodeWaits
	// PendingMount is how long the oldest unfinished mount has been wanted, and PendingUnmount how long the volume that has been
	// unwanted longest is still mounted.
	PendingMount, PendingUnmount time.Duration
	// Present are the registration sockets that exist, Registered those whose driver is registered.
	Present, Registered []string
	// Claims are the last stats of the volumes of claims.
	Claims []ClaimStats
}

// NodeWaits is the number of waits for one reason, and the duration of the longest.
type NodeWaits struct {
	Count   int
	Longest time.Duration
}

// Add counts one more wait.
func (w NodeWaits) Add(waited time.Duration) NodeWaits {
	return NodeWaits{w.Count + 1, max(w.Longest, waited)}
}

// ClaimStats are the driver's stats for the volume of one claim; what it did not report is 0, as with kubelet.
type ClaimStats struct {
	Namespace, Claim               string
	Capacity, Available, Used      int64 // bytes
	Inodes, InodesFree, InodesUsed int64
	HealthKnown, Abnormal          bool
}

// Node is a collector with the metrics of a node agent. A nil *Node measures nothing, and every method may be called on it.
type Node struct {
	operations  *prometheus.HistogramVec
	mounts      *prometheus.HistogramVec
	calls       *prometheus.HistogramVec
	collections *prometheus.HistogramVec
	found       prometheus.Counter
	unreadable  prometheus.Counter
	blocked     *prometheus.HistogramVec
	census      atomic.Pointer[func() NodeCensus]
}

// NewNode creates the metrics of one node agent, without registering them.
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

// Count sets the function that counts at each scrape.
func (n *Node) Count(census func() NodeCensus) {
	if n != nil {
		n.census.Store(&census)
	}
}

// NodeOperation is an operation on a volume that has ended.
type NodeOperation struct {
	Driver   string
	Migrated bool // its PersistentVolume names an in-tree plugin
	Name     string
	Failed   bool
	Took     time.Duration
}

// Operation measures an operation.
func (n *Node) Operation(o NodeOperation) {
	if n == nil {
		return
	}
	status := "success"
	if o.Failed {
		status = "fail-unknown" // upstream has no other
	}
	n.operations.WithLabelValues(pluginOf(o.Driver), o.Name, status, strconv.FormatBool(o.Migrated)).Observe(o.Took.Seconds())
}

// Mounted measures how long a pod waited for a volume in total.
func (n *Node) Mounted(driver string, took time.Duration) {
	if n != nil {
		n.mounts.WithLabelValues(pluginOf(driver), "overall_volume_mount").Observe(took.Seconds())
	}
}

// DriverCall is a call to a driver that has ended.
type DriverCall struct {
	Driver, Method string
	Code           string // the name of its gRPC code
	Migrated       bool
	Took           time.Duration
}

// Called measures a call.
func (n *Node) Called(c DriverCall) {
	if n != nil {
		n.calls.WithLabelValues(c.Driver, c.Method, c.Code, strconv.FormatBool(c.Migrated)).Observe(c.Took.Seconds())
	}
}

// Collected measures how long the stats of one volume took.
func (n *Node) Collected(driver string, took time.Duration) {
	if n != nil {
		n.collections.WithLabelValues(driver).Observe(took.Seconds())
	}
}

// Found counts a record that existed at start-up, and whether it could be read.
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

// Collect counts. It calls no driver.
func (n *Node) Collect(out chan<- prometheus.Metric) {
	for _, vector := range n.vectors() {
		vector.Collect(out)
	}
	census := n.census.Load()
	if census == nil {
		return
	}
	counted, gauge := (*census)(), gaugesTo(out)
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
