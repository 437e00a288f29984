package nodeagent

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/nodevolume"
)

// act performs one step of a volume and records its result.
func (m *volumeManager) act(ctx context.Context, v *volume, step nodevolume.Step) {
	m.reports.stepStarted(v, step)
	m.mu.Lock()
	v.began = time.Now()
	if publish, ok := step.(nodevolume.Publish); ok {
		v.publishing = publish.Key
	}
	m.mu.Unlock()
	switch step := step.(type) {
	case nodevolume.ReadCapabilities:
		if err := m.readCapabilities(ctx, v, step.For); err != nil {
			// Never final: a driver that does not answer says nothing about the volume.
			m.finishStep(ctx, v, step, err)
		}
	case nodevolume.ReadAttachment:
		if err := m.lookUpAttachment(ctx, v); err != nil {
			m.finishStep(ctx, v, step, err)
		}
	case nodevolume.StageVolume:
		m.finishStep(ctx, v, step, m.reports.traced(ctx, v, step, func(ctx context.Context) error { return m.stage(ctx, v, step) }))
	case nodevolume.Publish:
		m.finishStep(ctx, v, step, m.reports.traced(ctx, v, step, func(ctx context.Context) error { return m.publish(ctx, v, step) }))
	case nodevolume.Republish:
		m.finishStep(ctx, v, step, m.republish(ctx, v, step))
	case nodevolume.LookForUsers:
		m.users.lookForUsers(ctx, v, step.Key)
	case nodevolume.Expand:
		m.growth.expand(ctx, v, step.Key)
	case nodevolume.Unpublish:
		m.finishStep(ctx, v, step, m.reports.traced(ctx, v, step, func(ctx context.Context) error { return m.unpublish(ctx, v, step) }))
	case nodevolume.Unstage:
		m.finishStep(ctx, v, step, m.reports.traced(ctx, v, step, func(ctx context.Context) error { return m.unstage(ctx, v, step) }))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v.state.EndStep(step)
	if v.publishing.PodUID != "" {
		m.pods.notify(types.UID(v.publishing.PodUID))
		v.publishing = nodevolume.PublishKey{}
	}
}

// stage saves a record and calls NodeStageVolume.
func (m *volumeManager) stage(ctx context.Context, v *volume, step nodevolume.StageVolume) error {
	c, err := m.requests.newDriverCall(v, step.For)
	if err != nil {
		return err
	}
	w := c.toMount
	c.label = step.Label
	if err := m.requests.checkAffinity(w); err != nil {
		return err
	}
	secrets, err := m.requests.secrets(ctx, w.stageSecret)
	if err != nil {
		return err
	}
	if err := m.recheckAttachment(ctx, v, c, w.stageSecret != nil); err != nil {
		return err
	}
	record := m.requests.recordFor(c, nodevolume.StageKind, c.stagingPath)
	begun, err := m.begin(v, step, record)
	if err != nil {
		return err
	}
	err = m.records.prepareStage(record)
	if err == nil {
		err = m.checkDecisionAndPod(v, step)
	}
	if err != nil {
		return m.end(v, begun, callResult{err: err, phase: begun.After(nodevolume.Refused)})
	}
	call := c.nodeVolume(m.records.driverPath(begun.Record))
	call.Secrets, call.Context = secrets, w.attributes
	pending := pendingCall{method: "NodeStageVolume", step: stepMountDevice, key: step.For}
	err = m.calls.callDriver(csi.WithMigrated(ctx, w.migrated), v, pending, func(ctx context.Context) error { return c.client.Stage(ctx, call, c.capabilities) })
	m.reports.logCall(v, step.For, pending, csi.NodeOutcomeOf(err))
	return m.end(v, begun, callResult{err: err, phase: begun.After(reply(err))})
}

// publish saves a record and calls NodePublishVolume.
func (m *volumeManager) publish(ctx context.Context, v *volume, step nodevolume.Publish) error {
	key := step.Key
	c, err := m.requests.newDriverCall(v, key)
	if err != nil {
		return err
	}
	w := c.toMount
	c.label = step.Label
	if err := m.requests.checkLifecycle(w); err != nil {
		return err
	}
	if err := m.requests.checkAffinity(w); err != nil {
		return err
	}
	call, err := m.requests.publishCall(ctx, c)
	if err != nil {
		return err
	}
	if err := m.recheckAttachment(ctx, v, c, c.readsAPI()); err != nil {
		return err
	}
	record := m.requests.recordFor(c, nodevolume.PublishKind, publishPath(w))
	begun, err := m.begin(v, step, record)
	if err != nil {
		return err
	}
	err = m.records.preparePublish(record)
	if err == nil {
		err = m.checkDecisionAndPod(v, step)
	}
	if err != nil {
		return m.end(v, begun, callResult{err: err, phase: begun.After(nodevolume.Refused)})
	}
	err = m.callPublish(ctx, v, c, key, call, begun.Record)
	m.reports.logCall(v, key, pendingCall{method: "NodePublishVolume"}, csi.NodeOutcomeOf(err))
	if err == nil {
		m.mu.Lock()
		v.ensurePod(key).publishContext = c.attachment.Metadata
		m.mu.Unlock()
		err = m.records.checkPublished(begun.Record)
	}
	if err == nil {
		err = m.finishPublish(ctx, c, record)
	}
	return m.end(v, begun, callResult{err: err, phase: begun.After(reply(err))})
}

func (m *volumeManager) callPublish(ctx context.Context, v *volume, c driverCall, key nodevolume.PublishKey, call csi.NodeVolume, r nodevolume.Record) error {
	target := csi.Target{Path: m.records.driverPath(r), ReadOnly: c.toMount.readOnly}
	pending := pendingCall{method: "NodePublishVolume", step: stepSetUp, key: key}
	return m.calls.callDriver(csi.WithMigrated(ctx, c.toMount.migrated), v, pending, func(ctx context.Context) error {
		return c.client.Publish(ctx, call, target, c.capabilities)
	})
}

// unpublish calls NodeUnpublishVolume and removes the record.
func (m *volumeManager) unpublish(ctx context.Context, v *volume, step nodevolume.Unpublish) error {
	key := step.Key
	client, err := m.plugins.Client(v.driver)
	if err != nil {
		return err
	}
	begun, err := m.begin(v, step, nodevolume.Record{})
	if err != nil {
		return err
	}
	if err := m.endSubPaths(m.podVolume(v, key)); err != nil {
		return err
	}
	pending, target := pendingCall{method: "NodeUnpublishVolume", step: stepUnpublish, key: key}, m.records.driverPath(begun.Record)
	err = m.calls.callDriver(ctx, v, pending, func(ctx context.Context) error { return client.Unpublish(ctx, v.handle, target) })
	m.reports.logCall(v, key, pending, csi.NodeOutcomeOf(err))
	if isGone(v.state.Inline, err) {
		err = nil
	}
	return m.end(v, begun, callResult{err: err, phase: begun.After(reply(err))})
}

// begin makes the record of a call durable before the call changes anything.
func (m *volumeManager) begin(v *volume, step nodevolume.Step, intent nodevolume.Record) (nodevolume.Call, error) {
	name := v.recordName(step)
	m.mu.Lock()
	var lost *nodevolume.Knowledge
	if _, unaccounted := m.records.unaccounted[name]; unaccounted {
		lost = new(m.records.mountedAt(intent))
	}
	call := v.state.Begin(step, intent, lost)
	m.mu.Unlock()
	if !call.Write {
		return call, nil
	}
	err := m.records.saveBefore(name, call)
	if err != nil && (call.Before != nodevolume.Absent || m.records.dir.RemoveWritten(name) == nil) {
		return call, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v.state.Recorded(call)
	if err != nil { // a part of the record stays on disk
		return call, err
	}
	if !call.Record.Leaving {
		delete(m.records.unaccounted, name)
	}
	return call, nil
}

// callResult is the result of a call, and the phase that follows from it.
type callResult struct {
	err   error
	phase nodevolume.Phase
	// note replaces "returned OK" in the error if cleaning up fails.
	note string
}

// end saves the result of a call. It returns the call's error, or the failure to clean up after it.
func (m *volumeManager) end(v *volume, call nodevolume.Call, e callResult) error {
	name, record, phase, err := v.recordName(call.Step), call.Record, e.phase, e.err
	confirmation := nodevolume.Confirmation{}
	switch phase {
	case nodevolume.Confirmed:
		record.Confirmed, confirmation = true, confirmedNow()
		if record.Kind == nodevolume.StageKind {
			v.unsavedStage = &record
		} else {
			m.saveStageConfirmation(v)
			m.records.saveConfirmation(record)
		}
	case nodevolume.Absent:
		tidied := m.records.tidy(record)
		if tidied == nil {
			tidied = m.records.dir.Remove(name)
		}
		if tidied != nil {
			// The record stays, and the volume stays in use: something is still at the path.
			phase = nodevolume.Uncertain
			if err == nil {
				err = explain.NotTidied(record.Driver, e.note, tidied)
			}
		}
	case nodevolume.Uncertain:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v.state.End(call, phase, confirmation)
	m.reports.stepEnded(v, nodevolume.KeyOf(call.Step), v.nameOf(call.Step), err) // before a waiter sees that the call has ended
	m.pods.notify(types.UID(record.Pod.UID))
	return err
}

// saveStageConfirmation saves the confirmation of a stage, which is deferred so that the publish comes first.
func (m *volumeManager) saveStageConfirmation(v *volume) {
	if record := v.unsavedStage; record != nil {
		v.unsavedStage = nil
		m.records.saveConfirmation(*record)
	}
}

// readCapabilities reads the capabilities of a volume's driver.
func (m *volumeManager) readCapabilities(ctx context.Context, v *volume, key nodevolume.PublishKey) error {
	pending := pendingCall{method: "NodeGetCapabilities", step: v.firstStep(), key: key}
	return m.calls.callDriver(ctx, v, pending, func(ctx context.Context) error {
		_, _, err := m.plugins.Capabilities(ctx, v.driver)
		return err
	})
}

// unstage calls NodeUnstageVolume and removes the record.
func (m *volumeManager) unstage(ctx context.Context, v *volume, step nodevolume.Unstage) error {
	client, err := m.plugins.Client(v.driver)
	if err != nil {
		return err
	}
	begun, err := m.begin(v, step, nodevolume.Record{})
	if err != nil {
		return err
	}
	pending, staged := pendingCall{method: "NodeUnstageVolume", step: stepUnstage}, m.records.driverPath(begun.Record)
	err = m.calls.callDriver(ctx, v, pending, func(ctx context.Context) error { return client.Unstage(ctx, v.handle, staged) })
	m.reports.logCall(v, nodevolume.PublishKey{}, pending, csi.NodeOutcomeOf(err))
	end := callResult{err: err, phase: begun.After(reply(err))}
	if m.noLongerStages(ctx, v.driver, err) {
		end.err, end.phase = nil, nodevolume.Absent
		end.note = explain.NoLongerStages(staged)
	}
	return m.end(v, begun, end)
}

// noLongerStages reports whether the driver returned UNIMPLEMENTED and no longer has STAGE_UNSTAGE_VOLUME. As in kubelet, nothing is left
// to call then. If an earlier version left a mount, tidy finds it and the volume stays in use.
func (m *volumeManager) noLongerStages(ctx context.Context, driver string, err error) bool {
	if code, ok := csi.Code(err); !ok || code != codes.Unimplemented {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, m.config.RPCTimeout)
	defer cancel()
	_, has, err := m.plugins.Capabilities(ctx, driver)
	return err == nil && !has.Stage
}

// endSubPaths unmounts the subPaths of a volume, which would keep its file system busy. The publish is no longer confirmed, so that no new
// ones are mounted.
func (m *volumeManager) endSubPaths(p *podVolume) error {
	p.subPaths.Lock()
	defer p.subPaths.Unlock()
	dir := subPathsDir(p.Key)
	if err := m.root.UnbindSubPaths(dir); err != nil {
		return err
	}
	return m.root.RemoveEmpty(filepath.Dir(dir))
}

// finishPublish completes a publish after the driver's call.
func (m *volumeManager) finishPublish(ctx context.Context, c driverCall, r nodevolume.Record) error {
	switch {
	case c.toMount.block:
		if err := m.records.linkDevice(r); err != nil {
			return err
		}
		if !r.Confirmed { // not on a republish
			m.reports.emitMapped(c.toMount)
		}
		return nil
	case c.agentAppliesFSGroup():
		return m.groups.applyFSGroup(ctx, c, r)
	default:
		return nil
	}
}

func confirmedNow() nodevolume.Confirmation {
	return nodevolume.Confirmation{At: time.Now(), Jitter: rand.Float64()} //nolint:gosec // spreads the calls
}
