package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/nodevolume"
)

// reconcile performs the steps of one volume until it has to wait or is done.
func (m *volumeManager) reconcile(ctx context.Context, name string) {
	m.mu.Lock()
	if v := m.all[name]; v != nil {
		v.state.BeginTurn()
	}
	m.mu.Unlock()
	for {
		v, decision := m.decide(name, time.Now())
		if v == nil {
			return
		}
		switch decision.Next.(type) {
		case nodevolume.ReadAttachment, nodevolume.Publish:
		default:
			m.saveStageConfirmation(v)
		}
		if decision.Next == nil {
			m.finishTurn(v, decision)
			return
		}
		if ctx.Err() != nil {
			m.saveStageConfirmation(v)
			return
		}
		m.act(ctx, v, decision.Next)
	}
}

// decide runs nodevolume.Decide on the current state. It returns nil when the volume is gone from this node.
func (m *volumeManager) decide(name string, now time.Time) (*volume, nodevolume.Decision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.all[name]
	if v == nil {
		return nil, nodevolume.Decision{}
	}
	m.reports.updateReleasedAt(v, now)
	decision := m.status.Decide(name, func(node nodevolume.Node) nodevolume.Decision {
		return v.state.Decide(now, m.facts.observe(v, node))
	})
	m.dropPods(v, decision.Dropped)
	if decision.Forget {
		m.reports.measureWaits(v, nil, now)
		delete(m.all, name)
		for _, p := range v.pods {
			m.pods.removeVolume(types.UID(p.Key.PodUID), name)
		}
		m.log.V(1).Info("Volume removed from this node", v.logValues(nodevolume.PublishKey{})...)
		return nil, nodevolume.Decision{}
	}
	return v, decision
}

// dropPods removes pods that are gone and have nothing published. The caller holds mu.
func (m *volumeManager) dropPods(v *volume, left []nodevolume.PublishKey) {
	for _, key := range left {
		v.pods = slices.DeleteFunc(v.pods, func(p *podVolume) bool { return p.Key == key })
		delete(v.waits, key)
		if !slices.ContainsFunc(v.pods, func(p *podVolume) bool { return p.Key.PodUID == key.PodUID }) { // through another PersistentVolume
			m.pods.removeVolume(types.UID(key.PodUID), v.name)
		}
	}
}

// finishTurn stores why the volume waits, and schedules the next turn.
func (m *volumeManager) finishTurn(v *volume, decision nodevolume.Decision) {
	now := time.Now()
	if !decision.RecheckAt.IsZero() {
		m.queue.AddAfter(v.name, decision.RecheckAt.Sub(now))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	waits := make(map[nodevolume.PublishKey]currentWait, len(decision.Waits))
	for _, wait := range decision.Waits {
		since := now
		if was, ok := v.waits[wait.Key]; ok && was.reason == wait.Reason {
			since = was.since
		} else {
			m.reports.waitBegan(v, wait)
		}
		waits[wait.Key] = currentWait{reason: wait.Reason, since: since}
		m.queue.AddAfter(v.name, m.reports.waiting(v, wait, since, now))
	}
	v.waits = waits
	m.reports.measureWaits(v, decision.Waits, now)
	m.tasks.planStats(v)
	m.tasks.planAttachError(v)
}

// finishStep handles the result of a step. A call that failed because the agent stops says nothing about the driver; the next agent
// repeats it.
func (m *volumeManager) finishStep(ctx context.Context, v *volume, step nodevolume.Step, err error) {
	if errors.Is(err, errOutdated) {
		return // the next decision is based on a new observation
	}
	key, name := nodevolume.KeyOf(step), v.nameOf(step)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reports.stepEnded(v, key, name, err)
	if err != nil && ctx.Err() != nil {
		return
	}
	_, unstage := step.(nodevolume.Unstage)
	if err == nil || errors.Is(err, errReleased) {
		v.state.Succeeded(step)
		if !unstage {
			p := v.ensurePod(key)
			p.problem, p.step, p.lastEvent = nil, "", eventDedup{}
		}
		return
	}
	v.state.Failed(step, time.Now(), rand.Float64(), m.pods.state(types.UID(key.PodUID)).Removed) //nolint:gosec // spreads retries
	if unstage {
		m.reports.unstageFailed(v, err)
		return
	}
	p := v.ensurePod(key)
	if p.Failure.Count <= 1 || p.step != name {
		p.failingSince = cmp.Or(v.began, time.Now())
	}
	p.problem, p.step = err, name
	m.reports.stepFailed(v, p, name, err)
}
