package explain

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Why the volumes of a pod are not known or not mounted: the causes of MountsFailed, and the errors for a caller that waits.

// ClaimsNotRead is the wait of a pod whose claims are about to be read.
const ClaimsNotRead = "the pod's claims have not been read yet"

// LabelsNotKnown is why a node affinity cannot be checked.
const LabelsNotKnown = "the labels of this node are not known yet"

// NotMounted describes a wait for the volumes of a pod that has ended, one volume per line.
func NotMounted(uid string, cause error, volumes []string) string {
	return strings.Join(append([]string{fmt.Sprintf("wait for the volumes of pod %s: %s", uid, endOfWait(cause))}, volumes...), "\n")
}

// NotUnmounted describes a wait for the unmount of a pod's volumes that has ended.
func NotUnmounted(uid string, cause error, volumes []string) string {
	return fmt.Sprintf("wait for the unmount of the volumes of pod %s: %s; still published: %s", uid, endOfWait(cause), strings.Join(volumes, ", "))
}

// endOfWait describes why a wait has ended, without Go's words for it.
func endOfWait(cause error) string {
	switch {
	case errors.Is(cause, context.DeadlineExceeded):
		return "timed out"
	case errors.Is(cause, context.Canceled):
		return "canceled"
	}
	return cause.Error()
}

// StillPublished names a volume and why it is not unmounted.
func StillPublished(volume, why string) string { return volume + " (" + why + ")" }

// LastFailure adds the last failure to the state of a volume.
func LastFailure(state string, err error) string {
	return fmt.Sprintf("%s; last failure: %v", state, err)
}

// ReasonWithCause adds to a reason what it is in this case.
func ReasonWithCause(reason string, cause error) string { return fmt.Sprintf("%s: %v", reason, cause) }

// OtherPods names the other pods of a volume, for the end of a text.
func OtherPods(names []string) string { return " (" + strings.Join(names, ", ") + ")" }

// PodGone reports that a pod was removed meanwhile.
func PodGone(uid string) string {
	return fmt.Sprintf("pod %s no longer needs the volume on this node", uid)
}

// PodBeingDeleted reports that nothing is mounted any more for a pod that is being deleted.
func PodBeingDeleted(pod, volume string) string {
	return fmt.Sprintf("pod %s is being deleted; volume %q is no longer mounted for it", pod, volume)
}

// ClaimRecreated reports that the claim is not the one that the pod was bound to.
func ClaimRecreated(namespace, name string) string {
	return fmt.Sprintf("claim %s/%s was recreated after the pod was bound", namespace, name)
}

// ClaimOfOtherOwner reports that the claim of a generic ephemeral volume belongs to something else; the end is upstream's.
func ClaimOfOtherOwner(namespace, name, pod string) string {
	return fmt.Sprintf("claim %s/%s was not created for pod %s (pod is not its owner)", namespace, name, pod)
}

// ClaimBeingDeleted reports that the claim has no protection any more; the end is kubelet's.
func ClaimBeingDeleted(namespace, name string) string {
	return fmt.Sprintf("claim %s/%s: PVC is being deleted", namespace, name)
}

// ClaimWithoutVolume reports that the claim has no PersistentVolume.
func ClaimWithoutVolume(namespace, name string) string {
	return fmt.Sprintf("claim %s/%s is not bound", namespace, name)
}

// VolumeNotBound reports that the PersistentVolume is bound to an earlier claim of that name.
func VolumeNotBound(volume, namespace, claim string) string {
	return fmt.Sprintf("volume %s is not bound to claim %s/%s (the UIDs differ)", volume, namespace, claim)
}

// ModesDiffer reports that the volumeMode of a volume is not that of its claim.
func ModesDiffer(volume, mode, namespace, claim, claimMode string) string {
	return fmt.Sprintf("volume %s has volumeMode %s, its claim %s/%s has %s", volume, mode, namespace, claim, claimMode)
}

// BlockVolumeMounted reports that a container mounts a block volume.
func BlockVolumeMounted(volume string) string {
	return fmt.Sprintf("volume %s has volumeMode Block, but is specified in volumeMounts", volume)
}

// FilesystemVolumeAsDevice reports that a container uses a file system as a device.
func FilesystemVolumeAsDevice(volume string) string {
	return fmt.Sprintf("volume %s has volumeMode Filesystem, but is specified in volumeDevices", volume)
}

// InvalidName reports a name that cannot be part of a path.
func InvalidName(what string, err error) string { return fmt.Sprintf("%s: %v", what, err) }

// InvalidHandle reports a volume handle that no driver can be called with.
func InvalidHandle(volume, handle string) string {
	return fmt.Sprintf("volume %s: handle %q is empty or contains control characters", volume, handle)
}

// SamePath reports that two volumes of a pod have one target path.
func SamePath(one, other, volume string) string {
	return fmt.Sprintf("volumes %q and %q would be published at the same path: an inline volume may not have the name of a PersistentVolume that its pod claims (%s)",
		one, other, volume)
}

// NoSELinuxLabel reports that the options of a container have no label; the text is kubelet's.
func NoSELinuxLabel(options string, err error) string {
	return fmt.Sprintf("failed to construct SELinux label from context %s: %v", options, err)
}

// SeveralSELinuxLabels reports that the containers of a pod disagree; the text is kubelet's.
func SeveralSELinuxLabels(labels []string) string {
	return "multiple SELinux labels found: " + strings.Join(labels, ",")
}

// DeviceHasNoSubPaths reports that a subPath of a block volume is wanted.
func DeviceHasNoSubPaths(volume string) string {
	return fmt.Sprintf("volume %q is a device and has no subPaths", volume)
}

// AffinityDiffers reports that the node affinity of a volume excludes the node.
func AffinityDiffers(volume string, err error) string {
	return fmt.Sprintf("node affinity of volume %s: %v", volume, err)
}

// ModeNotSupported reports that the CSIDriver does not list the lifecycle mode of a volume; the text is kubelet's.
func ModeNotSupported(mode, driver string, modes any) string {
	return fmt.Sprintf("volume mode %q not supported by driver %s (only supports %q)", mode, driver, modes)
}

// NoCSIDriver reports that an inline volume needs a CSIDriver; the text is kubelet's.
func NoCSIDriver(mode, driver string) string {
	return fmt.Sprintf("volume mode %q not supported by driver %s (no CSIDriver object)", mode, driver)
}

// VolumeNotMounted is the reason of the event for a volume that belay-node leaves to other programs.
const VolumeNotMounted = "VolumeNotMounted"

// NotCSIVolume reports that belay-node does not mount the volume of a claim.
func NotCSIVolume(volume, claim, source string) string {
	return fmt.Sprintf("PersistentVolume %s of claim %s is not a CSI volume (%s): belay-node does not mount it, and leaves it to the program that runs the containers of the pod",
		volume, claim, source)
}

// PodVolumeProblem reports a problem of a volume, which is named as the pod names it.
func PodVolumeProblem(volume string, problem error) string {
	return fmt.Sprintf("Volume %q: %v", volume, problem)
}
