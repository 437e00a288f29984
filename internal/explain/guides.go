package explain

import (
	"cmp"
	"fmt"
	"maps"
	"strings"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
)

func init() { maps.Copy(guides, holderGuides) }

// holderGuides are the guides to the reasons before the attach, and to those of the node or pod that has the volume.
var holderGuides = map[decision.Reason]Guide{
	attachment.Settled: {
		Title: "Nothing waits",
		Page:  pageControlPlane, Silence: nothing, Verdict: Clear,
		Summary: func(s Situation) string { return subject(s) + " waits for no volume" },
	},

	// Before the attach.
	Scheduling: {
		Title: "The scheduler has not chosen a node yet",
		Page:  pageScheduling, Silence: ends, Verdict: InProgress,
		Summary: func(s Situation) string { return subject(s) + " waits for the scheduler" },
	},
	PodUnschedulable: {
		Title: "The scheduler finds no node",
		Page:  pageScheduling, Silence: onlyAsked, Verdict: NotForVolume,
		Summary: func(s Situation) string { return subject(s) + " fits no node: " + s.Detail },
		Next:    describePod,
	},
	VolumeOfAnotherNamespace: {
		Title: "The pod names a volume of another namespace",
		Page:  pageClaims, Event: FailedAttachVolume,
		Summary: func(s Situation) string {
			return fmt.Sprintf("%s names a volume in its spec whose PersistentVolume is bound to a claim of another namespace: belay-controller attaches it through that claim alone", subject(s))
		},
		Next: func(s Situation) []Step {
			return []Step{{Text: "Use a claim of the pod's own namespace in its spec.", Command: in(s.Namespace, "kubectl get pvc")}}
		},
	},
	PersistentVolumeMissing: {
		Title: "The claim is bound to a PersistentVolume that does not exist",
		Page:  pageClaims, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the claim %s is bound to the PersistentVolume %s, which does not exist", s.Claim, s.Volume)
		},
		Next: func(s Situation) []Step {
			return []Step{
				{
					Text:    "Look for the volume at the storage: if it still exists there, recreate the PersistentVolume " + s.Volume + " with the same volume handle and claimRef, from a backup of the object.",
					Command: describeClaim(s, "").Command,
				},
				{
					Text:    "If the data is gone or not needed, delete the claim, and the pods that use it, and let them be created again.",
					Command: in(s.Namespace, "kubectl delete pvc "+s.Claim),
					Danger:  "the claim is the last record of the volume in the cluster",
				},
			}
		},
	},
	ReadWriteOncePodInUse: {
		Title: "Another pod uses a claim that only one pod may use",
		Page:  pageClaims, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the claim %s has the access mode ReadWriteOncePod, and %s uses it", s.Claim, holder(s))
		},
		Next: func(s Situation) []Step {
			return seeHolder(s, "Wait until that pod has terminated, or delete it if it is no longer needed.", onlyIfNotNeeded(s))
		},
	},
	AttachLimitReached: {
		Title: "The node has as many volumes as its driver allows",
		Page:  pageScheduling, Event: VolumeAttachmentLimitExceeded,
		Summary: func(s Situation) string {
			return fmt.Sprintf("%s needs one more volume than the limit of CSI driver %s allows%s%s", subject(s), cmp.Or(s.Driver, "(unknown)"), onNode(" on node ", s.Wanted), because(s.Detail))
		},
		Next: func(Situation) []Step {
			return []Step{
				{Text: "See which nodes have free slots.", Command: "kubectl belay map"},
				{Text: "Move pods with volumes away from the full nodes, or add a node."},
			}
		},
	},
	OrphansFillNode: {
		Title: "VolumeAttachments that no pod needs take the last slots",
		Page:  pageScheduling, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("%s finds no node with a free slot for a volume of CSI driver %s; VolumeAttachments that no pod needs take slots of full nodes: %s",
				subject(s), cmp.Or(s.Driver, "(unknown)"), s.Detail)
		},
		Next: func(Situation) []Step {
			return []Step{{Text: "See which VolumeAttachments no pod needs, and why they are still there.", Command: "kubectl belay orphans"}}
		},
	},

	// The holder.
	HeldByRunningPod: {
		Title: "Another pod uses the volume on another node",
		Page:  pageAttach, Event: FailedAttachVolume,
		Summary: func(s Situation) string {
			return fmt.Sprintf("%s uses the volume on node %s, which is Ready; a volume with this access mode is attached to one node at a time", holder(s), s.Node)
		},
		Next: func(s Situation) []Step {
			return append(endHolder(s), Step{Text: "If both pods are meant to run, schedule them on the same node, give each a volume of its own, or use a shared file system (ReadWriteMany)."})
		},
	},
	HeldByTerminatingPod: {
		Title: "The pod that has the volume is being deleted and still runs",
		Page:  pageDetach, Event: FailedAttachVolume, Verdict: InProgress,
		Summary: func(s Situation) string {
			return fmt.Sprintf("%s is being deleted and still has the volume on node %s, which is Ready%s", holder(s), s.Node, because(s.Detail))
		},
		Next: func(s Situation) []Step {
			return []Step{
				{
					Text:    "Wait for its grace period. When that is over, look for what keeps the pod: its finalizers and events.",
					Command: in(s.HolderNamespace, "kubectl describe pod "+cmp.Or(s.HolderName, "NAME")),
				},
				{
					Text: "If it has no finalizers, read the log of kubelet on node " + s.Node + ", and restart kubelet if it hangs. Do not delete the pod with --force: " +
						"its containers may still run and write, and the volume stays mounted.",
				},
			}
		},
	},
	RollingUpdateDeadlock: {
		Title: "The Deployment starts its new pod before it ends the old one",
		Page:  pageAttach, Event: FailedAttachVolume,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the old pod %s of %s has the volume on node %s, and with the strategy RollingUpdate ends only when the new one is ready",
				s.HolderName, s.HolderOwner, s.Node)
		},
		Next: func(s Situation) []Step {
			_, name := cut(s.HolderOwner)
			return []Step{
				{
					Text:    "Use the strategy Recreate for a Deployment with such a volume, or a StatefulSet in its place.",
					Command: in(s.Namespace, "kubectl patch deploy "+name+` -p 'spec: {strategy: {type: Recreate, rollingUpdate: null}}'`),
					Danger:  "the old pod ends at once; nothing serves until the new one is ready",
				},
				{
					Text:    "To end only this wait, scale the Deployment down, wait until the old pod has ended, and scale it up again.",
					Command: in(s.Namespace, "kubectl scale deploy/"+name+" --replicas=0"), Danger: "nothing serves meanwhile",
				},
			}
		},
	},
	NodeNotReady: {
		Title: "The node that has the volume is not Ready",
		Page:  pageNodeLost, Silence: inMultiAttach, Verdict: Unsafe,
		Summary: func(s Situation) string {
			return fmt.Sprintf("node %s has the volume and is not Ready, so nothing unmounts it there, and its machine may still write", s.Node)
		},
		Next: lostNode,
	},
	NodeSilent: {
		Title: "The node that has the volume is silent",
		Page:  pageNodeLost, Silence: inMultiAttach, Verdict: Unsafe,
		Summary: func(s Situation) string {
			return fmt.Sprintf("node %s has the volume and still counts as Ready, but its kubelet is silent%s", s.Node, because(s.Detail))
		},
		Next: func(s Situation) []Step {
			return []Step{
				{Text: "Wait: after 50 s of silence the node counts as not Ready (40 s before Kubernetes 1.32).", Command: "kubectl get node " + s.Node},
				{Text: fmt.Sprintf("Meanwhile find out whether the machine of node %s is off, at its BMC, hypervisor or cloud.", s.Node)},
			}
		},
	},
	NodeOutOfService: {
		Title: "The node that has the volume was declared out of service",
		Page:  pageNodeLost, Silence: inMultiAttach, Verdict: InProgress,
		Summary: func(s Situation) string {
			return fmt.Sprintf("node %s has the volume, is not Ready, and has the out-of-service taint: its pods are deleted and its volumes detached", s.Node)
		},
		Next: func(s Situation) []Step {
			return []Step{
				{Text: "Wait: terminating pods of the node are deleted within about 20 s, then its volumes are detached.", Command: "kubectl get node " + s.Node},
				removeTaint(s, "Make sure that the machine is really off, and remove the taint before it is started again."),
			}
		},
	},
	attachment.NodeGone: {
		Title: "The Node object was deleted while it had the volume",
		Page:  pageNodeLost, Silence: inMultiAttach, Verdict: Unsafe,
		Summary: func(s Situation) string {
			return fmt.Sprintf("node %s has the volume, its Node object was deleted, and its machine may still write", s.Node)
		},
		Next: func(s Situation) []Step {
			return []Step{
				{Text: fmt.Sprintf("Make sure that the machine of node %s is off, at its BMC, hypervisor or cloud.", s.Node)},
				forceDetach(s, "the machine may still write while another node mounts the volume"),
				{Text: deletedNodePolicyFits},
			}
		},
	},
	attachment.NodeReturned: {
		Title: "The node was recreated and has not shown yet whether it uses the volume",
		Page:  pageNodeLost, Silence: inMultiAttach, Verdict: Unsafe,
		Summary: func(s Situation) string {
			return fmt.Sprintf("node %s was deleted and has registered again; it has not shown yet whether it still has the volume mounted", s.Node)
		},
		Next: func(s Situation) []Step {
			return []Step{
				{Text: "Wait: the volume is detached once the kubelet was Ready and did not list it for about a minute after its pods had left.", Command: "kubectl get node " + s.Node},
				{Text: "If it does not become Ready, drain and reboot the machine: a new boot has no mounts."},
			}
		},
	},
	attachment.NodeReplaced: {
		Title: "Another machine has registered under the name of the node",
		Page:  pageNodeLost, Event: FailedAttachVolume, Verdict: Unsafe,
		Summary: func(s Situation) string {
			return fmt.Sprintf("another machine has registered as node %s, and the one that has the volume may still write%s", s.Node, because(s.Detail))
		},
		Next: func(s Situation) []Step {
			return []Step{
				{Text: "Make sure that the earlier machine is off" + earlier(s.NodeID) + "."},
				forceDetach(s, "the earlier machine may still write while another node mounts the volume"),
				{Text: deletedNodePolicyFits},
			}
		},
	},
	attachment.NodeStillRuns: {
		Title: "A policy would detach the volume by force, and its machine still runs",
		Page:  pageNodeLost, Event: FailedAttachVolume, Verdict: Unsafe,
		Unanswered: "only belay-controller knows what recovery in its process sees of the machine: its event has it",
		Summary: func(s Situation) string {
			return fmt.Sprintf("the machine of node %s runs, as its power switch or its lease shows, and may still write to the volume", s.Node)
		},
		Next: func(s Situation) []Step {
			return []Step{
				{Text: fmt.Sprintf("Find out why node %s is not Ready, and repair it: it then unmounts the volume itself.", s.Node), Command: "kubectl belay explain node/" + s.Node},
				{Text: "Or shut the machine down. The volume is detached once its power switch says Off."},
			}
		},
	},
	attachment.NodeUnknown: {
		Title: "The node that has the volume could not be read",
		Page:  pageNodeLost, Silence: inMultiAttach,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the volume is attached to node %s, whose Node object could not be read", s.Node)
		},
		Next: func(s Situation) []Step {
			return []Step{{Text: "Ask a person with the permission to read nodes.", Command: "kubectl belay explain node/" + s.Node}}
		},
	},
	attachment.NodeNotManaged: {
		Title: "The node's kubelet attaches and detaches by itself",
		Page:  pageControlPlane, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("node %s lacks the annotation volumes.kubernetes.io/controller-managed-attach-detach, so no controller attaches or detaches for it, and a kubelet cannot attach CSI volumes", cmp.Or(s.Node, s.Wanted))
		},
		Next: func(s Situation) []Step {
			node := cmp.Or(s.Node, s.Wanted)
			return []Step{{
				Text:    "Set enableControllerAttachDetach to true (the default) in the kubelet's configuration and restart it: it then sets the annotation.",
				Command: "kubectl get node " + node + ` -o jsonpath='{.metadata.annotations.volumes\.kubernetes\.io/controller-managed-attach-detach}'`,
			}}
		},
	},
	attachment.NodeIsolated: {
		Title: "The node may still have the volume mounted from before it was taken from it",
		Page:  pageNodeLost, Event: FailedAttachVolume,
		Summary: func(s Situation) string {
			return fmt.Sprintf("recovery took the volume from node %s, which still lists it in use: an old mount there could write stale data", cmp.Or(s.Node, s.Wanted))
		},
		Next: func(s Situation) []Step {
			node := cmp.Or(s.Node, s.Wanted)
			return []Step{{Text: "Wait until the node has unmounted the volume, or restart its machine: a new boot has no old mounts.", Command: "kubectl belay evidence node/" + node}}
		},
	},
	attachment.StillInUse: {
		Title: "The node is unmounting the volume",
		Page:  pageDetach, Event: FailedAttachVolume, Verdict: InProgress,
		Summary: func(s Situation) string {
			return fmt.Sprintf("node %s still lists the volume in use: it is unmounting it, or has not published yet that it has%s", s.Node, because(s.Detail))
		},
	},
	UnmountFailing: {
		Title: "The node is Ready and does not unmount the volume",
		Page:  pageDetach, Event: FailedUnmount, Verdict: Unsafe,
		Summary: func(s Situation) string {
			if s.Leaving != "" {
				return fmt.Sprintf("%s is being deleted, its containers have ended, and the kubelet of node %s has not unmounted volume %s: %s", strings.Replace(s.Leaving, "pod "+s.Namespace+"/", "pod ", 1), s.Node, volumeName(s), UnmountHangs)
			}
			return fmt.Sprintf("no pod needs the volume on node %s any more, and its kubelet still lists it in use: %s", s.Node, UnmountHangs)
		},
		Next: func(s Situation) []Step {
			force := ""
			if s.Leaving != "" {
				force = " " + noForce
			}
			return append([]Step{
				{Text: "Read kubelet's log on node " + s.Node + " for UnmountVolume and UnmountDevice." + force + " " + startsPod, Command: kubeletLog(s, "Unmount")},
			}, endMount(s)...)
		},
	},
	attachment.OutOfServiceNodeReady: {
		Title: "The node has the out-of-service taint and is Ready",
		Page:  pageNodeLost, Event: FailedAttachVolume, Verdict: Unsafe,
		Summary: func(s Situation) string {
			return fmt.Sprintf("node %s has the taint node.kubernetes.io/out-of-service, but it is Ready and uses the volume: it is not shut down", s.Node)
		},
		Next: func(s Situation) []Step {
			see := Step{Text: "If the node is meant to run, remove the taint; if it is not, shut the machine down.", Command: "kubectl describe node " + s.Node}
			return []Step{see, removeTaint(s, "Remove the taint.")}
		},
	},
	attachment.ForeignAttachment: {
		Title: "Another client created the VolumeAttachment",
		Page:  pageLeftovers, Event: FailedAttachVolume,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the VolumeAttachment %s on node %s has a name that no attach/detach controller gives, so none deletes it", s.Attachment, s.Node)
		},
		Next: func(s Situation) []Step {
			step := forceDetach(s, "the client that created it may still use the volume there")
			step.Text = "If that client does not exist any more: see what a detach by hand would do."
			return []Step{{
				Text:    "Find out which client created it (see its managedFields), and let that client delete it.",
				Command: "kubectl get volumeattachment " + s.Attachment + " --show-managed-fields -o yaml",
			}, step}
		},
	},
	attachment.OtherWriterDetaching: {
		Title: "The volume is being detached from another node",
		Page:  pageAttach, Event: FailedAttachVolume, Verdict: InProgress,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the volume is being detached from node %s", s.Node)
		},
	},
	attachment.OtherWriterAttached: {
		Title: "The volume is, or may be, attached to another node",
		Page:  pageAttach, Event: FailedAttachVolume,
		Summary: func(s Situation) string {
			switch {
			case s.Node == "":
				return fmt.Sprintf("%s is, or may be, attached to another node than %s%s", s.Own.words(), s.Wanted, because(s.Detail))
			case s.HolderName == "":
				return fmt.Sprintf("the volume is, or may be, attached to node %s%s", s.Node, because(s.Detail))
			}
			return fmt.Sprintf("%s came first: its attach to node %s has not succeeded, so the volume may or may not be attached there%s", holder(s), s.Node, because(s.Detail))
		},
		Next: func(s Situation) []Step {
			if s.HolderName != "" {
				return []Step{
					{Text: "See what that pod waits for: when it runs, or is gone, this wait ends too.", Command: in(s.HolderNamespace, "kubectl belay explain pod/"+s.HolderName)},
					{Text: "Delete that pod if it should not run. The volume is then detached from its node, and attached for this one.", Command: deleteHolder(s)},
				}
			}
			if s.Node == "" {
				return []Step{{Text: "See on which node the pods run that use the claim, and end the one that should not run. Do not delete it with --force: its node may still write to the volume.", Command: in(s.Namespace, "kubectl get pods -o wide")}}
			}
			return []Step{{Text: "See what the volume does there.", Command: "kubectl belay explain node/" + s.Node}}
		},
	},
	SharedAttachments: {
		Title: "The volume allows several nodes and is attached to several",
		Page:  pageAttach, Silence: nothing, Verdict: Clear,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the volume %s allows several nodes, and has VolumeAttachments for %s: this is as it should be", s.Volume, s.Detail)
		},
	},
}

// subject is the pod that waits, or the volume if no pod does.
func subject(s Situation) string {
	switch {
	case s.Pod != "":
		return "pod " + s.Pod
	case s.Claim != "":
		return "claim " + s.Claim
	case s.Volume != "":
		return "volume " + s.Volume
	}
	return "it"
}

func holder(s Situation) string {
	switch {
	case s.HolderName == "":
		return "a pod"
	case s.HolderNamespace != "" && s.HolderNamespace != s.Namespace:
		return "pod " + s.HolderNamespace + "/" + s.HolderName
	}
	return "pod " + s.HolderName
}

func because(detail string) string {
	if detail == "" {
		return ""
	}
	return ": " + detail
}

// earlier names the machine that a VolumeAttachment was made for.
func earlier(nodeID string) string {
	if nodeID == "" {
		return ""
	}
	return ": the driver knew it by node ID " + nodeID
}

func and(detail string) string {
	if detail == "" {
		return ""
	}
	return "; " + detail
}

func onNode(word, node string) string {
	if node == "" {
		return ""
	}
	return word + node
}

func in(namespace, command string) string {
	if namespace == "" {
		return command
	}
	return command + " -n " + namespace
}

// cut splits "Deployment/web".
func cut(owner string) (kind, name string) {
	for i, c := range owner {
		if c == '/' {
			return owner[:i], owner[i+1:]
		}
	}
	return owner, cmp.Or(owner, "NAME")
}

func describePod(s Situation) []Step {
	return []Step{{Text: "Read the scheduler's message.", Command: in(s.Namespace, "kubectl describe pod "+s.Pod)}}
}

func deleteHolder(s Situation) string {
	if s.HolderName == "" {
		return ""
	}
	return in(s.HolderNamespace, "kubectl delete pod "+s.HolderName)
}

// seeHolder is how to end the pod that has the volume: first what it is.
func seeHolder(s Situation, text string, end Step) []Step {
	if s.HolderName == "" {
		return []Step{{Text: text}}
	}
	return []Step{
		{Text: text, Command: in(s.HolderNamespace, "kubectl get pod "+s.HolderName+" -o wide")},
		end,
	}
}

// onlyIfNotNeeded is how to end a pod that may do its work.
func onlyIfNotNeeded(s Situation) Step {
	state := ""
	if s.HolderState != "" && s.Node != "" {
		state = " (" + s.HolderState + " on " + s.Node + ")"
	}
	return Step{Text: "Only if " + holder(s) + state + " is not needed: delete it.", Command: deleteHolder(s), Danger: "what it does is interrupted"}
}

// endHolder is how to end a pod that is meant to run: a controller replaces one that is only deleted.
func endHolder(s Situation) []Step {
	switch kind, name := cut(s.HolderOwner); kind {
	case "Deployment", "StatefulSet", "ReplicaSet", "ReplicationController":
		return []Step{{
			Text:    fmt.Sprintf("If that pod should not run, scale %s down: it replaces a pod that is only deleted. The volume then moves by itself. The command shows its replicas.", s.HolderOwner),
			Command: in(s.HolderNamespace, "kubectl get "+strings.ToLower(kind)+" "+name),
		}}
	}
	return seeHolder(s, "Delete that pod if it should not run. The volume then moves by itself.", onlyIfNotNeeded(s))
}

// deletedNodePolicyFits says which policy spares the wait.
const deletedNodePolicyFits = "If your cloud deletes or replaces a Node only once its instance is gone, belay-controller with " +
	"--deleted-node-policy=detach ends this wait by itself."

// forceDetach is the last resort: it shows what it would do until it is confirmed.
func forceDetach(s Situation, danger string) Step {
	step := Step{Text: "Only then: see what a forced detach would do.", Command: "kubectl belay force-detach va/" + s.Attachment, Danger: danger}
	if s.Attachment == "" {
		step.Command = ""
	}
	return step
}

// removeTaint ends that a node counts as out of service.
func removeTaint(s Situation, text string) Step {
	return Step{Text: text, Command: "kubectl taint node " + s.Node + " node.kubernetes.io/out-of-service-"}
}

const outOfService = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"

// lostNode is what to do about a node that is not Ready and has volumes.
func lostNode(s Situation) []Step {
	return append([]Step{
		{
			Text: fmt.Sprintf("Find out whether the machine of node %s is off, at its BMC, hypervisor or cloud. ", s.Node) +
				"A node that the API server does not hear from may still run and write. The command shows the machine's ID at the cloud, and its addresses.",
			Command: "kubectl get node " + s.Node + ` -o jsonpath='{.spec.providerID} {.status.addresses}{"\n"}'`,
		},
		{Text: "If it can come back, bring it back: a node that is Ready again unmounts what no pod there needs."},
	}, declareOut(s, s.Node, "Only if the machine is off: declare it out of service. Its pods are deleted and its volumes detached.",
		"if the machine still runs, two nodes write to the volume and the file system is corrupted")...)
}

// declareOut has the pods of a node deleted and its volumes detached. A person who sets the taint removes it: no controller of Kubernetes does, and
// kube-controller-manager detaches mounted volumes from a node that has it, Ready or not (k/k v1.36.3
// pkg/controller/volume/attachdetach/reconciler/reconciler.go:231-276).
func declareOut(s Situation, node, text, danger string) []Step {
	s.Node = node
	return []Step{
		{Text: text, Command: "kubectl taint node " + node + " " + outOfService, Danger: danger},
		removeTaint(s, "When its pods run elsewhere, and before the machine is started again, remove the taint. Volumes of a node that has it are detached while they are mounted, also when it is Ready again."),
	}
}
