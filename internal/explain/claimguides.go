package explain

import (
	"fmt"
	"maps"
	"strings"

	"belay.dev/belay/internal/decision"
)

func init() { maps.Copy(guides, claimGuides) }

// claimGuides are the guides to the reasons of claims that get no volume, and of pods that fit no node because of a volume.
var claimGuides = map[decision.Reason]Guide{
	ClaimMissing: {
		Title: "The claim does not exist",
		Page:  pageClaims, Silence: onlyAsked,
		Summary: func(s Situation) string {
			if s.Ephemeral {
				return fmt.Sprintf("%s has a generic ephemeral volume, whose claim %s has not been created%s", subject(s), s.Claim, because(s.Detail))
			}
			return fmt.Sprintf("%s uses the claim %s, which does not exist", subject(s), s.Claim)
		},
		Next: func(s Situation) []Step {
			if s.Ephemeral {
				return []Step{
					{Text: "See whether a quota or an admission webhook refuses the claim: kube-controller-manager creates it, and reports why it cannot in the pod's events.", Command: in(s.Namespace, "kubectl describe pod "+s.Pod)},
					{Text: "See what the quotas of the namespace leave.", Command: in(s.Namespace, "kubectl get resourcequota")},
				}
			}
			return []Step{{Text: "Create the claim, or correct its name in the pod's template.", Command: in(s.Namespace, "kubectl get pvc")}}
		},
	},
	ClaimNotBound: {
		Title: "The claim has no volume yet",
		Page:  pageClaims, Silence: onlyAsked, Verdict: InProgress,
		Summary: func(s Situation) string {
			if s.Cause == NodeWithoutScheduler {
				return fmt.Sprintf("%s waits for the claim %s, whose StorageClass %s waits for the scheduler to choose a node: the pod got node %s without it (spec.nodeName)", subject(s), s.Claim, s.Class, s.Wanted)
			}
			return fmt.Sprintf("%s to be bound%s", waitsForClaim(s), because(s.Detail))
		},
		Next: nextOfUnbound,
	},
	ProvisioningFailed: {
		Title: "The volume cannot be provisioned",
		Page:  pageClaims, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("%s, which %s fails to provision%s", waitsForClaim(s), provisioner(s), because(s.Detail))
		},
		Next: nextOfProvisioning,
	},
	ProvisionerNotRunning: {
		Title: "No provisioner works for the claim",
		Page:  pageClaims, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("%s to be provisioned by %s, which does not run%s", waitsForClaim(s), s.Provisioner, because(s.Detail))
		},
		Next: func(s Situation) []Step {
			return []Step{
				{Text: "Install " + s.Provisioner + ", start its controller, or use another StorageClass. It provisions the claim by itself as soon as it runs: see whether its pods do.", Command: "kubectl get pods -A"},
				{Text: "If the StorageClass has the name of a provisioner that this cluster is not meant to have, use another class: that of a claim cannot be changed, so the claim has to be created again.", Command: "kubectl get storageclass"},
			}
		},
	},
	NoVolumeToBind: {
		Title: "No PersistentVolume fits the claim",
		Page:  pageScheduling, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("%s to be bound, and there is no volume for it%s", waitsForClaim(s), because(s.Detail))
		},
		Next: func(s Situation) []Step {
			return []Step{
				{Text: "Compare the claim with the PersistentVolumes: class, size, access modes, and the nodes on which they can be used.", Command: "kubectl get pv -o wide"},
				{Text: "Create a PersistentVolume that fits, or create the claim again with a class that provisions volumes.", Command: "kubectl get storageclass"},
			}
		},
	},
	NotEnoughStorage: {
		Title: "No node has enough free storage for the claim",
		Page:  pageScheduling, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("%s fits no node with enough free storage%s", subject(s), because(s.Detail))
		},
		Next: func(s Situation) []Step {
			return []Step{
				{
					Text: "Add storage, delete volumes that are not needed, or create the claim again with a smaller size. " +
						"The scheduler then tries again by itself. The command shows what the driver reports as free, by StorageClass and place.",
					Command: "kubectl get csistoragecapacities -A -o custom-columns='CLASS:.storageClassName,FREE:.capacity,MAX:.maximumVolumeSize,WHERE:.nodeTopology.matchLabels'",
				},
			}
		},
	},
	VolumeTopologyConflict: {
		Title: "The volume cannot be reached from any node that fits the pod",
		Page:  pageScheduling, Silence: onlyAsked,
		Summary: func(s Situation) string {
			if s.Wanted != "" {
				return fmt.Sprintf("%s is on node %s, which does not reach its volume%s", subject(s), s.Wanted, because(s.Detail))
			}
			return fmt.Sprintf("%s fits no node that reaches its volume%s", subject(s), because(s.Detail))
		},
		Next: func(s Situation) []Step {
			if s.Wanted != "" {
				next := "Delete the pod, so that the next one gets another node."
				if s.Bare {
					next = "This pod has no controller: delete it, then apply the manifest without nodeName."
				}
				return []Step{
					{Text: "Remove spec.nodeName from the pod's template: the scheduler then chooses a node that fits.", Command: where(s)},
					{Text: next, Command: in(s.Namespace, "kubectl delete pod "+s.Pod)},
				}
			}
			room := " make room on one,"
			if s.Nowhere {
				room = ""
			}
			steps := []Step{{Text: "Add a node where the volume can be used," + room + " or restore the data to a volume elsewhere. The scheduler then tries again by itself.", Command: where(s)}}
			if s.Volume != "" {
				steps = append(steps, Step{Text: "See where the volume can be used.", Command: "kubectl get pv " + s.Volume + " -o jsonpath='{.spec.nodeAffinity}'"})
			}
			return steps
		},
	},
	VolumeNodeGone: {
		Title: "The data of the volume is on a node that does not exist",
		Page:  pageScheduling, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("%s fits no node: its volume %s is on node %s, which does not exist any more", subject(s), s.Volume, s.Detail)
		},
		Next: func(s Situation) []Step {
			back := Step{Text: "If the machine or its disk still exists, let it join again with the same name: the data is on that disk.", Command: "kubectl get nodes"}
			remove := Step{
				Text: "If the data is lost, or can be restored from elsewhere, delete the claim, then the pod. " +
					"A StatefulSet creates both again, with an empty volume; anything else you create again yourself.",
				Command: in(s.Namespace, "kubectl delete pvc "+s.Claim+" --wait=false"),
				Danger:  "this abandons the data that is on the machine",
			}
			if s.Cause != MadeByHand && s.Cause != PerhapsByHand {
				return []Step{back, remove}
			}
			class := "its class"
			if s.Class != "" {
				class = "StorageClass " + s.Class
			}
			makes := ": " + class + " makes none."
			if s.Cause == PerhapsByHand {
				makes = ", unless " + class + " makes one."
			}
			remove.Text = "Then delete the claim, and the pod after it. A StatefulSet creates both again, and the claim gets the new volume; anything else you create again yourself."
			return []Step{back, {
				Text: "Otherwise, first create a local PersistentVolume on another node" + makes + " " +
					"This one is the pattern: give it another name, path and node, and leave out claimRef, status, uid and resourceVersion. Without it, the new claim waits too.",
				Command: "kubectl get pv " + s.Volume + " -o yaml",
			}, remove}
		},
	},
	VolumeMismatch: {
		Title: "The claim is not bound to the PersistentVolume that it names",
		Page:  pageClaims, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("%s to be bound to the PersistentVolume %s, which does not fit%s", waitsForClaim(s), s.Volume, because(s.Detail))
		},
		Next: nextOfMismatch,
	},
	EphemeralClaimNotOwned: {
		Title: "The claim that the pod's ephemeral volume needs is not the pod's",
		Page:  pageClaims, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("%s needs the claim %s for an ephemeral volume, and the claim of that name was not created for it%s", subject(s), s.Claim, because(s.Detail))
		},
		Next: func(s Situation) []Step {
			return []Step{
				{Text: "Rename the volume in the pod's template, or delete the claim if its data is not needed. The name of the claim of an ephemeral volume is the pod's, a hyphen and the volume's.", Command: in(s.Namespace, "kubectl describe pvc "+s.Claim)},
				{
					Text:    "Delete the claim: kube-controller-manager then creates one that belongs to the pod.",
					Command: in(s.Namespace, "kubectl delete pvc "+s.Claim),
					Danger:  deletesVolume(s),
				},
			}
		},
	},
}

// waitsForClaim begins a sentence about a claim without a volume: with the pod that waits, or the claim itself.
func waitsForClaim(s Situation) string {
	if s.Pod == "" {
		return fmt.Sprintf("claim %s waits", s.Claim)
	}
	return fmt.Sprintf("pod %s waits for the claim %s", s.Pod, s.Claim)
}

func provisioner(s Situation) string {
	if s.Provisioner == "" {
		return "the provisioner"
	}
	return s.Provisioner
}

func describeClaim(s Situation, text string) Step {
	return Step{Text: text, Command: in(s.Namespace, "kubectl describe pvc "+s.Claim)}
}

// nextOfUnbound is what to do about a claim that has no volume.
func nextOfUnbound(s Situation) []Step {
	classes := Step{Text: "See which StorageClasses there are.", Command: "kubectl get storageclass"}
	switch s.Cause {
	case NoClass:
		classes.Text = "Choose a StorageClass. Or create a PersistentVolume without a class for the claim."
		return append([]Step{classes}, nextWithClass(s)...)
	case NoDynamicClass:
		return []Step{
			{Text: "Create a PersistentVolume without a class for the claim, or create the claim again with a class. The class \"\" provisions nothing, a default class does not apply to it, and that of a claim cannot be changed.", Command: classes.Command},
			{Text: "To create the claim again, delete this one, which has no volume.", Command: in(s.Namespace, "kubectl delete pvc "+s.Claim)},
		}
	case ClassMissing:
		return []Step{
			{Text: "Create the StorageClass " + s.Class + ", or create the claim again with another one. The claim is then provisioned by itself.", Command: classes.Command},
			{
				Text:    "The class of a claim cannot be changed: to use another one, delete the claim, which has no volume, and create it again.",
				Command: in(s.Namespace, "kubectl delete pvc "+s.Claim),
			},
		}
	case NodeWithoutScheduler:
		return []Step{
			{
				Text:    "Let the scheduler place the pod: use a nodeSelector for kubernetes.io/hostname in place of spec.nodeName.",
				Command: in(s.Namespace, "kubectl get pod "+s.Pod+" -o wide"),
			},
			{Text: "Create the pod again.", Command: in(s.Namespace, "kubectl delete pod "+s.Pod)},
		}
	default:
		return []Step{
			describeClaim(s, "Read the claim's events: they name the provisioner and its error. Check that the provisioner of the driver runs."),
			classes,
		}
	}
}

// nextWithClass are commands for a claim that names no class, with one of the cluster's. The class of such a claim may be set as long as it has no volume
// (k/k v1.30.14 to v1.37.2 pkg/apis/core/validation/validation.go validateStorageClassUpgradeFromNil).
func nextWithClass(s Situation) []Step {
	byDefault := Step{
		Text:   "Make it the default (the annotation " + DefaultClass + "=true): claims that name no class get it.",
		Danger: "from then on, all claims of the cluster that name no class get it",
	}
	alone := Step{
		Text:   "Or give it to this claim alone, as its spec.storageClassName.",
		Danger: "the class of a claim cannot be changed after that",
	}
	if s.AClass != "" { // the only one: no choice is made for the reader
		byDefault.Command = "kubectl annotate storageclass " + s.AClass + " " + DefaultClass + "=true"
		alone.Command = in(s.Namespace, "kubectl patch pvc "+s.Claim+" -p "+ShellWord(`{"spec":{"storageClassName":"`+strings.Trim(s.AClass, "'")+`"}}`))
	}
	return []Step{byDefault, alone}
}

// nextOfProvisioning is what to do about a provisioner that fails.
func nextOfProvisioning(s Situation) []Step {
	class := Step{Text: "See what the StorageClass says.", Command: "kubectl get storageclass " + s.Class + " -o yaml"}
	logs := describeClaim(s, "See the whole error in the claim's events, and in the log of the provisioner.")
	switch {
	case s.ProvisionerPod != "" && s.ProvisionerNamespace != "":
		logs = Step{Text: "Read the log of the provisioner.", Command: fmt.Sprintf("kubectl logs -n %s %s --all-containers --tail=100", s.ProvisionerNamespace, s.ProvisionerPod)}
	case s.ProvisionerPod != "":
		logs = Step{Text: "Find the provisioner, and read its log: it runs as this pod, or on a machine of this name.", Command: "kubectl get pods -A --field-selector metadata.name=" + s.ProvisionerPod}
	}
	if steps := causeSteps[s.Cause]; steps != nil {
		return append(steps(s), logs)
	}
	switch s.Cause {
	case NoTopology:
		return []Step{
			{
				Text:    "Look at the driver's pods on the nodes, and at the topology keys that each node has from it. A node that has none, or whose labels lack them, is left out.",
				Command: "kubectl describe csinodes",
			},
			withText(class, "Compare allowedTopologies of the StorageClass with the labels of the nodes."),
		}
	case NodeNotChosen:
		return []Step{withText(class, "Create a StorageClass with volumeBindingMode: WaitForFirstConsumer, and the claim again with it: the provisioner has to know the node. The mode of a StorageClass, and the class of a claim, cannot be changed.")}
	case StorageExhausted:
		return []Step{describeClaim(s, "Raise the quota that the error names, or free storage there. The provisioner tries again by itself.")}
	case StorageRefuses:
		return []Step{describeClaim(s, permit(s, "create volumes")+" The provisioner tries again by itself."+decode(s)), logs}
	case DriverSilent:
		return []Step{withText(logs, "Find out in the log of the driver's controller why it, or its storage, does not answer in time. The provisioner tries again by itself."+whereItRuns(s))}
	case SourceNotReady:
		if s.SourceName != "" {
			return []Step{{Text: "See whether the object exists and is ready that the claim is to be filled from. The provisioner tries again by itself.", Command: in(s.SourceNamespace, "kubectl get "+s.SourceKind+" "+s.SourceName)}}
		}
		return []Step{describeClaim(s, "See what the claim is to be filled from. The provisioner tries again by itself.")}
	case SecretOfClass:
		return []Step{withText(class, "Create the Secret that the parameters of the StorageClass name, or let the provisioner read it. It tries again by itself.")}
	case WrongParameters, NotSupported:
		return []Step{
			withText(class, "Correct the StorageClass, or the claim: the driver refuses what they ask for, however often. The parameters of a StorageClass cannot be changed: create another."),
			describeClaim(s, "Compare size, access modes and volume mode with what the driver can do."),
		}
	default:
		return []Step{describeClaim(s, "Correct what the error names, such as a permission, a quota or a parameter. The provisioner tries again by itself."), logs, class}
	}
}

// where shows where the nodes are, by the label that the volume needs.
func where(s Situation) string {
	if s.ZoneKey == "" {
		return "kubectl get nodes --show-labels"
	}
	return nodesWith(s)
}

func withText(step Step, text string) Step {
	step.Text = text
	return step
}

func whereItRuns(s Situation) string {
	if s.ProvisionerPod == "" || s.ProvisionerNamespace != "" {
		return ""
	}
	return " It runs as this pod, or on a machine of this name."
}

// nextOfMismatch is what to do about a claim that names a volume which does not fit.
func nextOfMismatch(s Situation) []Step {
	see := Step{Text: "Compare both.", Command: "kubectl describe pv " + s.Volume}
	switch s.Cause {
	case OtherClass:
		return []Step{withText(see, "Give the PersistentVolume the class of the claim, or create the claim again with the volume's."), {
			Text:    "Set the class of the PersistentVolume.",
			Command: "kubectl patch pv " + s.Volume + ` -p '{"spec":{"storageClassName":"` + strings.Trim(s.Class, "'") + `"}}'`,
		}}
	case BoundToAnother:
		return []Step{withText(see, "Use another PersistentVolume: one is bound to one claim. To share it, use the same claim in both pods.")}
	case BoundToDeleted:
		return []Step{withText(see, "See what the volume is for."), {
			Text:    "If the claim may have its data, let the volume be bound again.",
			Command: "kubectl patch pv " + s.Volume + ` -p '{"spec":{"claimRef":null}}'`,
			Danger:  "the pods of the claim read and change the data of the earlier claim",
		}}
	default:
		return []Step{see, describeClaim(s, "Create the claim again so that it fits, or another PersistentVolume.")}
	}
}
