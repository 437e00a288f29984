package explain

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/publication"
)

// Reasons of the events: those on pods are upstream's, those on claims (k/k#114219) are named after them.
const (
	SuccessfulAttachVolume = "SuccessfulAttachVolume"
	FailedAttachVolume     = "FailedAttachVolume"

	DetachingVolume        = "DetachingVolume"
	SuccessfulDetachVolume = "SuccessfulDetachVolume"
	FailedDetachVolume     = "FailedDetachVolume"

	// VolumeDetachedInUse is on the pods and the claim of a volume whose VolumeAttachment was deleted while a node uses it.
	VolumeDetachedInUse = "VolumeDetachedInUse"

	// VolumePublishedElsewhere is on the pods and the claim of a volume for one node that its driver lists at another one too.
	VolumePublishedElsewhere = "VolumePublishedElsewhere"

	// VolumeDetachUnconfirmed is on the claim of a volume whose VolumeAttachment was removed before the detach was confirmed.
	VolumeDetachUnconfirmed = "VolumeDetachUnconfirmed"
)

// AttachSucceeded reports that the volume is attached (k/k operation_generator.go; the trailing blank is upstream's).
func AttachSucceeded(volume string) string {
	return fmt.Sprintf("AttachVolume.Attach succeeded for volume %q ", volume)
}

// AttachFailed reports why a volume could not be attached (k/k operation_generator.go).
func AttachFailed(volume, cause string) string {
	return fmt.Sprintf("AttachVolume.Attach failed for volume %q : %s", volume, cause)
}

// OfAnotherNamespace is the cause, for AttachFailed, if a pod names a volume in its spec that is another namespace's. It does not say whose.
const OfAnotherNamespace = "its PersistentVolume is bound to a claim of another namespace, and pods get it through that claim alone"

// CreateFailed is the cause, for AttachFailed, if the API server refused the VolumeAttachment (k/k pkg/volume/csi csi_attacher.go).
func CreateFailed(err error) string {
	return fmt.Sprintf("kubernetes.io/csi: attacher.Attach failed: %v", err)
}

// BeingDeleted is the cause, for AttachFailed, if the driver refuses to detach an old attachment to the same node. It begins with
// upstream's text.
func BeingDeleted(cause string) string {
	return "volume attachment is being deleted: " + cause
}

// DetachStarted reports that the detach from a node was requested and, if the volume may be in use there, which policy permits it
// (by, else nil) and why it may be in use.
func DetachStarted(volume string, node attachment.NodeName, by attachment.Authority, why attachment.Reason) string {
	text := fmt.Sprintf("DetachVolume.Detach started for volume %q from node %q", volume, node)
	if by == nil {
		return text
	}
	if _, proven := by.(attachment.Fenced); proven {
		return text + " without an unmount: the boot that had the volume is proven to have ended, see the NodeFence"
	}
	return text + ", which may still use it: " + nodeState(why) + policyText(by)
}

// DetachedWhileRunning is added to DetachStarted if the policy overrules that the machine is known to run.
const DetachedWhileRunning = ". But its machine runs, as its power switch or its lease shows: make sure that it writes nothing, or shut it down now"

// nodeState describes why a node's list is not available.
func nodeState(why attachment.Reason) string {
	switch why {
	case attachment.NodeGone:
		return "the Node object was deleted"
	case attachment.NodeReplaced:
		return "another machine has registered under the name of the node"
	case attachment.NodeReturned:
		return "the node was deleted, has registered again and is not Ready"
	default:
		return "the node is not Ready"
	}
}

func policyText(by attachment.Authority) string {
	switch by.(type) {
	case attachment.OutOfServiceTaint:
		return " and has the out-of-service taint"
	case attachment.UnmountTimeout:
		return ", and the wait for its unmount has timed out"
	case attachment.DeletedNode:
		return ", and --deleted-node-policy=detach applies"
	case attachment.StorageFenced:
		return ", and the driver was declared to cut the node off before it confirms the detach"
	}
	return " (" + by.String() + ")"
}

// DetachSucceeded reports that the volume is no longer attached to a node.
func DetachSucceeded(volume string, node attachment.NodeName) string {
	return fmt.Sprintf("DetachVolume.Detach succeeded for volume %q from node %q", volume, node)
}

// DetachUnconfirmed reports that a VolumeAttachment was removed before the driver confirmed the detach, and what to do.
func DetachUnconfirmed(volume string, node attachment.NodeName, name string) string {
	return fmt.Sprintf("VolumeAttachment %s was removed by another client before the driver confirmed that volume %q was detached from node %q. "+
		"The volume may still be attached there, and the driver may refuse to attach it elsewhere. If it does, detach the volume from the node at the storage. "+
		"With a driver that lists where its volumes are published, belay-attacher does so as soon as the volume is wanted on another node",
		name, volume, node)
}

// DetachFailed reports why a volume could not be detached from a node, and that the detach is retried; or why it is not detached although
// the driver has confirmed that.
func DetachFailed(volume string, node attachment.NodeName, cause string) string {
	if inDoubt(cause) {
		return fmt.Sprintf("DetachVolume.Detach has not ended for volume %q from node %q : %s", volume, node, cause)
	}
	return DetachUnanswered(volume, node, strings.TrimSuffix(cause, retried)+retried)
}

// DetachUnanswered reports that a detach got no answer; the cause, from Unanswered, ends with what to do.
func DetachUnanswered(volume string, node attachment.NodeName, cause string) string {
	return fmt.Sprintf("DetachVolume.Detach failed for volume %q from node %q : %s", volume, node, cause)
}

// Operation is what an attacher was asked to do.
type Operation string

// The operations.
const (
	Attach Operation = "attach"
	Detach Operation = "detach"
)

// Unanswered is the cause, for AttachFailed and DetachFailed, if the attacher has not answered for attachment.AnswerTimeout (k/k
// pkg/volume/csi csi_attacher.go): upstream's text, followed by the node, since when, and what to do, or what the attacher says about the call.
func Unanswered(volume attachment.VolumeKey, asked Operation, node attachment.NodeName, at time.Time, pending string) string {
	direction := "to"
	if asked == Detach {
		direction = "from"
	}
	return fmt.Sprintf("timed out waiting for external-attacher of %s CSI driver to %s volume %s %s node %q,%s. %s",
		volume.Driver, asked, volume.Handle, direction, node, requested(at), checkAttacher(asked, pending))
}

func checkAttacher(asked Operation, pending string) string {
	if pending != "" { // so its pod runs
		return fmt.Sprintf("As the attacher says, %s: ask the storage what it does with the volume, and read the log of the driver's controller", pending)
	}
	return fmt.Sprintf("Check that its pod is running: the %s continues as soon as it is", asked)
}

// nextAttempt matches what belay-attacher appends to an error that is not the driver's.
var nextAttempt = regexp.MustCompile(`; next attempt at [0-9TZ:.+-]+$`)

const retried = "; it is retried with back-off"

// DriverError returns an error from the status of a VolumeAttachment without the time of the next attempt, which would make each
// attempt a new event for all pods.
func DriverError(message string) string {
	if message == "" { // nearly always
		return ""
	}
	return nextAttempt.ReplaceAllLiteralString(message, retried)
}

// DetachReason is why a detach waits that the controller calls failed: the attacher may have written that it waits by itself.
func DetachReason(why attachment.Reason, detail string) attachment.Reason {
	if why == attachment.DetachFailed && inDoubt(detail) {
		return publication.PublishInDoubt
	}
	return why
}

// inDoubt reports whether belay-attacher waits because the driver may still carry out an attach: no call fails or is retried then.
func inDoubt(detail string) bool { return strings.Contains(detail, publication.MayStillAttach) }

// cause returns the error, for a text that itself says that the operation is retried.
func cause(c attachment.Cause) string { return strings.TrimSuffix(c.Detail, retried) }

// Pod is what a Multi-Attach event may tell about another pod.
type Pod struct{ Namespace, Name string }

func usedBy(namespace string, holders []Pod) string {
	var local []string
	for _, pod := range holders {
		if pod.Namespace == namespace {
			local = append(local, pod.Name)
		}
	}
	others := len(holders) - len(local)
	switch {
	case len(local) == 0:
		return fmt.Sprintf("Volume is already used by %d pod(s) in different namespaces", others)
	case others > 0:
		return fmt.Sprintf("Volume is already used by pod(s) %s and %d pod(s) in different namespaces", strings.Join(local, ", "), others)
	}
	return "Volume is already used by pod(s) " + strings.Join(local, ", ")
}
