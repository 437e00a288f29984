package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"belay.dev/belay/internal/attachment"
)

// Blockers says where an exclusive volume is or may be, why it is still there, since
// when, and what happens by itself.
func Blockers(driver string, blockers []attachment.Blocker) string {
	var texts []string
	for _, b := range blockers {
		texts = append(texts, blocker(driver, b))
	}
	return strings.Join(slices.Compact(texts), "; ")
}

func blocker(driver string, b attachment.Blocker) string {
	switch {
	case b.Cause.Reason != "":
		return Wait(driver, b.Node, b.Cause, b.Ready)
	case b.Kind == attachment.ByForeigner:
		return Wait(driver, b.Node, attachment.Cause{Reason: attachment.ForeignAttachment}, b.Ready)
	case b.Kind == attachment.ByCreate:
		return fmt.Sprintf("a request to attach it to node %q got no answer and may still be carried out, for up to a minute", b.Node)
	case b.Kind == attachment.ByDeletion:
		return fmt.Sprintf("being detached from node %q", b.Node)
	case b.Kind == attachment.ByUse:
		return fmt.Sprintf("in use on node %q; it is released once the pods there have terminated", b.Node)
	}
	return fmt.Sprintf("attached to node %q%s; it is detached once the pods there have terminated", b.Node, since(b.Cause))
}

// Wait says why a volume is still at a node, since when, and what ends that by itself.
func Wait(driver string, node attachment.NodeName, c attachment.Cause, ready attachment.Knowledge) string {
	switch c.Reason {
	default:
		return fmt.Sprintf("at node %q (%s)", node, c.Reason)
	case attachment.StillInUse:
		return mounted(node, c, ready)
	case attachment.OutOfServiceNodeReady:
		return fmt.Sprintf("waiting%s for node %q to unmount it; the node has the taint node.kubernetes.io/out-of-service, which does not force the detach as long as the node is Ready. "+
			"Shut the machine down, or remove the taint", since(c), node)
	case attachment.NodeGone:
		return fmt.Sprintf("waiting%s because node %q was deleted and its machine may still use the volume; %s",
			since(c), node, forced(c, false, "registers again and has unmounted it"))
	case attachment.NodeReplaced:
		return fmt.Sprintf("waiting%s because another machine has registered as node %q and the machine that had the volume may still use it; %s",
			since(c), node, forced(c, false, ""))
	case attachment.NodeReturned:
		return fmt.Sprintf("waiting%s because node %q was deleted, has registered again, and has not shown yet whether it still uses the volume; %s",
			since(c), node, returned(c, ready))
	case attachment.Detaching, attachment.DetachUnanswered, attachment.DetachFailed:
		return detaching(driver, node, c)
	case attachment.AttachFailed:
		return fmt.Sprintf("it may be attached to node %q, because an attach%s failed; the attach is retried, and the volume is detached once the pods there have terminated: %s",
			node, requested(c), c.Detail)
	case attachment.Attaching, attachment.AttachUnanswered:
		return fmt.Sprintf("it may be attached to node %q, because an attach%s has had no answer yet; it is detached once the pods there have terminated", node, requested(c))
	case attachment.ForeignAttachment:
		return fmt.Sprintf("a VolumeAttachment for node %q has a name that no attach/detach controller gives; it is never deleted automatically, only by the client that created it", node)
	case attachment.NodeNotManaged:
		return fmt.Sprintf("attached to node %q, which lacks the annotation volumes.kubernetes.io/controller-managed-attach-detach: only its kubelet can detach it", node)
	case attachment.NodeUnknown:
		return fmt.Sprintf("attached to node %q, whose Node object could not be read", node)
	}
}

func mounted(node attachment.NodeName, c attachment.Cause, ready attachment.Knowledge) string {
	switch ready {
	case attachment.Yes:
		return fmt.Sprintf("waiting%s for node %q to unmount it; the node is Ready, so the volume is never detached by force", since(c), node)
	case attachment.No:
		return fmt.Sprintf("waiting%s for node %q, which is not Ready, to unmount it; %s", since(c), node, forced(c, true, ""))
	case attachment.Unknown:
	}
	return fmt.Sprintf("waiting%s for node %q to unmount it", since(c), node)
}

func detaching(driver string, node attachment.NodeName, c attachment.Cause) string {
	if c.Reason == attachment.DetachFailed {
		return fmt.Sprintf("waiting%s for the detach from node %q, which fails and is retried by the attacher of CSI driver %s: %s", since(c), node, driver, c.Detail)
	}
	if c.Since.IsZero() {
		return fmt.Sprintf("being detached from node %q", node)
	}
	text := fmt.Sprintf("waiting%s for the attacher of CSI driver %s to detach it from node %q", since(c), driver, node)
	if c.Reason == attachment.DetachUnanswered {
		text += "; the attacher has not answered. Check that its pod is running: the detach continues as soon as it is"
	}
	return text
}

func since(c attachment.Cause) string {
	if c.Since.IsZero() {
		return ""
	}
	return " since " + stamp(c.Since)
}

func requested(c attachment.Cause) string {
	if c.Since.IsZero() {
		return ""
	}
	return " requested at " + stamp(c.Since)
}

// forced says what the policies do about a node that does not answer, and what the node
// can do before.
func forced(c attachment.Cause, exists bool, sooner string) string {
	_, timed := c.Forces.(attachment.UnmountTimeout)
	switch {
	case c.Forces != nil && !c.At.IsZero() && sooner != "":
		return fmt.Sprintf("the volume is detached by force at %s, or sooner if the node %s", stamp(c.At), sooner)
	case c.Forces != nil && !c.At.IsZero():
		return "the volume is detached by force at " + stamp(c.At)
	case timed:
		return "its pods still exist: once the pod garbage collector has deleted them, in about a minute, a timer starts, and the volume is detached by force when it expires"
	case c.Forces != nil:
		return "its pods still exist: once the pod garbage collector has deleted them, in about a minute, the volume is detached by force"
	case exists:
		return "the volume is never detached by force: shut the machine down, then add the taint node.kubernetes.io/out-of-service to the node"
	}
	return "the volume is never detached by force: make sure that the machine is off, then delete the VolumeAttachment"
}

func returned(c attachment.Cause, ready attachment.Knowledge) string {
	switch {
	case ready == attachment.No:
		return "the node is not Ready, and " + forced(c, true, "")
	case ready == attachment.Yes && !c.At.IsZero():
		return fmt.Sprintf("if the node stays Ready and does not list the volume in use, it is detached at %s", stamp(c.At))
	}
	return "the volume is detached once the node has shown that it does not"
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// MultiAttach says why an exclusive volume does not come to the node of a pod in
// namespace: upstream's text (k/k reconciler.go) and, behind it, what keeps the volume
// where it is. Pods of other namespaces are counted, never named.
func MultiAttach(volume, driver, namespace string, holders []Pod, blockers []attachment.Blocker) string {
	what := "Volume is already exclusively attached to one node and can't be attached to another"
	if len(holders) > 0 {
		what = usedBy(namespace, holders)
	}
	text := fmt.Sprintf("Multi-Attach error for volume %q %s", volume, what)
	if where := Blockers(driver, blockers); where != "" {
		text += " (" + where + ")"
	}
	return text
}

// Refused adds to why a volume waits that the API server refused what would end it.
func Refused(wait string, err error) string {
	return fmt.Sprintf("%s; the API server refused a request, which is retried: %v", wait, err)
}

// DetachedInUse says that a VolumeAttachment was deleted under a node that uses the
// volume, and what to do.
func DetachedInUse(volume string, node attachment.NodeName) string {
	return fmt.Sprintf("The VolumeAttachment of volume %q was deleted by another client while the volume was in use on node %q. "+
		"The volume is detached under its mounts, where reads and writes can fail, and attached again, which does not repair the mounts. "+
		"Delete the pods that use it on this node: pods created after that mount it again", volume, node)
}
