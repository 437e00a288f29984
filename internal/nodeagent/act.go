package nodeagent

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
)

// act performs one step of a volume and records its result.
func (m *volumeManager) act(ctx context.Context, v *volume, step nodevolume.Step) {
	m.stepBegins(v, step)
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
			m.outcome(ctx, v, step, err)
		}
	case nodevolume.ReadAttachment:
		if err := m.lookUpAttachment(ctx, v); err != nil {
			m.outcome(ctx, v, step, err)
		}
	case nodevolume.StageVolume:
		m.outcome(ctx, v, step, m.stage(ctx, v, step))
	case nodevolume.Publish:
		m.outcome(ctx, v, step, m.publish(ctx, v, step))
	case nodevolume.Republish:
		m.outcome(ctx, v, step, m.republish(ctx, v, step))
	case nodevolume.LookForUsers:
		m.lookForUsers(ctx, v, step.Key)
	case nodevolume.Expand:
		m.expand(ctx, v, step.Key)
	case nodevolume.Unpublish:
		m.outcome(ctx, v, step, m.unpublish(ctx, v, step))
	case nodevolume.Unstage:
		m.outcome(ctx, v, step, m.unstage(ctx, v, step))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v.life.EndStep(step)
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
type callable struct {
	client *csi.Node
	has    csi.NodeCapabilities
	want   *wantedVolume
	// rules are those of the CSIDriver; the zero value without one.
	rules driverRules
	// attachment is the VolumeAttachment that the decision was based on; empty if the volume is not attached through the API.
	attachment nodevolume.Attachment
	// stagingPath is where the volume is, or would be, staged.
	stagingPath string
	// label is the SELinux label to mount with.
	label string
}

// newDriverCall collects what a call for a pod's volume needs.
func (m *volumeManager) callableFor(v *volume, key nodevolume.PublishKey) (callable, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	client, has := m.plugins.registered(v.driver)
	p := v.publication(key)
	switch {
	case has == nil:
		return callable{}, notRegistered(v.driver)
	case p.want == nil:
		return callable{}, fmt.Errorf("pod %s no longer needs the volume on this node", key.PodUID)
	}
	return callable{
		client: client, has: *has, want: p.want, rules: m.plugins.rules(v.driver),
		attachment: v.life.Attachment(), stagingPath: v.stagingPath(p.want),
	}, nil
}

// recordFor returns the record to save before a stage or publish. The volume's state adds the rest.
func (m *volumeManager) recordFor(c callable, kind, path string) nodevolume.Record {
	w := c.want
	return nodevolume.Record{
		Kind: kind, Driver: w.driver, Handle: w.handle, SpecName: w.specName, Inline: w.inline, Block: w.block, Path: path,
		SELinuxLabel: c.label, SolePod: w.solePod, BootID: m.config.BootID,
		Pod: nodevolume.RecordPod{
			UID: string(w.pod.UID), Namespace: w.pod.Namespace, Name: w.pod.Name, Volume: w.volume, ReadOnly: w.readOnly,
			Claim: w.claim.name, ClaimUID: string(w.claim.uid),
		},
	}
}

// stage saves a record and calls NodeStageVolume.
func (m *volumeManager) stage(ctx context.Context, v *volume, step nodevolume.StageVolume) error {
	c, err := m.callableFor(v, step.For)
	if err != nil {
		return err
	}
	w := c.want
	c.label = step.Label
	if err := m.checkAffinity(w); err != nil {
		return err
	}
	secrets, err := m.secrets(ctx, w.stageSecret)
	if err != nil {
		return err
	}
	if err := m.stillAttached(ctx, v, c, w.stageSecret != nil); err != nil {
		return err
	}
	record := m.recordFor(c, nodevolume.StageKind, c.stagingPath)
	begun, err := m.begin(v, step, record)
	if err != nil {
		return err
	}
	err = m.prepareStage(record)
	if err == nil {
		err = m.stands(v, step)
	}
	if err != nil {
		return m.end(v, begun, ending{err: err, phase: begun.After(nodevolume.Refused)})
	}
	call := c.volume(m.root.Path(record.Path))
	call.Secrets, call.Context = secrets, w.attributes
	asked := unanswered{method: "NodeStageVolume", step: stepMountDevice, key: step.For}
	err = m.ask(csi.WithMigrated(ctx, w.migrated), v, asked, func(ctx context.Context) error { return c.client.Stage(ctx, call, c.has) })
	m.log.Info("Called NodeStageVolume", "volume", v.name, "pod", step.For.PodUID, "outcome", csi.NodeOutcomeOf(err).String())
	return m.end(v, begun, ending{err: err, phase: begun.After(reply(err))})
}

// publish saves a record and calls NodePublishVolume.
func (m *volumeManager) publish(ctx context.Context, v *volume, step nodevolume.Publish) error {
	key := step.Key
	c, err := m.callableFor(v, key)
	if err != nil {
		return err
	}
	w := c.want
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
	if err := m.stillAttached(ctx, v, c, c.asks()); err != nil {
		return err
	}
	record := m.recordFor(c, nodevolume.PublishKind, publishPath(w))
	begun, err := m.begin(v, step, record)
	if err != nil {
		return err
	}
	err = m.preparePublish(record, v)
	if err == nil {
		err = m.stands(v, step)
	}
	if err != nil {
		return m.end(v, begun, ending{err: err, phase: begun.After(nodevolume.Refused)})
	}
	err = m.askPublish(ctx, v, c, key, call, record.Path)
	m.log.Info("Called NodePublishVolume", "volume", v.name, "pod", key.PodUID, "outcome", csi.NodeOutcomeOf(err).String())
	if err == nil {
		m.mu.Lock()
		v.publication(key).publishContext = c.attachment.Metadata
		m.mu.Unlock()
		err = m.checkPublished(record)
	}
	if err == nil {
		err = m.finishPublish(ctx, c, record)
	}
	return m.end(v, begun, ending{err: err, phase: begun.After(reply(err))})
}

func (m *volumeManager) askPublish(ctx context.Context, v *volume, c callable, key nodevolume.PublishKey, call csi.NodeVolume, path string) error {
	target := csi.Target{Path: m.root.Path(path), ReadOnly: c.want.readOnly}
	asked := unanswered{method: "NodePublishVolume", step: stepSetUp, key: key}
	return m.ask(csi.WithMigrated(ctx, c.want.migrated), v, asked, func(ctx context.Context) error {
		return c.client.Publish(ctx, call, target, c.has)
	})
}

// unpublish calls NodeUnpublishVolume and removes the record.
func (m *volumeManager) unpublish(ctx context.Context, v *volume, step nodevolume.Unpublish) error {
	key := step.Key
	client, err := m.plugins.client(v.driver)
	if err != nil {
		return err
	}
	begun, err := m.begin(v, step, nodevolume.Record{})
	if err != nil {
		return err
	}
	if err := m.endSubPaths(m.entry(v, key)); err != nil {
		return err
	}
	asked, target := unanswered{method: "NodeUnpublishVolume", step: stepUnpublish, key: key}, m.root.Path(begun.Record.Path)
	err = m.ask(ctx, v, asked, func(ctx context.Context) error { return client.Unpublish(ctx, v.handle, target) })
	m.log.Info("Called NodeUnpublishVolume", "volume", v.name, "pod", key.PodUID, "outcome", csi.NodeOutcomeOf(err).String())
	if isGone(v.life.Inline, err) {
		err = nil
	}
	return m.end(v, begun, ending{err: err, phase: begun.After(reply(err))})
}

func (m *volumeManager) entry(v *volume, key nodevolume.PublishKey) *podVolume {
	m.mu.Lock()
	defer m.mu.Unlock()
	return v.publication(key)
}

// begin makes the record of a call durable before the call changes anything.
func (m *volumeManager) begin(v *volume, step nodevolume.Step, intent nodevolume.Record) (nodevolume.Call, error) {
	name := v.recordName(step)
	m.mu.Lock()
	var lost *nodevolume.Knowledge
	if _, unaccounted := m.unaccounted[name]; unaccounted {
		lost = new(m.placed(intent))
	}
	call := v.life.Begin(step, intent, lost)
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
	v.life.Recorded(call)
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
type ending struct {
	err   error
	phase nodevolume.Phase
	// said replaces "returned OK" in errors, for a driver that did not.
	said string
}

// end saves the result of a call. It returns the call's error, or the failure to clean up after it.
func (m *volumeManager) end(v *volume, call nodevolume.Call, e ending) error {
	name, record, phase, err := v.recordName(call.Step), call.Record, e.phase, e.err
	heard := nodevolume.Confirmation{}
	switch phase {
	case nodevolume.Confirmed:
		record.Confirmed, heard = true, heardNow()
		if record.Kind == nodevolume.StageKind {
			v.unconfirmed = &record
		} else {
			m.confirmStage(v)
			m.saveConfirmation(v, record)
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
				err = fmt.Errorf("driver %s %s, but: %w", record.Driver, cmp.Or(e.said, "returned OK"), tidied)
			}
		}
	case nodevolume.Uncertain:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v.life.End(call, phase, heard)
	m.measureEnd(v, nodevolume.KeyOf(call.Step), v.nameOf(call.Step), err) // before a waiter sees that the call has ended
	m.pods.notify(types.UID(record.Pod.UID))
	return err
}

// saveConfirmation records that the driver confirmed a call. If that fails, a restarted agent repeats the call.
func (m *volumeManager) saveConfirmation(v *volume, record nodevolume.Record) {
	if err := m.saveRecord(recordName(record), record, mount.InPlace); err != nil {
		m.log.Error(err, "Failed to record that the driver confirmed a call", "volume", v.name)
	}
}

// saveStageConfirmation saves the confirmation of a stage, which is deferred so that the publish comes first.
func (m *volumeManager) confirmStage(v *volume) {
	if record := v.unconfirmed; record != nil {
		v.unconfirmed = nil
		m.saveConfirmation(v, *record)
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
	asked := unanswered{method: "NodeGetCapabilities", step: v.firstStep(), key: key}
	return m.ask(ctx, v, asked, func(ctx context.Context) error {
		_, _, err := m.plugins.capabilities(ctx, v.driver)
		return err
	})
}
