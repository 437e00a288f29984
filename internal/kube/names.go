package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// Names and constants that upstream components read and write too. They are a
// contract: kubelets, drivers, sidecars and operators compute or match them.
const (
	// VolumesRootAnnotation on a Node says where its node agent keeps the records of its volumes: the boot ID of the machine, a
	// space, and the root directory. An agent of the same boot with another root directory does not start.
	VolumesRootAnnotation = "belay.dev/volumes-root"
	// ManagedAttachAnnotation on a Node hands attach and detach to the controller.
	// Only the key counts, whatever its value (k/k pkg/volume/util.ControllerManagedAttachAnnotation).
	ManagedAttachAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"

	// NodeIDAnnotation on a VolumeAttachment is the CSI node ID that was sent to
	// the driver at attach; detach sends the same one.
	NodeIDAnnotation = "csi.alpha.kubernetes.io/node-id"

	// CSINodeIDsAnnotation on a Node is a JSON map of driver name to CSI node ID.
	CSINodeIDsAnnotation = "csi.volume.kubernetes.io/nodeid"

	// OutOfServiceTaint on a Node says that the machine is shut down and that its
	// volumes may be detached although they were in use. Only the key counts
	// (k/k api/core/v1.TaintNodeOutOfService).
	OutOfServiceTaint = "node.kubernetes.io/out-of-service"

	// DetachRequestedAnnotation on a VolumeAttachment is the time, in RFC 3339, at
	// which a detach first had to wait. It is taken off when the volume is wanted again.
	DetachRequestedAnnotation = "belay.dev/detach-requested-at"

	// DetachesRequestedAnnotation on a Node is a JSON object of unique volume name to
	// the time, in RFC 3339, at which a detach first had to wait: for volumes without a
	// VolumeAttachment. An entry is taken off when the volume is wanted again, or is
	// neither reported nor in use.
	DetachesRequestedAnnotation = "belay.dev/detaches-requested-at"

	// DetachCalledOffAnnotation on a VolumeAttachment is the time, in RFC 3339, of the
	// last withdrawal that was called off. Nobody reads it: writing it gives the
	// object a new version.
	DetachCalledOffAnnotation = "belay.dev/detach-called-off-at"

	// ReportCheckedAnnotation on a Node is the time, in RFC 3339, at which it was last
	// given a new version for no other reason than to make late writes of an earlier
	// leader fail. Nobody reads it.
	ReportCheckedAnnotation = "belay.dev/report-checked-at"

	// LeadingSinceAnnotation on one Node and one VolumeAttachment is the time, in RFC 3339,
	// at which a leader of belay-controller or belay-attacher began. Nothing reads it: writing it is an event that the
	// watch caches have to reach before anything is decided (ADR 17).
	LeadingSinceAnnotation = "belay.dev/leading-since"

	// ReasonAnnotation on an Event is the attachment.Reason behind it: the reasons of
	// events themselves are upstream's, and fewer.
	ReasonAnnotation = "belay.dev/reason"

	// VolumeHandleAnnotation on a VolumeAttachment is the handle of its volume, so that
	// the volume is known when its PersistentVolume no longer is.
	VolumeHandleAnnotation = "belay.dev/volume-handle"

	// PublishedHandleAnnotation on a VolumeAttachment is the handle of the volume that
	// belay-attacher published, or is about to publish, for it. The PersistentVolume may be
	// recreated under its name for another volume; this stays.
	PublishedHandleAnnotation = "belay.dev/published-handle"

	// PublishSecretAnnotation on a VolumeAttachment is namespace/name of the Secret that the
	// published volume's calls need (the PersistentVolume's controllerPublishSecretRef). There
	// is none where the volume needs none.
	PublishSecretAnnotation = "belay.dev/publish-secret" //nolint:gosec // a name

	// NodeUIDAnnotation, BootIDAnnotation, SystemUUIDAnnotation and ProviderIDAnnotation
	// on a VolumeAttachment record which Node object, which boot and which machine it was
	// attached to.
	NodeUIDAnnotation    = "belay.dev/node-uid"
	BootIDAnnotation     = "belay.dev/boot-id"
	SystemUUIDAnnotation = "belay.dev/system-uuid"
	ProviderIDAnnotation = "belay.dev/provider-id"

	// FibreChannelPlugin and ISCSIPlugin stand in place of a driver's name for volumes
	// that the node connects by itself: they are reported like others, and have no
	// VolumeAttachment (k/k pkg/volume/fc, pkg/volume/iscsi). No CSI driver can have
	// such a name.
	FibreChannelPlugin = "kubernetes.io/fc"
	ISCSIPlugin        = "kubernetes.io/iscsi"

	// MaxRecordedHandle is the longest handle, in bytes, that is recorded in an annotation:
	// an object's annotations may have 256 KiB in all.
	MaxRecordedHandle = 128 << 10

	// ownPrefix begins the names of belay's annotations.
	ownPrefix = "belay.dev/"

	// csiPluginPrefix begins the unique name of every CSI volume.
	csiPluginPrefix = "kubernetes.io/csi/"
)

// IsOwnAnnotation reports whether an annotation is one of belay's.
func IsOwnAnnotation(name string) bool { return strings.HasPrefix(name, ownPrefix) }

// notFinalizerChar matches what csi-attacher replaces in a driver's name.
var notFinalizerChar = regexp.MustCompile("[^a-zA-Z0-9-]")

// AttachmentName is the name of the VolumeAttachment of a volume on a node:
// "csi-" and the lower-case hex SHA-256 of handle, driver and node, joined
// without separators. Kubelet computes it too and reads the object by it.
func AttachmentName(handle, driver, node string) string {
	const prefix = "csi-"
	sum := sha256.Sum256([]byte(handle + driver + node))
	var name [len(prefix) + 2*sha256.Size]byte
	copy(name[:], prefix)
	hex.Encode(name[len(prefix):], sum[:])
	return string(name[:])
}

// computedName matches what AttachmentName gives.
var computedName = regexp.MustCompile("^csi-[0-9a-f]{64}$")

// IsAttachmentName tells whether a VolumeAttachment's name is one that AttachmentName
// may have given, to whatever volume. Others were chosen by somebody.
func IsAttachmentName(name string) bool { return computedName.MatchString(name) }

// NoVolumeAttachment tells whether volumes of this driver have no VolumeAttachment.
func NoVolumeAttachment(driver string) bool {
	return driver == FibreChannelPlugin || driver == ISCSIPlugin
}

// UniqueVolumeName is the name of a volume in node.status.volumesAttached and
// node.status.volumesInUse (k/k pkg/volume/util.GetUniqueVolumeName).
func UniqueVolumeName(driver, handle string) string {
	if NoVolumeAttachment(driver) {
		return driver + "/" + handle
	}
	return csiPluginPrefix + driver + "^" + handle
}

// InlineVolumeName is the name of a CSI volume that stands in a pod's spec. It is never
// in a Node's lists (k/k pkg/volume/util.GetUniqueVolumeNameFromSpecWithPod).
func InlineVolumeName(podUID, volume string) string { return csiPluginPrefix + podUID + "-" + volume }

// ParseUniqueVolumeName splits a unique name into driver and handle. A handle may
// hold "^" itself, so the cut is at the first one: a driver's name never holds it.
// It is not ok with the names of plugins that belay does not drive.
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

// AttacherFinalizer is the finalizer that the attacher of a driver keeps on
// VolumeAttachments and PersistentVolumes, as csi-attacher spells it.
func AttacherFinalizer(driver string) string {
	return "external-attacher/" + SanitizeDriverName(driver)
}

// SanitizeDriverName makes a driver's name fit for object names: every character
// outside [a-zA-Z0-9-] becomes "-", and a trailing "-" is followed by "X".
func SanitizeDriverName(driver string) string {
	name := notFinalizerChar.ReplaceAllString(driver, "-")
	if strings.HasSuffix(name, "-") {
		name += "X"
	}
	return name
}
