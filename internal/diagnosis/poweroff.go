package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// RequestPowerOff creates the NodeFence of a node whose machine a person wants switched off.
const RequestPowerOff FenceAction = "RequestPowerOff"

// PowerOffRequest is what a person asks for.
type PowerOffRequest struct {
	// Machine is the system UUID that the person has typed. It may be empty unless Confirmed.
	Machine, Reason string
	Confirmed       bool
}

// FenceRequest is the request for a power-off that RequestPowerOff writes.
type FenceRequest struct {
	By     string       `json:"by"`
	Reason string       `json:"reason"`
	Boot   BootIdentity `json:"boot"`
	// LastRenewal is what the node's lease says. The request is not written once the lease says something else.
	LastRenewal string `json:"lastRenewal,omitempty"`
	// Epoch is the highest of the node's fences so far.
	Epoch int64 `json:"-"`
}

// longestRequest is what the API takes.
const longestRequest = 512

// PlanPowerOff returns what a person's request for the power-off of a silent node would do. It begins the fence that recovery would begin by itself for a
// node that gives no sign of life and has something to lose.
func PlanPowerOff(s *Snapshot, node string, request PowerOffRequest, author Author) (FencePlan, error) {
	x := newState(s)
	if err := x.knowsFences(node); err != nil {
		return FencePlan{}, err
	}
	p := newFencePlan(s, node)
	if f := x.fenceBefore(node); f != nil {
		p.about(f)
		p.Refusal = "recovery fences the node already, and waits for " + f.missing
		if r := f.object.Spec.Request; r != nil {
			p.Refusal = fmt.Sprintf("%s asked for it already (%s): recovery waits for %s", x.foreign(r.By), x.foreign(r.Reason), f.missing)
		}
		p.Next = x.fenceSteps(f)
		return p, nil
	}
	if x.nodes[node] == nil {
		return FencePlan{}, x.missing(Ref{Resource: Nodes, Name: node})
	}
	boot, source := kube.BootOf(x.nodes[node]), x.sourceOf(node)
	p.Preconditions = slices.Concat(request.preconditions(boot), x.mayBeSwitchedOff(node, source),
		author.preconditions("ask for a power-off: create and power-off on nodefences (ClusterRole belay-fence-power-off)"))
	p.Risks = append([]string{"the machine is switched off without a shutdown, as if its plug were pulled: whatever its containers still serve ends, of pods without a volume too"},
		x.heldUp(node)...)
	if p.refuse("a power-off") {
		return p, nil
	}
	p.Action = RequestPowerOff
	p.Request = &FenceRequest{By: author.Name, Reason: request.Reason, Boot: *identity(boot), Epoch: x.place(node).Epoch}
	if lease := x.heartbeats[node]; lease != nil {
		p.Request.LastRenewal = kube.Renewal(lease)
	}
	x.powersOff(&p, source)
	return p, nil
}

// refuse refuses a plan of which not all preconditions are met.
func (p *FencePlan) refuse(what string) bool {
	var lacking []string
	for _, c := range p.Preconditions {
		if !c.Met {
			lacking = append(lacking, c.Name)
		}
	}
	if len(lacking) == 0 {
		return false
	}
	p.Refusal = "not all that " + what + " needs is true: " + strings.Join(lacking, ", ")
	p.Next = []explain.Step{explain.EvidenceOf(p.Node)}
	return true
}

// preconditions are those of the words of the person. To see what would happen, nothing has to be typed: so the step that explain prints is answered.
func (r PowerOffRequest) preconditions(boot fencing.Boot) (typed []Precondition) {
	if r.Reason != "" || r.Confirmed {
		typed = append(typed, precondition("reason", strings.TrimSpace(r.Reason) != "" && len(r.Reason) <= longestRequest, "--reason says why, in at most %d bytes", longestRequest))
	}
	if r.Machine != "" || r.Confirmed {
		typed = append(typed, precondition("machine", boot.Machine != "" && fencing.MachineID(r.Machine) == boot.Machine,
			"--machine is the system UUID of the machine that is to be switched off; the Node shows %s", cmp.Or(boot.Machine, "none")))
	}
	return typed
}

// mayBeSwitchedOff are the preconditions of the node: what recovery never does, also if a person asks.
func (x *state) mayBeSwitchedOff(name string, source *SourceRecord) []Precondition {
	n := x.node(name)
	may := precondition("node", true, "the node may be fenced")
	if r := x.excepted(name); r != "" {
		may = precondition("node", false, "the node is never fenced: %s", explain.NotFencedBecause(r))
	}
	power := precondition("power switch", source != nil && source.Current && source.Reason != explain.SourceTooManyFailures, "its power switch said On during this boot")
	switch {
	case source == nil && x.exists(Ref{Resource: FenceSources, Name: name}) == decision.Unknown:
		power.Message = "the FenceSource could not be read"
	case source == nil:
		power.Message = "the node has no FenceSource: switch its machine off yourself"
	case !source.Current:
		power.Message = "its power switch has not said On during this boot, so it is not known to be this machine's: switch the machine off yourself"
	case !power.Met:
		power.Message = "its power switch is not asked any more (" + source.Reason + "): correct the Secret or the FenceSource first"
	case source.Ready != "True":
		power.Message += ", and could not be used when it was last asked (" + source.Reason + ")"
	}
	return []Precondition{may, x.isSilent(n, nil), notReady(n), power}
}

// doubts are the reasons for which the fencer holds a command back that a person has asked for: what it hears is in doubt.
var doubts = map[decision.Reason]bool{fencing.DetectorCutOff: true, fencing.TooManySilent: true}

// heldUp is what may hold a request up.
func (x *state) heldUp(node string) (risks []string) {
	if r, _ := x.heldBack(node); doubts[r] {
		risks = append(risks, "the fencer holds the command back while "+explain.NotFencedBecause(r)+" ("+string(r)+")")
	}
	if r, _ := x.heldBack(node); r == fencing.NodeLeaseHeld {
		risks = append(risks, "another component may be working on the machine, such as a person's maintenance: it holds the lease of the node, and a request does not wait for it ("+string(r)+")")
	}
	for _, role := range []string{roleFencer, roleActor} {
		if x.recoveryRuns(role) == decision.No {
			risks = append(risks, "no process holds the lease of recovery's "+role+": nothing happens until it runs")
		}
	}
	return risks
}

// powersOff says what follows.
func (x *state) powersOff(p *FencePlan, source *SourceRecord) {
	record := "creates NodeFence " + x.place(p.Node).Name + ", which is the record of the request, with your name"
	place := x.place(p.Node)
	p.names(place.Name)
	if old := recordNamed(place); old != nil {
		p.UID, p.ResourceVersion = string(old.UID), old.ResourceVersion
		record += ", in place of that of the fence before"
	}
	p.Does = []string{
		record,
		"recovery keeps new pods from the node, asks its power switch (" + source.Switches() + "), and switches the machine off at once if that says On",
		"once the switch has said Off, and not before, it deletes the pods of the node" + x.podsOn(p.Node) + ", and its volumes are detached: " + x.volumesOn(p.Node),
		"it ends without a power-off if the node renews its lease before the command is sent, or by kubectl belay unfence",
	}
	if r, _ := x.heldBack(p.Node); r != "" && r != fencing.NodeLeaseHeld && !doubts[r] {
		p.Does = append(p.Does, fmt.Sprintf("a request is not held back by what holds recovery back: %s (%s)", explain.NotFencedBecause(r), r))
	}
}

// podsOn names the pods of a node that use a volume, as far as they were read.
func (x *state) podsOn(node string) string {
	var names []string
	for _, pod := range x.Pods {
		if pod.Spec.NodeName == node && kube.HasVolumes(pod) && x.mayName(pod.Namespace) {
			names = append(names, join(pod.Namespace, pod.Name))
		}
	}
	slices.Sort(names)
	if more := len(names) - fewNames; more > 0 {
		names = append(names[:fewNames], fmt.Sprintf("and %d more", more))
	}
	if len(names) == 0 {
		return ""
	}
	return " (with volumes: " + strings.Join(names, ", ") + ")"
}

// volumesOn says how many volumes are attached to a node, and which.
func (x *state) volumesOn(node string) string {
	if !slices.Contains(x.Whole, Attachments) {
		return "which were not read"
	}
	attached := 0
	for _, va := range x.Attachments {
		if va.Spec.NodeName == node {
			attached++
		}
	}
	return fmt.Sprintf("%d%s", attached, x.attachedTo(node))
}
