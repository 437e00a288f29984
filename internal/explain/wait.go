package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/fencing"
)

// Blockers describes where an exclusive volume is or may be, why it is still there, since when, and what happens automatically.
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
	case b.Kind == attachment.ByForeignAttachment:
		return Wait(driver, b.Node, attachment.Cause{Reason: attachment.ForeignAttachment}, b.Ready)
	case b.Kind == attachment.ByCreate:
		return fmt.Sprintf("a request to attach it to node %q got no answer and may still be carried out, for up to a minute", b.Node)
	case b.Kind == attachment.ByDeletion:
		return fmt.Sprintf("being detached from node %q", b.Node)
	case b.Kind == attachment.ByNewAttachment:
		return fmt.Sprintf("being attached to node %q, for a pod that came first", b.Node)
	case b.Kind == attachment.ByUse:
		return fmt.Sprintf("in use on node %q; %s", b.Node, untilPodsTerminate("released", b.Cause, b.Ready))
	}
	return fmt.Sprintf("attached to node %q%s; %s", b.Node, since(b.Cause), untilPodsTerminate("detached", b.Cause, b.Ready))
}

// Wait describes why a volume is still at a node, since when, and what ends that automatically.
func Wait(driver string, node attachment.NodeName, c attachment.Cause, ready attachment.Knowledge) string {
	switch c.Reason {
	default:
		return fmt.Sprintf("at node %q (%s)", node, c.Reason)
	case attachment.StillInUse:
		return mounted(node, c, ready)
	case attachment.OutOfServiceNodeReady:
		return unmount(node, c) + "; the node has the taint node.kubernetes.io/out-of-service, which does not force the detach as long as the node is Ready. " +
			"Shut the machine down, or remove the taint"
	case attachment.NodeGone:
		return fmt.Sprintf("node %q was deleted, and its machine may still use the volume; %s%s",
			node, waiting(c), forcedWithoutNode(c, ", or sooner if the node registers again and has unmounted it"))
	case attachment.NodeReplaced:
		return fmt.Sprintf("another machine has registered as node %q, and the machine that had the volume may still use it; %s%s",
			node, waiting(c), forcedWithoutNode(c, ""))
	case attachment.NodeReturned:
		return fmt.Sprintf("node %q was deleted, has registered again, and has not shown yet whether it still uses the volume; %s%s",
			node, waiting(c), returned(c, ready))
	case attachment.NodeStillRuns:
		return fmt.Sprintf("%sthe volume is not detached by force from node %q, because its machine runs and may still use it: %s. Shut the machine down; belay detaches the volume once that is shown",
			waiting(c), node, signOfLife(c.Detail))
	case attachment.Detaching, attachment.DetachUnanswered, attachment.DetachFailed:
		return detaching(driver, node, c)
	case attachment.AttachFailed:
		return fmt.Sprintf("it may be attached to node %q, because an attach%s failed and is retried: %s; %s",
			node, requested(c.Since), cause(c), untilPodsTerminate("detached", c, ready))
	case attachment.Attaching, attachment.AttachUnanswered:
		return fmt.Sprintf("%s; %s", unanswered(node, c.Since), untilPodsTerminate("detached", c, ready))
	case attachment.ForeignAttachment:
		return fmt.Sprintf("a VolumeAttachment for node %q has a name that no attach/detach controller gives; it is never deleted automatically, only by the client that created it", node)
	case attachment.NodeNotManaged:
		return fmt.Sprintf("attached to node %q, which lacks the annotation volumes.kubernetes.io/controller-managed-attach-detach: only its kubelet can detach it", node)
	case attachment.NodeIsolated:
		return fmt.Sprintf("recovery took the volume from node %q, which still lists it in use: it is attached there again once the node has unmounted it, or has started again", node)
	case attachment.NodeUnknown:
		return fmt.Sprintf("attached to node %q, whose Node object could not be read", node)
	}
}

// signOfLife is what shows that a boot runs.
func signOfLife(sign string) string {
	switch fencing.Sign(sign) {
	case fencing.SaysOn:
		return "its power switch says On"
	case fencing.Renews:
		return "it renews its lease"
	}
	return sign
}

func mounted(node attachment.NodeName, c attachment.Cause, ready attachment.Knowledge) string {
	text := unmount(node, c)
	switch {
	case ready == attachment.No:
		return text + "; the node is not Ready, and " + forcedText(c)
	case ready == attachment.Yes && !c.Overdue.IsZero():
		return fmt.Sprintf("%s; the volume is not detached by force while the node is Ready; from %s on, it is detached by force as soon as the node is not Ready or is deleted", text, stamp(c.Overdue))
	case ready == attachment.Yes:
		return text + "; the volume is not detached by force while the node is Ready"
	}
	return text
}

// unmount describes what the node has to do, by its kubelet or belay-node. These list a volume in use before it is attached: if no
// attach was confirmed, only that entry has to be removed.
func unmount(node attachment.NodeName, c attachment.Cause) string {
	switch {
	case c.Unconfirmed.IsZero():
		return fmt.Sprintf("waiting%s for node %q to unmount it", since(c), node)
	case c.Detail != "":
		return fmt.Sprintf("it may be attached to node %q, because an attach%s failed and is retried: %s; %s", node, requested(c.Unconfirmed), cause(c), waitingForList(node, c))
	}
	return fmt.Sprintf("%s; %s", unanswered(node, c.Unconfirmed), waitingForList(node, c))
}

func waitingForList(node attachment.NodeName, c attachment.Cause) string {
	return fmt.Sprintf("waiting%s for node %q to remove it from status.volumesInUse", since(c), node)
}

func unanswered(node attachment.NodeName, asked time.Time) string {
	return fmt.Sprintf("it may be attached to node %q, because an attach%s has had no answer yet", node, requested(asked))
}

// untilPodsTerminate describes what releases a volume from a node where pods want it. Only kubelet ends pods, so those of a node
// that is not Ready stay until a person acts.
func untilPodsTerminate(released string, c attachment.Cause, ready attachment.Knowledge) string {
	const stuck, taint = "the node is not Ready, so the pods there cannot terminate by themselves", "If the machine is off, add the taint node.kubernetes.io/out-of-service to the node"
	switch {
	case ready == attachment.No && c.Recovery != "":
		return stuck + ", and " + recoveryActs(released, c)
	case ready != attachment.No:
		return fmt.Sprintf("it is %s once the pods there have terminated", released)
	case c.Forces != nil:
		return stuck + ", and no timer runs yet. Deleting these pods by force starts the unmount timeout, after which the volume is detached by force. " + taint + " instead"
	}
	return stuck + ". " + taint
}

// recoveryActs says what recovery does for a node that is not Ready, in place of what a person would do without it.
func recoveryActs(released string, c attachment.Cause) string {
	if c.Recovery == attachment.FenceUnderWay {
		return "recovery is fencing it: once its machine is proven off, its pods are deleted and the volume is " + released
	}
	return "recovery fences it: the volume is " + released + " once its machine is proven off; if it does not fence it, an event of the node and kubectl belay evidence say why"
}

func detaching(driver string, node attachment.NodeName, c attachment.Cause) string {
	switch {
	case c.Reason == attachment.DetachFailed && inDoubt(c.Detail):
		return fmt.Sprintf("waiting%s for the detach from node %q: %s", since(c), node, c.Detail)
	case c.Reason == attachment.DetachFailed:
		return fmt.Sprintf("waiting%s for the detach from node %q, which fails and is retried by the attacher of CSI driver %s: %s", since(c), node, driver, cause(c))
	case c.Since.IsZero():
		return fmt.Sprintf("being detached from node %q", node)
	}
	text := fmt.Sprintf("waiting%s for the attacher of CSI driver %s to detach it from node %q", since(c), driver, node)
	if c.Reason == attachment.DetachUnanswered {
		text += "; the attacher has not answered. " + checkAttacher(Detach, c.Detail)
	}
	return text
}

func since(c attachment.Cause) string {
	if c.Since.IsZero() {
		return ""
	}
	return " since " + stamp(c.Since)
}

// waiting describes since when the unmount is waited for, which is not when the node changed.
func waiting(c attachment.Cause) string {
	if c.Since.IsZero() {
		return ""
	}
	return "waiting" + since(c) + " for the unmount; "
}

func requested(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return " requested at " + stamp(at)
}

// forcedText describes what the policies do about a node that is not Ready.
func forcedText(c attachment.Cause) string {
	switch {
	case c.Forces != nil && !c.At.IsZero():
		return "the volume is detached by force at " + stamp(c.At)
	case c.Recovery != "":
		return recoveryActs("detached", c)
	}
	return "the volume is never detached by force: shut the machine down, then add the taint node.kubernetes.io/out-of-service to the node"
}

// forcedWithoutNode describes what the policies do about a machine without a Node object, and what can end the wait sooner.
func forcedWithoutNode(c attachment.Cause, sooner string) string {
	_, timed := c.Forces.(attachment.UnmountTimeout)
	switch {
	case c.Forces != nil && !c.At.IsZero():
		return "the volume is detached by force at " + stamp(c.At) + sooner
	case timed:
		return "its pods still exist: once the pod garbage collector has deleted them, in about a minute, a timer starts, and the volume is detached by force when it expires"
	case c.Forces != nil:
		return "its pods still exist: once the pod garbage collector has deleted them, in about a minute, the volume is detached by force"
	case c.Attachment == "":
		return "the volume is never detached by force, and has no VolumeAttachment: make sure that the machine is off, then restart all replicas of belay-controller"
	}
	return "the volume is never detached by force: make sure that the machine is off, then delete the VolumeAttachment " + c.Attachment
}

func returned(c attachment.Cause, ready attachment.Knowledge) string {
	switch {
	case ready == attachment.No:
		return "the node is not Ready, and " + forcedText(c)
	case ready == attachment.Yes && !c.At.IsZero():
		return fmt.Sprintf("if the node stays Ready and does not list the volume in use, it is detached, but not before %s", stamp(c.At))
	}
	return "the volume is detached once the node has shown that it does not"
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// MultiAttach describes why an exclusive volume is not attached to the node of a pod in namespace: upstream's text (k/k
// reconciler.go), followed by what keeps the volume where it is. Pods of other namespaces are counted, never named.
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

// Refused adds the refusal of the API server to the text of a wait that the refused request would end.
func Refused(wait string, err error) string {
	return fmt.Sprintf("%s; the API server refused a request, which is retried: %v", wait, err)
}

// DetachedInUse reports that a VolumeAttachment was deleted while a node uses the volume, and what to do.
func DetachedInUse(volume string, node attachment.NodeName) string {
	return fmt.Sprintf("The VolumeAttachment of volume %q was deleted by another client while the volume was in use on node %q. "+
		"The volume may have been detached under its mounts, where reads and writes then fail. If a pod needs it there, it is attached again, which does not repair the mounts. "+
		"Delete the pods that use it on this node: pods created after that mount it again", volume, node)
}

// ListedElsewhere reports that the driver lists a volume for one node at another one too, and what to do.
func ListedElsewhere(volume string, node attachment.NodeName, elsewhere string) string {
	return fmt.Sprintf("Volume %q may be attached to one node only, and its driver lists it at %s too, beside node %q: both machines may write to it, which destroys data. "+
		"Nothing is changed. Find out which of them is meant to have it, stop what uses it on the other one, and detach it there at the storage", volume, elsewhere, node)
}
