package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodeagent/plugins"
	"belay.dev/belay/internal/nodevolume"
)

// act performs one step of a volume and records its result.
func (m *volumeManager) act(ctx context.Context, v *volume, step nodevolume.Step) {
	m.stepStarted(v, step)
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
		m.finishStep(ctx, v, step, m.traced(ctx, v, step, func(ctx context.Context) error { return m.stage(ctx, v, step) }))
	case nodevolume.Publish:
		m.finishStep(ctx, v, step, m.traced(ctx, v, step, func(ctx context.Context) error { return m.publish(ctx, v, step) }))
	case nodevolume.Republish:
		m.finishStep(ctx, v, step, m.republish(ctx, v, step))
	case nodevolume.LookForUsers:
		m.lookForUsers(ctx, v, step.Key)
	case nodevolume.Expand:
		m.expand(ctx, v, step.Key)
	case nodevolume.Unpublish:
		m.finishStep(ctx, v, step, m.traced(ctx, v, step, func(ctx context.Context) error { return m.unpublish(ctx, v, step) }))
	case nodevolume.Unstage:
		m.finishStep(ctx, v, step, m.traced(ctx, v, step, func(ctx context.Context) error { return m.unstage(ctx, v, step) }))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v.state.EndStep(step)
	if v.publishing.PodUID != "" {
		m.pods.notify(types.UID(v.publishing.PodUID))
		v.publishing = nodevolume.PublishKey{}
	}
}

// nameOf returns kubelet's name of a step.
func (v *volume) nameOf(step nodevolume.Step) string {
	switch step.(type) {
	case nodevolume.ReadAttachment:
		return stepWaitForAttach
	case nodevolume.StageVolume:
		return stepMountDevice
	case nodevolume.Publish, nodevolume.Republish:
		return stepSetUp
	case nodevolume.Unpublish:
		return stepUnpublish
	case nodevolume.Unstage:
		return stepUnstage
	default:
		return v.firstStep()
	}
}

// driverCall is what a call to a volume's driver needs.
type driverCall struct {
	client       *csi.Node
	capabilities csi.NodeCapabilities
	toMount      *volumeToMount
	// rules are those of the CSIDriver; the zero value without one.
	rules plugins.Rules
	// attachment is the VolumeAttachment that the decision was based on; empty if the volume is not attached through the API.
	attachment nodevolume.Attachment
	// stagingPath is where the volume is, or would be, staged, below the root; stagedAt is that path in requests.
	stagingPath, stagedAt string
	// label is the SELinux label to mount with.
	label string
}

// newDriverCall collects what a call for a pod's volume needs.
func (m *volumeManager) newDriverCall(v *volume, key nodevolume.PublishKey) (driverCall, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	client, has := m.plugins.Registered(v.driver)
	p := v.ensurePod(key)
	switch {
	case has == nil:
		return driverCall{}, plugins.NotRegistered(v.driver)
	case p.toMount == nil:
		return driverCall{}, errors.New(explain.PodGone(key.PodUID))
	}
	return driverCall{
		client: client, capabilities: *has, toMount: p.toMount, rules: m.plugins.Rules(v.driver),
		attachment: v.state.Attachment(), stagingPath: v.stagingPath(p.toMount), stagedAt: m.driverStagingPath(v, p.toMount),
	}, nil
}

// recordFor returns the record to save before a stage or publish. The volume's state adds the rest.
func (m *volumeManager) recordFor(c driverCall, kind, path string) nodevolume.Record {
	w := c.toMount
	return nodevolume.Record{
		Kind: kind, Driver: w.driver, Handle: w.handle, SpecName: w.specName, Inline: w.inline, Block: w.block, Path: path, Root: m.configuredRoot(),
		SELinuxLabel: c.label, SolePod: w.solePod, BootID: m.config.BootID,
		Pod: nodevolume.RecordPod{
			UID: string(w.pod.UID), Namespace: w.pod.Namespace, Name: w.pod.Name, Volume: w.volume, ReadOnly: w.readOnly,
			Claim: w.claim.name, ClaimUID: string(w.claim.uid),
		},
	}
}

// stage saves a record and calls NodeStageVolume.
func (m *volumeManager) stage(ctx context.Context, v *volume, step nodevolume.StageVolume) error {
	c, err := m.newDriverCall(v, step.For)
	if err != nil {
		return err
	}
	w := c.toMount
	c.label = step.Label
	if err := m.checkAffinity(w); err != nil {
		return err
	}
	secrets, err := m.secrets(ctx, w.stageSecret)
	if err != nil {
		return err
	}
	if err := m.recheckAttachment(ctx, v, c, w.stageSecret != nil); err != nil {
		return err
	}
	record := m.recordFor(c, nodevolume.StageKind, c.stagingPath)
	begun, err := m.begin(v, step, record)
	if err != nil {
		return err
	}
	err = m.prepareStage(record)
	if err == nil {
		err = m.checkDecisionAndPod(v, step)
	}
	if err != nil {
		return m.end(v, begun, callResult{err: err, phase: begun.After(nodevolume.Refused)})
	}
	call := c.nodeVolume(m.driverPath(begun.Record))
	call.Secrets, call.Context = secrets, w.attributes
	pending := pendingCall{method: "NodeStageVolume", step: stepMountDevice, key: step.For}
	err = m.callDriver(csi.WithMigrated(ctx, w.migrated), v, pending, func(ctx context.Context) error { return c.client.Stage(ctx, call, c.capabilities) })
	m.logCall(v, step.For, pending, csi.NodeOutcomeOf(err))
	return m.end(v, begun, callResult{err: err, phase: begun.After(reply(err))})
}

// publish saves a record and calls NodePublishVolume.
func (m *volumeManager) publish(ctx context.Context, v *volume, step nodevolume.Publish) error {
	key := step.Key
	c, err := m.newDriverCall(v, key)
	if err != nil {
		return err
	}
	w := c.toMount
	c.label = step.Label
	if err := m.checkLifecycle(w); err != nil {
		return err
	}
	if err := m.checkAffinity(w); err != nil {
		return err
	}
	call, err := m.publishCall(ctx, c)
	if err != nil {
		return err
	}
	if err := m.recheckAttachment(ctx, v, c, c.readsAPI()); err != nil {
		return err
	}
	record := m.recordFor(c, nodevolume.PublishKind, publishPath(w))
	begun, err := m.begin(v, step, record)
	if err != nil {
		return err
	}
	err = m.preparePublish(record, v)
	if err == nil {
		err = m.checkDecisionAndPod(v, step)
	}
	if err != nil {
		return m.end(v, begun, callResult{err: err, phase: begun.After(nodevolume.Refused)})
	}
	err = m.callPublish(ctx, v, c, key, call, begun.Record)
	m.logCall(v, key, pendingCall{method: "NodePublishVolume"}, csi.NodeOutcomeOf(err))
	if err == nil {
		m.mu.Lock()
		v.ensurePod(key).publishContext = c.attachment.Metadata
		m.mu.Unlock()
		err = m.checkPublished(begun.Record)
	}
	if err == nil {
		err = m.finishPublish(ctx, c, record)
	}
	return m.end(v, begun, callResult{err: err, phase: begun.After(reply(err))})
}

func (m *volumeManager) callPublish(ctx context.Context, v *volume, c driverCall, key nodevolume.PublishKey, call csi.NodeVolume, r nodevolume.Record) error {
	target := csi.Target{Path: m.driverPath(r), ReadOnly: c.toMount.readOnly}
	pending := pendingCall{method: "NodePublishVolume", step: stepSetUp, key: key}
	return m.callDriver(csi.WithMigrated(ctx, c.toMount.migrated), v, pending, func(ctx context.Context) error {
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
	pending, target := pendingCall{method: "NodeUnpublishVolume", step: stepUnpublish, key: key}, m.driverPath(begun.Record)
	err = m.callDriver(ctx, v, pending, func(ctx context.Context) error { return client.Unpublish(ctx, v.handle, target) })
	m.logCall(v, key, pending, csi.NodeOutcomeOf(err))
	if isGone(v.state.Inline, err) {
		err = nil
	}
	return m.end(v, begun, callResult{err: err, phase: begun.After(reply(err))})
}

func (m *volumeManager) podVolume(v *volume, key nodevolume.PublishKey) *podVolume {
	m.mu.Lock()
	defer m.mu.Unlock()
	return v.ensurePod(key)
}

// begin makes the record of a call durable before the call changes anything.
func (m *volumeManager) begin(v *volume, step nodevolume.Step, intent nodevolume.Record) (nodevolume.Call, error) {
	name := v.recordName(step)
	m.mu.Lock()
	var lost *nodevolume.Knowledge
	if _, unaccounted := m.unaccounted[name]; unaccounted {
		lost = new(m.mountedAt(intent))
	}
	call := v.state.Begin(step, intent, lost)
	m.mu.Unlock()
	if !call.Write {
		return call, nil
	}
	err := m.saveBefore(name, call)
	if err != nil && (call.Before != nodevolume.Absent || m.records.RemoveWritten(name) == nil) {
		return call, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v.state.Recorded(call)
	if err != nil { // a part of the record stays on disk
		return call, err
	}
	if !call.Record.Leaving {
		delete(m.unaccounted, name)
	}
	return call, nil
}

// saveBefore saves the record of a call. Before an unmount it only sets a mark in place, which needs no disk space: the volume to be
// unmounted may be the one that fills the disk.
func (m *volumeManager) saveBefore(name string, call nodevolume.Call) error {
	if call.Record.Leaving {
		return m.saveRecord(name, call.Record, mount.InPlace)
	}
	return m.saveRecord(name, call.Record, mount.PowerCut)
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
			m.saveConfirmation(record)
		}
	case nodevolume.Absent:
		tidied := m.tidy(record)
		if tidied == nil {
			tidied = m.records.Remove(name)
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
	m.stepEnded(v, nodevolume.KeyOf(call.Step), v.nameOf(call.Step), err) // before a waiter sees that the call has ended
	m.pods.notify(types.UID(record.Pod.UID))
	return err
}

// saveConfirmation records that the driver confirmed a call. If that fails, a restarted agent repeats the call.
func (m *volumeManager) saveConfirmation(record nodevolume.Record) {
	if err := m.saveRecord(recordName(record), record, mount.InPlace); err != nil {
		m.log.Error(err, "Failed to record that the driver confirmed a call, which a restarted belay-node repeats", append(namesOf(record).values(), "kind", record.Kind)...)
	}
}

// saveStageConfirmation saves the confirmation of a stage, which is deferred so that the publish comes first.
func (m *volumeManager) saveStageConfirmation(v *volume) {
	if record := v.unsavedStage; record != nil {
		v.unsavedStage = nil
		m.saveConfirmation(*record)
	}
}

// tidy removes what was created for a call, unless something is mounted there.
func (m *volumeManager) tidy(record nodevolume.Record) error {
	if record.Kind == nodevolume.StageKind {
		return m.tidyStage(record)
	}
	return m.tidyPublish(record)
}

// reply translates a driver's error for nodevolume.
func reply(err error) nodevolume.Reply {
	switch csi.NodeOutcomeOf(err) {
	case csi.Done:
		return nodevolume.OK
	case csi.Failed:
		return nodevolume.Refused
	default:
		return nodevolume.NoAnswer
	}
}

// readCapabilities reads the capabilities of a volume's driver.
func (m *volumeManager) readCapabilities(ctx context.Context, v *volume, key nodevolume.PublishKey) error {
	pending := pendingCall{method: "NodeGetCapabilities", step: v.firstStep(), key: key}
	return m.callDriver(ctx, v, pending, func(ctx context.Context) error {
		_, _, err := m.plugins.Capabilities(ctx, v.driver)
		return err
	})
}

// checkPublished checks that the volume is mounted at its target. Otherwise a container would write to the node's own disk, unnoticed until
// the data is missed (csi-driver-nfs#762). A stage cannot be checked: it need not mount anything.
func (m *volumeManager) checkPublished(r nodevolume.Record) error {
	mounted, err := m.root.IsPublished(r.Path, r.Block)
	switch {
	case err != nil:
		return fmt.Errorf("check whether volume %s is mounted at its target: %w", r.Handle, err)
	case mounted:
		return nil
	default:
		return errors.New(explain.NothingPublished(r.Driver, r.Handle, m.driverPath(r), cmp.Or(r.Root, m.root.Path(".")), r.Block))
	}
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
	pending, staged := pendingCall{method: "NodeUnstageVolume", step: stepUnstage}, m.driverPath(begun.Record)
	err = m.callDriver(ctx, v, pending, func(ctx context.Context) error { return client.Unstage(ctx, v.handle, staged) })
	m.logCall(v, nodevolume.PublishKey{}, pending, csi.NodeOutcomeOf(err))
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
