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

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/planted"
	"belay.dev/belay/internal/publication"
)

// object is a JSON object of a patch.
type object = map[string]any

// Every patch carries the UID that was decided on: the API server refuses it
// when the object of that name is another one by now (S6).
//
// Finalizers are added and taken off by strategic merge, which works on the one
// element: no list of other people's finalizers is written back, two writers do
// not collide, and a repeated request changes nothing. (csi-attacher replaces
// the attachment's list, and appends to the volume's, where two attachments
// begun side by side leave the finalizer twice.)
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

// attachedPatch is a merge patch: keys of an earlier publish context have to be
// taken out by name.
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

// writeFinalizers sends both first patches side by side: neither has to wait for
// the other, only the call for both.
func (a *Attacher) writeFinalizers(ctx context.Context, key publication.Key, one *subject, step publication.WriteFinalizers) (bool, error) {
	try := attempt{uid: one.uid(), attachment: one.attachment, volume: one.source.identity, node: one.seen.Node,
		verb: publication.Publish, nodeID: step.NodeID, inputs: inputsOf(one, a.finalizer)}
	// Our finalizer would keep the attachment from being deleted, and without its
	// secrets the volume cannot be unpublished: look before it is stored.
	if one.seen.Attached && step.Attachment {
		log.FromContext(ctx).Info("Finalizer was removed from an attached VolumeAttachment, adding it again", append(one.about(), "finalizer", a.finalizer)...)
	} else if step.Attachment {
		ref := one.source.secret
		secrets, err := a.secrets(ctx, ref)
		if err != nil {
			a.refuse(ctx, one, try, err)
			return true, nil
		}
		a.pendingSecrets.keep(one.uid(), ref, secrets)
	}
	var both errgroup.Group
	if step.Volume {
		both.Go(func() error { return a.protectVolume(ctx, one.source.pv) })
	}
	if step.Attachment {
		both.Go(func() error { return a.protectOrReread(ctx, one, step.NodeID, try) })
	}
	err := both.Wait()
	if err != nil && !one.seen.Attached && a.queue.NumRequeues(key) >= requeuesBeforeReport && isRefusal(err) {
		a.refuse(ctx, one, try, err)
		return true, nil
	}
	return err == nil, err
}

// requeuesBeforeReport is how often a refused first patch is tried again
// silently: while it starts, the API server refuses what it will allow.
const requeuesBeforeReport = 4

// isRefusal tells whether the API server looked at a request and said no, for
// another reason than that the object has changed.
func isRefusal(err error) bool {
	return errors.Is(err, errDropped) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsUnauthorized(err)
}

// reread reads an attachment past the watch cache.
func (a *Attacher) reread(ctx context.Context, one *subject) error {
	var stored *storagev1.VolumeAttachment
	err := a.ask(ctx, func(ctx context.Context) (err error) {
		stored, err = a.client.StorageV1().VolumeAttachments().Get(ctx, one.attachment.Name, metav1.GetOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("read the stored object: %w", err)
	}
	if stored.UID != one.uid() {
		return errors.New("it was recreated and the watch cache has not caught up")
	}
	a.objects.attachments.Wrote(a.objects.trimAttachment(stored))
	a.calls.answered(attempt{uid: one.uid()}, true)
	return nil
}

func (a *Attacher) protectVolume(ctx context.Context, pv *corev1.PersistentVolume) error {
	stored, err := a.patchVolume(ctx, pv.Name, finalizerPatch(pv.UID, a.finalizer, nil))
	if err == nil && !slices.Contains(stored.Finalizers, a.finalizer) {
		err = errDropped
	}
	if err != nil {
		return fmt.Errorf("could not add PersistentVolume finalizer: %w", err)
	}
	return nil
}

// protectOrReread stores what has to stand on an attachment before its first call, or reads what somebody else stored.
func (a *Attacher) protectOrReread(ctx context.Context, one *subject, nodeID string, try attempt) error {
	err := a.protectAttachment(ctx, one.attachment, nodeID, one.source)
	a.calls.answered(try, err == nil || kube.IsAnswer(err))
	if err == nil && !one.seen.Finalizer && one.seen.RecordedNodeID == "" && !one.seen.Attached {
		a.calls.protected(try)
	}
	if apierrors.IsConflict(err) {
		return a.reread(ctx, one) // what is decided next is decided on that
	}
	return err
}

func (a *Attacher) protectAttachment(ctx context.Context, va *storagev1.VolumeAttachment, nodeID string, from source) error {
	record := map[string]any{kube.NodeIDAnnotation: nodeID}
	maps.Copy(record, from.identityAnnotations())
	patch := finalizerPatch(va.UID, a.finalizer, record)
	if !planted.S6Attacher {
		// A node ID that is recorded and not in the cache yet must not be overwritten: the
		// volume may be published there.
		patch["metadata"].(object)["resourceVersion"] = va.ResourceVersion
	}
	stored, err := a.patchAttachment(ctx, va.Name, types.StrategicMergePatchType, patch)
	if err != nil {
		return fmt.Errorf("could not save VolumeAttachment: %w", err)
	}
	a.objects.attachments.Wrote(a.objects.trimAttachment(stored))
	if !slices.Contains(stored.Finalizers, a.finalizer) || stored.Annotations[kube.NodeIDAnnotation] != nodeID {
		return fmt.Errorf("could not save VolumeAttachment: %w", errDropped)
	}
	return nil
}

// errDropped is the answer to a write that the API server accepted and did not store.
var errDropped = errors.New("the API server left out the finalizer or the node ID: an admission policy removes them")

// removeFinalizer ends an attachment. When ours was the last finalizer the
// object is gone with this one request: csi-attacher's second one, which sets
// attached=false, would only be answered 404. An attachment that others keep had
// its status written before (RecordDetached).
func (a *Attacher) removeFinalizer(ctx context.Context, one *subject) error {
	stored, err := a.patchAttachment(ctx, one.attachment.Name, types.StrategicMergePatchType, removeFinalizerPatch(one.uid(), a.finalizer))
	if err != nil {
		return fmt.Errorf("could not mark as detached: %w", err)
	}
	if stored.DeletionTimestamp != nil && len(stored.Finalizers) == 0 {
		a.objects.attachments.Ended(stored)
	} else {
		a.objects.attachments.Wrote(a.objects.trimAttachment(stored))
	}
	a.calls.forget(one.uid())
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
	err = a.ask(ctx, func(ctx context.Context) (err error) {
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
	err = a.ask(ctx, func(ctx context.Context) (err error) {
		stored, err = a.client.CoreV1().PersistentVolumes().Patch(ctx, name, types.StrategicMergePatchType, body, metav1.PatchOptions{})
		return err
	})
	if err == nil {
		a.objects.volumes.Wrote(a.objects.trimVolume(stored))
	}
	return stored, err
}

// uid is the UID of the attachment that was decided on.
func (s *subject) uid() types.UID { return types.UID(s.seen.UID) }

// markTrivially serves a driver that has nothing to attach: every attachment is
// attached at once. No finalizer, no call.
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

// mayRelease tells whether our finalizer may have to come off a PersistentVolume:
// it is being deleted, or an in-tree one that was handed back to the in-tree
// plugin.
func (a *Attacher) mayRelease(pv *corev1.PersistentVolume) bool {
	if !a.controller.Capabilities().Attach || !slices.Contains(pv.Finalizers, a.finalizer) {
		return false
	}
	if pv.DeletionTimestamp != nil {
		return true
	}
	return isInTree(pv) && pv.Annotations[migratedToAnnotation] != a.driver
}

// workVolumes takes PersistentVolumes off their queue until it is shut down.
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

// releaseVolume takes our finalizer off a PersistentVolume that no attachment
// names, of whichever attacher.
func (a *Attacher) releaseVolume(ctx context.Context, name string) error {
	pv, ok := a.objects.volumes.Get(name)
	if !ok || !a.mayRelease(pv) {
		return nil
	}
	if len(a.objects.attachments.byIndex(indexVolumeName, name)) > 0 {
		return nil // the end of the last one wakes us
	}
	_, err := a.patchVolume(ctx, name, removeFinalizerPatch(pv.UID, a.finalizer))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the finalizer from PersistentVolume %s: %w", name, err)
	}
	return nil
}
