package attachdetach

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/planted"
)

// attach creates the VolumeAttachment.
func (w *work) attach(ctx context.Context, s attachment.Attach) (again bool, err error) {
	machine := s.Machine
	machine.NodeUID = w.state.doubts.uid(w.unique(), s)
	va := newAttachment(w.key, string(s.Node), machine, w.source(s))
	if planted.Isolation {
		for _, other := range w.state.attachments.ByIndex(byNode, string(s.Node)) {
			if !other.Status.Attached && !kube.NoAttacher(kube.DriverOf(other.Spec.Attacher)) {
				return false, errBusy
			}
		}
	}
	name, sent := va.Name, time.Now()
	w.loggerAt(s.Node).Info("Attaching volume", "attachment", name, "pods", klog.KObjSlice(w.now.pods[s.Node]))
	ctx, requested := w.startAttach(ctx, s, va)
	err = w.client.Create(ctx, va)
	requested(err)
	switch {
	case err == nil:
		w.state.attachments.Wrote(kube.StripAttachment(va))
		w.state.doubts.end(w.unique(), s.Node)
		return false, nil
	case apierrors.IsAlreadyExists(err):
		// The cache does not have it yet.
		return true, w.readAttachment(ctx, name)
	}
	w.recordPendingCreate(name, s.Node, err)
	w.metrics.Refused(w.volume(), time.Since(sent))
	for _, pod := range w.now.pods[s.Node] {
		w.events().refused(w.key, pod, explain.AttachFailed(w.now.volumeNameAt(s.Node), explain.CreateFailed(err)), w.clock.Now())
	}
	return false, fmt.Errorf("create VolumeAttachment %s for node %s: %w", name, s.Node, err)
}

// source returns the volume to attach: the name of a PersistentVolume, or the translated spec of an inline volume.
func (w *work) source(s attachment.Attach) storagev1.VolumeAttachmentSource {
	switch {
	case kube.NoAttacher(w.key.Driver):
		return kube.OwnSource(w.key, w.state.modes(w.key))
	case s.PersistentVolume == "":
		return storagev1.VolumeAttachmentSource{InlineVolumeSpec: w.now.inline[s.Node].Spec}
	}
	return storagev1.VolumeAttachmentSource{PersistentVolumeName: &s.PersistentVolume}
}

// annotatable returns the handle, or "" if it is too long: all annotations of an object may have 256 KiB. Such a volume
// is identified by its PersistentVolume alone.
func annotatable(handle string) string {
	if len(handle) > kube.MaxRecordedHandle {
		return ""
	}
	return handle
}

// annotations removes entries without a value.
func annotations(all map[string]string) map[string]string {
	for name, value := range all {
		if value == "" {
			delete(all, name)
		}
	}
	return all
}

// readAttachment reads the attachment from the API server.
func (w *work) readAttachment(ctx context.Context, name string) error {
	va := &storagev1.VolumeAttachment{}
	if err := w.live.Get(ctx, client.ObjectKey{Name: name}, va); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read VolumeAttachment %s: %w", name, err)
	} else if err == nil {
		w.state.attachments.Wrote(kube.StripAttachment(va))
	}
	return nil
}

// report adds the volume to status.volumesAttached of the node and emits events on the pods there.
func (w *work) report(ctx context.Context, s attachment.Report) (again bool, err error) {
	ctx, reported := w.startReport(ctx, s)
	stored, err := w.changeNode(ctx, s.Node, change{kind: reporting, uid: types.UID(s.NodeUID)})
	reported(stored, err)
	if !stored {
		return err == nil, err
	}
	w.loggerAt(s.Node).Info("Volume reported as attached", "attachment", s.Attachment.Name, "pods", klog.KObjSlice(w.now.pods[s.Node]), "repeated", s.Repeated)
	if !s.Repeated {
		for _, pod := range w.now.pods[s.Node] {
			w.events().succeeded(pod, explain.AttachSucceeded(w.now.volumeNameAt(s.Node)))
		}
	}
	return false, nil
}

func (w *work) unique() string { return kube.UniqueVolumeName(w.key.Driver, w.key.Handle) }

// withdraw removes the volume from status.volumesAttached of the node, or confirms that it is removed.
func (w *work) withdraw(ctx context.Context, s attachment.WithdrawReport) (again bool, err error) {
	out := w.reporter.change(ctx, string(s.Node), change{
		volume: w.unique(), kind: withdrawing, uid: types.UID(s.NodeUID), newVersion: s.NewVersion, expect: s.Expect,
	})
	if out.err != nil {
		return false, out.err
	}
	if w.log.V(1).Enabled() {
		w.loggerAt(s.Node).V(1).Info("Report withdrawn", "confirmed", out.answered, "nodeMissing", out.missing)
	}
	w.reads.record(s.Node, out)
	return true, nil
}

// detach deletes the attachment, or forgets an attachment without an object. The authority of the step permits it if
// the volume may be in use.
func (w *work) detach(ctx context.Context, s attachment.ForceDetach) (again bool, err error) {
	w.state.doubts.add(w.unique(), s, w.now.seen.Nodes[s.Node])
	if s.Attachment.Name != "" {
		return false, w.delete(ctx, s)
	}
	w.state.ledger.remove(w.unique(), string(s.Node))
	w.state.forget(string(s.Node))
	if s.Authority != nil {
		w.metrics.Forced(s.Authority)
	}
	w.emitReleased(s)
	return true, nil
}

// delete deletes the attachment at the resource version that was decided on.
func (w *work) delete(ctx context.Context, s attachment.ForceDetach) error {
	name, uid, version := s.Attachment.Name, types.UID(s.Attachment.UID), s.Attachment.ResourceVersion
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}}
	bound := client.Preconditions{UID: &uid, ResourceVersion: &version}
	if planted.S6 {
		bound.ResourceVersion = nil
	}
	ctx, requested := w.startDetach(ctx, s)
	responded := w.requestDetach(s)
	err := w.client.Delete(ctx, va, bound)
	requested(err)
	responded(err)
	switch {
	case err == nil:
		w.state.attachments.Deleted(name, uid)
		// An earlier VolumeAttachment of the volume may have been removed by another client. The detach covers it too.
		w.state.ledger.remove(w.unique(), string(s.Node))
		if s.Authority != nil {
			w.metrics.Forced(s.Authority)
		}
		return nil
	case apierrors.IsNotFound(err):
		return nil // the watch event follows
	case apierrors.IsConflict(err):
		return fmt.Errorf("delete VolumeAttachment %s at version %s: %w", name, version, err)
	}
	// It may still be carried out.
	if w.state.deletes.add(uid, version); !w.state.stillThere(detach{attachment: name, uid: uid}) {
		w.state.deletes.forget(uid) // it is deleted, and the event has been handled
	}
	return fmt.Errorf("delete VolumeAttachment %s: %w", name, err)
}

// annotateAttachment writes belay's annotations on the attachment.
func (w *work) annotateAttachment(ctx context.Context, s attachment.AnnotateAttachment) error {
	stamp := func(t time.Time) any {
		if t.IsZero() {
			return nil // removes it
		}
		return writeTime(t)
	}
	values := map[string]any{kube.DetachRequestedAnnotation: stamp(s.DetachRequested)}
	if !s.CalledOff.IsZero() {
		values[kube.DetachCalledOffAnnotation] = writeTime(s.CalledOff)
	}
	for name, value := range map[string]string{
		kube.NodeUIDAnnotation:    s.Machine.NodeUID,
		kube.BootIDAnnotation:     s.Machine.BootID,
		kube.SystemUUIDAnnotation: s.Machine.SystemUUID,
		kube.ProviderIDAnnotation: s.Machine.ProviderID,
	} {
		if value != "" {
			values[name] = value
		}
	}
	return w.patchAttachment(ctx, s.Attachment, values)
}

// patchAttachment writes annotations on the version of the attachment that was decided on.
func (w *work) patchAttachment(ctx context.Context, ref attachment.Ref, annotations map[string]any) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": ref.UID, "resourceVersion": ref.ResourceVersion, "annotations": annotations,
	}})
	if err != nil {
		return fmt.Errorf("encode the patch: %w", err)
	}
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: ref.Name}}
	if err := w.client.Patch(ctx, va, client.RawPatch(types.MergePatchType, body)); err != nil {
		return fmt.Errorf("annotate VolumeAttachment %s: %w", ref.Name, err)
	}
	w.state.attachments.Wrote(kube.StripAttachment(va))
	return nil
}

// recordSameMachine records on the attachment that the node's present CSI node ID is one of the same machine.
func (w *work) recordSameMachine(ctx context.Context, s attachment.RecordSameMachine) error {
	w.loggerAt(s.Node).Info("Same machine has another CSI node ID", "attachment", s.Attachment.Name, "nodeID", s.NodeID)
	return w.patchAttachment(ctx, s.Attachment, map[string]any{kube.SameMachineAnnotation: s.NodeID})
}

// annotateNode stores the time of the detach request of a volume without a VolumeAttachment on the Node, or removes it.
func (w *work) annotateNode(ctx context.Context, s attachment.AnnotateNode) (again bool, err error) {
	stored, err := w.changeNode(ctx, s.Node, change{kind: annotating, uid: types.UID(s.NodeUID), requested: s.DetachRequested})
	return !stored && err == nil, err
}

// changeNode writes a change, which includes the time of the detach request, to the Node. It reports false without an error
// if the newest Node forbids the change: the volume must be decided on again.
func (w *work) changeNode(ctx context.Context, node attachment.NodeName, c change) (stored bool, err error) {
	c.volume = w.unique()
	out := w.reporter.change(ctx, string(node), c)
	switch {
	case out.err != nil:
		return false, out.err
	case out.missing || !out.answered:
		w.reads.record(node, out)
		return false, nil
	}
	return true, nil
}
