package attacher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/planted"
	"belay.dev/belay/internal/publication"
)

// object is a JSON object.
type object = map[string]any

// Each patch includes the UID of the object that was decided on, so the API server rejects it if the object was
// recreated (S6).
//
// finalizerPatch and removeFinalizerPatch are strategic merge patches of one list element, so concurrent writers do not
// conflict and a repeated request changes nothing. (csi-attacher replaces the list of the attachment, and appends to
// that of the volume, where two concurrent attaches can add the finalizer twice.)
func finalizerPatch(uid types.UID, finalizer string, annotations map[string]any) object {
	meta := object{"finalizers": []string{finalizer}}
	if !planted.S6Attacher {
		meta["uid"] = uid
	}
	if len(annotations) > 0 {
		meta["annotations"] = annotations
	}
	return object{"metadata": meta}
}

func removeFinalizerPatch(uid types.UID, finalizer string) object {
	return object{"metadata": object{"uid": uid, "$deleteFromPrimitiveList/finalizers": []string{finalizer}}}
}

func statusPatch(va *storagev1.VolumeAttachment, status object) object {
	return object{"metadata": object{"uid": va.UID}, "status": status}
}

// attachedPatch is a merge patch: it removes the keys of an earlier publish context by name.
func attachedPatch(va *storagev1.VolumeAttachment, publishContext map[string]string) object {
	status := object{"attached": true, "attachError": nil}
	metadata := clone(publishContext)
	for key := range va.Status.AttachmentMetadata {
		if _, ok := metadata[key]; !ok {
			metadata[key] = nil
		}
	}
	if len(metadata) > 0 {
		status["attachmentMetadata"] = metadata
	}
	return statusPatch(va, status)
}

func detachedPatch(va *storagev1.VolumeAttachment) object {
	return statusPatch(va, object{"attached": false, "attachmentMetadata": nil, "detachError": nil})
}

func errorPatch(va *storagev1.VolumeAttachment, verb publication.Verb, stored *storagev1.VolumeError) object {
	field := "attachError"
	if verb == publication.Unpublish {
		field = "detachError"
	}
	value := object{"message": stored.Message, "time": stored.Time, "errorCode": nil}
	if stored.ErrorCode != nil {
		value["errorCode"] = *stored.ErrorCode
	}
	return statusPatch(va, object{field: value})
}

// writeFinalizers adds the finalizers to the attachment and to the PersistentVolume concurrently.
func (a *Attacher) writeFinalizers(ctx context.Context, key publication.Key, subj *subject, step publication.WriteFinalizers) (bool, error) {
	try := attempt{uid: subj.uid(), attachment: subj.attachment, volume: subj.source.identity, node: subj.seen.Node,
		verb: publication.Publish, nodeID: step.NodeID, inputs: inputsOf(subj, a.finalizer)}
	try.due = a.policy.Due(string(try.uid), subj.record.call, try.verb, try.nodeID)
	// Read the secrets before adding the finalizer: without them the volume could not be unpublished, and the finalizer
	// would block the deletion of the attachment.
	if subj.seen.Attached && step.Attachment {
		log.FromContext(ctx).Info("Finalizer was removed from an attached VolumeAttachment, adding it again", append(subj.logValues(), "finalizer", a.finalizer)...)
	} else if step.Attachment {
		ref := subj.secretFor(publication.Publish)
		secrets, err := a.secrets(ctx, ref)
		if err != nil {
			a.refuse(ctx, subj, try, err)
			return true, nil
		}
		a.pendingSecrets.keep(subj.uid(), ref, secrets)
	}
	if step.NodeID != subj.seen.RecordedNodeID {
		a.calls.settle(subj.uid(), subj.seen.RecordedNodeID)
	}
	ctx, span := a.startStep(ctx, subj, "add finalizers")
	var both errgroup.Group
	if step.Volume {
		both.Go(func() error { return a.protectVolume(ctx, subj.source.pv) })
	}
	if step.Attachment {
		both.Go(func() error { return a.protectOrReread(ctx, subj, step.NodeID, try) })
	}
	err := both.Wait()
	span.End(err)
	if err != nil && !subj.seen.Attached && a.queue.NumRequeues(key) >= requeuesBeforeReport && isRefusal(err) {
		a.refuse(ctx, subj, try, err)
		return true, nil
	}
	return err == nil, err
}

// requeuesBeforeReport is how often a rejected patch is retried before the error is reported: an API server that starts
// rejects requests that it will allow later.
const requeuesBeforeReport = 4

// isRefusal reports whether the API server rejected a request for a reason other than a conflict.
func isRefusal(err error) bool {
	return errors.Is(err, errDropped) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsUnauthorized(err)
}

// reread reads an attachment from the API server.
func (a *Attacher) reread(ctx context.Context, subj *subject) error {
	var stored *storagev1.VolumeAttachment
	err := a.request(ctx, func(ctx context.Context) (err error) {
		stored, err = a.client.StorageV1().VolumeAttachments().Get(ctx, subj.attachment.Name, metav1.GetOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("read the stored object: %w", err)
	}
	if stored.UID != subj.uid() {
		return errors.New("it was recreated and the watch cache has not caught up")
	}
	a.objects.attachments.Wrote(a.objects.trimAttachment(stored))
	a.calls.recordAnswer(attempt{uid: subj.uid()}, true)
	return nil
}

func (a *Attacher) protectVolume(ctx context.Context, pv *corev1.PersistentVolume) error {
	stored, err := a.patchVolume(ctx, pv.Name, finalizerPatch(pv.UID, a.finalizer, nil))
	if err == nil && !slices.Contains(stored.Finalizers, a.finalizer) {
		err = errDropped
	}
	if err != nil {
		return explain.VolumeNotProtected(err)
	}
	return nil
}

// protectOrReread adds the finalizer and the records before the first call, or rereads the attachment after a conflict.
func (a *Attacher) protectOrReread(ctx context.Context, subj *subject, nodeID string, try attempt) error {
	err := a.protectAttachment(ctx, subj, nodeID)
	a.calls.recordAnswer(try, err == nil || kube.IsAnswer(err))
	if err == nil && !subj.seen.Finalizer && subj.seen.RecordedNodeID == "" && !subj.seen.Attached {
		a.calls.protected(try)
	}
	if apierrors.IsConflict(err) {
		return a.reread(ctx, subj) // for the next decision
	}
	return err
}

func (a *Attacher) protectAttachment(ctx context.Context, subj *subject, nodeID string) error {
	va, record := subj.attachment, map[string]any{kube.NodeIDAnnotation: nodeID}
	maps.Copy(record, subj.source.identityAnnotations(subj.secretFor(publication.Publish)))
	if left := subj.left; len(left) > 0 {
		text, err := json.Marshal(left)
		if err != nil {
			return err
		}
		record[kube.UnpublishedFromAnnotation] = string(text)
	}
	patch := finalizerPatch(va.UID, a.finalizer, record)
	if !planted.S6Attacher {
		// A node ID that is recorded but not cached yet must not be overwritten: the volume may be published there.
		patch["metadata"].(object)["resourceVersion"] = va.ResourceVersion
	}
	stored, err := a.patchAttachment(ctx, va.Name, types.StrategicMergePatchType, patch)
	if err != nil {
		return explain.AttachmentNotSaved(err)
	}
	a.objects.attachments.Wrote(a.objects.trimAttachment(stored))
	if !slices.Contains(stored.Finalizers, a.finalizer) || stored.Annotations[kube.NodeIDAnnotation] != nodeID {
		return explain.AttachmentNotSaved(errDropped)
	}
	return nil
}

// errDropped means that the API server accepted a write but did not store it.
var errDropped = errors.New(explain.WriteDropped)

// removeFinalizer completes a detach. If our finalizer was the last one, the object is gone with this request, and
// csi-attacher's second request, which sets attached=false, would return 404. If others remain, RecordDetached has
// written the status before.
func (a *Attacher) removeFinalizer(ctx context.Context, subj *subject) error {
	patch := removeFinalizerPatch(subj.uid(), a.finalizer)
	if subj.declared != nil { // it may be edited or withdrawn meanwhile
		patch["metadata"].(object)["resourceVersion"] = subj.attachment.ResourceVersion
	} else if subj.seen.ConfirmedUnpublished() { // what another attachment stands for is not confirmed yet
		a.calls.settle(subj.uid(), subj.seen.RecordedNodeID)
	}
	stored, err := a.patchAttachment(ctx, subj.attachment.Name, types.StrategicMergePatchType, patch)
	if err != nil {
		return explain.NotMarkedDetached(err)
	}
	if d := subj.declared; d != nil {
		log.FromContext(ctx).Info("Detach ended without the driver's confirmation, because a person declared the machine and the attachment gone",
			append(subj.logValues(), "nodeID", d.NodeID, "declaredBy", d.By, "declaredAt", publication.FormatTime(d.At), "declaredReason", d.Reason)...)
	}
	if stored.DeletionTimestamp != nil && len(stored.Finalizers) == 0 {
		a.objects.attachments.Ended(stored)
	} else {
		a.objects.attachments.Wrote(a.objects.trimAttachment(stored))
	}
	a.calls.forget(subj.uid())
	return nil
}

// writeStatus patches the status of an attachment.
func (a *Attacher) writeStatus(ctx context.Context, va *storagev1.VolumeAttachment, patch object) error {
	stored, err := a.patchAttachment(ctx, va.Name, types.MergePatchType, patch, "status")
	if err != nil {
		return err
	}
	a.objects.attachments.Wrote(a.objects.trimAttachment(stored))
	return nil
}

func (a *Attacher) patchAttachment(ctx context.Context, name string, kind types.PatchType, patch object, subresources ...string) (*storagev1.VolumeAttachment, error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	var stored *storagev1.VolumeAttachment
	err = a.request(ctx, func(ctx context.Context) (err error) {
		stored, err = a.client.StorageV1().VolumeAttachments().Patch(ctx, name, kind, body, metav1.PatchOptions{}, subresources...)
		return err
	})
	return stored, err
}

func (a *Attacher) patchVolume(ctx context.Context, name string, patch object) (stored *corev1.PersistentVolume, err error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	err = a.request(ctx, func(ctx context.Context) (err error) {
		stored, err = a.client.CoreV1().PersistentVolumes().Patch(ctx, name, types.StrategicMergePatchType, body, metav1.PatchOptions{})
		return err
	})
	if err == nil {
		a.objects.volumes.Wrote(a.objects.trimVolume(stored))
	}
	return stored, err
}

// uid returns the UID of the attachment.
func (s *subject) uid() types.UID { return types.UID(s.seen.UID) }

// markTrivially marks the attachments of a driver without attach as attached, without finalizers or calls.
func (a *Attacher) markTrivially(ctx context.Context, key publication.Key) error {
	for _, va := range a.attachmentsOf(key) {
		if va.Status.Attached {
			continue
		}
		if err := a.writeStatus(ctx, va, statusPatch(va, object{"attached": true})); err != nil {
			return fmt.Errorf("VolumeAttachment %s: record as attached: %w", va.Name, err)
		}
	}
	return nil
}

// mayRelease reports whether our finalizer may be removed from a PersistentVolume: it is being deleted, or the in-tree
// plugin manages it again.
func (a *Attacher) mayRelease(pv *corev1.PersistentVolume) bool {
	if !a.controller.Capabilities().Attach || !slices.Contains(pv.Finalizers, a.finalizer) {
		return false
	}
	if pv.DeletionTimestamp != nil {
		return true
	}
	return isInTree(pv) && pv.Annotations[migratedToAnnotation] != a.driver
}

// workVolumes processes PersistentVolumes until their queue is shut down.
func workVolumes(ctx context.Context, a *Attacher) {
	for {
		name, closed := a.volumes.Get()
		if closed {
			return
		}
		if err := a.releaseVolume(ctx, name); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "API request failed, retrying", "volume", name)
			a.volumes.AddRateLimited(name)
		} else {
			a.volumes.Forget(name)
		}
		a.volumes.Done(name)
	}
}

// releaseVolume removes our finalizer from a PersistentVolume that no VolumeAttachment of any attacher refers to.
func (a *Attacher) releaseVolume(ctx context.Context, name string) error {
	pv, ok := a.objects.volumes.Get(name)
	if !ok || !a.mayRelease(pv) {
		return nil
	}
	if len(a.objects.attachments.byIndex(indexVolumeName, name)) > 0 {
		return nil // the deletion of the last one enqueues it again
	}
	if from, err := a.objects.sourceOfVolume(pv); err == nil {
		a.calls.forgetVolume(from.handle)
	}
	_, err := a.patchVolume(ctx, name, removeFinalizerPatch(pv.UID, a.finalizer))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the finalizer from PersistentVolume %s: %w", name, err)
	}
	return nil
}
