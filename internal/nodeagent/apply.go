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
	defer a.forget(v, step)
	switch step := step.(type) {
	case nodevolume.ReadCapabilities:
		a.readCapabilities(ctx, v, step.For)
	case nodevolume.ReadAttachment:
		if err := a.lookUpAttachment(ctx, v); err != nil {
			a.outcome(ctx, v, step.For, stepWaitForAttach, err)
		}
	case nodevolume.StageVolume:
		a.outcome(ctx, v, step.For, stepMountDevice, a.stage(ctx, v, step))
	case nodevolume.Publish:
		a.outcome(ctx, v, step.Key, stepSetUp, a.publish(ctx, v, step))
	case nodevolume.Republish:
		a.outcome(ctx, v, step.Key, stepSetUp, a.republish(ctx, v, step.Key))
	case nodevolume.LookForUsers:
		a.lookForUsers(ctx, v, step.Key)
	case nodevolume.Expand:
		a.expand(ctx, v, step.Key)
	case nodevolume.Unpublish:
		a.outcome(ctx, v, step.Key, stepUnpublish, a.unpublish(ctx, v, step.Key))
	case nodevolume.Unstage:
		err := a.unstageVolume(ctx, v)
		a.stepEnded(v, nodevolume.PublishKey{}, stepUnstage, err)
		a.mu.Lock()
		defer a.mu.Unlock()
		if err == nil {
			v.unstage, v.unstageProblem = nodevolume.Failure{}, nil
			return
		}
		if ctx.Err() != nil {
			return
		}
		v.unstage, v.unstageProblem = again(v.unstage), err
		a.log.Info("Step failed", "step", stepUnstage, "volume", v.name, "failures", v.unstage.Count, "problem", err.Error())
		a.tellUnstage(v, err)
	}
}

// outcome notes how a pod's step ended. A call that ends with the agent says nothing of the driver, and the next agent makes it again.
func (a *Agent) outcome(ctx context.Context, v *volume, key nodevolume.PublishKey, step string, err error) {
	if errors.Is(err, errOutdated) {
		return // and decided anew
	}
	a.stepEnded(v, key, step, err)
	if err != nil && ctx.Err() != nil {
		return
	}
	if err != nil && !errors.Is(err, errReleased) {
		a.failed(v, key, step, err)
		return
	}
	a.succeeded(v, key)
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
	d, p := a.drivers[v.driver], v.publication(key)
	switch {
	case d == nil || d.capabilities == nil:
		return callable{}, fmt.Errorf("driver %s is not registered on this node any more", v.driver)
	case p.want == nil:
		return callable{}, fmt.Errorf("pod %s is not wanted on this node any more", key.PodUID)
	}
	return callable{
		client: d.client, has: *d.capabilities, want: p.want, rules: a.rulesOf(v.driver),
		attachment: v.decidedOn, stagingPath: v.stagingPath(p.want),
	}, nil
}

// record is the one for a stage or publish that is about to be asked for.
func (a *Agent) recordFor(c callable, kind, path string) nodevolume.Record {
	w := c.want
	return nodevolume.Record{
		Kind: kind, Driver: w.driver, Handle: w.handle, SpecName: w.specName, Inline: w.inline, Block: w.block, Path: path,
		InUse: c.attachment.UID != "", AttachmentUID: c.attachment.UID, SELinuxLabel: c.label, SolePod: w.solePod, BootID: a.config.BootID,
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
	name := stageRecordName(v.name)
	before, err := a.begin(v, &v.stage, record, name)
	if err != nil {
		return err
	}
	if err := a.prepareStage(record); err != nil {
		return a.end(v, &v.stage, ending{name: name, err: err, phase: before, tidy: a.tidyStage})
	}
	call := c.volume(a.root.Path(record.Path))
	call.Secrets, call.Context = secrets, w.attributes
	asked := unanswered{method: "NodeStageVolume", step: stepMountDevice, key: step.For}
	err = a.ask(csi.WithMigrated(ctx, w.migrated), v, asked, func(ctx context.Context) error { return c.client.Stage(ctx, call, c.has) })
	a.log.Info("NodeStageVolume", "volume", v.name, "pod", step.For.PodUID, "outcome", csi.NodeOutcomeOf(err).String())
	return a.end(v, &v.stage, ending{
		name: name, err: err, phase: nodevolume.AfterCall(before, reply(err)), tidy: a.tidyStage,
	})
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
	p := a.entry(v, key)
	record := a.recordFor(c, nodevolume.PublishKind, publishPath(w))
	name := publishRecordName(v.name, key)
	before, err := a.begin(v, &p.publish, record, name)
	if err != nil {
		return err
	}
	if err := a.preparePublish(record, v); err != nil {
		return a.end(v, &p.publish, ending{name: name, err: err, phase: before, tidy: a.tidyPublish})
	}
	err = a.askPublish(ctx, v, c, key, call, record.Path)
	a.log.Info("NodePublishVolume", "volume", v.name, "pod", key.PodUID, "outcome", csi.NodeOutcomeOf(err).String())
	if err == nil {
		a.mu.Lock()
		p.publishContext = c.attachment.Metadata
		a.mu.Unlock()
		err = a.checkPublished(record)
	}
	if err == nil {
		err = a.finishPublish(ctx, c, record)
	}
	return a.end(v, &p.publish, ending{
		name: name, err: err, phase: nodevolume.AfterCall(before, reply(err)), tidy: a.tidyPublish, key: key, step: stepSetUp,
	})
}

func (a *Agent) askPublish(ctx context.Context, v *volume, c callable, key nodevolume.PublishKey, call csi.NodeVolume, path string) error {
	target := csi.Target{Path: a.root.Path(path), ReadOnly: c.want.readOnly}
	asked := unanswered{method: "NodePublishVolume", step: stepSetUp, key: key}
	return a.ask(csi.WithMigrated(ctx, c.want.migrated), v, asked, func(ctx context.Context) error {
		return c.client.Publish(ctx, call, target, c.has)
	})
}

// unpublish calls NodeUnpublishVolume and drops the record.
func (a *Agent) unpublish(ctx context.Context, v *volume, key nodevolume.PublishKey) error {
	p := a.entry(v, key)
	client, err := a.driverClient(v.driver)
	if err != nil {
		return err
	}
	name := publishRecordName(v.name, key)
	if err := a.markLeaving(&p.publish, name); err != nil {
		return err
	}
	if err := a.endSubPaths(p); err != nil {
		return err
	}
	asked, target := unanswered{method: "NodeUnpublishVolume", step: stepUnpublish, key: key}, a.root.Path(p.publish.record.Path)
	err = a.ask(ctx, v, asked, func(ctx context.Context) error { return client.Unpublish(ctx, v.handle, target) })
	a.log.Info("NodeUnpublishVolume", "volume", v.name, "pod", key.PodUID, "outcome", csi.NodeOutcomeOf(err).String())
	if isGone(v.inline, err) {
		err = nil
	}
	return a.end(v, &p.publish, ending{name: name, err: err, phase: nodevolume.AfterUndo(reply(err)), tidy: a.tidyPublish, key: key, step: stepUnpublish})
}

func (a *Agent) entry(v *volume, key nodevolume.PublishKey) *publication {
	a.mu.Lock()
	defer a.mu.Unlock()
	return v.publication(key)
}

func (a *Agent) driverClient(name string) (*csi.Node, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if d := a.drivers[name]; d != nil {
		return d.client, nil
	}
	return nil, fmt.Errorf("driver %s is not registered on this node any more", name)
}

// begin makes the record durable before anything else is made for the volume, a
// directory or a call, so that whatever an agent that dies leaves behind is known. It returns
// the phase before. Where a record should have been and was not, it takes its place: what
// was mounted is mounted once more at the same path, and undone from there.
func (a *Agent) begin(v *volume, r *recorded, record nodevolume.Record, name string) (before nodevolume.Phase, err error) {
	before = r.phase
	if before != nodevolume.Absent {
		record = record.After(r.record)
	}
	a.mu.Lock()
	_, unaccounted := a.unaccounted[name]
	a.mu.Unlock()
	if unaccounted {
		before = nodevolume.Uncertain
		record = record.After(nodevolume.Record{InUse: !record.Inline, Guessed: !record.Inline})
	}
	if err := a.saveRecord(name, record, mount.PowerCut); err != nil {
		return before, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.unaccounted, name)
	r.record, r.phase = record, nodevolume.Uncertain
	a.join(types.UID(record.Pod.UID), v.name)
	return before, nil
}

// markLeaving notes that the way back has begun, so that a restart goes on with it.
func (a *Agent) markLeaving(r *recorded, name string) error {
	record := r.record
	if record.Leaving {
		return nil
	}
	record.Leaving, record.Confirmed = true, false
	err := a.saveRecord(name, record, mount.Whole)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		err = a.saveInPlace(name, r.record, record)
	}
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r.record, r.phase = record, nodevolume.Uncertain
	return nil
}

// saveInPlace marks a record on a disk that is full: what is to be unmounted may be what
// fills it. The mark makes a confirmed record shorter. One that is not confirmed need
// not be marked: after a restart it is uncertain either way.
func (a *Agent) saveInPlace(name string, before, record nodevolume.Record) error {
	if !before.Confirmed {
		return nil
	}
	raw, err := record.Encode()
	if err != nil {
		return err
	}
	if err := a.root.Overwrite(recordPath(name), raw); err != nil {
		return fmt.Errorf("record the end of the %s of volume %s: %w", record.Kind, record.Handle, err)
	}
	return nil
}

// ending is how a call ended: the phase that its reply leads to, and what to
// remove if that is Absent.
type ending struct {
	name  string
	err   error
	phase nodevolume.Phase
	tidy  func(nodevolume.Record) error
	// said is what the driver did instead of answering OK, if that is as good.
	said string
	// key and step are those of the operation that ends with it, if one does.
	key  nodevolume.PublishKey
	step string
}

// end writes down how a call ended. It returns the call's error, or what went wrong after it.
func (a *Agent) end(v *volume, r *recorded, e ending) error {
	record, phase, err := r.record, e.phase, e.err
	switch phase {
	case nodevolume.Confirmed:
		record.Confirmed = true
		// Losing this line costs one repeated call.
		if saved := a.saveRecord(e.name, record, mount.Whole); saved != nil {
			a.log.Info("Confirmation not recorded", "volume", v.name, "problem", saved.Error())
		}
	case nodevolume.Absent:
		tidied := e.tidy(record)
		if tidied == nil {
			tidied = a.root.Remove(recordPath(e.name))
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
	r.record, r.phase = record, phase
	if phase == nodevolume.Confirmed {
		r.heard = heardNow()
	}
	if e.step != "" { // before anybody can see that it has ended
		a.measureEnd(v, e.key, e.step, err)
	}
	if owner := a.pods[types.UID(record.Pod.UID)]; owner != nil {
		owner.notify()
	}
	return err
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
func (a *Agent) readCapabilities(ctx context.Context, v *volume, key nodevolume.PublishKey) {
	asked := unanswered{method: "NodeGetCapabilities", step: v.firstStep(), key: key}
	err := a.ask(ctx, v, asked, func(ctx context.Context) error {
		_, _, err := a.capabilitiesOf(ctx, v.driver)
		return err
	})
	if err != nil {
		// Never final: that the driver does not answer says nothing about the volume.
		a.outcome(ctx, v, key, v.firstStep(), err)
	}
}

// capabilitiesOf asks a driver what it can do, unless that is known.
func (a *Agent) capabilitiesOf(ctx context.Context, name string) (*csi.Node, csi.NodeCapabilities, error) {
	client, err := a.driverClient(name)
	if err != nil {
		return nil, csi.NodeCapabilities{}, err
	}
	a.mu.Lock()
	if d := a.drivers[name]; d != nil && d.client == client && d.capabilities != nil {
		defer a.mu.Unlock()
		return client, *d.capabilities, nil
	}
	a.mu.Unlock()
	has, err := client.Capabilities(ctx)
	if err != nil {
		return nil, csi.NodeCapabilities{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if d := a.drivers[name]; d != nil && d.client == client {
		d.capabilities = &has
	}
	return client, has, nil
}
