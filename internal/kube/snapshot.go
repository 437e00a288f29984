package kube

import (
	"cmp"
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
)

// What objects say of a volume, for the snapshots of all programs. Each takes it from here, and adds what only it knows.

// Listing is what a Node object says about one volume.
type Listing struct {
	Reported, InUse bool
	// DetachRequested is when a detach of a volume without a VolumeAttachment was asked for, in the form of the annotation.
	DetachRequested string
}

// ListingOf returns what the Node says about the volume of that unique name.
func ListingOf(node *corev1.Node, unique string) Listing {
	return Listing{Reported: Reported(node, unique), InUse: InUse(node, unique), DetachRequested: DetachesRequested(node)[unique]}
}

// NodeFacts returns the state of an existing node with regard to a volume.
func NodeFacts(node *corev1.Node, volume Listing) attachment.Node {
	return attachment.Node{
		Exists:          attachment.Yes,
		Machine:         MachineOf(node),
		Created:         node.CreationTimestamp.Time,
		Managed:         Managed(node),
		Reported:        volume.Reported,
		InUse:           decision.Known(volume.InUse),
		Healthy:         decision.Known(Ready(node)),
		DetachRequested: ParseTime(volume.DetachRequested),
		OutOfService:    OutOfService(node),
		TaintedByFence:  OutOfServiceByFence(node),
		Isolated:        Isolated(node),
	}
}

// AttachmentFacts returns what a VolumeAttachment says about an attachment of the volume.
func AttachmentFacts(va *storagev1.VolumeAttachment, key attachment.VolumeKey) attachment.Attachment {
	a := attachment.Attachment{
		Ref:              attachment.Ref{Name: va.Name, UID: string(va.UID), ResourceVersion: va.ResourceVersion},
		Node:             attachment.NodeName(va.Spec.NodeName),
		PersistentVolume: SourceName(va),
		Computed:         IsAttachmentOf(va, key),
		Finalized:        UnpublishPrecedesRemoval(va),
		Deleting:         va.DeletionTimestamp != nil,
		Created:          va.CreationTimestamp.Time,
		DetachRequested:  DetachRequested(va),
		Machine:          RecordedMachine(va),
		NodeID:           va.Annotations[NodeIDAnnotation],
		SameMachineAs:    va.Annotations[SameMachineAnnotation],
	}
	if at := va.DeletionTimestamp; at != nil && at.Unix() != 0 { // 0: our own delete, not yet in the cache
		a.DeletingSince = at.Time
	}
	if va.Status.Attached || NoAttacher(key.Driver) {
		a.Confirmed = attachment.Yes
	}
	a.AttachError, a.DetachError = ErrorText(va.Status.AttachError), ErrorText(va.Status.DetachError)
	if call, ok := pendingCallOf(va); ok {
		a.Pending, a.PendingUntil = call.String(), call.Until
	}
	if e, ok := elsewhereOf(va); ok {
		a.Elsewhere, a.ElsewhereSeen = e.String(), e.Seen
	}
	return a
}

// ErrorText returns the message of an error in the status of a VolumeAttachment, empty for no error. One without a message must not read as none.
func ErrorText(e *storagev1.VolumeError) string {
	if e == nil {
		return ""
	}
	return cmp.Or(e.Message, "the driver gave no reason")
}

// AttachRequired reports whether the volumes of a driver are attached. As upstream, a driver without a CSIDriver object (nil) requires attach, and so
// does one that does not say (k/k v1.36.3 pkg/volume/csi/csi_plugin.go, skipAttach).
func AttachRequired(driver *storagev1.CSIDriver) bool {
	return driver == nil || driver.Spec.AttachRequired == nil || *driver.Spec.AttachRequired
}

// Exclusive reports whether a PersistentVolume may be attached to one node at a time.
func Exclusive(pv *corev1.PersistentVolume) bool {
	return !attachment.AllowsSeveralNodes(pv.Spec.AccessModes)
}

// Sharing reports whether a volume may be attached to several nodes. Its PersistentVolumes decide, which no tenant can create; the inline volumes of
// its VolumeAttachments do where there is none. Several PersistentVolumes may share a handle: it is exclusive if one source is, and unknown
// without a source.
func Sharing(volumes []*corev1.PersistentVolume, attachments iter.Seq[*storagev1.VolumeAttachment]) attachment.Knowledge {
	shared := attachment.Unknown
	for _, pv := range volumes {
		if Exclusive(pv) {
			return attachment.No
		}
		shared = attachment.Yes
	}
	if shared == attachment.Yes {
		return shared
	}
	for va := range attachments {
		if inline := va.Spec.Source.InlineVolumeSpec; inline != nil {
			if !attachment.AllowsSeveralNodes(inline.AccessModes) {
				return attachment.No
			}
			shared = attachment.Yes
		}
	}
	return shared
}

// VolumesOf returns the volumes that a VolumeAttachment may belong to, the surest first: by its own data, by its PersistentVolume (nil if that is not
// known), and, unless one of these is the one that it is named after, by its name among others. They differ, for example, after the PersistentVolume
// was recreated for another volume.
func VolumesOf(va *storagev1.VolumeAttachment, pv *corev1.PersistentVolume, others iter.Seq[attachment.VolumeKey]) []attachment.VolumeKey {
	var keys []attachment.VolumeKey
	add := func(key attachment.VolumeKey, ok bool) {
		if ok && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	add(VolumeOfAttachment(va))
	if pv != nil {
		add(KeyOfVolume(pv))
	}
	if slices.ContainsFunc(keys, func(key attachment.VolumeKey) bool { return IsAttachmentOf(va, key) }) || !IsAttachmentName(va.Name) {
		return keys
	}
	for key := range others {
		if IsAttachmentOf(va, key) {
			add(key, true)
			break
		}
	}
	return keys
}

// Named returns the volumes of unique names, such as a Node lists. A name that is no CSI volume's is left out.
func Named(names []string) iter.Seq[attachment.VolumeKey] {
	return func(yield func(attachment.VolumeKey) bool) {
		for _, name := range names {
			driver, handle, ok := ParseUniqueVolumeName(name)
			if ok && !yield(attachment.VolumeKey{Driver: driver, Handle: handle}) {
				return
			}
		}
	}
}
