package telemetry

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"belay.dev/belay/internal/attachment"
)

// Volume identifies a volume in upstream's labels.
type Volume struct {
	Key attachment.VolumeKey
	// Migrated is set when its PersistentVolume has an in-tree plugin that is migrated to CSI.
	Migrated bool
}

// plugin returns upstream's label: in-tree plugins by their name, CSI drivers with CSI's prefix.
func (v Volume) plugin() string { return pluginOf(v.Key.Driver) }

func pluginOf(driver string) string {
	if strings.HasPrefix(driver, "kubernetes.io/") {
		return driver
	}
	return "kubernetes.io/csi:" + driver
}

// The phases of an attachment, in order.
const (
	phaseCreate  = "create"  // wanted, and not created yet: it waits for others, or for the API server
	phaseAttach  = "attach"  // created, not yet confirmed by the attacher
	phaseReport  = "report"  // confirmed, not yet in the node's report
	phaseRelease = "release" // unwanted, still reported: the node has to release it
	phaseDelete  = "delete"  // unwanted and not reported, not yet deleted
	phaseDetach  = "detach"  // deleted, the attacher has not confirmed yet

	phaseSettled = "settled" // wanted and reported: not measured
)

// waits tracks the volumes that are not settled. The others cost nothing.
type waits struct {
	mu      sync.Mutex
	volumes map[attachment.VolumeKey]map[attachment.NodeName]*wait
}

// wait is the state of one volume at one node.
type wait struct {
	phase      string
	phaseSince time.Time
	// failure is the last error of the attacher in this phase.
	failure string

	reason      attachment.Reason // empty if nothing blocks it
	reasonSince time.Time
	// lastReason is what blocked it last in this phase.
	lastReason attachment.Reason
}

// Decided follows a volume from decision to decision: it measures the duration of each phase, and how long and why it was blocked.
// A phase that was in progress when the process started is measured from then on.
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

// settle ends the phase and the wait of nodes that no longer have them.
func (c *Controller) settle(now time.Time, v Volume, one *wait, p phase, reason attachment.Reason) {
	if p.name == "" || p.name == phaseSettled {
		c.enterPhase(now, v, one, p)
	}
	if reason == "" {
		c.startWait(now, one, "")
	}
}

// begin starts to track a volume.
func (w *waits) begin(key attachment.VolumeKey) map[attachment.NodeName]*wait {
	if w.volumes == nil {
		w.volumes = map[attachment.VolumeKey]map[attachment.NodeName]*wait{}
	}
	w.volumes[key] = map[attachment.NodeName]*wait{}
	return w.volumes[key]
}

// phase is the phase of a volume at one node, and the attacher's last error.
type phase struct{ name, failure string }

// enterPhase starts a phase and measures the one before.
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
			// It was deleted and gone before the next decision.
			c.operation(v, operationDetach, true, took)
		}
		w.phase, w.phaseSince, w.failure, w.lastReason = p.name, now, "", ""
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

// startWait records why the volume waits, and measures the wait before.
func (c *Controller) startWait(now time.Time, w *wait, reason attachment.Reason) {
	if w.reason == reason {
		return
	}
	if w.reason != "" {
		c.blocked.WithLabelValues(string(w.reason)).Observe(now.Sub(w.reasonSince).Seconds())
		w.lastReason = w.reason
	}
	w.reason, w.reasonSince = reason, now
}

// WantedSince returns since when a volume that is about to be attached has been wanted at the node, and what blocked it last, if anything
// did. The time is zero if that is unknown.
func (c *Controller) WantedSince(key attachment.VolumeKey, node attachment.NodeName) (since time.Time, blockedBy attachment.Reason) {
	if c == nil {
		return time.Time{}, ""
	}
	c.waits.mu.Lock()
	defer c.waits.mu.Unlock()
	if one := c.waits.volumes[key][node]; one != nil && one.phase == phaseCreate {
		return one.phaseSince, one.lastReason
	}
	return time.Time{}, ""
}

// phasesOf returns the phase of the volume at each node that is involved.
func phasesOf(d attachment.Desired, o attachment.Observed) map[attachment.NodeName]phase {
	phases := make(map[attachment.NodeName]phase, max(len(o.Attachments), len(d.Wants)))
	for _, want := range d.Wants {
		phases[want.Node] = phase{name: phaseCreate}
	}
	for i := range o.Attachments {
		a := &o.Attachments[i]
		reported := o.Nodes[a.Node].Reported
		_, wanted := phases[a.Node] // at most one of its attachments is computed
		switch {
		case !a.Computed, a.Implied: // another controller's, or no object
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

// Collect visits the volumes that wait now, not all of them.
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
	gauge := gaugesTo(out)
	for reason, n := range count {
		gauge(waitingNow, float64(n), string(reason))
		gauge(waitingLongest, longest[reason].Seconds(), string(reason))
	}
}
