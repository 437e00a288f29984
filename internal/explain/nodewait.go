package explain

import (
	"cmp"
	"fmt"
	"time"

	"belay.dev/belay/internal/nodevolume"
)

// nodeReasons describe the reasons to a user.
var nodeReasons = map[nodevolume.Reason]string{
	nodevolume.AttachabilityUnknown:     "the CSIDrivers have not been listed yet, so it is unknown whether the driver requires an attach",
	nodevolume.NodeUnknown:              "the Node object has not been read or does not exist",
	nodevolume.NotReportedInUse:         "the Node does not list the volume in status.volumesInUse yet; belay-node writes it",
	nodevolume.NotAttached:              "Volume not attached according to node status; the attach/detach controller reports it in status.volumesAttached",
	nodevolume.DriverNotRegistered:      "the driver is not registered on this node",
	nodevolume.OtherSELinuxLabelWanted:  "the pod that uses the volume must terminate first",
	nodevolume.OtherSELinuxLabelMounted: "the volume is mounted with another SELinux label and is being unmounted",
	nodevolume.OtherPodMounted:          "volume uses the ReadWriteOncePod access mode and is already in use by another pod",
	nodevolume.UnaccountedMount:         "the volume may be mounted on this node without a record: a record cannot be read, or a kubelet left a mount; the log of belay-node has the path and the remedy",
	nodevolume.BackingOff:               "the last call failed and is retried after a back-off",
	nodevolume.AttachmentNotReady:       "the status of the VolumeAttachment is not attached",
	nodevolume.AttachmentReplaced:       "the VolumeAttachment was recreated after the volume was staged, and the pods that use the earlier attachment must terminate first",
	nodevolume.OwnerSilent:              "the pod is only known from a record: its object or its claims have not been read",
	nodevolume.ContainersMayRun:         "the pod was deleted or has terminated, but its containers may still run",
	nodevolume.StillMountedElsewhere:    "another process on this node still has the volume mounted and may write to it; the log of belay-node names it",
	nodevolume.InUseNotCleared:          "the volume is unmounted and is being removed from status.volumesInUse",
}

// NodeReason describes a reason; an empty one means that the work is in progress.
func NodeReason(reason nodevolume.Reason) string {
	return cmp.Or(nodeReasons[reason], "is in progress")
}

// LastError describes a reason, followed by the last error.
func LastError(reason nodevolume.Reason, problem string) string {
	return fmt.Sprintf("%s; last error: %s", NodeReason(reason), problem)
}

// NotRegistered adds the driver's name to a wait for a driver that is not registered, in kubelet's text.
func NotRegistered(why, driver string) string {
	return fmt.Sprintf("%s: driver name %s not found in the list of registered CSI drivers", why, driver)
}

// OtherLabelWanted is why a pod waits for a volume that another pod uses with another SELinux label.
func OtherLabelWanted(volume, mounted, wanted string) string {
	return fmt.Sprintf("conflicting SELinux labels of volume %s: %q and %q; %s",
		volume, mounted, wanted, NodeReason(nodevolume.OtherSELinuxLabelWanted))
}

// OtherLabelMounted is why a pod waits for the unmount of a volume that no pod wants with its present SELinux label.
func OtherLabelMounted(volume string) string {
	return fmt.Sprintf("waiting for unmount of volume %q, because it is already mounted to a different pod with a different SELinux label", volume)
}

// NodeWait is why a volume waits on a node, and since when.
type NodeWait struct {
	Reason nodevolume.Reason
	// Since is zero if unknown.
	Since time.Time
	// Detail is what the reason means in this case.
	Detail string
}

func (h NodeWait) text() string {
	if h.Since.IsZero() {
		return fmt.Sprintf("waiting: %s (%s)", h.Detail, h.Reason)
	}
	return fmt.Sprintf("waiting since %s: %s (%s)", stamp(h.Since), h.Detail, h.Reason)
}

// Waits is the cause of a step that cannot start. If kubelet has a text for it that operators match on, that comes first.
func (h NodeWait) Waits() string {
	if h.Reason == nodevolume.OtherPodMounted {
		return fmt.Sprintf("%s; waiting since %s (%s)", h.Detail, stamp(h.Since), h.Reason)
	}
	return h.text()
}

// AsOf is the same for a caller that is waiting, with the duration of the wait.
func (h NodeWait) AsOf(now time.Time) string {
	return fmt.Sprintf("has been waiting since %s: %s (%s)", sinceText(h.Since, now), h.Detail, h.Reason)
}

// NodeCall is a call that a driver has not answered yet.
type NodeCall struct {
	Driver, Method string
	Since          time.Time
	Timeout        time.Duration
}

// Unanswered names the call and its start.
func (c NodeCall) Unanswered() string {
	return fmt.Sprintf("CSI driver %q has not answered %s since %s", c.Driver, c.Method, stamp(c.Since))
}

// Pending is the cause of a step whose call has not ended.
func (c NodeCall) Pending() string {
	return fmt.Sprintf("%s; the call times out after %s", c.Unanswered(), c.Timeout)
}

// AsOf is the same for a caller that is waiting, with the duration of the call.
func (c NodeCall) AsOf(now time.Time) string {
	return fmt.Sprintf("is waiting: CSI driver %q has not answered %s since %s; the call times out after %s",
		c.Driver, c.Method, sinceText(c.Since, now), c.Timeout)
}

// sinceText is a time and how long ago it was.
func sinceText(since, now time.Time) string {
	return fmt.Sprintf("%s (for %s)", stamp(since), now.Sub(since).Round(time.Millisecond))
}

// NodeVolume is the state of a volume for a caller that is waiting. It names the volume in the pod, and its PersistentVolume.
func NodeVolume(volume, persistent, state string) string {
	if state != "" {
		state = " " + state
	}
	return fmt.Sprintf("volume %q (%s)%s", volume, persistent, state)
}

// GroupChange reports the progress of a change of ownership to the pod's fsGroup.
func GroupChange(group, files int64) string {
	return fmt.Sprintf("is waiting for the ownership of its files to be set to fsGroup %d, %d files so far", group, files)
}

// What an operator can do about an error.

// GrantAccess is the remedy for an error that the API server returns as forbidden.
func GrantAccess(node string) string {
	return "give belay-node the credential of system:node:" + node + ", or the ClusterRole of deploy/belay-node"
}

// FreeSpace is the remedy for a full disk.
func FreeSpace(root string) string { return "free space on the file system of " + root }

// MakeWritable is the remedy for a read-only file system.
func MakeWritable(root string) string { return "make " + root + " writable" }

// ReplaceLink is the remedy for a symbolic link out of the root.
func ReplaceLink(root string) string {
	return "replace the link with a directory and mount the target of the link there (mount --rbind TARGET DIRECTORY). To keep all of " + root + " elsewhere, make that a link, or use another root"
}
