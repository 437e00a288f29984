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

// measured is what is being measured of a volume, under volumeManager.mu. The zero key is the
// volume's unstage. A volume that rests has nothing here.
type measured struct {
	// began is when the operation began that goes on for a pod.
	began map[nodevolume.PublishKey]time.Time
	// waits are those that go on. Unlike volume.holds they end when work begins.
	waits map[nodevolume.PublishKey]holding
}

// startMetrics registers the metrics of this agent, if they are wanted.
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

// stopMetrics takes them out again, so that another agent can take its place.
func (m *volumeManager) stopMetrics() {
	if m.metrics != nil {
		m.config.Metrics.Unregister(m.metrics)
	}
}

// stepBegins notes when an operation of kubelet's begins, and that a wait ends with it.
func (m *volumeManager) stepBegins(v *volume, step nodevolume.Step) {
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
		return // measures itself
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
	if !reads { // what is read may say that it has to wait on
		m.endWait(v, key, now)
	}
}

// stepEnded measures the operation that a step ends, unless that was done already: for a mount the publish, or
// whatever failed.
func (m *volumeManager) stepEnded(v *volume, key nodevolume.PublishKey, step string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.measureEnd(v, key, step, err)
}

// measureEnd is stepEnded for callers that hold mu.
func (m *volumeManager) measureEnd(v *volume, key nodevolume.PublishKey, step string, err error) {
	if m.metrics == nil || (step == stepMountDevice && err == nil) {
		return
	}
	began, ok := v.measured.began[key]
	if !ok {
		return
	}
	delete(v.measured.began, key)
	migrated, block := false, v.life.Stage.Record.Block
	for _, p := range v.pods {
		block = block || p.Record.Block
		if p.want == nil {
			continue
		}
		migrated, block = migrated || p.want.migrated, block || p.want.block
		if p.Key == key && step == stepSetUp && err == nil && !p.want.since.IsZero() {
			m.metrics.Mounted(v.driver, time.Since(p.want.since))
			p.want.since = time.Time{} // once
		}
	}
	m.metrics.Operation(telemetry.NodeOperation{
		Driver: v.driver, Migrated: migrated, Name: operationOf(step, block), Failed: err != nil, Took: time.Since(began),
	})
}

// operationOf is kubelet's name of the operation that a step belongs to.
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

// measureWaits takes in why the volume waits now, after a turn. The caller holds mu.
func (m *volumeManager) measureWaits(v *volume, holds []nodevolume.Wait, now time.Time) {
	if m.metrics == nil {
		return
	}
	for key, was := range v.measured.waits {
		if !slices.Contains(holds, nodevolume.Wait{Key: key, Reason: was.reason}) {
			m.endWait(v, key, now)
		}
	}
	for _, hold := range holds {
		delete(v.measured.began, hold.Key) // what waits is not worked on
		if _, goesOn := v.measured.waits[hold.Key]; goesOn {
			continue
		}
		if v.measured.waits == nil {
			v.measured.waits = map[nodevolume.PublishKey]holding{}
		}
		v.measured.waits[hold.Key] = holding{reason: hold.Reason, since: now}
	}
	if len(v.measured.waits) == 0 && len(v.measured.began) == 0 {
		v.measured = measured{}
	}
}

// endWait measures a wait that is over. The caller holds mu.
func (m *volumeManager) endWait(v *volume, key nodevolume.PublishKey, now time.Time) {
	if was, ok := v.measured.waits[key]; ok {
		m.metrics.Waited(was.reason, now.Sub(was.since))
		delete(v.measured.waits, key)
	}
}

// measureCalls tells of a driver's calls; nil if nothing is measured.
func (m *volumeManager) measureCalls(driver string) func(csi.Call) {
	if m.metrics == nil {
		return nil
	}
	return func(c csi.Call) {
		code := codes.OK.String()
		if c.Err != nil {
			code = "unknown-non-grpc" // kubelet's word
			if known, ok := csi.Code(c.Err); ok {
				code = known.String()
			}
		}
		m.metrics.Called(telemetry.DriverCall{Driver: driver, Method: c.Method, Code: code, Migrated: c.Migrated, Took: c.Took})
	}
}

// noteReleased keeps since when no pod wants a volume. The caller holds mu.
func (m *volumeManager) noteReleased(v *volume, now time.Time) {
	claimOf := m.claims(v)
	kept := slices.ContainsFunc(v.pods, func(p *podVolume) bool {
		claim := claimOf(p)
		return claim == nodevolume.Wanted || claim == nodevolume.DemandUnknown
	})
	switch {
	case kept:
		v.releasedAt = time.Time{}
	case v.releasedAt.IsZero():
		v.releasedAt = now
	}
}

// census counts what a scrape shows.
func (m *volumeManager) census() telemetry.NodeCensus {
	now := time.Now()
	out := telemetry.NodeCensus{Desired: map[string]int{}, Mounted: map[string]int{}, Waits: map[nodevolume.Reason]telemetry.NodeWaits{}}
	m.mu.Lock()
	for _, v := range m.all {
		claimOf := m.claims(v)
		for _, p := range v.pods {
			if claimOf(p) == nodevolume.Wanted {
				out.Desired[v.driver]++
				if !p.want.since.IsZero() && !v.isReady(p) {
					out.PendingMount = max(out.PendingMount, now.Sub(p.want.since))
				}
			}
			if p.Phase == nodevolume.Confirmed {
				out.Mounted[v.driver]++
			}
		}
		for _, wait := range v.measured.waits {
			out.Waits[wait.reason] = out.Waits[wait.reason].Add(now.Sub(wait.since))
		}
		if v.asked != nil {
			out.Waits[telemetry.CallInFlight] = out.Waits[telemetry.CallInFlight].Add(now.Sub(v.asked.since))
		}
		if !v.releasedAt.IsZero() {
			out.PendingUnmount = max(out.PendingUnmount, now.Sub(v.releasedAt))
		}
	}
	out.Claims = m.claimStats()
	m.mu.Unlock()
	out.Registered, out.Present = m.plugins.sockets()
	return out
}
