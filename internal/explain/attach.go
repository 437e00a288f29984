package explain

import (
	"fmt"
	"slices"
	"strings"

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

// DetachStarted says that the detach from a node was asked for, and by what right if
// the volume may be in use there: nil if it is not.
func DetachStarted(volume string, node attachment.NodeName, by attachment.Authority) string {
	text := fmt.Sprintf("DetachVolume.Detach started for volume %q from node %q", volume, node)
	switch by.(type) {
	case nil:
		return text
	case attachment.OutOfServiceTaint:
		return text + ", which may still use it: the node is out of service"
	case attachment.UnmountTimeout:
		return text + ", which may still use it: the node is not ready, and the wait for its unmount has run out"
	case attachment.DeletedNode:
		return text + ", which may still use it: the Node object is gone"
	}
	return text + ", which may still use it: " + by.String()
}

// DetachSucceeded says that the volume is no longer attached to a node.
func DetachSucceeded(volume string, node attachment.NodeName) string {
	return fmt.Sprintf("DetachVolume.Detach succeeded for volume %q from node %q", volume, node)
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
// silent for attachment.AnswerTimeout (k/k pkg/volume/csi csi_attacher.go).
func Unanswered(volume attachment.VolumeKey, asked Operation) string {
	return fmt.Sprintf("timed out waiting for external-attacher of %s CSI driver to %s volume %s", volume.Driver, asked, volume.Handle)
}

// Pod is as much of a pod as its neighbours may be told.
type Pod struct{ Namespace, Name string }

// MultiAttach says why an exclusive volume does not come to the node of a pod in
// namespace: upstream's text (k/k reconciler.go) and, behind it, who holds the
// volume. Pods of other namespaces are counted, never named.
func MultiAttach(volume, namespace string, holders []Pod, blockers []attachment.Blocker) string {
	what := "Volume is already exclusively attached to one node and can't be attached to another"
	if len(holders) > 0 {
		what = usedBy(namespace, holders)
	}
	text := fmt.Sprintf("Multi-Attach error for volume %q %s", volume, what)
	if where := Blockers(blockers); where != "" {
		text += " (" + where + ")"
	}
	return text
}

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

// Blockers says where an exclusive volume is or may be, and how that is known.
func Blockers(blockers []attachment.Blocker) string {
	var words []string
	for _, b := range blockers {
		words = append(words, blocker(b))
	}
	return strings.Join(slices.Compact(words), ", ")
}

func blocker(b attachment.Blocker) string {
	switch b.Kind {
	case attachment.ByAttachment, attachment.ByTurn:
		return fmt.Sprintf("attached to node %q", b.Node)
	case attachment.ByDeletion:
		return fmt.Sprintf("being detached from node %q", b.Node)
	case attachment.ByReport:
		return fmt.Sprintf("still reported as attached to node %q", b.Node)
	case attachment.ByUse:
		return fmt.Sprintf("still in use by node %q", b.Node)
	case attachment.ByForeigner:
		return fmt.Sprintf("attached to node %q by a VolumeAttachment that belay did not make", b.Node)
	}
	return fmt.Sprintf("at node %q", b.Node)
}
