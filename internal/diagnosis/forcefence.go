package diagnosis

import (
	storagev1 "k8s.io/api/storage/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// fenceFor returns the fence of the boot to which a VolumeAttachment belongs; nil without one that is not over. Where no boot is recorded, it is
// any boot before the fence began.
func (x *state) fenceFor(va *storagev1.VolumeAttachment) *fence {
	for _, f := range x.fencesOf(va.Spec.NodeName) {
		if !f.ends() && f.has(va) {
			return f
		}
	}
	return nil
}

// has reports whether a VolumeAttachment belongs to the boot of the fence.
func (f *fence) has(va *storagev1.VolumeAttachment) bool {
	was := kube.RecordedMachine(va)
	switch {
	case was.SystemUUID != "" && fencing.MachineID(was.SystemUUID) != fencing.MachineID(f.Boot.Machine):
		return false
	case was.BootID == "":
		return !va.CreationTimestamp.After(f.object.CreationTimestamp.Time)
	}
	return was.BootID == f.Boot.ID
}

// saysLately returns the latest answer of the power switch, if it is the one given, about the machine of the fence, and not older than what
// counts as a sign of life.
func (x *state) saysLately(f *fence, power string) *fencingv1.Evidence {
	a := x.lastAnswer(f.object)
	if a == nil || a.Power != power || a.BootID != f.Boot.ID || fencing.MachineID(a.MachineID) != fencing.MachineID(f.Boot.Machine) ||
		x.Now.Sub(a.Time.Time) >= fencing.LifeFor {
		return nil
	}
	return a
}

// considerFence adds to a plan what recovery knows about the boot. While the machine is known to run, no consent is enough.
func (x *state) considerFence(p *ForcePlan, f *fence) {
	p.Recovery = explain.FenceSummary(f.reason, x.situationOf(f))
	p.Next = append(x.fenceSteps(f), p.Next...)
	on := x.saysLately(f, powerOn)
	switch {
	case f.reason == fencing.Contradicted:
		p.Action, p.Does, p.Refusal = "", nil, "the boot that was proven to have ended shows a sign of life: recovery detaches nothing more, and force would corrupt what the machine still writes"
	case on != nil:
		p.Action, p.Does, p.Refusal = "", nil, "the machine of node "+f.node()+" runs: its power switch said On at "+stamp(on.Time.Time)+
			". Recovery detaches the volume when the switch says Off: no force is needed"
		p.Risks = []string{"the machine runs: if it writes while another node mounts the volume, the file system is corrupted"}
	case f.Proven():
		p.Does = append(p.Does, "recovery is about to do the same by itself, because the boot that has the volume is proven to have ended: no force is needed")
		if off := x.saysLately(f, powerOff); off != nil && x.unheard(f) {
			p.Risks = nil
		}
	case f.reason == fencing.AwaitingReturn: // this fence takes nothing any more
	default:
		p.Does = append(p.Does, "recovery does the same by itself as soon as the machine is proven off: no force is needed then")
	}
}

// unheard reports whether the node has not renewed its lease since it was suspected, as far as it was read.
func (x *state) unheard(f *fence) bool {
	lease := x.heartbeats[f.node()]
	return lease != nil && kube.FenceRenewal(f.object) != "" && kube.Renewal(lease) == kube.FenceRenewal(f.object)
}

// lifeSign is what keeps belay-controller's policies from detaching a volume by force: recovery, which runs in it, knows that the boot to which
// the volume was attached runs. It is empty if nothing shows that.
func (x *state) lifeSign(h *Holder) string {
	va := x.attachments[h.Attachment]
	if va == nil || x.recoveryRuns(roleActor) == decision.Yes { // it runs in another process
		return ""
	}
	f := x.fenceFor(va)
	switch {
	case f == nil:
		return x.renewsUnder(va)
	case f.reason == fencing.NodeDeletedMachineOn, x.saysLately(f, powerOn) != nil:
		return "its power switch says On"
	}
	return ""
}

// renewsUnder is lifeSign for a lease that is renewed while the Node shows the recorded boot. Without a detector that runs, none listens.
func (x *state) renewsUnder(va *storagev1.VolumeAttachment) string {
	node, n, was := x.nodes[va.Spec.NodeName], x.node(va.Spec.NodeName), kube.RecordedMachine(va)
	if node == nil || n.LastHeartbeat == nil || x.Now.Sub(*n.LastHeartbeat) > silence || x.recoveryRuns(roleDetector) != decision.Yes {
		return ""
	}
	if boot := kube.BootOf(node); was.BootID == "" || was.BootID != boot.ID || fencing.MachineID(was.SystemUUID) != boot.Machine {
		return ""
	}
	return "it renews its lease"
}
