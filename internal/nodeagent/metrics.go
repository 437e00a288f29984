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

// startMetrics registers the agent's metrics if Config.Metrics is set.
func (r *reports) startMetrics() error {
	if r.config.Metrics == nil {
		return nil
	}
	r.metrics = telemetry.NewNode()
	if err := r.config.Metrics.Register(r.metrics); err != nil {
		r.metrics = nil
		return fmt.Errorf("register the metrics of node %s: %w", r.config.NodeName, err)
	}
	r.metrics.Count(r.census)
	return nil
}

// stopMetrics unregisters the metrics, so that another agent can register its own.
func (r *reports) stopMetrics() {
	if r.metrics != nil {
		r.config.Metrics.Unregister(r.metrics)
	}
}

// stepStarted records when an operation begins, and ends the wait for it.
func (r *reports) stepStarted(v *volume, step nodevolume.Step) {
	if r.metrics == nil {
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
	r.mu.Lock()
	defer r.mu.Unlock()
	if v.measured.began == nil {
		v.measured.began = map[nodevolume.PublishKey]time.Time{}
	}
	if v.measured.began[key].IsZero() {
		v.measured.began[key] = now
	}
	if !reads { // after a read the volume may still have to wait
		r.endWait(v, key, now)
	}
}

// stepEnded observes the duration of the operation that a step ends, unless it was observed already: for a mount that is the publish, or
// the step that failed. The caller holds mu.
func (r *reports) stepEnded(v *volume, key nodevolume.PublishKey, step string, err error) {
	if r.metrics == nil || (step == stepMountDevice && err == nil) {
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
			r.metrics.Mounted(v.driver, time.Since(p.toMount.since))
			p.toMount.since = time.Time{} // observe once
		}
	}
	r.metrics.Operation(telemetry.NodeOperation{
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
func (r *reports) measureWaits(v *volume, waits []nodevolume.Wait, now time.Time) {
	if r.metrics == nil {
		return
	}
	for key, was := range v.measured.waits {
		if !slices.Contains(waits, nodevolume.Wait{Key: key, Reason: was.reason}) {
			r.endWait(v, key, now)
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
func (r *reports) endWait(v *volume, key nodevolume.PublishKey, now time.Time) {
	if was, ok := v.measured.waits[key]; ok {
		r.metrics.Waited(was.reason, now.Sub(was.since))
		delete(v.measured.waits, key)
	}
}

// measureCalls returns the observer of a driver's calls; nil without metrics.
func (r *reports) measureCalls(driver string) func(csi.Call) {
	if r.metrics == nil {
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
		r.metrics.Called(telemetry.DriverCall{Driver: driver, Method: c.Method, Code: code, Migrated: c.Migrated, Took: c.Took})
	}
}

// updateReleasedAt updates since when no pod uses the volume. The caller holds mu.
func (r *reports) updateReleasedAt(v *volume, now time.Time) {
	demandOf := r.facts.demands(v)
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
func (r *reports) census() telemetry.NodeCensus {
	now := time.Now()
	out := telemetry.NodeCensus{Desired: map[string]int{}, Mounted: map[string]int{}, Waits: map[nodevolume.Reason]telemetry.NodeWaits{}}
	r.mu.Lock()
	for _, v := range r.all {
		demandOf := r.facts.demands(v)
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
	out.Claims = r.claimStats()
	r.mu.Unlock()
	out.Registered, out.Present = r.plugins.Sockets()
	return out
}

// claimStats returns the latest stats of each claim. Of pods that share a claim, one represents it. The caller holds mu.
func (r *reports) claimStats() []telemetry.ClaimStats {
	type claim struct{ namespace, name string }
	seen := map[claim]bool{}
	var out []telemetry.ClaimStats
	for _, v := range r.all {
		for _, p := range v.pods {
			if p.stats == nil || p.toMount == nil || p.toMount.claim.name == "" {
				continue
			}
			of := claim{p.toMount.pod.Namespace, p.toMount.claim.name}
			if seen[of] {
				continue
			}
			seen[of] = true
			bytes, inodes := p.stats.usage()
			c := telemetry.ClaimStats{
				Namespace: of.namespace, Claim: of.name,
				Capacity: bytes.Total, Available: bytes.Available, Used: bytes.Used,
				Inodes: inodes.Total, InodesFree: inodes.Available, InodesUsed: inodes.Used,
			}
			if condition := p.stats.Condition; condition != nil {
				c.HealthKnown, c.Abnormal = true, condition.Abnormal
			}
			out = append(out, c)
		}
	}
	return out
}
