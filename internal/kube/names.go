package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// Names that upstream components also read and write. They are a contract: kubelets, drivers, sidecars and operators compute or
// match them.
const (
	// VolumesRootAnnotation on a Node is where its node agent keeps the records of its volumes: the boot ID of the machine, a
	// space, and the root directory. An agent of the same boot with another root directory does not start.
	VolumesRootAnnotation = "belay.dev/volumes-root"
	// ManagedAttachAnnotation on a Node delegates attach and detach to the controller. Only the key counts, whatever its value (k/k
	// pkg/volume/util.ControllerManagedAttachAnnotation).
	ManagedAttachAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"

	// NodeIDAnnotation on a VolumeAttachment is the CSI node ID that was sent to the driver at attach; the detach sends the same
	// one.
	NodeIDAnnotation = "csi.alpha.kubernetes.io/node-id"

	// CSINodeIDsAnnotation on a Node is a JSON map of driver name to CSI node ID.
	CSINodeIDsAnnotation = "csi.volume.kubernetes.io/nodeid"

	// OutOfServiceTaint on a Node means that the machine is shut down and that its volumes may be detached although they were in
	// use. Only the key counts (k/k api/core/v1.TaintNodeOutOfService).
	OutOfServiceTaint = "node.kubernetes.io/out-of-service"

	// FenceTaintPrefix begins the value of the out-of-service taint that a fence of belay sets; the epoch of the fence follows.
	FenceTaintPrefix = "belay-"
	// FencedBootAnnotation on a Node is the boot ID that the fence's out-of-service taint is about. Both are written in one patch.
	FencedBootAnnotation = "belay.dev/fenced-boot"
	// FenceEpochAnnotation on a Node is the epoch of the latest NodeFence of the node.
	FenceEpochAnnotation = "belay.dev/fence-epoch"
	// UnfencedBootAnnotation on a VolumeAttachment of a deleted Node is the boot ID whose NodeFence a client deleted: recovery begins no other
	// one for that boot.
	UnfencedBootAnnotation = "belay.dev/unfenced-boot"
	// IsolationTaint on a Node, with the effect NoSchedule and a value as of the out-of-service taint, keeps new pods from a node that is
	// being fenced, or was released a moment ago.
	IsolationTaint = "fencing.belay.dev/isolated"
	// FenceOptOutAnnotation on a Node keeps recovery from fencing it, unless its value is "false".
	FenceOptOutAnnotation = "fencing.belay.dev/opt-out"
	// CutsAtUnpublishAnnotation on a CSIDriver, with the value "true", is an administrator's word that ControllerUnpublishVolume returns OK
	// only once no I/O of the node can reach the volume any more, also if the node runs and does not cooperate.
	CutsAtUnpublishAnnotation = "fencing.belay.dev/cuts-at-unpublish"
	// MaintenanceInProgress is a condition of a Node (KEP-5683): its owner works on the machine, so its silence is expected.
	MaintenanceInProgress = "MaintenanceInProgress"

	// FenceMachineAnnotation on a FenceSource is a person's word that its switches belong to the machine with this system UUID. It is
	// needed where no switch reports the identity of its hardware.
	FenceMachineAnnotation = "fencing.belay.dev/machine"
	// AddressesAnnotation on the Secret of a power switch names where it may be sent: hosts, networks, and agents that belay does not know, separated by
	// commas. Who may write a FenceSource does not choose it.
	AddressesAnnotation = "fencing.belay.dev/addresses"
	// AllowPlainAnnotation on such a Secret, "true", allows a protocol that shows it, or does not check who answers.
	AllowPlainAnnotation = "fencing.belay.dev/allow-plain"

	// DetachRequestedAnnotation on a VolumeAttachment is the time, in RFC 3339, at which a detach first had to wait. It is removed
	// when the volume is wanted again.
	DetachRequestedAnnotation = "belay.dev/detach-requested-at"

	// DetachesRequestedAnnotation on a Node is a JSON object of unique volume name to the time, in RFC 3339, at which a detach
	// first had to wait, for volumes without a VolumeAttachment. An entry is removed when the volume is wanted again, or is neither
	// reported nor in use.
	DetachesRequestedAnnotation = "belay.dev/detaches-requested-at"

	// DetachCalledOffAnnotation on a VolumeAttachment is the time, in RFC 3339, at which a detach was last called off. It is never
	// read: writing it gives the object a new version.
	DetachCalledOffAnnotation = "belay.dev/detach-called-off-at"

	// ReportCheckedAnnotation on a Node is the time, in RFC 3339, at which it last got a new version only to make late writes of an
	// earlier leader fail. It is never read.
	ReportCheckedAnnotation = "belay.dev/report-checked-at"

	// LeadingSinceAnnotation on one Node and one VolumeAttachment is the time, in RFC 3339, at which a leader of belay-controller
	// or belay-attacher started. It is never read: writing it is an event that the watch caches have to reach before anything is
	// decided (ADR 17).
	LeadingSinceAnnotation = "belay.dev/leading-since"

	// ReasonAnnotation on an Event is the attachment.Reason of the event: the reasons of events are upstream's, and there are
	// fewer.
	ReasonAnnotation = "belay.dev/reason"

	// VolumeHandleAnnotation on a VolumeAttachment is the handle of its volume, so that the volume is known after its
	// PersistentVolume is gone.
	VolumeHandleAnnotation = "belay.dev/volume-handle"

	// PublishedHandleAnnotation on a VolumeAttachment is the handle of the volume that belay-attacher published, or is about to
	// publish, for it. It remains when the PersistentVolume is recreated for another volume.
	PublishedHandleAnnotation = "belay.dev/published-handle"

	// PublishSecretAnnotation on a VolumeAttachment is namespace/name of the Secret for the calls of the published volume (the
	// PersistentVolume's controllerPublishSecretRef), if it needs one. A person may change it: it is the one for the unpublish.
	PublishSecretAnnotation = "belay.dev/publish-secret" //nolint:gosec // a name

	// DeclaredGoneAnnotation on a VolumeAttachment is a Declaration, which "kubectl belay declare-gone" writes.
	DeclaredGoneAnnotation = "belay.dev/declared-gone"

	// RetryAnnotation on a VolumeAttachment, with any new value, is a person's request to call the driver now.
	RetryAnnotation = "retry"

	// NodeUIDAnnotation, BootIDAnnotation, SystemUUIDAnnotation and ProviderIDAnnotation on a VolumeAttachment identify the Node
	// object, the boot and the machine it was attached to.
	NodeUIDAnnotation    = "belay.dev/node-uid"
	BootIDAnnotation     = "belay.dev/boot-id"
	SystemUUIDAnnotation = "belay.dev/system-uuid"
	ProviderIDAnnotation = "belay.dev/provider-id"

	// SameMachineAnnotation on a VolumeAttachment is the CSI node ID that its node has now, recorded by belay-controller where the machine is
	// known to be the one that the volume was attached to under another ID: a driver's upgrade may change the form of its IDs. It is
	// overwritten and never removed.
	SameMachineAnnotation = "belay.dev/node-id-of-same-machine"

	// UnpublishedFromAnnotation on a VolumeAttachment of an exclusive volume is a JSON list of {"nodeID", "node"}: the CSI node IDs of which its
	// driver confirmed an unpublish since it last confirmed a publish, and the Nodes that had them. belay-attacher repeats the unpublish if the driver then refuses to publish.
	UnpublishedFromAnnotation = "belay.dev/unpublished-from"

	// TraceparentAnnotation passes the context of a span to the components that continue its work (KEP-5915), in the form of the W3C header
	// traceparent. It is written only with traces on.
	TraceparentAnnotation = "tracing.k8s.io/traceparent"
	// TraceparentLength is the length of a traceparent of version 00, the only version there is. A longer value is not kept.
	TraceparentLength = 55

	// FibreChannelPlugin and ISCSIPlugin are used as driver names for volumes that the node connects by itself (k/k pkg/volume/fc,
	// pkg/volume/iscsi). No CSI driver can have such a name.
	FibreChannelPlugin = "kubernetes.io/fc"
	ISCSIPlugin        = "kubernetes.io/iscsi"

	// FibreChannelAttacher and ISCSIAttacher are the attachers that the VolumeAttachments of these volumes name. No attacher acts on them:
	// they are belay-controller's record of which node has the volume, which no kubelet can write (ADR 29).
	FibreChannelAttacher = "fc.belay.dev"
	ISCSIAttacher        = "iscsi.belay.dev"

	// ManagedByLabel, with the value FieldManager, is on the VolumeAttachments that no attacher acts on
	// (https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/).
	ManagedByLabel = "app.kubernetes.io/managed-by"

	// MaxRecordedHandle is the longest handle, in bytes, that is recorded in an annotation: an object's annotations are limited to
	// 256 KiB in total.
	MaxRecordedHandle = 128 << 10

	// ownPrefix is the prefix of belay's annotations.
	ownPrefix = "belay.dev/"

	// csiPluginPrefix is the prefix of the unique name of every CSI volume.
	csiPluginPrefix = "kubernetes.io/csi/"
)

// IsOwnAnnotation reports whether an annotation is one of belay's.
func IsOwnAnnotation(name string) bool { return strings.HasPrefix(name, ownPrefix) }

// notFinalizerChar matches what csi-attacher replaces in a driver's name.
var notFinalizerChar = regexp.MustCompile("[^a-zA-Z0-9-]")

// AttachmentName returns the name of the VolumeAttachment of a volume on a node: "csi-" and the lower-case hex SHA-256 of handle,
// driver and node, joined without separators. Kubelet computes it too and reads the object by it.
func AttachmentName(handle, driver, node string) string {
	name := attachmentName(handle, driver, node)
	return string(name[:])
}

// IsAttachmentNameOf reports whether AttachmentName returns the name. It allocates nothing: it is asked for each attachment of a cluster.
func IsAttachmentNameOf(name, handle, driver, node string) bool {
	computed := attachmentName(handle, driver, node)
	return string(computed[:]) == name
}

const attachmentPrefix = "csi-"

func attachmentName(handle, driver, node string) (name [len(attachmentPrefix) + 2*sha256.Size]byte) {
	joined := append(append(append(make([]byte, 0, 256), handle...), AttacherOf(driver)...), node...)
	sum := sha256.Sum256(joined)
	copy(name[:], attachmentPrefix)
	hex.Encode(name[len(attachmentPrefix):], sum[:])
	return name
}

// computedName matches the names that AttachmentName returns.
var computedName = regexp.MustCompile("^csi-[0-9a-f]{64}$")

// IsAttachmentName reports whether AttachmentName may have returned the name, for any volume. Another client chose the others.
func IsAttachmentName(name string) bool { return computedName.MatchString(name) }

// NoAttacher reports whether the node connects volumes of this driver by itself. Their VolumeAttachments are confirmed without an attacher.
func NoAttacher(driver string) bool {
	return driver == FibreChannelPlugin || driver == ISCSIPlugin
}

// AttacherOf returns the spec.attacher of the VolumeAttachments of a driver's volumes.
func AttacherOf(driver string) string {
	switch driver {
	case FibreChannelPlugin:
		return FibreChannelAttacher
	case ISCSIPlugin:
		return ISCSIAttacher
	}
	return driver
}

// DriverOf returns the driver of the volumes whose VolumeAttachments name the attacher.
func DriverOf(attacher string) string {
	switch attacher {
	case FibreChannelAttacher:
		return FibreChannelPlugin
	case ISCSIAttacher:
		return ISCSIPlugin
	}
	return attacher
}

// UniqueVolumeName returns the name of a volume in node.status.volumesAttached and node.status.volumesInUse (k/k
// pkg/volume/util.GetUniqueVolumeName).
func UniqueVolumeName(driver, handle string) string {
	if NoAttacher(driver) {
		return driver + "/" + handle
	}
	return csiPluginPrefix + driver + "^" + handle
}

// InlineVolumeName returns the name of a CSI volume in a pod's spec. It is never in a Node's lists (k/k
// pkg/volume/util.GetUniqueVolumeNameFromSpecWithPod).
func InlineVolumeName(podUID, volume string) string { return csiPluginPrefix + podUID + "-" + volume }

// ParseUniqueVolumeName splits a unique name into driver and handle. A handle may contain "^", so it is cut at the first one: a
// driver's name never contains it. ok is false for plugins that belay does not support.
func ParseUniqueVolumeName(name string) (driver, handle string, ok bool) {
	for _, plugin := range []string{FibreChannelPlugin, ISCSIPlugin} {
		if handle, ok := strings.CutPrefix(name, plugin+"/"); ok {
			return plugin, handle, handle != ""
		}
	}
	rest, ok := strings.CutPrefix(name, csiPluginPrefix)
	if !ok {
		return "", "", false
	}
	driver, handle, ok = strings.Cut(rest, "^")
	return driver, handle, ok && driver != "" && handle != ""
}

// AttacherFinalizer returns the finalizer that the attacher of a driver sets on VolumeAttachments and PersistentVolumes, as
// csi-attacher spells it.
func AttacherFinalizer(driver string) string {
	return "external-attacher/" + SanitizeDriverName(driver)
}

// SanitizeDriverName makes a driver's name valid in object names: every character outside [a-zA-Z0-9-] becomes "-", and a trailing
// "-" is followed by "X".
func SanitizeDriverName(driver string) string {
	name := notFinalizerChar.ReplaceAllString(driver, "-")
	if strings.HasSuffix(name, "-") {
		name += "X"
	}
	return name
}
