package explain

import (
	"cmp"
	"fmt"
	"maps"
	"strings"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/publication"
)

func init() { maps.Copy(guides, attachGuides) }

// attachGuides are the guides to the reasons from the VolumeAttachment to the running pod, and back.
var attachGuides = map[decision.Reason]Guide{
	attachment.Attaching: {
		Title: "The attacher has not confirmed the attach yet",
		Page:  pageAttach, Silence: ends, Verdict: InProgress,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the volume is being attached to node %s%s", s.Wanted, because(s.Detail))
		},
	},
	attachment.AttachUnanswered: {
		Title: "The attacher has not confirmed the attach for two minutes",
		Page:  pageAttach, Event: FailedAttachVolume,
		Summary: func(s Situation) string {
			if s.Detail != "" {
				return fmt.Sprintf("the attacher of %s has not confirmed the attach to node %s%s", csiDriver(s), s.Wanted, because(s.Detail))
			}
			return fmt.Sprintf("the attacher of CSI driver %s has not confirmed the attach to node %s, although it runs: its call to the driver hangs, or waits for others", s.Driver, s.Wanted)
		},
		Next: attacherLogs,
	},
	attachment.AttachFailed: {
		Title: "The driver refuses to attach the volume",
		Page:  pageAttach, Event: FailedAttachVolume,
		Summary: func(s Situation) string { return refused(s, "attach", "to node "+s.Wanted) },
		Next:    func(s Situation) []Step { return said(s, attacherLogs) },
	},
	attachment.Detaching: {
		Title: "The attacher has not confirmed the detach yet",
		Page:  pageDetach, Event: DetachingVolume, Verdict: InProgress,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the volume is being detached from node %s%s", cmp.Or(s.Node, s.Wanted), because(s.Detail))
		},
	},
	attachment.DetachUnanswered: {
		Title: "The attacher has not confirmed the detach for two minutes",
		Page:  pageDetach, Event: FailedDetachVolume,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the attacher of CSI driver %s has not confirmed the detach from node %s, although it runs: its call to the driver hangs, or waits for others", s.Driver, s.Node)
		},
		Next: attacherLogs,
	},
	attachment.DetachFailed: {
		Title: "The driver refuses to detach the volume",
		Page:  pageDetach, Event: FailedDetachVolume,
		Summary: func(s Situation) string { return refused(s, "detach", "from node "+s.Node) },
		Next:    func(s Situation) []Step { return said(s, attacherLogs) },
	},
	NoAttachController: {
		Title: "No controller creates the VolumeAttachment",
		Page:  pageControlPlane, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("%s needs the volume on node %s, and no attach/detach controller has created a VolumeAttachment", subject(s), s.Wanted)
		},
		Next: checkControllers,
	},
	NoDetachController: {
		Title: "No controller deletes the VolumeAttachment",
		Page:  pageControlPlane, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("no pod needs the volume on node %s any more and it is not in use there, and no attach/detach controller deletes the VolumeAttachment", s.Node)
		},
		Next: checkControllers,
	},
	AttacherNotRunning: {
		Title: "No attacher of the driver runs",
		Page:  pageControlPlane, Event: FailedAttachVolume,
		Summary: func(s Situation) string {
			return fmt.Sprintf("no attacher of CSI driver %s works on the VolumeAttachment%s", s.Driver, because(s.Detail))
		},
		Next: func(s Situation) []Step {
			if s.LeaseNamespace != "" {
				return []Step{{
					Text:    "Find out why the attacher's pod does not run, or which of its containers restarts. An attacher does not work without its driver either. The operation continues as soon as both run.",
					Command: in(s.LeaseNamespace, "kubectl get pods -o wide"),
				}}
			}
			return []Step{{Text: "Find out why the driver's controller pod does not run: it has the container csi-attacher or belay-attacher. The operation continues as soon as it does.", Command: "kubectl get leases -A | grep external-attacher-leader"}}
		},
	},
	DriverUnavailable: {
		Title: "The attacher does not reach the driver",
		Page:  pageDriver, Event: FailedAttachVolume,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the attacher of %s does not reach the driver, or gets no answer%s", csiDriver(s), because(s.Detail))
		},
		Next: attacherLogs,
	},
	DriverRemoved: {
		Title: "The driver was uninstalled before its volumes were detached",
		Page:  pageDriver, Event: FailedDetachVolume,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the VolumeAttachment %s waits for the attacher of CSI driver %s, which is not installed any more", s.Attachment, s.Driver)
		},
		Next: func(s Situation) []Step {
			return []Step{
				{Text: "Install the driver again: it detaches its volumes, and can then be removed."},
				forceDetachOf(s, "without the driver nothing detaches the volume at the storage, and it may stay attached there"),
			}
		},
	},
	MachineUnknown: {
		Title: "The driver does not know the machine, or the volume, of a detach",
		Page:  pageDriver, Event: FailedDetachVolume, Verdict: Unsafe,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the Node of %s was deleted, and CSI driver %s does not know its machine or the volume, which is no proof that the volume is detached%s", s.Node, s.Driver, because(s.Detail))
		},
		Next: declareGone,
	},
	publication.RestoredAttachment: {
		Title: "The VolumeAttachment may be another cluster's",
		Page:  pageLeftovers, Silence: onObject, Verdict: Unsafe,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the VolumeAttachment %s was not made by an attacher, and no node has its node ID: it may be restored from a backup, and another cluster may use the volume", s.Attachment)
		},
		Next: declareGone,
	},
	publication.PublishInDoubt: {
		Title: "The driver may still carry out an attach that it gave no final answer to",
		Page:  pageAttacher, Event: FailedDetachVolume, Verdict: Unsafe,
		Summary: func(s Situation) string {
			return fmt.Sprintf("CSI driver %s may still attach the volume to node %s, so that its answer to the detach does not count%s", s.Driver, s.Node, because(s.Detail))
		},
		Next: func(s Situation) []Step {
			return []Step{{
				Text:    "Wait: it ends by itself, at the time that the detachError has, or before if the driver's list shows what became of the attach.",
				Command: "kubectl get volumeattachment " + cmp.Or(s.Attachment, "NAME") + ` -o jsonpath='{.status.detachError}{"\n"}'`,
			}}
		},
	},
	SecretMissing: {
		Title: "A Secret that the driver needs cannot be read",
		Page:  pageDriver, Event: FailedAttachVolume,
		Summary: func(s Situation) string {
			if s.Mount != nil {
				return s.Mount.fill("kubelet of node {node} cannot read the Secret {1} for "+csiDriver(s)+": {2}", s, same)
			}
			return fmt.Sprintf("%s cannot read a Secret for %s%s", secretReader(s), csiDriver(s), because(s.Detail))
		},
		Next: func(s Situation) []Step {
			if s.Mount != nil || s.Call == Mount {
				return secretOfNode(s)
			}
			return []Step{
				{
					Text: "Create the Secret that the PersistentVolume names, or give the ServiceAccount of the attacher's pod the right to get it. " +
						"It is read again with the next attempt. The command shows which one it is.",
					Command: ofVolume(s, `kubectl get pv %s -o jsonpath='{.spec.csi}{"\n"}'`),
				},
				makeAgain(s, "To use another Secret"),
			}
		},
	},
	DriverNotOnNode: {
		Title: "The driver has not registered on the node",
		Page:  pageDriver, Event: FailedAttachVolume,
		Summary: func(s Situation) string {
			where := "a node that fits the pod" // the scheduler has chosen none
			if node := cmp.Or(s.Wanted, s.Node); node != "" {
				where = "node " + node
			}
			why := ""
			if s.NotInstalled {
				why = because(s.Detail)
			}
			if s.Rebooted != "" {
				where += ", which rebooted " + s.Rebooted
			}
			return fmt.Sprintf("%s has not registered on %s%s", csiDriver(s), where, why)
		},
		Next: func(s Situation) []Step {
			node := cmp.Or(s.Wanted, s.Node)
			if s.NotInstalled {
				return []Step{{Text: "Install CSI driver " + s.Driver + ": its controller and its DaemonSet. The command lists the drivers that are installed.", Command: "kubectl get csidrivers"}}
			}
			if node == "" {
				return []Step{{
					Text:    "Check that the driver's DaemonSet runs a pod on the nodes that the pod may use: its taints and node selector may exclude them. The command lists the drivers of each node.",
					Command: "kubectl get csinodes -o custom-columns='NODE:.metadata.name,DRIVERS:.spec.drivers[*].name'",
				}}
			}
			return []Step{
				{Text: "Look at the driver's pod on node " + node + ", and at the log of its node-driver-registrar. Its DaemonSet may not run a pod there.", Command: podsOn(node)},
				{Text: "See which drivers the node's CSINode lists. After a reboot, it may list one that has not registered again.", Command: "kubectl get csinode " + node + " -o jsonpath='{.spec.drivers[*].name}'"},
			}
		},
	},
	NotReported: {
		Title: "The node does not list the volume as attached yet",
		Page:  pageControlPlane, Silence: onlyAsked, Verdict: InProgress,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the volume is attached to node %s, and the attach/detach controller has not added it to the node's status.volumesAttached", s.Wanted)
		},
		Next: checkControllers,
	},
	Mounting: {
		Title: "The node is mounting the volume",
		Page:  pageMount, Silence: ends, Verdict: InProgress,
		Summary: func(s Situation) string {
			if s.Volume == "" && s.Driver == "" { // those that the pod has are not attached: a ConfigMap, a path of the node
				return fmt.Sprintf("node %s is starting %s", s.Wanted, subject(s))
			}
			return fmt.Sprintf("the volume is attached to node %s, which %s", s.Wanted, cmp.Or(s.Detail, "is mounting it"))
		},
	},
	OwnershipChanging: {
		Title: "The node changes the owner of the volume's files",
		Page:  pageMount, Event: VolumePermissionChangeInProgress, Verdict: InProgress,
		Summary: func(s Situation) string {
			return fmt.Sprintf("node %s gives the files of %s to the pod's fsGroup one by one, and starts the pod after the last%s", s.Wanted, s.Own.words(), because(s.Detail))
		},
		Next: func(s Situation) []Step {
			return []Step{{
				Text:    "Wait: deleting the pod begins it again. To skip it when the root of the volume has the right owner already, set fsGroupChangePolicy: OnRootMismatch in securityContext of the pod's template.",
				Command: "kubectl explain pod.spec.securityContext.fsGroupChangePolicy",
			}}
		},
	},
	MountFailing: {
		Title: "The node fails to mount the volume",
		Page:  pageMount, Event: FailedMount,
		Summary: func(s Situation) string {
			switch {
			case s.Mount != nil:
				return mountCause(s)
			case s.Detail != "":
				return fmt.Sprintf("node %s fails to mount %s%s", s.Wanted, s.Own.words(), because(s.Detail))
			case s.Own.Name == "":
				return fmt.Sprintf("node %s has neither started a container of %s nor reported an error: kubelet or a driver may hang there", s.Wanted, subject(s))
			}
			return fmt.Sprintf("node %s has neither mounted %s nor reported an error: kubelet or the driver may hang there", s.Wanted, s.Own.words())
		},
		Next: mountSteps,
	},
	VolumeSourceMissing:  {Title: "The volume refers to an object that does not exist", Page: pageMount, Event: FailedMount, Summary: mountCause, Next: mountSteps},
	NodePathUnusable:     {Title: "The path of the volume cannot be used on the node", Page: pageMount, Event: FailedMount, Summary: mountCause, Next: mountSteps},
	NodeProgramMissing:   {Title: "The node lacks a program that mounts the volume", Page: pageMount, Event: FailedMount, Summary: mountCause, Next: mountSteps},
	StorageServerFailing: {Title: "The storage server does not answer the node, or refuses it", Page: pageMount, Event: FailedMount, Summary: mountCause, Next: serverSteps},
	VolumeUnsupported:    {Title: "The node cannot set up the volume as the pod wants it", Page: pageMount, Event: FailedMount, Summary: mountCause, Next: mountSteps},
	ContainerMountFailing: {
		Title: "The volume is mounted, and a container cannot get it",
		Page:  pageMount, Silence: onlyAsked,
		Summary: func(s Situation) string {
			who := "a container"
			if s.Container != "" {
				who = "container " + s.Container
			}
			if s.Mount == nil {
				return fmt.Sprintf("%s of %s cannot get %s on node %s%s", who, subject(s), s.Own.words(), s.Wanted, because(s.Detail))
			}
			return fmt.Sprintf("%s of %s cannot get %s: %s", who, subject(s), s.Own.words(), s.Mount.fill(s.Mount.text.why, s, same))
		},
		Next: mountSteps,
	},
	NotVolume: {
		Title: "The pod waits for something else than its volumes",
		Page:  pageMount, Silence: onlyAsked, Verdict: NotForVolume,
		Summary: func(s Situation) string {
			waits := map[Elsewhere]string{
				WaitImage: "its image, and for no volume", WaitNetwork: "its network, and for no volume", WaitGate: "the scheduler, and for no volume",
			}
			return fmt.Sprintf("%s%s waits for %s%s", subject(s), onNode(" on node ", s.Wanted), cmp.Or(waits[s.Waits], "something else than a volume"), because(s.Detail))
		},
		Next: notVolume,
	},
	PodOnLostNode: {
		Title: "The pod is being deleted on a node that is silent",
		Page:  pageNodeLost, Silence: onlyAsked, Verdict: Unsafe,
		Summary: func(s Situation) string {
			return fmt.Sprintf("%s is being deleted, and node %s, which would have to end it, is not Ready: the pod stays, and a StatefulSet does not replace it", subject(s), s.Node)
		},
		Next: lostNode,
	},
	PodNodeNotReady: {
		Title: "The pod's own node is not Ready",
		Page:  pageNodeLost, Silence: onlyAsked,
		Summary: func(s Situation) string {
			is := "is not Ready"
			if s.Detail != "" { // since when
				is = "has not been Ready " + s.Detail
			}
			if s.Silent {
				is += ", and whose kubelet is silent"
			}
			return fmt.Sprintf("%s is on node %s, which %s, so nothing mounts its volumes there", subject(s), s.Wanted, is)
		},
		Next: func(s Situation) []Step {
			next := "Its pods are then deleted, and their volumes detached: a controller creates its pods on other nodes. A pod that is only deleted stays Terminating, and its volumes stay attached."
			if s.Bare {
				next = "The pod is then deleted, and its volumes are detached. No controller creates it again: apply its manifest then. If it is only deleted, it stays Terminating, and its volumes stay attached."
			}
			return append([]Step{repairNode(s)}, declareOut(s, s.Wanted, "Only if its machine is off: declare it out of service. "+next,
				"if the machine still runs, two nodes may write to the volumes of its pods")...)
		},
	},
	PodTerminating: {
		Title: "The pod is being deleted",
		Page:  pageDetach, Silence: onlyAsked, Verdict: InProgress,
		Summary: func(s Situation) string {
			return fmt.Sprintf("%s is being deleted on node %s%s", subject(s), s.Node, because(s.Detail))
		},
		Next: func(s Situation) []Step {
			switch s.Cause {
			case VolumesStay:
				return append([]Step{{
					Text:    "Read kubelet's log on node " + s.Node + " for the pod's UID: it names the volume that it cannot unmount. " + noForce + " " + startsPod,
					Command: kubeletLog(s, inPaths(s)),
				}}, endMount(s)...)
			case HasFinalizers:
				return []Step{{Text: "See whether the controllers run that set the finalizers: each removes its own.", Command: in(s.Namespace, "kubectl describe pod "+s.Pod)}}
			default: // it is in its grace period, or a container does not end
				return []Step{{
					Text:    "Once its grace period is over, read the log of kubelet on node " + s.Node + ". Do not delete the pod with --force: its containers may still run and write.",
					Command: in(s.Namespace, "kubectl describe pod "+s.Pod),
				}}
			}
		},
	},
	OrphanAttachment: {
		Title: "No pod needs the volume, and it stays attached",
		Page:  pageLeftovers, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("volume %s is still attached to node %s, where no pod needs it, and no controller deletes its VolumeAttachment%s", cmp.Or(s.Volume, "(unknown)"), s.Node, and(s.Detail))
		},
		Next: func(s Situation) []Step {
			return []Step{
				{Text: "Delete the VolumeAttachment if nothing on node " + s.Node + " uses the volume: see first what that would do. Nothing is done before it is confirmed.", Command: "kubectl belay force-detach va/" + s.Attachment},
				{Text: "See who holds the leases of the attach/detach controllers, and read that controller's log. kube-controller-manager looks for such VolumeAttachments only when it starts.", Command: "kubectl get leases -n kube-system"},
			}
		},
	},
	UsedWithoutAttachment: {
		Title: "A node uses a volume without a VolumeAttachment",
		Page:  pageLeftovers, Event: VolumeDetachedInUse, Verdict: Unsafe,
		Summary: func(s Situation) string {
			return fmt.Sprintf("node %s uses volume %s, whose VolumeAttachment for it was deleted meanwhile: it may have been detached under its mount, where reads and writes then fail",
				s.Node, cmp.Or(s.Volume, "(unknown)"))
		},
		Next: func(s Situation) []Step {
			return seeHolder(s, "Delete the pods that use the volume on that node: pods created after that mount it again. Until then their reads and writes may fail, and another node must not get the volume.", Step{Text: "Then delete it.", Command: deleteHolder(s)})
		},
	},
	ReportedWithoutAttachment: {
		Title: "A node reports a volume as attached without a VolumeAttachment",
		Page:  pageLeftovers, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("status.volumesAttached of node %s lists volume %s, and no VolumeAttachment exists for it", s.Node, cmp.Or(s.Volume, "(unknown)"))
		},
		Next: checkControllers,
	},
	TwoAttachments: {
		Title: "A volume for one node has VolumeAttachments for several",
		Page:  pageLeftovers, Silence: onlyAsked, Verdict: Unsafe,
		Summary: func(s Situation) string {
			return fmt.Sprintf("volume %s may be attached to one node, and has VolumeAttachments for %s", s.Volume, s.Detail)
		},
		Next: func(s Situation) []Step {
			return []Step{{Text: "Find out which pod is meant to have it, and delete the others.", Command: "kubectl belay explain pv/" + s.Volume}}
		},
	},
	PublishedElsewhere: {
		Title: "The driver lists a volume for one node at two",
		Page:  pageLeftovers, Event: VolumePublishedElsewhere, Verdict: Unsafe,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the driver lists volume %s, which may be attached to one node, at two: node %s and %s. Both machines may write to it%s", cmp.Or(s.Volume, s.Handle), s.Node, s.ListedAt, because(s.Detail))
		},
		Next: func(s Situation) []Step {
			stop := Step{Text: "Find what uses the volume on both machines, and stop what is not meant to have it: two writers destroy the data."}
			if s.OtherNode != "" {
				stop.Command = podsOn(s.OtherNode)
			}
			return []Step{
				stop,
				{Text: "Ask the storage where the volume is attached: its list may be wrong." + documented(s), Command: s.Ask},
				{Text: "Detach the volume from that machine at the storage once nothing uses it there, and check the file system.", Danger: "if that machine still has the volume mounted, its writes are lost"},
			}
		},
	},
	Incomplete: {
		Title: "Too little could be read for an answer",
		Page:  pageControlPlane, Silence: onlyAsked, Verdict: Unknown,
		Summary: func(s Situation) string {
			return fmt.Sprintf("too little could be read to say what %s waits for%s", subject(s), because(s.Detail))
		},
	},
}

// repairNode is what to do about a node that is not Ready: if its kubelet is silent, its conditions are old.
func repairNode(s Situation) Step {
	step := Step{Text: "Repair node " + s.Wanted + " as its conditions say: its kubelet mounts the volumes once it is Ready again.", Command: "kubectl describe node " + s.Wanted}
	if s.Silent {
		step.Text = "Look at the machine of node " + s.Wanted + ": start it, or its kubelet, or repair its network. Its console or cloud shows what it does. Its kubelet mounts the volumes once it is Ready again. The command shows its addresses, and what it last reported."
	}
	return step
}

// secretReader is who reads the Secret of a call: kubelet those of the node, the attacher that of the attach.
func secretReader(s Situation) string {
	if s.Call == Mount {
		return "kubelet of node " + s.Wanted
	}
	return "the attacher"
}

// secretOfNode is what to do about a Secret that kubelet cannot read. The API server lets a node read the Secrets that the PersistentVolumes of its pods
// name (k/k v1.36.3 plugin/pkg/auth/authorizer/node/graph.go AddPV, node_authorizer.go).
func secretOfNode(s Situation) []Step {
	const rights = "kubelet needs no Role for it, and tries again by itself."
	if s.Volume == "" {
		return []Step{{Text: "Create that Secret, or correct the reference to it in the pod's template. " + rights}}
	}
	create := Step{Text: "Create the Secret that the PersistentVolume names. " + rights, Command: ofVolume(s, `kubectl get pv %s -o jsonpath='{.spec.csi}{"\n"}'`)}
	if s.Mount != nil {
		if namespace, name, ok := strings.Cut(s.Mount.fill("{1}", s, same), "/"); ok {
			create.Text = "Create the Secret " + name + " in namespace " + namespace + ", under this name. The command lists those that exist. " + rights
			create.Command = "kubectl get secrets -n " + ShellWord(namespace)
		}
	}
	return []Step{create, makeAgain(s, "To use another Secret")}
}

// csiDriver names the driver of a volume; that of a PersistentVolume which could not be read may be unknown.
func csiDriver(s Situation) string {
	if s.Driver == "" {
		return "the volume's CSI driver"
	}
	return "CSI driver " + s.Driver
}

// Elsewhere is what a pod waits for that is no volume, as far as that has a step of its own.
type Elsewhere uint8

// What a pod waits for.
const (
	// WaitOther: its events say it.
	WaitOther Elsewhere = iota
	// WaitRestart: a container that ended is to start again.
	WaitRestart
	// WaitImage: an image.
	WaitImage
	// WaitConfig: an object, or a field of its template, that a container needs.
	WaitConfig
	// WaitNetwork: its network.
	WaitNetwork
	// WaitGate: the removal of its scheduling gates.
	WaitGate
)

// notVolume is what to do about what a pod waits for.
func notVolume(s Situation) []Step {
	describe := in(s.Namespace, "kubectl describe pod "+s.Pod)
	switch s.Waits {
	case WaitRestart:
		return []Step{{Text: "Read the log of the container's last run.", Command: in(s.Namespace, "kubectl logs "+s.Pod+" -c "+s.Container+" --previous --tail=50")}}
	case WaitImage:
		if s.PullSecrets != "" {
			return []Step{{
				Text:    "Create the Secret " + s.PullSecrets + " for the image's registry, or correct imagePullSecrets. The command lists those that exist.",
				Command: in(s.Namespace, "kubectl get secrets"),
			}}
		}
		return []Step{{Text: "Correct the image's name, add imagePullSecrets for its registry, or let the node reach the registry.", Command: describe}}
	case WaitConfig:
		return []Step{{Text: "Create the ConfigMap, Secret or key that the message names, or correct the container in the pod's template.", Command: describe}}
	case WaitNetwork:
		return []Step{{
			Text:    "Look at the pod of the network plugin on the node, and at its log.",
			Command: "kubectl get pods -A -o wide --field-selector spec.nodeName=" + s.Wanted,
		}}
	case WaitGate:
		return []Step{{Text: "Find the controller that sets and removes the gates, such as a queue for jobs, and see what it waits for.", Command: describe}}
	case WaitOther:
	}
	return []Step{{Text: "Read the pod's conditions and events.", Command: describe}}
}

func attacherLogs(s Situation) []Step {
	step := Step{Text: "Read the logs of the attacher and of the driver's controller. The call is retried by itself.", Command: logsCommand(s)}
	var steps []Step
	if s.Works != "" {
		steps = []Step{{Text: "Look at the node and at the volume at the storage first, not at the driver: meanwhile " + s.Works + "."}}
	}
	return append(append(steps, step), retryNow(s)...)
}

// logsCommand prints the logs of the attacher and of the driver beside it, or where their pod may be; "" if the attacher has no lease.
func logsCommand(s Situation) string {
	switch {
	case s.LeaseNamespace == "":
		return ""
	case s.AttacherPod == "":
		return in(s.LeaseNamespace, "kubectl get pods -o wide")
	}
	return fmt.Sprintf("kubectl logs -n %s %s --all-containers --tail=100", s.LeaseNamespace, s.AttacherPod)
}

// declareGone asks a person to look where no program of the cluster can.
func declareGone(s Situation) []Step {
	return []Step{
		{Text: fmt.Sprintf("Ask the cloud or the storage whether machine %s exists, in any cluster, and whether the volume is attached to it.", cmp.Or(s.NodeID, "with the recorded node ID"))},
		{
			Text:    "If both are gone: state that. See what would be written, and what is checked before.",
			Command: fmt.Sprintf("kubectl belay declare-gone va/%s --node-id %s --reason 'machine and attachment are gone'", cmp.Or(s.Attachment, "NAME"), cmp.Or(s.NodeID, "ID")),
			Danger:  "if the machine still has the volume, two nodes may write to it",
		},
	}
}

func checkControllers(Situation) []Step {
	return []Step{{Text: "Check which attach/detach controller runs, and read its log.", Command: "kubectl belay check"}}
}

func forceDetachOf(s Situation, danger string) Step {
	step := forceDetach(s, danger)
	step.Text = "If it cannot be installed again: see what a forced detach would do."
	return step
}

// refused says that a call, "attach" or "detach", has failed or was not made.
func refused(s Situation, call, where string) string {
	if s.NotSent {
		return fmt.Sprintf("the attacher of %s does not call the driver for the %s %s%s", csiDriver(s), call, where, because(s.Detail))
	}
	return fmt.Sprintf("%s fails to %s the volume %s%s", csiDriver(s), call, where, because(s.Detail))
}
