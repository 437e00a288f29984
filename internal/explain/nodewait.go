package explain

import (
	"cmp"
	"fmt"
	"time"

	"belay.dev/belay/internal/nodevolume"
)

// nodeReasons describe the reasons to the user who waits.
var nodeReasons = map[nodevolume.Reason]string{
	nodevolume.AttachabilityUnknown:     "what the driver needs is not known until the CSIDrivers have been listed",
	nodevolume.NodeUnknown:              "the Node object has not been read or does not exist",
	nodevolume.NotReportedInUse:         "the Node does not list the volume in status.volumesInUse yet; this agent writes it",
	nodevolume.NotAttached:              "Volume not attached according to node status; the attach/detach controller reports it in status.volumesAttached",
	nodevolume.DriverNotRegistered:      "the driver is not registered on this node",
	nodevolume.OtherSELinuxLabelWanted:  "the pod that has it must go first",
	nodevolume.OtherSELinuxLabelMounted: "the volume is mounted with another SELinux label and is being unmounted",
	nodevolume.OtherPodMounted:          "volume uses the ReadWriteOncePod access mode and is already in use by another pod",
	nodevolume.UnaccountedMount:         "the volume may be mounted here without a record of it: a record cannot be read, or a kubelet left something; the agent's log names it and what to do",
	nodevolume.BackingOff:               "the last call failed and is tried again after a while",
	nodevolume.AttachmentNotReady:       "the VolumeAttachment does not say that the volume is attached",
	nodevolume.AttachmentReplaced:       "the volume was attached anew since it was staged, and waits for pods that still use the old attachment",
	nodevolume.OwnerSilent:              "the pod is known from its record alone: its object or its claims have not been read",
	nodevolume.ContainersMayRun:         "the pod's object is gone or says that the pod is over, but its containers may run",
	nodevolume.StillMountedElsewhere:    "something on this node still has the volume mounted, and would go on writing to it",
	nodevolume.InUseNotCleared:          "the volume is unmounted and is being taken out of status.volumesInUse",
}

// NodeReason describes a reason; an empty one is work in progress.
func NodeReason(reason nodevolume.Reason) string {
	return cmp.Or(nodeReasons[reason], "is being worked on")
}

// Hindered describes a reason and the problem that is in the way.
func Hindered(reason nodevolume.Reason, problem string) string {
	return fmt.Sprintf("%s; last problem: %s", NodeReason(reason), problem)
}

// NotRegistered adds to why a volume waits for its driver that there is none of the name.
func NotRegistered(why, driver string) string {
	return fmt.Sprintf("%s: driver name %s not found in the list of registered CSI drivers", why, driver)
}

// OtherLabelWanted is why a pod waits that wants a volume with another SELinux label than that of the pod that has it.
func OtherLabelWanted(volume, mounted, wanted string) string {
	return fmt.Sprintf("conflicting SELinux labels of volume %s: %q and %q; %s",
		volume, mounted, wanted, NodeReason(nodevolume.OtherSELinuxLabelWanted))
}

// OtherLabelMounted is why a pod waits for the unmount of a volume that nobody wants with the other SELinux label.
func OtherLabelMounted(volume string) string {
	return fmt.Sprintf("waiting for unmount of volume %q, because it is already mounted to a different pod with a different SELinux label", volume)
}

// NodeHold is why a volume waits on a node, and since when.
type NodeHold struct {
	Reason nodevolume.Reason
	// Since is zero if that is not known.
	Since time.Time
	// Why is what the reason means here.
	Why string
}

func (h NodeHold) where() string {
	if h.Since.IsZero() {
		return fmt.Sprintf("in hop %s: %s", h.Reason, h.Why)
	}
	return fmt.Sprintf("in hop %s since %s: %s", h.Reason, stamp(h.Since), h.Why)
}

// Waits is the cause of a step that cannot begin. Where kubelet has a sentence for it that operators match on, that comes first.
func (h NodeHold) Waits() string {
	if h.Reason == nodevolume.OtherPodMounted {
		return fmt.Sprintf("%s; waits in hop %s since %s", h.Why, h.Reason, stamp(h.Since))
	}
	return "waits " + h.where()
}

// AsOf is the same for a caller that is waiting, with how long it has lasted.
func (h NodeHold) AsOf(now time.Time) string {
	return fmt.Sprintf("waits in hop %s since %s: %s", h.Reason, lasting(h.Since, now), h.Why)
}

// NodeCall is a call that a driver has not answered yet.
type NodeCall struct {
	Driver, Method string
	Since          time.Time
	// Timeout is after how long it is given up.
	Timeout time.Duration
}

// Unanswered names the call and since when it has been running.
func (c NodeCall) Unanswered() string {
	return fmt.Sprintf("CSI driver %q has not answered %s since %s", c.Driver, c.Method, stamp(c.Since))
}

// GivenUp is the cause of the step that has not ended.
func (c NodeCall) GivenUp() string {
	return fmt.Sprintf("%s; the call is given up after %s", c.Unanswered(), c.Timeout)
}

// AsOf is the same for a caller that is waiting, with how long it has lasted.
func (c NodeCall) AsOf(now time.Time) string {
	return fmt.Sprintf("waits: CSI driver %q has not answered %s since %s, which is given up after %s",
		c.Driver, c.Method, lasting(c.Since, now), c.Timeout)
}

// lasting is a time and how long ago it was.
func lasting(since, now time.Time) string {
	return fmt.Sprintf("%s (for %s)", stamp(since), now.Sub(since).Round(time.Millisecond))
}

// NodeVolume is the state of a volume for a caller that is waiting. It names the volume as the pod does, and its PersistentVolume.
func NodeVolume(volume, persistent, state string) string {
	if state != "" {
		state = " " + state
	}
	return fmt.Sprintf("volume %q (%s)%s", volume, persistent, state)
}

// GroupChange says that a volume's files are being given to the pod's fsGroup.
func GroupChange(group, files int64) string {
	return fmt.Sprintf("is being given to fsGroup %d, %d files so far", group, files)
}

// What a person can do about an error.

// GrantAccess is for one that the API server forbids.
func GrantAccess(node string) string {
	return "give belay-node the credential of system:node:" + node + ", or the ClusterRole of deploy/belay-node"
}

// FreeSpace is for a disk that is full.
func FreeSpace(root string) string { return "free space on the disk of " + root }

// MakeWritable is for one that is mounted read-only.
func MakeWritable(root string) string { return "make " + root + " writable" }

// ReplaceLink is for a symbolic link that leads out of the root.
func ReplaceLink(root string) string {
	return "put a directory in the place of the link and mount the link's target there: mount --rbind TARGET DIRECTORY; to have all of " + root + " elsewhere, let that be a link, or use another root"
}
