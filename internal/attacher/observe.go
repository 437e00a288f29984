package attacher

import (
	"encoding/json"
	"errors"
	"slices"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
)

// subject is an attachment in a snapshot, with the objects that it was computed from.
type subject struct {
	attachment *storagev1.VolumeAttachment // nil if it is gone
	source     source
	sourceErr  error
	seen       publication.Attachment
	record     record
	declared   *kube.Declaration // that counts; nil for none
	left       []unpublished
}

// snapshot is the input of a decision.
type snapshot struct {
	key      publication.Key
	seen     publication.Observed
	subjects map[string]*subject // by UID
}

// observe returns the current state of a key.
func (a *Attacher) observe(key publication.Key) snapshot {
	snap := snapshot{key: key, subjects: map[string]*subject{}}
	snap.seen.Exclusive = !key.Shared()
	a.observeAll(&snap, a.attachmentsOf(key))
	for _, r := range a.calls.ofKey(key) {
		if snap.subjects[string(r.uid)] != nil {
			continue // it existed above; if it has been deleted since, the next decision sees that
		}
		// An attachment is gone only if no object of its UID exists, not merely because it has another key now.
		if va, ok := a.objects.attachments.Get(r.name); ok && va.UID == r.uid {
			continue
		}
		if r.keyIfGone(snap.seen.Exclusive) == key {
			snap.add(a.observeGone(r))
		}
	}
	if key.Shared() {
		a.observeBeside(&snap)
	}
	return snap
}

func (s *snapshot) add(subj *subject) {
	s.subjects[subj.seen.UID] = subj
	s.seen.Attachments = append(s.seen.Attachments, subj.seen)
}

// attachmentsOf returns our attachments of a key.
func (a *Attacher) attachmentsOf(key publication.Key) []*storagev1.VolumeAttachment {
	if key.Volume == "" {
		if va, ok := a.objects.attachments.Get(key.Attachment); ok && va.Spec.Attacher == a.driver {
			return []*storagev1.VolumeAttachment{va}
		}
		return nil
	}
	switch {
	case key.NodeID != "":
		return a.attachmentsAt(key.Volume, key.NodeID)
	case key.Node != "":
		return a.attachmentsAt(key.Volume, "", key.Node)
	}
	found := a.objects.attachments.byIndex(indexIdentity, key.Volume)
	for _, pv := range a.objects.volumes.byIndex(indexHandle, key.Volume) {
		for _, va := range a.objects.attachments.byIndex(indexVolumeName, pv.Name) {
			if va.Spec.Attacher == a.driver && va.Spec.Source.InlineVolumeSpec == nil && recordedHandle(va) == "" && a.objects.mayBelongTo(va, key.Volume) {
				found = append(found, va)
			}
		}
	}
	a.objects.matchOrphans(key.Volume)
	for _, name := range a.objects.orphans.of(key.Volume) {
		if va, ok := a.objects.attachments.Get(name); ok && !slices.Contains(found, va) {
			found = append(found, va)
		}
	}
	return found
}

func (a *Attacher) observeAttachment(va *storagev1.VolumeAttachment) *subject {
	subj := &subject{attachment: va, record: a.calls.of(va.UID)}
	subj.source, subj.sourceErr = a.objects.sourceOf(va)
	nodeID, nodeErr := a.nodeID(va.Spec.NodeName)
	subj.seen = publication.Attachment{
		UID:              string(va.UID),
		Name:             va.Name,
		Node:             va.Spec.NodeName,
		Created:          va.CreationTimestamp.Time,
		Deleting:         va.DeletionTimestamp != nil,
		Attached:         va.Status.Attached,
		Finalizer:        slices.Contains(va.Finalizers, a.finalizer),
		RecordedNodeID:   va.Annotations[kube.NodeIDAnnotation],
		NodeID:           nodeID,
		SameMachine:      va.Annotations[kube.SameMachineAnnotation],
		VolumeProtected:  subj.sourceErr == nil && !subj.source.unprotected(a.finalizer),
		Call:             subj.record.call,
		Untouched:        subj.record.untouched && !subj.record.call.Sent && !va.Status.Attached,
		UnconfirmedWrite: subj.record.unconfirmedWrite,
		Asked:            subj.record.asked,
		Drift:            subj.record.currentDrift(),
		DriftNodeID:      subj.record.finding().nodeID,
		Held:             subj.record.finding().held,
	}
	subj.left = a.unpublishedFrom(va, subj.source.handle)
	for _, left := range subj.left {
		subj.seen.UnpublishedFrom = append(subj.seen.UnpublishedFrom, left.NodeID)
	}
	subj.seen.VolumeUnrecorded = subj.unrecorded()
	subj.seen.Restored = a.restored(va)
	if subj.declared = a.declaredGone(va); subj.declared != nil {
		subj.seen.DeclaredGone = subj.declared.NodeID
	}
	if subj.seen.Deleting {
		subj.seen.DeletedAt = va.DeletionTimestamp.Time
	}
	subj.seen.VolumeUnprotected = subj.sourceErr == nil && !subj.seen.VolumeProtected && subj.source.pv.DeletionTimestamp == nil
	subj.seen.OtherFinalizers = len(va.Finalizers) > 1 || (len(va.Finalizers) == 1 && !subj.seen.Finalizer)
	// An invalid time counts as none, so that it blocks nothing.
	subj.seen.DetachRequested, _ = time.Parse(time.RFC3339, va.Annotations[kube.DetachRequestedAnnotation])
	subj.seen.AttachError, subj.seen.DetachError = messageOf(va.Status.AttachError), messageOf(va.Status.DetachError)
	subj.seen.PublishProblem = a.publishProblem(subj, nodeErr)
	subj.seen.UnpublishProblem = unpublishProblem(subj, nodeErr)
	if subj.record.call.Failures > 0 { // without a failure there is no back-off to end
		subj.seen.Inputs = inputsOf(subj, a.finalizer)
	}
	return subj
}

// unpublishedFrom returns the confirmed unpublishes of the volume since the last confirmed publish: as this
// process remembers, or else as an earlier one recorded when it began the attachment.
func (a *Attacher) unpublishedFrom(va *storagev1.VolumeAttachment, handle string) (left []unpublished) {
	if va.Status.Attached || handle == "" {
		return nil
	}
	if left = a.calls.unpublishedFrom(handle); len(left) == 0 && json.Unmarshal([]byte(va.Annotations[kube.UnpublishedFromAnnotation]), &left) != nil {
		return nil // what cannot be read says nothing
	}
	return left
}

// observeGone returns the state of an attachment that is gone, from the record of its calls.
func (a *Attacher) observeGone(r record) *subject {
	return &subject{record: r, source: source{identity: r.identity}, seen: publication.Attachment{
		UID: string(r.uid), Name: r.name, Node: r.node, Created: r.created, Gone: true, Released: r.released, Call: r.call, Inputs: inputsGone,
	}}
}

func messageOf(e *storagev1.VolumeError) string {
	if e == nil {
		return ""
	}
	return e.Message
}

// nodeID returns the current CSI node ID of a node.
func (a *Attacher) nodeID(node string) (string, error) {
	if id := a.objects.nodeID(node); id != "" {
		return id, nil
	}
	if _, ok := a.objects.csiNodes.Get(node); !ok {
		return "", errors.New(explain.CSINodeNotFound(node))
	}
	return "", errors.New(explain.CSINodeLacksDriver(node, a.driver))
}

func (a *Attacher) publishProblem(subj *subject, nodeErr error) string {
	if subj.sourceErr != nil {
		return subj.sourceErr.Error()
	}
	if subj.source.spec == nil {
		return subj.source.missing.Error()
	}
	if pv := subj.source.pv; pv != nil && pv.DeletionTimestamp != nil {
		return explain.VolumeMarkedForDeletion(pv.Name)
	}
	if err := a.controller.CheckPublish(subj.source.spec.AccessModes); err != nil {
		return err.Error()
	}
	if nodeErr != nil {
		return nodeErr.Error()
	}
	return ""
}

func unpublishProblem(subj *subject, nodeErr error) string {
	switch {
	case subj.sourceErr != nil:
		return subj.sourceErr.Error()
	case subj.seen.RecordedNodeID == "" && nodeErr != nil:
		return nodeErr.Error()
	default:
		return ""
	}
}

// inputsGone replaces the digest of inputsOf for an attachment that is gone.
const inputsGone = "gone"

// inputsOf returns a digest of everything that a call depends on and that another client may change. When it changes,
// the back-off ends.
func inputsOf(subj *subject, finalizer string) string {
	va := subj.attachment
	if va == nil {
		return inputsGone
	}
	others := slices.DeleteFunc(slices.Clone(va.Finalizers), func(f string) bool { return f == finalizer })
	inputs := []any{va.Annotations[foreignDigest], va.Annotations[kube.PublishSecretAnnotation], others, subj.seen.Deleting, subj.seen.NodeID}
	if pv := subj.source.pv; pv != nil {
		inputs = append(inputs, pv.UID, pv.DeletionTimestamp != nil, pv.Spec)
	}
	return digest(inputs...)
}
