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

	"belay.dev/belay/internal/explain"
)

// planStats schedules the stats of a volume once it is published. The caller holds mu.
func (t *tasks) planStats(v *volume) {
	if v.statsPlanned || t.config.StatsPeriod < 0 || !slices.ContainsFunc(v.pods, (*podVolume).hasStats) {
		return
	}
	v.statsPlanned = true
	t.due.AddAfter(periodicTask{gatherStats, v.name}, t.schedule.batch(randomUpTo(t.config.StatsPeriod), t.config.StatsPeriod))
}

// statsTarget is one publish to collect stats of.
type statsTarget struct {
	volume *volume
	pod    *podVolume
	path   string
}

func (t *tasks) statsTargets(name string) []statsTarget {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.all[name]
	if v == nil {
		return nil
	}
	var targets []statsTarget
	for _, p := range v.pods {
		if p.hasStats() {
			targets = append(targets, statsTarget{volume: v, pod: p, path: t.records.driverPath(p.Record)})
		}
	}
	v.statsPlanned = len(targets) > 0
	return targets
}

// gatherStats collects the stats of a volume, one pod after the other. Like kubelet, it repeats that after one to two periods.
func (t *tasks) gatherStats(ctx context.Context, name string) {
	targets := t.statsTargets(name)
	if len(targets) == 0 {
		return
	}
	for _, target := range targets {
		reported, err := t.readStats(ctx, target)
		switch {
		case err == nil, ctx.Err() != nil:
		case isGone(target.volume.state.Inline, err):
			t.disableStats(target, err)
		default:
			t.reports.logger(target.volume, target.pod.Key).V(1).Info("Volume stats are not available", "err", err)
		}
		t.updateStats(target, reported)
	}
	t.due.AddAfter(periodicTask{gatherStats, name}, t.schedule.batch(t.config.StatsPeriod+randomUpTo(t.config.StatsPeriod), t.config.StatsPeriod))
}

// disableStats stops collecting the stats of an inline volume: drivers may not track its path.
func (t *tasks) disableStats(target statsTarget, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	target.pod.statsUnsupported = true
	t.log.WithValues(target.volume.logValues(target.pod.Key)...).
		Info("Driver returned no stats for inline volume, collecting them again after it reconnects", "err", err)
}

// readStats calls NodeGetVolumeStats. It returns nil without GET_VOLUME_STATS; like kubelet, it does not fall back to the file system.
func (t *tasks) readStats(ctx context.Context, target statsTarget) (*publishedStats, error) {
	ctx, cancel := context.WithTimeout(ctx, t.config.RPCTimeout)
	defer cancel()
	client, has, err := t.plugins.Capabilities(ctx, target.volume.driver)
	if err != nil || !has.Stats {
		return nil, err
	}
	began := time.Now()
	reported, err := client.VolumeStats(ctx, target.volume.handle, target.path, has)
	t.reports.metrics.Collected(target.volume.driver, time.Since(began))
	if err != nil {
		return nil, err
	}
	return &publishedStats{at: began, VolumeStats: reported}, nil
}

// updateStats stores new stats, or none if reported is nil. It emits an event if the volume's condition became abnormal or its message
// changed.
func (t *tasks) updateStats(target statsTarget, reported *publishedStats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := target.pod
	if t.all[target.volume.name] != target.volume || !slices.Contains(target.volume.pods, p) || !p.hasStats() {
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
		t.reports.events.Event(p.podRef(), corev1.EventTypeWarning, explain.VolumeConditionAbnormal, problem)
	}
	p.reportedHealth = problem
}

// stats returns the latest stats of a pod's volumes as kubelet reports them.
func (t *tasks) stats(uid types.UID) []stats.VolumeStats {
	owner, known := t.pods.snapshot(uid)
	if !known {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []stats.VolumeStats
	for _, w := range owner.toMount {
		if p, _ := t.findPodVolume(w); p != nil && p.stats != nil {
			out = append(out, p.stats.of(w))
		}
	}
	slices.SortFunc(out, func(a, b stats.VolumeStats) int { return cmp.Compare(a.Name, b.Name) })
	return out
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
