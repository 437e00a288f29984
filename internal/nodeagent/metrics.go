package nodeagent

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/telemetry"
)

// measured are the running measurements of a volume. The zero key is the volume's unstage.
type measured struct {
	// began is when the current operation of a pod began.
	began map[nodevolume.PublishKey]time.Time
	// waits are the current waits. Unlike volume.waits they end when a step begins.
	waits map[nodevolume.PublishKey]currentWait
}

// startMetrics registers the agent's metrics if Config.Metrics is set.
func (m *volumeManager) startMetrics() error {
	if m.config.Metrics == nil {
		return nil
	}
	m.metrics = telemetry.NewNode()
	if err := m.config.Metrics.Register(m.metrics); err != nil {
		m.metrics = nil
		return fmt.Errorf("register the metrics of node %s: %w", m.config.NodeName, err)
	}
	m.metrics.Count(m.census)
	return nil
}

// stopMetrics unregisters the metrics, so that another agent can register its own.
func (m *volumeManager) stopMetrics() {
	if m.metrics != nil {
		m.config.Metrics.Unregister(m.metrics)
	}
}

// stepStarted records when an operation begins, and ends the wait for it.
func (m *volumeManager) stepStarted(v *volume, step nodevolume.Step) {
	if m.metrics == nil {
		return
	}
	var key nodevolume.PublishKey
	reads := false
	switch step := step.(type) {
	case nodevolume.ReadCapabilities:
		key, reads = step.For, true
	case nodevolume.ReadAttachment:
		key, reads = step.For, true
	case nodevolume.StageVolume:
		key = step.For
	case nodevolume.Publish:
		key = step.Key
	case nodevolume.Republish:
		key = step.Key
	case nodevolume.Unpublish:
		key = step.Key
	case nodevolume.Unstage:
	default:
		return // these have metrics of their own
	}
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if v.measured.began == nil {
		v.measured.began = map[nodevolume.PublishKey]time.Time{}
	}
	if v.measured.began[key].IsZero() {
		v.measured.began[key] = now
	}
	if !reads { // after a read the volume may still have to wait
		m.endWait(v, key, now)
	}
}

// stepEnded observes the duration of the operation that a step ends, unless it was observed already: for a mount that is the publish, or
// the step that failed. The caller holds mu.
func (m *volumeManager) stepEnded(v *volume, key nodevolume.PublishKey, step string, err error) {
	if m.metrics == nil || (step == stepMountDevice && err == nil) {
		return
	}
	began, ok := v.measured.began[key]
	if !ok {
		return
	}
	delete(v.measured.began, key)
	migrated, block := false, v.state.Stage.Record.Block
	for _, p := range v.pods {
		block = block || p.Record.Block
		if p.toMount == nil {
			continue
		}
		migrated, block = migrated || p.toMount.migrated, block || p.toMount.block
		if p.Key == key && step == stepSetUp && err == nil && !p.toMount.since.IsZero() {
			m.metrics.Mounted(v.driver, time.Since(p.toMount.since))
			p.toMount.since = time.Time{} // observe once
		}
	}
	m.metrics.Operation(telemetry.NodeOperation{
		Driver: v.driver, Migrated: migrated, Name: operationOf(step, block), Failed: err != nil, Took: time.Since(began),
	})
}

// operationOf returns kubelet's name of the operation to which a step belongs.
func operationOf(step string, block bool) string {
	names := [2]string{telemetry.OperationMount, telemetry.OperationMap}
	switch step {
	case stepUnpublish:
		names = [2]string{telemetry.OperationUnmount, telemetry.OperationUnmap}
	case stepUnstage:
		names = [2]string{telemetry.OperationUnmountBase, telemetry.OperationUnmapBase}
	}
	if block {
		return names[1]
	}
	return names[0]
}

// measureWaits updates the current waits. The caller holds mu.
func (m *volumeManager) measureWaits(v *volume, waits []nodevolume.Wait, now time.Time) {
	if m.metrics == nil {
		return
	}
	for key, was := range v.measured.waits {
		if !slices.Contains(waits, nodevolume.Wait{Key: key, Reason: was.reason}) {
			m.endWait(v, key, now)
		}
	}
	for _, wait := range waits {
		delete(v.measured.began, wait.Key) // the operation starts again after the wait
		if _, ok := v.measured.waits[wait.Key]; ok {
			continue
		}
		if v.measured.waits == nil {
			v.measured.waits = map[nodevolume.PublishKey]currentWait{}
		}
		v.measured.waits[wait.Key] = currentWait{reason: wait.Reason, since: now}
	}
	if len(v.measured.waits) == 0 && len(v.measured.began) == 0 {
		v.measured = measured{}
	}
}

// endWait observes a wait that has ended. The caller holds mu.
func (m *volumeManager) endWait(v *volume, key nodevolume.PublishKey, now time.Time) {
	if was, ok := v.measured.waits[key]; ok {
		m.metrics.Waited(was.reason, now.Sub(was.since))
		delete(v.measured.waits, key)
	}
}

// measureCalls returns the observer of a driver's calls; nil without metrics.
func (m *volumeManager) measureCalls(driver string) func(csi.Call) {
	if m.metrics == nil {
		return nil
	}
	return func(c csi.Call) {
		code := codes.OK.String()
		if c.Err != nil {
			code = "unknown-non-grpc" // as in kubelet
			if known, ok := csi.Code(c.Err); ok {
				code = known.String()
			}
		}
		m.metrics.Called(telemetry.DriverCall{Driver: driver, Method: c.Method, Code: code, Migrated: c.Migrated, Took: c.Took})
	}
}

// updateReleasedAt updates since when no pod uses the volume. The caller holds mu.
func (m *volumeManager) updateReleasedAt(v *volume, now time.Time) {
	demandOf := m.demands(v)
	kept := slices.ContainsFunc(v.pods, func(p *podVolume) bool {
		demand := demandOf(p)
		return demand == nodevolume.Wanted || demand == nodevolume.DemandUnknown
	})
	switch {
	case kept:
		v.releasedAt = time.Time{}
	case v.releasedAt.IsZero():
		v.releasedAt = now
	}
}

// census returns the gauges of a scrape.
func (m *volumeManager) census() telemetry.NodeCensus {
	now := time.Now()
	out := telemetry.NodeCensus{Desired: map[string]int{}, Mounted: map[string]int{}, Waits: map[nodevolume.Reason]telemetry.NodeWaits{}}
	m.mu.Lock()
	for _, v := range m.all {
		demandOf := m.demands(v)
		for _, p := range v.pods {
			if demandOf(p) == nodevolume.Wanted {
				out.Desired[v.driver]++
				if !p.toMount.since.IsZero() && !v.isReady(p) {
					out.PendingMount = max(out.PendingMount, now.Sub(p.toMount.since))
				}
			}
			if p.Phase == nodevolume.Confirmed {
				out.Mounted[v.driver]++
			}
		}
		for _, wait := range v.measured.waits {
			out.Waits[wait.reason] = out.Waits[wait.reason].Add(now.Sub(wait.since))
		}
		if v.pending != nil {
			out.Waits[telemetry.CallInFlight] = out.Waits[telemetry.CallInFlight].Add(now.Sub(v.pending.since))
		}
		if !v.releasedAt.IsZero() {
			out.PendingUnmount = max(out.PendingUnmount, now.Sub(v.releasedAt))
		}
	}
	out.Claims = m.claimStats()
	m.mu.Unlock()
	out.Registered, out.Present = m.plugins.Sockets()
	return out
}
