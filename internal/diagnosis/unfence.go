package diagnosis

import (
	"fmt"
	"slices"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// PlanUnfence returns what the deletion of a node's NodeFence would do: of that about a machine, if several of the name have one. Recovery removes the
// taints and the finalizer: nothing else does.
func PlanUnfence(s *Snapshot, node, machine string, author Author) (FencePlan, error) {
	x := newState(s)
	if err := x.knowsFences(node); err != nil {
		return FencePlan{}, err
	}
	object, p := x.fences[node], newFencePlan(s, node)
	if object == nil {
		x.withoutFence(&p, "end")
		return p, nil
	}
	f := x.fenceOfMachine(node, machine)
	if f == nil {
		p.Phase = string(object.Status.Phase)
		p.Refusal = "the fence is over, and the NodeFence only a record of it: recovery replaces it with the next one"
		return p, nil
	}
	p.about(f)
	if x.unfence(&p, f); p.Refusal == "" {
		p.Risks = append(p.Risks, x.others(f)...)
		if other := x.notShown(f); other != "" {
			p.Risks = append([]string{other}, p.Risks...)
		}
	}
	if may := author.preconditions("delete the NodeFence")[1]; p.Refusal == "" {
		p.Preconditions = append(p.Preconditions, may)
		if !may.Met {
			p.Action, p.Refusal = "", may.Message
		}
	}
	if runs := x.recoveryRuns(roleActor); runs != decision.Yes && p.Refusal == "" {
		note := "no process holds the lease of recovery's actor: nothing happens until it runs"
		if runs == decision.Unknown {
			note = "it is unknown whether recovery's actor runs, which may be in belay-controller: without it nothing happens"
		}
		p.Risks = append(p.Risks, note)
		p.Next = append(p.Next, explain.Step{Text: "See whether recovery runs.", Command: "kubectl belay check"})
	}
	p.Next = append(p.Next, explain.EvidenceOf(node))
	return p, nil
}

// unfence decides as fencing.Decide does for a NodeFence that a client deletes.
func (x *state) unfence(p *FencePlan, f *fence) {
	early := slices.Contains([]fencing.Phase{fencing.Suspected, fencing.Isolating, fencing.Fencing, fencing.Tainting}, f.Phase)
	switch {
	case f.Deleting:
		p.Refusal = "the NodeFence is being deleted already; recovery waits for " + f.missing
	case f.reason == fencing.Contradicted:
		p.Refusal = "the boot that was proven to have ended shows a sign of life: find out which machine runs under this name before anything is released"
	case early && f.Intent.Nonce == "":
		x.cancel(p, f)
	case early && f.Phase != fencing.Tainting:
		x.withdraw(p, f)
	case early:
		p.Refusal = "a command to switch the machine off may have been sent, so the fence cannot be cancelled: it ends by itself if the node shows a sign of life"
	case f.Phase == fencing.Evicting || f.Phase == fencing.Detaching:
		p.Refusal = "pods were deleted, so the fence cannot be cancelled: recovery releases the node by itself once its machine runs another boot"
	case f.Phase == fencing.Moved:
		x.release(p, f)
	default:
		p.Refusal = "recovery is releasing the node already; it waits for " + f.missing
	}
}

// cancel plans the end of a fence that has taken nothing from the node.
func (x *state) cancel(p *FencePlan, f *fence) {
	p.Action = DeleteFence
	p.Preconditions = []Precondition{precondition("phase", true, "the fence is in phase %s: no command was sent and no pod was deleted", f.Phase)}
	p.Does = []string{"deletes the NodeFence; recovery cancels the fence, removes its own taints from the node, and then the finalizer"}
	node := x.nodes[f.node()]
	if f.NodeDeleted && node == nil {
		p.Does = append(p.Does, "recovery also sets the annotation belay.dev/unfenced-boot on the VolumeAttachments of the machine, so that no other fence begins for this boot. "+
			"To take that back: kubectl annotate volumeattachment NAME belay.dev/unfenced-boot-")
	}
	if n := x.node(f.node()); node != nil && !x.replaced(f) && !kube.FenceOptedOut(node) && (n.State != NodeReady || x.silentNode(n)) {
		p.Risks = []string{fmt.Sprintf("node %s is still %s: recovery suspects it again as long as it is silent, and begins another fence", n.Name, n.State)}
		p.Next = []explain.Step{{
			Text:    "To keep recovery from the node, set this annotation. It also cancels the fence by itself.",
			Command: "kubectl annotate node " + explain.ShellWord(n.Name) + " " + kube.FenceOptOutAnnotation + "=true",
		}}
	}
}

// withdraw plans the end of a fence that may have sent a command.
func (x *state) withdraw(p *FencePlan, f *fence) {
	x.cancel(p, f)
	p.Preconditions = []Precondition{precondition("phase", true, "the fence is in phase %s: no pod was deleted", f.Phase)}
	p.Does = []string{
		"deletes the NodeFence; recovery sends no other command, and cancels the fence when the one that was sent can no longer be carried out",
		"if the power switch says Off before that, recovery moves the volumes, because it may have stopped the machine",
		"the machine may be off after that: recovery starts none",
	}
}

// release plans the release of a node whose volumes were moved: a person does that where the release is Manual.
func (x *state) release(p *FencePlan, f *fence) {
	node := x.nodes[f.node()]
	since := fencing.RelationUnknown
	if node != nil {
		since = kube.BootOf(node).Since(f.Boot)
	}
	back := node != nil && kube.Ready(node) && (since == fencing.Rebooted || since == fencing.OtherMachine)
	switch {
	case !f.ManualRelease:
		p.Refusal = "recovery releases the node by itself once its machine runs another boot and is Ready: its release policy is Auto"
	case !back:
		p.Refusal = "the machine does not run another boot yet, or is not Ready: the taints stay until then"
	default:
		p.Action = DeleteFence
		p.Preconditions = []Precondition{precondition("boot", true, "the node is Ready and runs another boot than the one that was fenced")}
		p.Does = []string{"deletes the NodeFence; recovery removes the out-of-service taint, a minute later the isolation, and then the finalizer"}
	}
}
