package diagnosis

import (
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// ForcePlan is what a forced detach of a VolumeAttachment would do, and what could go wrong.
type ForcePlan struct {
	metav1.TypeMeta `json:",inline"`

	Subject Ref     `json:"subject"`
	Volume  *Volume `json:"volume,omitempty"`
	Holder  Holder  `json:"holder"`
	// UID and ResourceVersion are those of the VolumeAttachment that was looked at: the request fails for any other.
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
	// Action is what would be done, empty if there is nothing that could be.
	Action ForceAction `json:"action,omitempty"`
	// Finalizer is what RemoveFinalizer removes.
	Finalizer string `json:"finalizer,omitempty"`
	// Recovery is what the NodeFence of the boot waits for, empty without one.
	Recovery string `json:"recovery,omitempty"`
	// Does says in words what that does.
	Does []string `json:"does,omitempty"`
	// Risks are what may be lost. Without any, the detach is safe.
	Risks []string `json:"risks,omitempty"`
	// Refusal is why it is not done whatever the reader accepts.
	Refusal string `json:"refusal,omitempty"`
	// Next are the steps to take instead, or after it.
	Next []explain.Step `json:"next,omitempty"`
}

// ForceAction is a write to a VolumeAttachment.
type ForceAction string

// The writes.
const (
	// DeleteAttachment asks the attacher to detach: the object stays until the driver has confirmed.
	DeleteAttachment ForceAction = "DeleteVolumeAttachment"
	// RemoveFinalizer is for a driver that is not installed any more.
	RemoveFinalizer ForceAction = "RemoveFinalizer"
)

// PlanForceDetach returns what a forced detach would do. It never plans to remove a finalizer while an attacher or a driver that
// could confirm the detach is, or may be, installed.
func PlanForceDetach(s *Snapshot, name string) (ForcePlan, error) {
	x := newState(s)
	ref := Ref{Resource: Attachments, Name: name}
	va := x.attachments[name]
	if va == nil {
		return ForcePlan{}, x.missing(ref)
	}
	key, known := x.volumeOf(va)
	if !known {
		key = attachment.VolumeKey{Driver: va.Spec.Attacher}
	}
	p := ForcePlan{
		TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: "ForcePlan"}, Subject: ref,
		Volume: x.describe(key, x.volumes[kube.SourceName(va)]), Holder: x.holder(key, va.Spec.NodeName),
		UID: string(va.UID), ResourceVersion: va.ResourceVersion,
	}
	p.Holder.Attachment = va.Name
	p.Risks = x.risks(va, &p.Holder, known)
	x.act(&p, va)
	if f := x.fenceFor(va); f != nil && p.Action == DeleteAttachment && !p.Holder.unused() {
		x.considerFence(&p, f)
	}
	return p, nil
}

// act chooses the write.
func (x *state) act(p *ForcePlan, va *storagev1.VolumeAttachment) {
	own := kube.AttacherFinalizer(va.Spec.Attacher)
	switch {
	case va.DeletionTimestamp == nil:
		p.Action = DeleteAttachment
		p.Does = []string{
			"deletes the VolumeAttachment; the attacher of " + va.Spec.Attacher + " then detaches the volume, and the object goes when the driver has confirmed",
		}
		if len(p.Holder.Pods)+p.Holder.HiddenPods > 0 {
			p.Does = append(p.Does, "pods on node "+p.Holder.Node.Name+" still need the volume: the controller attaches it there again unless they are deleted first")
		}
		if x.controller() == Own && p.Holder.InUse != "no" && p.Holder.Node.State != NodeDeleted {
			p.Does = append(p.Does, "belay-controller still attaches the volume nowhere else as long as the Node lists it in use: the out-of-service taint, or the deletion of the Node, is what ends that")
		}
	case !slices.Contains(va.Finalizers, own):
		p.Refusal = "the VolumeAttachment is being deleted already, and its attacher has confirmed the detach: it stays for the finalizers of other clients (" +
			strings.Join(va.Finalizers, ", ") + ")"
		p.Next = []explain.Step{{Text: "Find out which clients these are, and why they do not remove them.", Command: "kubectl get volumeattachment " + va.Name + " --show-managed-fields -o yaml"}}
	case x.removed(va.Spec.Attacher):
		p.Action, p.Finalizer = RemoveFinalizer, own
		p.Does = []string{"removes the finalizer " + own + ", so that the VolumeAttachment goes without a detach"}
		p.Risks = append(p.Risks, "nothing detaches the volume at the storage: it may stay attached to node "+va.Spec.NodeName+" there")
	default:
		p.Refusal = "the VolumeAttachment is being deleted already, and its attacher has to confirm the detach. Its finalizer is never removed while the driver may hold the volume"
		if at, fresh := x.lastWord(va.Spec.Attacher); fresh {
			p.Refusal += "; an attacher of the driver wrote an error at " + stamp(at)
		}
		p.Next = []explain.Step{{Text: "See what the detach waits for.", Command: "kubectl belay explain va/" + va.Name}}
	}
}

// risks are what may be lost when the volume is detached from a node that may use it.
func (x *state) risks(va *storagev1.VolumeAttachment, h *Holder, known bool) []string {
	name := h.Node.Name
	switch {
	case !known:
		return []string{"the volume of this VolumeAttachment is unknown, and so is whether node " + name + " uses it"}
	case x.anotherMachine(va):
		return []string{"what node " + name + " shows, its taints too, is about the machine that has registered under this name since the volume was attached: " +
			"the earlier one may still run, and if it writes while another node mounts the volume, the file system is corrupted"}
	case h.Node.OutOfService && x.answers(h.Node):
		return []string{"node " + name + " has the out-of-service taint, but its kubelet still reports: the machine is not shut down, " +
			"and if it writes while another node mounts the volume, the file system is corrupted"}
	case h.unused():
		return nil
	case h.Node.OutOfService && h.Node.State != NodeReady && h.Node.State != NodeUnknown:
		return nil // a person has confirmed that the machine is shut down
	case h.Node.State == NodeReady && x.onlyWaits(va, h):
		return []string{"node " + name + " is Ready and lists the volume, because a pod of it waits for the attach, which has not succeeded: if the volume was attached after all, " +
			"what a pod there has written is lost"}
	case h.Node.State == NodeReady:
		return []string{"node " + name + " is Ready and uses the volume: what its pods have not written to the storage yet is lost, and they get I/O errors"}
	case h.Node.State == NodeUnknown:
		return []string{"whether node " + name + " runs is unknown: if it does, it may write while another node mounts the volume, and the file system is corrupted"}
	}
	return []string{x.riskOfLost(h.Node)}
}

// riskOfLost is the risk of a node that is not Ready, or whose Node was deleted.
func (x *state) riskOfLost(n NodeState) string {
	const corrupts = "if it writes while another node mounts the volume, the file system is corrupted"
	if at := n.LastHeartbeat; n.State != NodeDeleted && at != nil && x.Now.Sub(*at) <= silence {
		return "the machine of node " + n.Name + " runs: it renewed its lease at " + stamp(*at) + ", and " + corrupts
	}
	return "the machine of node " + n.Name + " may still run: " + corrupts
}

// unused reports whether a node that works neither uses the volume nor has a pod that needs it.
func (h *Holder) unused() bool {
	return h.InUse == "no" && h.Node.State == NodeReady && len(h.Pods)+h.HiddenPods == 0 && !h.PodsUnknown
}

// onlyWaits reports whether a node lists a volume that has not been attached there, and none of its pods has mounted it.
func (x *state) onlyWaits(va *storagev1.VolumeAttachment, h *Holder) bool {
	mountedThere := func(p PodState) bool {
		pod := x.pods[join(p.Namespace, p.Name)]
		return pod == nil || mounted(pod)
	}
	return h.Reported == "no" && h.HiddenPods == 0 && !h.PodsUnknown && !va.Status.Attached && !slices.ContainsFunc(h.Pods, mountedThere)
}

// anotherMachine reports whether the Node may stand for a machine other than the one that the volume was attached to: it is recorded
// that it does, or the Node is younger than the VolumeAttachment, and neither the record nor a list that kubelet has had time to send
// shows that it is the same.
func (x *state) anotherMachine(va *storagev1.VolumeAttachment) bool {
	node := x.nodes[va.Spec.NodeName]
	if node == nil {
		return false
	}
	n := x.facts(node.Name, "")
	was := &attachment.Attachment{Node: n2(node.Name), Machine: kube.RecordedMachine(va)}
	switch {
	case n.Machine.Replaces(was.Machine):
		return true
	case !node.CreationTimestamp.After(va.CreationTimestamp.Time):
		return false
	}
	return !n.SameMachine(was) || n.QuietUntil.IsZero()
}

// shutDown reports whether a node was declared out of service, as a person does who has seen that its machine is off, and nothing contradicts that: it is not
// Ready, and its kubelet does not answer.
func (x *state) shutDown(n NodeState) bool {
	return n.OutOfService && (n.State == NodeNotReady || n.State == NodeUnreachable) && !x.answers(n)
}

// answers reports whether the kubelet of a node has reported lately: it renews its lease, or it says itself that the node is not Ready.
// The node lifecycle controller says Unknown of a node whose kubelet is silent.
func (x *state) answers(n NodeState) bool {
	return n.State == NodeNotReady || n.State == NodeUnreachable && n.LastHeartbeat != nil && x.Now.Sub(*n.LastHeartbeat) <= silence
}
