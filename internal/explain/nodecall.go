package explain

import (
	"cmp"
	"fmt"
)

// Why a step of a volume on a node failed: the causes of NodeStep. Texts that kubelet has are kubelet's (k/k pkg/volume/csi,
// pkg/volume/util/operationexecutor).

// AttachmentNotRead wraps why the VolumeAttachment could not be read; the text is kubelet's.
func AttachmentNotRead(handle, name string, err error) error {
	return fmt.Errorf("volume %s has GET error for volume attachment %s: %w", handle, name, err)
}

// AttachmentDeleting reports that the volume is being detached; it begins with kubelet's text.
func AttachmentDeleting(name string) string {
	return fmt.Sprintf("volume attachment is being deleted (%s)", name)
}

// NotAttachedFor reports that the VolumeAttachment is not attached; the text is kubelet's.
func NotAttachedFor(handle, name string) string {
	return fmt.Sprintf("volume %s is not attached for volume attachment %s", handle, name)
}

// NotTidied wraps why something is left at a path after a call; did is what the driver did, by default that it returned OK.
func NotTidied(driver, did string, err error) error {
	return fmt.Errorf("driver %s %s, but: %w", driver, cmp.Or(did, "returned OK"), err)
}

// NoLongerStages is what a driver did that lacks the call to undo a stage, and the remedy.
func NoLongerStages(path string) string {
	return "no longer has STAGE_UNSTAGE_VOLUME and cannot unstage what an earlier version staged (remedy: umount " + path + ")"
}

// NothingPublished reports that a publish that succeeded has no effect that belay-node sees, and what to check.
func NothingPublished(driver, handle, target, root string, block bool) string {
	missing := "nothing is mounted"
	if block {
		missing = "there is no block device"
	}
	return fmt.Sprintf("driver %s returned OK to NodePublishVolume of volume %s, but %s at %s; "+
		"if the driver runs in a container, it must mount %s with mountPropagation Bidirectional, and belay-node must see the mounts",
		driver, handle, missing, target, root)
}

// ExpandNotSupported reports that a driver lacks EXPAND_VOLUME.
func ExpandNotSupported(driver string) string {
	return "NodeExpand is not supported by the CSI driver " + driver
}

// ExpandClaimNotRead wraps why the claim could not be read; the text is kubelet's.
func ExpandClaimNotRead(err error) error {
	return fmt.Errorf("mountVolume.NodeExpandVolume get PVC failed : %w", err)
}

// ExpandNotMarked wraps why the beginning of an expansion could not be recorded; the text is kubelet's.
func ExpandNotMarked(err error) error {
	return fmt.Errorf("MountVolume.NodeExpandVolume failed to mark node expansion in progress: %w", err)
}

// ExpandNotRecorded wraps why the new size could not be recorded; the text is kubelet's.
func ExpandNotRecorded(err error) error {
	return fmt.Errorf("mountVolume.NodeExpandVolume update pvc status failed: %w", err)
}

// ExpandCondition is the message of the claim's condition after a failed expansion; the text is kubelet's.
func ExpandCondition(err error) string { return fmt.Sprintf("failed to expand pvc with %v", err) }

// Reasons of the events about a change of ownership to the pod's fsGroup; the first is kubelet's.
const (
	VolumePermissionChangeInProgress = "VolumePermissionChangeInProgress"
	VolumePermissionChangeRefused    = "VolumePermissionChangeRefused"
)

// OwnershipNotSet wraps why the ownership could not be changed; the text is kubelet's.
func OwnershipNotSet(handle string, err error) error {
	return fmt.Errorf("applyFSGroup failed for vol %s: %w", handle, err)
}

// OwnershipSlow reports that the change takes long; the text is kubelet's.
func OwnershipSlow(where string) string {
	const help = "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods"
	return fmt.Sprintf("Setting volume ownership for %s is taking longer than expected, consider using OnRootMismatch - %s", where, help)
}

// OwnershipProgress reports the progress of a slow change; the text is kubelet's.
func OwnershipProgress(where string, files int64) string {
	return fmt.Sprintf("Setting volume ownership for %s, processed %d files.", where, files)
}

// OwnershipRefused reports that the file system refused changes, and that the pod gets the volume.
func OwnershipRefused(volume string, refused int64, group int, first error) string {
	return fmt.Sprintf("The file system of volume %q refused %d changes for fsGroup %d; the pod gets it as it is. The first: %v", volume, refused, group, first)
}
