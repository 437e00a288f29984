package explain

import (
	"fmt"
	"maps"
	"strings"

	"belay.dev/belay/internal/decision"
)

func init() { maps.Copy(guides, endingGuides) }

// endingGuides are the guides to the reasons of claims and volumes that end or grow, and of what keeps a pod or an attachment from being made.
var endingGuides = map[decision.Reason]Guide{
	ClaimTerminating: {
		Title: "The claim is being deleted, and something keeps it",
		Page:  pageClaims, Silence: onlyAsked, Verdict: InProgress,
		Summary: func(s Situation) string {
			if s.Pod != "" {
				return fmt.Sprintf("pod %s cannot start with the claim %s, which is being deleted%s", s.Pod, s.Claim, because(s.Detail))
			}
			return fmt.Sprintf("claim %s is being deleted, and still exists%s", s.Claim, because(s.Detail))
		},
		Next: nextOfTerminatingClaim,
	},
	VolumeTerminating: {
		Title: "The volume is not deleted yet",
		Page:  pageClaims, Silence: onlyAsked, Verdict: InProgress,
		Summary: func(s Situation) string {
			return fmt.Sprintf("volume %s is to be deleted, and still there%s", s.Volume, because(s.Detail))
		},
		Next: func(s Situation) []Step {
			return []Step{
				{Text: "Read the volume's events, and see whether the driver's provisioner and attacher run.", Command: "kubectl describe pv " + s.Volume},
				{Text: "See which drivers and attachers there are.", Command: "kubectl belay check"},
			}
		},
	},
	VolumeDeleteFailed: {
		Title: "The volume cannot be deleted at the storage",
		Page:  pageClaims, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("no claim uses volume %s any more, and it cannot be deleted at the storage%s", s.Volume, because(s.Detail))
		},
		Next: func(s Situation) []Step {
			do := "Correct what the error names, such as a permission of the driver's identity."
			if s.Cause == StorageRefuses {
				do = permit(s, "delete volumes")
			}
			if steps := causeSteps[s.Cause]; steps != nil {
				do = strings.TrimSuffix(steps(s)[0].Text, " The provisioner tries again by itself.")
			}
			return []Step{
				{Text: do + " The provisioner tries again by itself." + decode(s), Command: "kubectl describe pv " + s.Volume},
				{
					Text:    "If the volume is gone at the storage, or is to be kept there, delete only its object.",
					Command: retain(s.Volume) + " && kubectl delete pv " + s.Volume,
					Danger:  "a volume that still exists at the storage costs money and has no record in the cluster any more",
				},
			}
		},
	},
	ResizePending: {
		Title: "The volume has not grown yet",
		Page:  pageClaims, Silence: onlyAsked, Verdict: InProgress,
		Summary: func(s Situation) string {
			if s.Cause == NodeResizes {
				return fmt.Sprintf("claim %s asks for %s%s: the file system grows when %s%s", s.Claim, s.Size, hasSize(s), user(s), notAgain(s))
			}
			return fmt.Sprintf("claim %s asks for %s%s, and no component has made the volume larger", s.Claim, s.Size, hasSize(s))
		},
		Next: func(s Situation) []Step {
			if s.Cause == NodeResizes {
				return append(beforeRestart(s), restart(s, "Restart the pod that uses it: kubelet then grows the file system first.")...)
			}
			return []Step{describeClaim(s, "See whether the driver's resizer runs: nothing else makes the volume larger. Read the claim's events.")}
		},
	},
	ResizeFailed: {
		Title: "The volume cannot grow",
		Page:  pageClaims, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("claim %s asks for %s%s, and its volume cannot grow%s", s.Claim, s.Size, hasSize(s), because(s.Detail))
		},
		Next: func(s Situation) []Step {
			steps := []Step{describeClaim(s, "Correct what the error names. It is tried again by itself."+decode(s))}
			switch s.Cause {
			case SizeRefused:
				steps[0].Text = "Ask for a size that the storage can give. The request may be lowered to any size above the present one."
			case NodeResizes:
				steps = append(append(steps, beforeRestart(s)...), restart(s, "If the driver grows a file system only while it is not mounted, restart the pod that uses it.")...)
			default: // it is known no better
			}
			return steps
		},
	},
	CSIDriverMissing: {
		Title: "A driver without an attacher has no CSIDriver object",
		Page:  pageDriver, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("CSI driver %s has no CSIDriver object, so Kubernetes waits for an attacher to attach the volume to node %s, and this driver has none that ever worked", s.Driver, s.Wanted)
		},
		Next: func(s Situation) []Step {
			return []Step{
				{Text: "Install the driver's CSIDriver object, with attachRequired: false if the driver has no attacher. Its manifests have the object, and an attacher if it needs one.", Command: "kubectl get csidrivers"},
				{
					Text:    "Only if the driver has no attacher, like drivers of file shares: declare that its volumes need no attach.",
					Command: `echo '{"apiVersion":"storage.k8s.io/v1","kind":"CSIDriver","metadata":{"name":"` + strings.Trim(s.Driver, "'") + `"},"spec":{"attachRequired":false}}' | kubectl create -f -`,
					Danger:  "a volume of a driver that does need the attach is never attached then",
				},
			}
		},
	},
	PodNotCreated: {
		Title: "The owner of pods cannot create one",
		Page:  pageScheduling, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("%s cannot create its pods%s", s.Workload, because(s.Detail))
		},
		Next: func(s Situation) []Step {
			steps := []Step{{Text: "Correct what the error names. The controller tries again by itself, after 16 minutes at most.", Command: in(s.Namespace, "kubectl describe "+s.Workload)}}
			if strings.Contains(s.Detail, "exceeded quota") {
				steps = append([]Step{{Text: "Raise the quota that the error names, or delete what uses it up.", Command: in(s.Namespace, "kubectl describe resourcequota")}}, steps...)
			}
			return steps
		},
	},
}

// nextOfTerminatingClaim is what to do about a claim that is kept.
func nextOfTerminatingClaim(s Situation) []Step {
	switch {
	case s.Cause == HeldBySnapshot:
		return []Step{{Text: "Wait until the snapshot is ready: the claim is then deleted by itself. See why it is not.", Command: in(s.Namespace, "kubectl get volumesnapshot")}}
	case s.HolderName != "" && s.HolderEnded:
		return keepFirst(s, "Delete "+holder(s)+", which has ended: the claim is then deleted by itself.", "")
	case s.HolderName != "":
		return keepFirst(s, "End "+holder(s)+": the claim is deleted when no pod uses it any more.", "what the pod does is interrupted")
	}
	return []Step{describeClaim(s, "See which finalizer keeps it, and whether the controller runs that set it. Do not remove a finalizer by hand before that: what it protects is then lost.")}
}

// keepFirst are the steps that let a claim end by the end of the pod that keeps it, and before that keep its data. With the claim, its volume goes (k/k
// v1.36.3 pkg/controller/volume/persistentvolume/pv_controller.go reclaimVolume; a driver's provisioner for its volumes).
func keepFirst(s Situation, text, danger string) []Step {
	end := Step{Text: text, Command: deleteHolder(s), Danger: danger}
	switch {
	case s.Volume == "":
		return []Step{{Text: "See what the pod is.", Command: in(s.HolderNamespace, "kubectl get pod "+s.HolderName+" -o wide")}, end}
	case s.Policy == policyRetain:
		return []Step{{Text: "Volume " + s.Volume + " and its data stay when the claim is deleted: its reclaim policy is Retain.", Command: "kubectl get pv " + s.Volume}, end}
	}
	is, size := []string{}, ""
	if s.HasSize != "" {
		is, size = append(is, s.HasSize), " ("+s.HasSize+")"
	}
	unless := ""
	if s.Policy != "" {
		is = append(is, "reclaim policy "+s.Policy)
	} else {
		unless = ", unless its reclaim policy is Retain"
	}
	end.Text = "Then " + strings.ToLower(text[:1]) + text[1:]
	end.Danger = "volume " + s.Volume + size + " and its data are deleted, unless you have taken step 2"
	if s.Policy == "" {
		end.Danger = "volume " + s.Volume + size + " and its data are deleted if its reclaim policy is not Retain"
	}
	volume := s.Volume
	if len(is) > 0 {
		volume += " (" + strings.Join(is, ", ") + ")"
	}
	return []Step{
		{Text: "Decide whether the data of volume " + volume + " is needed. It is deleted with claim " + s.Claim + " once " + holder(s) + " is gone" + unless + ".", Command: "kubectl get pv " + s.Volume},
		{Text: "To keep the data, set the policy to Retain before that.", Command: retain(s.Volume)},
		end,
	}
}

// policyRetain is the reclaim policy that keeps a volume when its claim is deleted.
const policyRetain = "Retain"

// deletesVolume is what the delete of a claim does to its volume; empty if it keeps it.
func deletesVolume(s Situation) string {
	switch s.Policy {
	case policyRetain:
		return ""
	case "":
		return "its volume is deleted too if its reclaim policy is not Retain"
	}
	return "its volume is deleted too: its reclaim policy is " + s.Policy
}

// retain keeps the data of a PersistentVolume when its claim is deleted. The name is a word of a shell.
func retain(pv string) string {
	return "kubectl patch pv " + pv + ` -p '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}'`
}

// makeAgain is how a PersistentVolume gets a source with another part: the source cannot be changed (k/k v1.30.14 to v1.37.2
// pkg/apis/core/validation/validation.go ValidatePersistentVolumeUpdate, "spec.persistentvolumesource is immutable after creation").
func makeAgain(s Situation, to string) Step {
	step := Step{Text: to + ", make the PersistentVolume again: what it refers to cannot be changed."}
	if s.Volume != "" {
		step.Text += " The command keeps the data and prints the volume. Then end its pods, delete claim and volume, and create both again: the volume with the same handle, and without uid, resourceVersion and status."
		step.Command = retain(s.Volume) + " && kubectl get pv " + s.Volume + " -o yaml"
	}
	return step
}

func hasSize(s Situation) string {
	if s.HasSize == "" {
		return ""
	}
	return " and has " + s.HasSize
}

func user(s Situation) string {
	if s.HolderName == "" {
		return "a pod starts with it, and no pod uses it"
	}
	return holder(s) + " starts again"
}

// notAgain says why a pod that is ended could not have its volume again.
func notAgain(s Situation) string {
	if s.NotAgain == "" {
		return ""
	}
	return ", but " + s.NotAgain
}

// beforeRestart is what has to be well before a pod is ended that is to have its volume again.
func beforeRestart(s Situation) []Step {
	switch {
	case s.NotAgain == "" || s.HolderName == "":
		return nil
	case s.OffNode != "":
		return []Step{{Text: "Leave the pod running until the driver has registered on node " + s.OffNode + ": look at the driver's pod there, and at its log.", Command: podsOn(s.OffNode)}}
	}
	attacher := guides[AttacherNotRunning].Next(s)[0]
	why, _, _ := strings.Cut(attacher.Text, " The operation continues")
	attacher.Text = "Leave the pod running, and start the driver's attacher first. " + why
	return []Step{attacher}
}

// restart is how to have the pod started again that uses a claim.
func restart(s Situation, text string) []Step {
	see := in(s.Namespace, "kubectl get pvc "+s.Claim)
	if s.HolderName == "" {
		return []Step{{Text: "Start a pod that uses the claim: kubelet grows the file system before it starts the pod.", Command: see}}
	}
	remove := "Delete the pod: its owner creates it again."
	if s.HolderOwner == "" {
		remove = "Delete the pod, which has no controller: apply its manifest after that."
	}
	return []Step{{Text: text, Command: in(s.HolderNamespace, "kubectl get pod "+s.HolderName+" -o wide")}, {Text: remove, Command: deleteHolder(s), Danger: "what the pod does is interrupted"}}
}
