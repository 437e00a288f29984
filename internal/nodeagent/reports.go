package nodeagent

import (
	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/record"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodeagent/plugins"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/telemetry"
)

// reports tells the outside of the volumes: events, log lines, metrics and traces. It changes no volume but for what it remembers of its own
// reports. The rest feeds it at four points of a volume's turn: a step begins (stepStarted, traced), it has ended (stepEnded, stepFailed,
// unstageFailed), a call is made (logCall, emitPendingCall), and the turn ends in waits (waitBegan, waiting).
type reports struct {
	*volumeSet

	config  Config
	log     logr.Logger
	root    *mount.Root
	events  record.EventRecorder
	facts   *facts
	pods    *podManager
	plugins *plugins.Plugins
	// metrics is nil if Config.Metrics is not set.
	metrics *telemetry.Node
	// blockers are the errors that block waits for a reason; under mu.
	blockers map[nodevolume.Reason]error
}

// logger returns a logger with the names of a volume and a pod; see volume.logValues.
func (r *reports) logger(v *volume, key nodevolume.PublishKey) logr.Logger {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.WithValues(v.logValues(key)...)
}

// logFailure logs a failed step, which is retried. The caller holds mu.
func (r *reports) logFailure(v *volume, key nodevolume.PublishKey, operation string, failures int, err error) {
	r.log.Error(r.config.withRemedy(err), "Volume operation failed, retrying", append(v.logValues(key), "operation", operation, "failures", failures)...)
}

// logCall logs a call to the driver. A failed one is logged by logFailure.
func (r *reports) logCall(v *volume, key nodevolume.PublishKey, call pendingCall, outcome csi.Outcome, values ...any) {
	logger := r.logger(v, key)
	if outcome != csi.Done {
		logger = logger.V(1)
	}
	logger.Info(calledMessages[call.method], append(values, "outcome", outcome.String())...)
}

// waitBegan logs a wait. The caller holds mu.
func (r *reports) waitBegan(v *volume, wait nodevolume.Wait) {
	message := "Waiting to unmount volume"
	if p := v.findPod(wait.Key); p != nil && r.facts.demands(v)(p) == nodevolume.Wanted {
		message = "Waiting to mount volume"
	}
	r.log.V(1).Info(message, append(v.logValues(wait.Key), "reason", wait.Reason)...)
}

// emitPendingCall emits an event about a pending call for every pod that waits for it.
func (r *reports) emitPendingCall(v *volume, call *pendingCall) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v.pending != call {
		return
	}
	cause := r.describeCall(v).Pending()
	step := explain.NodeStep{Step: call.step, Block: v.state.Stage.Record.Block, Volume: v.specName(), Verb: explain.NotEnded}
	switch call.step {
	case stepUnstage:
		r.emitSlowUnstage(v, step.StaysInUse(r.config.NodeName, cause))
		return
	case stepUnpublish:
		p := v.ensurePod(call.key)
		step.Block, step.Volume = p.Record.Block, p.Key.SpecName
		r.emitFailedUnmount(p.podRef(), p.pvcRef(), step.StaysInUse(r.config.NodeName, cause))
		return
	}
	demandOf := r.facts.demands(v)
	for _, p := range v.pods {
		if demandOf(p) != nodevolume.Wanted || v.isReady(p) {
			continue
		}
		step.Block, step.Volume = p.toMount.block, p.Key.SpecName
		reason, text := step.Failed(cause)
		r.emitWarning(p, reason, text)
	}
}

// describeCall describes the pending call. The caller holds mu.
func (r *reports) describeCall(v *volume) explain.NodeCall {
	return explain.NodeCall{Driver: v.driver, Method: v.pending.method, Since: v.pending.since, Timeout: v.pending.timeout}
}

// labelText describes a wait that is caused by a label, with kubelet's text; otherwise it is empty. The caller holds mu.
func (r *reports) labelText(v *volume, key nodevolume.PublishKey, reason nodevolume.Reason) string {
	switch reason {
	case nodevolume.OtherSELinuxLabelWanted:
		return explain.OtherLabelWanted(key.SpecName, v.mountedLabel(), labelFor(v.ensurePod(key).toMount, r.plugins.Rules(v.driver)))
	case nodevolume.OtherSELinuxLabelMounted:
		return explain.OtherLabelMounted(v.name)
	default:
		return ""
	}
}

// emitAttachLimit emits one event for each waiting pod. The caller holds mu.
func (r *reports) emitAttachLimit(v *volume) {
	text := v.attachLimit.Error()
	for _, p := range v.pods {
		if v.waits[p.Key].reason == nodevolume.NotAttached {
			r.emitWarning(p, AttachLimitReason, text)
		}
	}
}

// emitGrowth emits an event about an expansion on the pod and its claim.
func (r *reports) emitGrowth(p *podVolume, kind, reason, text string) {
	r.events.Event(p.podRef(), kind, reason, text)
	r.events.Event(p.pvcRef(), kind, reason, text)
}

// setBlocker stores the error that blocks volumes which wait for one of the reasons, or clears it if err is nil.
func (r *reports) setBlocker(err error, reasons ...nodevolume.Reason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, reason := range reasons {
		if err == nil {
			delete(r.blockers, reason)
			continue
		}
		if r.blockers[reason] == nil {
			r.queueWaiting(reason) // an event may have been sent without a cause
		}
		r.blockers[reason] = err
	}
}

// reasonText describes a reason, with the error that blocks it. The caller holds mu.
func (r *reports) reasonText(reason nodevolume.Reason) string {
	if err := r.blockers[reason]; err != nil {
		return explain.LastError(reason, r.config.withRemedy(err).Error())
	}
	return explain.NodeReason(reason)
}

// calledMessages are the log messages for calls to a driver.
var calledMessages = map[string]string{
	"NodeStageVolume": "Called NodeStageVolume", "NodePublishVolume": "Called NodePublishVolume", "NodeExpandVolume": "Called NodeExpandVolume",
	"NodeUnpublishVolume": "Called NodeUnpublishVolume", "NodeUnstageVolume": "Called NodeUnstageVolume",
}
