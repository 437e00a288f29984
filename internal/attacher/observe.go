package attacher

import (
	"fmt"
	"slices"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
)

// subject is an attachment of a snapshot with the objects it was made from: what
// a step for it is applied to.
type subject struct {
	attachment *storagev1.VolumeAttachment // nil if it is gone
	source     source
	sourceErr  error
	seen       publication.Attachment
	record     record
}

// snapshot is what a decision is made on.
type snapshot struct {
	key      publication.Key
	seen     publication.Observed
	subjects map[string]*subject // by UID
}

// observe reads everything about a key.
func (a *Attacher) observe(key publication.Key) snapshot {
	shot := snapshot{key: key, subjects: map[string]*subject{}}
	shot.seen.Exclusive = key.Node == ""
	for _, va := range a.attachmentsOf(key) {
		shot.add(a.observeAttachment(va))
	}
	for _, r := range a.calls.ofVolume(key.Volume) {
		if key.Volume == "" || (key.Node != "" && key.Node != r.node) {
			continue
		}
		// Gone means that no object of this UID is left under its name, not that
		// it was not found under this key.
		if va, ok := a.objects.attachments.Get(r.name); ok && va.UID == r.uid {
			continue
		}
		shot.add(a.observeGone(r))
	}
	return shot
}

func (s *snapshot) add(one *subject) {
	s.subjects[one.seen.UID] = one
	s.seen.Attachments = append(s.seen.Attachments, one.seen)
}

// attachmentsOf finds our attachments of a key.
func (a *Attacher) attachmentsOf(key publication.Key) []*storagev1.VolumeAttachment {
	if key.Volume == "" {
		if va, ok := a.objects.attachments.Get(key.Attachment); ok && va.Spec.Attacher == a.driver {
			return []*storagev1.VolumeAttachment{va}
		}
		return nil
	}
	found := a.objects.attachments.byIndex(indexIdentity, key.Volume)
	for _, pv := range a.objects.volumes.byIndex(indexHandle, key.Volume) {
		for _, va := range a.objects.attachments.byIndex(indexVolumeName, pv.Name) {
			if va.Spec.Attacher == a.driver && va.Spec.Source.InlineVolumeSpec == nil && recordedHandle(va) == "" && a.objects.fits(va, key.Volume) {
				found = append(found, va)
			}
		}
	}
	a.objects.learnHandle(key.Volume)
	for _, name := range a.objects.orphans.of(key.Volume) {
		if va, ok := a.objects.attachments.Get(name); ok && !slices.Contains(found, va) {
			found = append(found, va)
		}
	}
	return slices.DeleteFunc(found, func(va *storagev1.VolumeAttachment) bool {
		return key.Node != "" && va.Spec.NodeName != key.Node
	})
}

func (a *Attacher) observeAttachment(va *storagev1.VolumeAttachment) *subject {
	one := &subject{attachment: va, record: a.calls.of(va.UID)}
	one.source, one.sourceErr = a.objects.sourceOf(va)
	nodeID, nodeErr := a.nodeID(va.Spec.NodeName)
	one.seen = publication.Attachment{
		UID:              string(va.UID),
		Name:             va.Name,
		Node:             va.Spec.NodeName,
		Created:          va.CreationTimestamp.Time,
		Deleting:         va.DeletionTimestamp != nil,
		Attached:         va.Status.Attached,
		Finalizer:        slices.Contains(va.Finalizers, a.finalizer),
		RecordedNodeID:   va.Annotations[kube.NodeIDAnnotation],
		NodeID:           nodeID,
		VolumeProtected:  one.sourceErr == nil && !one.source.unprotected(a.finalizer),
		HandleUnrecorded: one.sourceErr == nil && one.source.mustRecord() && recordedHandle(va) == "",
		Call:             one.record.call,
		Untouched:        one.record.untouched && !one.record.call.Sent && !va.Status.Attached,
		UnconfirmedWrite: one.record.unsure,
		Drift:            one.record.drift,
		DriftNodeID:      one.record.driftNodeID,
	}
	if one.seen.Deleting {
		one.seen.DeletedAt = va.DeletionTimestamp.Time
	}
	one.seen.VolumeUnprotected = one.sourceErr == nil && !one.seen.VolumeProtected && one.source.pv.DeletionTimestamp == nil
	one.seen.OtherFinalizers = len(va.Finalizers) > 1 || (len(va.Finalizers) == 1 && !one.seen.Finalizer)
	// One that cannot be read counts as none: nothing is held back for it.
	one.seen.DetachRequested, _ = time.Parse(time.RFC3339, va.Annotations[kube.DetachRequestedAnnotation])
	one.seen.AttachError, one.seen.DetachError = messageOf(va.Status.AttachError), messageOf(va.Status.DetachError)
	one.seen.PublishProblem = a.publishProblem(one, nodeErr)
	one.seen.UnpublishProblem = unpublishProblem(one, nodeErr)
	if one.record.call.Failures > 0 { // else there is no back-off that they could end
		one.seen.Inputs = inputsOf(one, a.finalizer)
	}
	return one
}

// observeGone is an attachment of which only our memory of the call is left.
func (a *Attacher) observeGone(r record) *subject {
	return &subject{record: r, source: source{identity: r.identity}, seen: publication.Attachment{
		UID: string(r.uid), Name: r.name, Node: r.node, Created: r.created, Gone: true, Call: r.call, Inputs: inputsGone,
	}}
}

func messageOf(e *storagev1.VolumeError) string {
	if e == nil {
		return ""
	}
	return e.Message
}

// nodeID is the CSI node ID that a node has now.
func (a *Attacher) nodeID(node string) (string, error) {
	csiNode, ok := a.objects.csiNodes.Get(node)
	if !ok {
		return "", fmt.Errorf("csinode.storage.k8s.io %q not found", node)
	}
	for _, driver := range csiNode.Spec.Drivers {
		if driver.Name == a.driver && driver.NodeID != "" {
			return driver.NodeID, nil
		}
	}
	return "", fmt.Errorf("CSINode %s does not contain driver %s", node, a.driver)
}

func (a *Attacher) publishProblem(one *subject, nodeErr error) string {
	if one.sourceErr != nil {
		return one.sourceErr.Error()
	}
	if one.source.spec == nil {
		return one.source.missing.Error()
	}
	if pv := one.source.pv; pv != nil && pv.DeletionTimestamp != nil {
		return fmt.Sprintf("PersistentVolume %q is marked for deletion", pv.Name)
	}
	if err := a.controller.CheckPublish(one.source.spec.AccessModes); err != nil {
		return err.Error()
	}
	if nodeErr != nil {
		return nodeErr.Error()
	}
	return ""
}

func unpublishProblem(one *subject, nodeErr error) string {
	switch {
	case one.sourceErr != nil:
		return one.sourceErr.Error()
	case one.seen.RecordedNodeID == "" && nodeErr != nil:
		return nodeErr.Error()
	default:
		return ""
	}
}

// inputsGone are those of an attachment that is gone.
const inputsGone = "gone"

// inputsOf is a digest of all that an attempt depends on, except what the
// attacher itself writes. A change of it ends the back-off.
func inputsOf(one *subject, finalizer string) string {
	va := one.attachment
	if va == nil {
		return inputsGone
	}
	others := slices.DeleteFunc(slices.Clone(va.Finalizers), func(f string) bool { return f == finalizer })
	inputs := []any{va.Annotations[othersMark], others, one.seen.Deleting, one.seen.NodeID}
	if pv := one.source.pv; pv != nil {
		inputs = append(inputs, pv.UID, pv.DeletionTimestamp != nil, pv.Spec)
	}
	return digest(inputs...)
}
