package telemetry

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"belay.dev/belay/internal/attachment"
)

// Volume is one volume with what upstream's labels say about it.
type Volume struct {
	Key attachment.VolumeKey
	// Migrated is set when its PersistentVolume names an in-tree plugin for which the
	// CSI driver stands in.
	Migrated bool
}

// plugin is upstream's label: in-tree plugins by their name, CSI drivers behind CSI's.
func (v Volume) plugin() string { return pluginOf(v.Key.Driver) }

func pluginOf(driver string) string {
	if strings.HasPrefix(driver, "kubernetes.io/") {
		return driver
	}
	return "kubernetes.io/csi:" + driver
}

// Phases of an attachment's life, in their order.
const (
	phaseCreate  = "create"  // wanted, and not yet created: it waits for others, or for the API server
	phaseAttach  = "attach"  // created, not yet confirmed by the attacher
	phaseReport  = "report"  // confirmed, not yet in the node's report
	phaseRelease = "release" // unwanted, still reported: the node has to let go
	phaseDelete  = "delete"  // unwanted and not reported, not yet deleted
	phaseDetach  = "detach"  // deleted, the attacher has not confirmed yet

	phaseSettled = "settled" // wanted and reported: not measured
)

// waits follows the volumes that are on their way. Those that rest cost nothing.
type waits struct {
	mu      sync.Mutex
	volumes map[attachment.VolumeKey]map[attachment.NodeName]*wait
}

// wait is one volume at one node.
type wait struct {
	phase      string
	phaseSince time.Time
	// failure is the last error that the attacher gave in this phase.
	failure string

	reason      attachment.Reason // empty while nothing blocks
	reasonSince time.Time
}

// Decided follows one volume from decision to decision: it measures how long each phase
// took, and how long and why it was blocked. What a process began to watch in the
// middle is measured from then on.
func (c *Controller) Decided(now time.Time, v Volume, d attachment.Desired, o attachment.Observed, decision attachment.Decision) {
	if c == nil {
		return
	}
	phases, reasons := phasesOf(d, o), reasonsOf(decision)
	w := &c.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	nodes := w.volumes[v.Key]
	at := func(node attachment.NodeName) *wait {
		if nodes == nil {
			nodes = w.begin(v.Key)
		}
		if nodes[node] == nil {
			nodes[node] = &wait{}
		}
		return nodes[node]
	}
	for node, p := range phases {
		if p.name != phaseSettled {
			c.enterPhase(now, v, at(node), p)
		}
	}
	for node, reason := range reasons {
		c.startWait(now, at(node), reason)
	}
	for node, one := range nodes {
		c.settle(now, v, one, phases[node], reasons[node])
		if one.reason == "" && (one.phase == "" || one.phase == phaseSettled) {
			delete(nodes, node)
		}
	}
	if nodes != nil && len(nodes) == 0 {
		delete(w.volumes, v.Key)
	}
}

// settle ends the phase and the wait of a node that no longer has them.
func (c *Controller) settle(now time.Time, v Volume, one *wait, p phase, reason attachment.Reason) {
	if p.name == "" || p.name == phaseSettled {
		c.enterPhase(now, v, one, p)
	}
	if reason == "" {
		c.startWait(now, one, "")
	}
}

// begin follows a volume.
func (w *waits) begin(key attachment.VolumeKey) map[attachment.NodeName]*wait {
	if w.volumes == nil {
		w.volumes = map[attachment.VolumeKey]map[attachment.NodeName]*wait{}
	}
	w.volumes[key] = map[attachment.NodeName]*wait{}
	return w.volumes[key]
}

// phase is where a volume stands at one node, and the attacher's last complaint.
type phase struct{ name, failure string }

// enterPhase moves on to a phase and measures the one before.
func (c *Controller) enterPhase(now time.Time, v Volume, w *wait, p phase) {
	if w.phase != p.name {
		took := now.Sub(w.phaseSince)
		if w.phase != "" && w.phase != phaseSettled {
			c.phases.WithLabelValues(w.phase).Observe(took.Seconds())
		}
		switch {
		case w.phase == phaseAttach && (p.name == phaseReport || p.name == phaseSettled):
			c.operation(v, operationAttach, true, took)
		case w.phase == phaseDetach, w.phase == phaseDelete && p.name == "":
			// The latter was deleted and gone before anybody looked.
			c.operation(v, operationDetach, true, took)
		}
		w.phase, w.phaseSince, w.failure = p.name, now, ""
	}
	if p.failure != "" && p.failure != w.failure {
		name := operationAttach
		if p.name == phaseDetach {
			name = operationDetach
		}
		c.operation(v, name, false, now.Sub(w.phaseSince))
		w.failure = p.failure
	}
}

// startWait notes why the volume waits, and measures the wait before.
func (c *Controller) startWait(now time.Time, w *wait, reason attachment.Reason) {
	if w.reason == reason {
		return
	}
	if w.reason != "" {
		c.blocked.WithLabelValues(string(w.reason)).Observe(now.Sub(w.reasonSince).Seconds())
	}
	w.reason, w.reasonSince = reason, now
}

// phasesOf tells for each node that has to do with the volume where it stands there.
func phasesOf(d attachment.Desired, o attachment.Observed) map[attachment.NodeName]phase {
	phases := make(map[attachment.NodeName]phase, max(len(o.Attachments), len(d.Wants)))
	if !d.NoVolumeAttachment {
		for _, want := range d.Wants {
			phases[want.Node] = phase{name: phaseCreate}
		}
	}
	for i := range o.Attachments {
		a := &o.Attachments[i]
		reported := o.Nodes[a.Node].Reported
		_, wanted := phases[a.Node] // one of its attachments at most is computed
		switch {
		case !a.Computed, a.Implied: // another controller's, or no object at all
		case a.Deleting:
			phases[a.Node] = phase{phaseDetach, a.DetachError}
		case wanted && a.Confirmed != attachment.Yes:
			phases[a.Node] = phase{phaseAttach, a.AttachError}
		case wanted && !reported:
			phases[a.Node] = phase{name: phaseReport}
		case wanted:
			phases[a.Node] = phase{name: phaseSettled}
		case reported:
			phases[a.Node] = phase{name: phaseRelease}
		default:
			phases[a.Node] = phase{name: phaseDelete}
		}
	}
	return phases
}

func reasonsOf(decision attachment.Decision) map[attachment.NodeName]attachment.Reason {
	reasons := map[attachment.NodeName]attachment.Reason{}
	for _, step := range decision.Steps {
		wait, ok := step.(attachment.Wait)
		if _, first := reasons[wait.Node]; ok && !first {
			reasons[wait.Node] = wait.Reason
		}
	}
	return reasons
}

var (
	waitingNow = prometheus.NewDesc("volumes_blocked",
		"Volumes that wait now, by reason; one that waits at two nodes counts twice.", []string{"reason"}, nil)
	waitingLongest = prometheus.NewDesc("volume_blocked_longest_seconds",
		"How long the one that waits longest has waited, by reason.", []string{"reason"}, nil)
)

// Describe is part of prometheus.Collector.
func (w *waits) Describe(out chan<- *prometheus.Desc) {
	out <- waitingNow
	out <- waitingLongest
}

// Collect goes over the volumes that wait now, not over all.
func (w *waits) Collect(out chan<- prometheus.Metric) {
	now := time.Now()
	count, longest := map[attachment.Reason]int{}, map[attachment.Reason]time.Duration{}
	w.mu.Lock()
	for _, nodes := range w.volumes {
		for _, one := range nodes {
			if one.reason != "" {
				count[one.reason]++
				longest[one.reason] = max(longest[one.reason], now.Sub(one.reasonSince))
			}
		}
	}
	w.mu.Unlock()
	for reason, n := range count {
		out <- prometheus.MustNewConstMetric(waitingNow, prometheus.GaugeValue, float64(n), string(reason))
		out <- prometheus.MustNewConstMetric(waitingLongest, prometheus.GaugeValue, longest[reason].Seconds(), string(reason))
	}
}
