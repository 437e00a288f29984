package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
)

// apply does one step of a volume and takes in what came of it.
func (a *Agent) apply(ctx context.Context, v *volume, step nodevolume.Step) {
	a.stepBegins(v, step)
	a.mu.Lock()
	v.began = time.Now()
	a.mu.Unlock()
	switch step := step.(type) {
	case nodevolume.ReadCapabilities:
		if err := a.readCapabilities(ctx, v, step.For); err != nil {
			// Never final: that the driver does not answer says nothing about the volume.
			a.outcome(ctx, v, step, err)
		}
	case nodevolume.ReadAttachment:
		if err := a.lookUpAttachment(ctx, v); err != nil {
			a.outcome(ctx, v, step, err)
		}
	case nodevolume.StageVolume:
		a.outcome(ctx, v, step, a.stage(ctx, v, step))
	case nodevolume.Publish:
		a.outcome(ctx, v, step, a.publish(ctx, v, step))
	case nodevolume.Republish:
		a.outcome(ctx, v, step, a.republish(ctx, v, step))
	case nodevolume.LookForUsers:
		a.lookForUsers(ctx, v, step.Key)
	case nodevolume.Expand:
		a.expand(ctx, v, step.Key)
	case nodevolume.Unpublish:
		a.outcome(ctx, v, step, a.unpublish(ctx, v, step))
	case nodevolume.Unstage:
		a.outcome(ctx, v, step, a.unstage(ctx, v, step))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	v.life.Done(step)
}

// nameOf is kubelet's name of a step.
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

// callable is what a call to a volume's driver needs.
type callable struct {
	client *csi.Node
	has    csi.NodeCapabilities
	want   *want
	// rules is what CSIDriver says; its zero value if there is none.
	rules driverRules
	// attachment is the one that was decided on. One is read for what is decided under the handshake, and for nothing else.
	attachment nodevolume.Attachment
	// stagingPath is where the volume is, or would be, staged.
	stagingPath string
	// label is the SELinux label to mount with, as it was decided.
	label string
}

// callableFor gathers it for a pod's volume.
func (a *Agent) callableFor(v *volume, key nodevolume.PublishKey) (callable, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	client, has := a.plugins.registered(v.driver)
	p := v.publication(key)
	switch {
	case has == nil:
		return callable{}, notRegistered(v.driver)
	case p.want == nil:
		return callable{}, fmt.Errorf("pod %s is not wanted on this node any more", key.PodUID)
	}
	attachment, stands := v.life.Attachment(a.status.view(v.name))
	if !stands {
		return callable{}, errOutdated
	}
	return callable{
		client: client, has: *has, want: p.want, rules: a.plugins.rules(v.driver),
		attachment: attachment, stagingPath: v.stagingPath(p.want),
	}, nil
}

// recordFor is the record of a stage or publish that is about to be asked for, but for what the volume's life adds.
func (a *Agent) recordFor(c callable, kind, path string) nodevolume.Record {
	w := c.want
	return nodevolume.Record{
		Kind: kind, Driver: w.driver, Handle: w.handle, SpecName: w.specName, Inline: w.inline, Block: w.block, Path: path,
		SELinuxLabel: c.label, SolePod: w.solePod, BootID: a.config.BootID,
		Pod: nodevolume.RecordPod{
			UID: string(w.pod.UID), Namespace: w.pod.Namespace, Name: w.pod.Name, Volume: w.volume, ReadOnly: w.readOnly,
			Claim: w.claim.name, ClaimUID: string(w.claim.uid),
		},
	}
}

// stage records and calls NodeStageVolume.
func (a *Agent) stage(ctx context.Context, v *volume, step nodevolume.StageVolume) error {
	c, err := a.callableFor(v, step.For)
	if err != nil {
		return err
	}
	w := c.want
	c.label = step.Label
	if err := a.checkAffinity(w); err != nil {
		return err
	}
	secrets, err := a.secrets(ctx, w.stageSecret)
	if err != nil {
		return err
	}
	if err := a.stillAttached(ctx, v, c, w.stageSecret != nil); err != nil {
		return err
	}
	record := a.recordFor(c, nodevolume.StageKind, c.stagingPath)
	begun, err := a.begin(v, step, record)
	if err != nil {
		return err
	}
	if err := a.prepareStage(record); err != nil {
		return a.end(v, begun, ending{err: err, phase: begun.After(nodevolume.Refused)})
	}
	call := c.volume(a.root.Path(record.Path))
	call.Secrets, call.Context = secrets, w.attributes
	asked := unanswered{method: "NodeStageVolume", step: stepMountDevice, key: step.For}
	err = a.ask(csi.WithMigrated(ctx, w.migrated), v, asked, func(ctx context.Context) error { return c.client.Stage(ctx, call, c.has) })
	a.log.Info("NodeStageVolume", "volume", v.name, "pod", step.For.PodUID, "outcome", csi.NodeOutcomeOf(err).String())
	return a.end(v, begun, ending{err: err, phase: begun.After(reply(err))})
}

// publish records and calls NodePublishVolume.
func (a *Agent) publish(ctx context.Context, v *volume, step nodevolume.Publish) error {
	key := step.Key
	c, err := a.callableFor(v, key)
	if err != nil {
		return err
	}
	w := c.want
	c.label = step.Label
	if err := a.checkLifecycle(w); err != nil {
		return err
	}
	if err := a.checkAffinity(w); err != nil {
		return err
	}
	call, err := a.publishCall(ctx, c)
	if err != nil {
		return err
	}
	if err := a.stillAttached(ctx, v, c, c.asks()); err != nil {
		return err
	}
	record := a.recordFor(c, nodevolume.PublishKind, publishPath(w))
	begun, err := a.begin(v, step, record)
	if err != nil {
		return err
	}
	if err := a.preparePublish(record, v); err != nil {
		return a.end(v, begun, ending{err: err, phase: begun.After(nodevolume.Refused)})
	}
	err = a.askPublish(ctx, v, c, key, call, record.Path)
	a.log.Info("NodePublishVolume", "volume", v.name, "pod", key.PodUID, "outcome", csi.NodeOutcomeOf(err).String())
	if err == nil {
		a.mu.Lock()
		v.publication(key).publishContext = c.attachment.Metadata
		a.mu.Unlock()
		err = a.checkPublished(record)
	}
	if err == nil {
		err = a.finishPublish(ctx, c, record)
	}
	return a.end(v, begun, ending{err: err, phase: begun.After(reply(err))})
}

func (a *Agent) askPublish(ctx context.Context, v *volume, c callable, key nodevolume.PublishKey, call csi.NodeVolume, path string) error {
	target := csi.Target{Path: a.root.Path(path), ReadOnly: c.want.readOnly}
	asked := unanswered{method: "NodePublishVolume", step: stepSetUp, key: key}
	return a.ask(csi.WithMigrated(ctx, c.want.migrated), v, asked, func(ctx context.Context) error {
		return c.client.Publish(ctx, call, target, c.has)
	})
}

// unpublish calls NodeUnpublishVolume and drops the record.
func (a *Agent) unpublish(ctx context.Context, v *volume, step nodevolume.Unpublish) error {
	key := step.Key
	client, err := a.plugins.client(v.driver)
	if err != nil {
		return err
	}
	begun, err := a.begin(v, step, nodevolume.Record{})
	if err != nil {
		return err
	}
	if err := a.endSubPaths(a.entry(v, key)); err != nil {
		return err
	}
	asked, target := unanswered{method: "NodeUnpublishVolume", step: stepUnpublish, key: key}, a.root.Path(begun.Record.Path)
	err = a.ask(ctx, v, asked, func(ctx context.Context) error { return client.Unpublish(ctx, v.handle, target) })
	a.log.Info("NodeUnpublishVolume", "volume", v.name, "pod", key.PodUID, "outcome", csi.NodeOutcomeOf(err).String())
	if isGone(v.life.Inline, err) {
		err = nil
	}
	return a.end(v, begun, ending{err: err, phase: begun.After(reply(err))})
}

func (a *Agent) entry(v *volume, key nodevolume.PublishKey) *publication {
	a.mu.Lock()
	defer a.mu.Unlock()
	return v.publication(key)
}

// begin makes the record of a call durable before anything is made for the volume.
func (a *Agent) begin(v *volume, step nodevolume.Step, intent nodevolume.Record) (nodevolume.Call, error) {
	name := v.recordName(step)
	a.mu.Lock()
	_, unaccounted := a.unaccounted[name]
	call := v.life.Begin(step, intent, unaccounted)
	a.mu.Unlock()
	if !call.Write {
		return call, nil
	}
	if err := a.saveBefore(name, call); err != nil {
		return call, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	v.life.Recorded(call)
	if !call.Record.Leaving {
		delete(a.unaccounted, name)
		a.join(types.UID(call.Record.Pod.UID), v.name)
	}
	return call, nil
}

// saveBefore writes the record of a call. That of the way back is a mark alone, with which a restart goes on. On a disk that is full it is
// made in place: what is to be unmounted may be what fills it. The mark makes a confirmed record shorter. One that is not confirmed need
// not be marked: after a restart it is uncertain either way.
func (a *Agent) saveBefore(name string, call nodevolume.Call) error {
	if !call.Record.Leaving {
		return a.saveRecord(name, call.Record, mount.PowerCut)
	}
	err := a.saveRecord(name, call.Record, mount.Whole)
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	if !call.Earlier.Confirmed {
		return nil
	}
	raw, err := call.Record.Encode()
	if err != nil {
		return err
	}
	if err := a.root.Overwrite(recordPath(name), raw); err != nil {
		return fmt.Errorf("record the end of the %s of volume %s: %w", call.Record.Kind, call.Record.Handle, err)
	}
	return nil
}

// ending is how a call ended, and the phase that its reply leads to.
type ending struct {
	err   error
	phase nodevolume.Phase
	// said is what the driver did instead of answering OK, if that is as good.
	said string
}

// end writes down how a call ended. It returns the call's error, or what went wrong after it.
func (a *Agent) end(v *volume, call nodevolume.Call, e ending) error {
	name, record, phase, err := v.recordName(call.Step), call.Record, e.phase, e.err
	heard := nodevolume.Confirmation{}
	switch phase {
	case nodevolume.Confirmed:
		record.Confirmed, heard = true, heardNow()
		// Losing this line costs one repeated call.
		if saved := a.saveRecord(name, record, mount.Whole); saved != nil {
			a.log.Error(saved, "Confirmation not recorded", "volume", v.name)
		}
	case nodevolume.Absent:
		tidied := a.tidy(record)
		if tidied == nil {
			tidied = a.root.Remove(recordPath(name))
		}
		if tidied != nil {
			// The record stays, and so the volume stays in use: something is still there.
			phase = nodevolume.Uncertain
			if err == nil {
				err = fmt.Errorf("driver %s %s, but: %w", record.Driver, cmp.Or(e.said, "answered OK"), tidied)
			}
		}
	case nodevolume.Uncertain:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	v.life.End(call, phase, heard)
	a.measureEnd(v, nodevolume.KeyOf(call.Step), v.nameOf(call.Step), err) // before anybody can see that it has ended
	if owner := a.pods[types.UID(record.Pod.UID)]; owner != nil {
		owner.notify()
	}
	return err
}

// tidy removes what was made for a call, if nothing is mounted there.
func (a *Agent) tidy(record nodevolume.Record) error {
	if record.Kind == nodevolume.StageKind {
		return a.tidyStage(record)
	}
	return a.tidyPublish(record)
}

// reply is what a driver's error means for nodevolume.
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

// readCapabilities learns what a driver can do.
func (a *Agent) readCapabilities(ctx context.Context, v *volume, key nodevolume.PublishKey) error {
	asked := unanswered{method: "NodeGetCapabilities", step: v.firstStep(), key: key}
	return a.ask(ctx, v, asked, func(ctx context.Context) error {
		_, _, err := a.plugins.capabilities(ctx, v.driver)
		return err
	})
}
