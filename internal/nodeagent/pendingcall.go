package nodeagent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/nodevolume"
)

// pendingCall is a call to a volume's driver that has not returned yet.
type pendingCall struct {
	method string
	// step is the step to which the call belongs, and key its pod.
	step  string
	key   nodevolume.PublishKey
	since time.Time
}

// callDriver calls a volume's driver. Until it returns, waits for the volume name the call, and after a while an event does.
func (m *volumeManager) callDriver(ctx context.Context, v *volume, u pendingCall, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, m.config.RPCTimeout)
	defer cancel()
	u.since = time.Now()
	m.mu.Lock()
	v.pending = &u
	m.mu.Unlock()
	slow := time.AfterFunc(m.config.waitEventDelay, func() { m.emitPendingCall(v, &u) })
	err := call(ctx)
	slow.Stop()
	m.mu.Lock()
	v.pending = nil
	m.mu.Unlock()
	return csi.Unanswered(ctx, err, csi.NoAnswerError{Driver: v.driver, Call: u.method, Timeout: m.config.RPCTimeout})
}

// describeCall describes the pending call. The caller holds mu.
func (m *volumeManager) describeCall(v *volume) explain.NodeCall {
	return explain.NodeCall{Driver: v.driver, Method: v.pending.method, Since: v.pending.since, Timeout: m.config.RPCTimeout}
}

// emitPendingCall emits an event about a pending call for every pod that waits for it.
func (m *volumeManager) emitPendingCall(v *volume, u *pendingCall) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v.pending != u {
		return
	}
	ends := m.describeCall(v).Pending()
	pending := explain.NodeStep{Step: u.step, Block: v.state.Stage.Record.Block, Volume: v.specName(), Verb: explain.NotEnded}
	switch u.step {
	case stepUnstage:
		m.emitFailedUnstage(v, pending.StaysInUse(m.config.NodeName, ends))
		return
	case stepUnpublish:
		p := v.ensurePod(u.key)
		pending.Block, pending.Volume = p.Record.Block, p.Key.SpecName
		m.emitFailedUnmount(p.podRef(), p.pvcRef(), pending.StaysInUse(m.config.NodeName, ends))
		return
	}
	demandOf := m.demands(v)
	for _, p := range v.pods {
		if demandOf(p) != nodevolume.Wanted || v.isReady(p) {
			continue
		}
		pending.Block, pending.Volume = p.toMount.block, p.Key.SpecName
		if reason, text := pending.Failed(ends); p.lastEvent.isNew(text, time.Now()) {
			m.events.Event(p.podRef(), corev1.EventTypeWarning, reason, text)
		}
	}
}
