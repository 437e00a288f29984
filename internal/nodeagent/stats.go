package nodeagent

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/telemetry"
)

// defaultStatsPeriod is kubelet's volumeStatsAggPeriod.
const defaultStatsPeriod = time.Minute

// publishedStats are the latest stats of one publish.
type publishedStats struct {
	at time.Time
	csi.VolumeStats
}

// hasStats reports whether the driver can be called for stats of the volume.
func (p *podVolume) hasStats() bool {
	return p.toMount != nil && p.Phase == nodevolume.Confirmed && !p.statsUnsupported
}

// planStats schedules the stats of a volume once it is published. The caller holds mu.
func (m *volumeManager) planStats(v *volume) {
	if v.statsPlanned || m.config.StatsPeriod < 0 || !slices.ContainsFunc(v.pods, (*podVolume).hasStats) {
		return
	}
	v.statsPlanned = true
	m.tasks.AddAfter(periodicTask{gatherStats, v.name}, m.schedule.batch(randomUpTo(m.config.StatsPeriod), m.config.StatsPeriod))
}

// statsTarget is one publish to collect stats of.
type statsTarget struct {
	volume *volume
	pod    *podVolume
	path   string
}

func (m *volumeManager) statsTargets(name string) []statsTarget {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.all[name]
	if v == nil {
		return nil
	}
	var targets []statsTarget
	for _, p := range v.pods {
		if p.hasStats() {
			targets = append(targets, statsTarget{volume: v, pod: p, path: m.driverPath(p.Record)})
		}
	}
	v.statsPlanned = len(targets) > 0
	return targets
}

// gatherStats collects the stats of a volume, one pod after the other. Like kubelet, it repeats that after one to two periods.
func (m *volumeManager) gatherStats(ctx context.Context, name string) {
	targets := m.statsTargets(name)
	if len(targets) == 0 {
		return
	}
	for _, target := range targets {
		reported, err := m.readStats(ctx, target)
		switch {
		case err == nil, ctx.Err() != nil:
		case isGone(target.volume.state.Inline, err):
			m.disableStats(target, err)
		default:
			m.logger(target.volume, target.pod.Key).V(1).Info("Volume stats are not available", "err", err)
		}
		m.updateStats(target, reported)
	}
	m.tasks.AddAfter(periodicTask{gatherStats, name}, m.schedule.batch(m.config.StatsPeriod+randomUpTo(m.config.StatsPeriod), m.config.StatsPeriod))
}

// disableStats stops collecting the stats of an inline volume: drivers may not track its path.
func (m *volumeManager) disableStats(target statsTarget, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	target.pod.statsUnsupported = true
	m.log.WithValues(target.volume.logValues(target.pod.Key)...).
		Info("Driver returned no stats for inline volume, collecting them again after it reconnects", "err", err)
}

// readStats calls NodeGetVolumeStats. It returns nil without GET_VOLUME_STATS; like kubelet, it does not fall back to the file system.
func (m *volumeManager) readStats(ctx context.Context, target statsTarget) (*publishedStats, error) {
	ctx, cancel := context.WithTimeout(ctx, m.config.RPCTimeout)
	defer cancel()
	client, has, err := m.plugins.Capabilities(ctx, target.volume.driver)
	if err != nil || !has.Stats {
		return nil, err
	}
	began := time.Now()
	reported, err := client.VolumeStats(ctx, target.volume.handle, target.path, has)
	m.metrics.Collected(target.volume.driver, time.Since(began))
	if err != nil {
		return nil, err
	}
	return &publishedStats{at: began, VolumeStats: reported}, nil
}

// updateStats stores new stats, or none if reported is nil. It emits an event if the volume's condition became abnormal or its message
// changed.
func (m *volumeManager) updateStats(target statsTarget, reported *publishedStats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := target.pod
	if m.all[target.volume.name] != target.volume || !slices.Contains(target.volume.pods, p) || !p.hasStats() {
		return // the pod or the volume is gone
	}
	p.stats = reported
	if reported == nil || reported.Condition == nil {
		return
	}
	problem := ""
	if reported.Condition.Abnormal {
		problem = explain.Abnormal(p.toMount.volume, reported.Condition.Message)
	}
	if problem != "" && problem != p.reportedHealth {
		m.events.Event(p.podRef(), corev1.EventTypeWarning, explain.VolumeConditionAbnormal, problem)
	}
	p.reportedHealth = problem
}

// stats returns the latest stats of a pod's volumes as kubelet reports them.
func (m *volumeManager) stats(uid types.UID) []stats.VolumeStats {
	owner, known := m.pods.snapshot(uid)
	if !known {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []stats.VolumeStats
	for _, w := range owner.toMount {
		if p, _ := m.findPodVolume(w); p != nil && p.stats != nil {
			out = append(out, p.stats.of(w))
		}
	}
	slices.SortFunc(out, func(a, b stats.VolumeStats) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// usage returns the reported values. As in kubelet, missing ones are 0.
func (s *publishedStats) usage() (bytes, inodes csi.Usage) {
	if s.Bytes != nil {
		bytes = *s.Bytes
	}
	if s.Inodes != nil {
		inodes = *s.Inodes
	}
	return bytes, inodes
}

func (s *publishedStats) of(w *volumeToMount) stats.VolumeStats {
	bytes, inodes := s.usage()
	number := func(n int64) *uint64 { return new(uint64(max(n, 0))) }
	out := stats.VolumeStats{
		Name: w.volume,
		FsStats: stats.FsStats{
			Time:           metav1.NewTime(s.at),
			AvailableBytes: number(bytes.Available), CapacityBytes: number(bytes.Total), UsedBytes: number(bytes.Used),
			InodesFree: number(inodes.Available), Inodes: number(inodes.Total), InodesUsed: number(inodes.Used),
		},
	}
	if w.claim.name != "" {
		out.PVCRef = &stats.PVCReference{Name: w.claim.name, Namespace: w.pod.Namespace}
	}
	if s.Condition != nil {
		out.VolumeHealthStats = &stats.VolumeHealthStats{Abnormal: s.Condition.Abnormal}
	}
	return out
}

// claimStats returns the latest stats of each claim. Of pods that share a claim, one represents it. The caller holds mu.
func (m *volumeManager) claimStats() []telemetry.ClaimStats {
	type claim struct{ namespace, name string }
	seen := map[claim]bool{}
	var out []telemetry.ClaimStats
	for _, v := range m.all {
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
