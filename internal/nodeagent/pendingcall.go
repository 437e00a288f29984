package nodeagent

import (
	"context"
	"time"

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
	// timeout is when the call ends without an answer.
	timeout time.Duration
}

// callDriver calls a volume's driver. Until it returns, waits for the volume name the call, and after a while an event does.
func (m *volumeManager) callDriver(ctx context.Context, v *volume, pending pendingCall, call func(context.Context) error) error {
	pending.timeout = m.config.RPCTimeout
	if m.config.callTimeout != nil {
		pending.timeout = m.config.callTimeout(pending.method)
	}
	ctx, cancel := context.WithTimeout(ctx, pending.timeout)
	defer cancel()
	pending.since = time.Now()
	m.mu.Lock()
	v.pending = &pending
	m.mu.Unlock()
	slow := time.AfterFunc(m.config.waitEventDelay, func() { m.emitPendingCall(v, &pending) })
	ctx, span := m.config.Traces.StartCall(ctx, "csi.v1.Node", pending.method)
	err := call(ctx)
	span.End(err)
	slow.Stop()
	m.mu.Lock()
	v.pending = nil
	m.mu.Unlock()
	return csi.Unanswered(ctx, err, csi.NoAnswerError{Driver: v.driver, Call: pending.method, Timeout: pending.timeout})
}

// describeCall describes the pending call. The caller holds mu.
func (m *volumeManager) describeCall(v *volume) explain.NodeCall {
	return explain.NodeCall{Driver: v.driver, Method: v.pending.method, Since: v.pending.since, Timeout: v.pending.timeout}
}

// emitPendingCall emits an event about a pending call for every pod that waits for it.
func (m *volumeManager) emitPendingCall(v *volume, call *pendingCall) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v.pending != call {
		return
	}
	cause := m.describeCall(v).Pending()
	step := explain.NodeStep{Step: call.step, Block: v.state.Stage.Record.Block, Volume: v.specName(), Verb: explain.NotEnded}
	switch call.step {
	case stepUnstage:
		m.emitSlowUnstage(v, step.StaysInUse(m.config.NodeName, cause))
		return
	case stepUnpublish:
		p := v.ensurePod(call.key)
		step.Block, step.Volume = p.Record.Block, p.Key.SpecName
		m.emitFailedUnmount(p.podRef(), p.pvcRef(), step.StaysInUse(m.config.NodeName, cause))
		return
	}
	demandOf := m.demands(v)
	for _, p := range v.pods {
		if demandOf(p) != nodevolume.Wanted || v.isReady(p) {
			continue
		}
		step.Block, step.Volume = p.toMount.block, p.Key.SpecName
		reason, text := step.Failed(cause)
		m.emitWarning(p, reason, text)
	}
}
