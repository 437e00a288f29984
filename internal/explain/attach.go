package explain

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"belay.dev/belay/internal/attachment"
)

// Reasons of the events: those on pods as upstream's controller names them, those on
// claims (k/k#114219) after their fashion.
const (
	SuccessfulAttachVolume = "SuccessfulAttachVolume"
	FailedAttachVolume     = "FailedAttachVolume"

	DetachingVolume        = "DetachingVolume"
	SuccessfulDetachVolume = "SuccessfulDetachVolume"
	FailedDetachVolume     = "FailedDetachVolume"

	// VolumeDetachedInUse is on the pods and the claim of a volume whose VolumeAttachment
	// was deleted under a node that uses it.
	VolumeDetachedInUse = "VolumeDetachedInUse"

	// VolumeDetachUnconfirmed is on the claim of a volume whose VolumeAttachment went without
	// a confirmed detach.
	VolumeDetachUnconfirmed = "VolumeDetachUnconfirmed"
)

// AttachSucceeded says that the volume is attached (k/k operation_generator.go; the
// blank at the end is upstream's).
func AttachSucceeded(volume string) string {
	return fmt.Sprintf("AttachVolume.Attach succeeded for volume %q ", volume)
}

// AttachFailed passes on why a volume could not be attached (k/k
// operation_generator.go).
func AttachFailed(volume, cause string) string {
	return fmt.Sprintf("AttachVolume.Attach failed for volume %q : %s", volume, cause)
}

// CreateFailed is the cause, for AttachFailed, of an API server that refused the
// VolumeAttachment (k/k pkg/volume/csi csi_attacher.go).
func CreateFailed(err error) string {
	return fmt.Sprintf("kubernetes.io/csi: attacher.Attach failed: %v", err)
}

// BeingDeleted is the cause, for AttachFailed, of an old attachment to the same node
// whose detach the driver refuses. Upstream's words come first.
func BeingDeleted(cause string) string {
	return "volume attachment is being deleted: " + cause
}

// DetachStarted says that the detach from a node was requested, and by what right if the
// volume may be in use there: nil if it is not. The reason is why it may be.
func DetachStarted(volume string, node attachment.NodeName, by attachment.Authority, why attachment.Reason) string {
	text := fmt.Sprintf("DetachVolume.Detach started for volume %q from node %q", volume, node)
	if by == nil {
		return text
	}
	return text + ", which may still use it: " + nodeState(why) + policyText(by)
}

// nodeState is what a node is like that cannot be asked.
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
	}
	return " (" + by.String() + ")"
}

// DetachSucceeded says that the volume is no longer attached to a node.
func DetachSucceeded(volume string, node attachment.NodeName) string {
	return fmt.Sprintf("DetachVolume.Detach succeeded for volume %q from node %q", volume, node)
}

// DetachUnconfirmed says that a VolumeAttachment was removed before the driver confirmed the
// detach, and what to do.
func DetachUnconfirmed(volume string, node attachment.NodeName, name string) string {
	return fmt.Sprintf("VolumeAttachment %s was removed by another client before the driver confirmed that volume %q was detached from node %q. "+
		"The volume may still be attached there, and the driver may refuse to attach it elsewhere. If it does, detach the volume from the node at the storage. "+
		"With a driver that lists where its volumes are published, belay-attacher does so as soon as the volume is wanted on another node",
		name, volume, node)
}

// DetachFailed passes on why a volume could not be detached from a node.
func DetachFailed(volume string, node attachment.NodeName, cause string) string {
	return fmt.Sprintf("DetachVolume.Detach failed for volume %q from node %q : %s", volume, node, cause)
}

// Operation is what an attacher was asked for.
type Operation string

// The operations.
const (
	Attach Operation = "attach"
	Detach Operation = "detach"
)

// Unanswered is the cause, for AttachFailed and DetachFailed, of an attacher that is
// silent for attachment.AnswerTimeout (k/k pkg/volume/csi csi_attacher.go): upstream's
// text, and behind it the node, since when, and what to do.
func Unanswered(volume attachment.VolumeKey, asked Operation, node attachment.NodeName, at time.Time) string {
	direction := "to"
	if asked == Detach {
		direction = "from"
	}
	return fmt.Sprintf("timed out waiting for external-attacher of %s CSI driver to %s volume %s %s node %q,%s. %s",
		volume.Driver, asked, volume.Handle, direction, node, requested(at), checkAttacher(asked))
}

func checkAttacher(asked Operation) string {
	return fmt.Sprintf("Check that its pod is running: the %s continues as soon as it is", asked)
}

// nextAttempt is what belay-attacher adds to an error that the driver did not give.
var nextAttempt = regexp.MustCompile(`; next attempt at [0-9TZ:.+-]+$`)

const retried = "; it is retried with back-off"

// DriverError is an error from the status of a VolumeAttachment as it is passed on: without
// the time of the next attempt, which would make each attempt news for all pods.
func DriverError(message string) string { return nextAttempt.ReplaceAllLiteralString(message, retried) }

// cause is the error, for a text that says itself that what failed is retried.
func cause(c attachment.Cause) string { return strings.TrimSuffix(c.Detail, retried) }

// Pod is as much of a pod as its neighbours may be told.
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
