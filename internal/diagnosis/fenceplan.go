package diagnosis

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// FencePlan is what a person's word about a fence would do, and what has to be true before that.
type FencePlan struct {
	metav1.TypeMeta `json:",inline"`

	Node string `json:"node"`
	// Phase is that of the NodeFence, empty without one.
	Phase string `json:"phase,omitempty"`
	// Fence is the name of the NodeFence, if that is not the node's.
	Fence string `json:"fence,omitempty"`
	// UID and ResourceVersion are those of the NodeFence that was looked at: the request fails for any other.
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// Action is what would be done, empty with a refusal.
	Action FenceAction `json:"action,omitempty"`
	// Statement is what StatePoweredOff writes.
	Statement *FenceStatement `json:"statement,omitempty"`
	// Request is what RequestPowerOff writes.
	Request *FenceRequest `json:"request,omitempty"`
	// Preconditions are what was checked.
	Preconditions []Precondition `json:"preconditions,omitempty"`
	// Does says in words what follows.
	Does []string `json:"does,omitempty"`
	// Risks are what may be lost, or why it may not last.
	Risks []string `json:"risks,omitempty"`
	// Refusal is why it is not done.
	Refusal string         `json:"refusal,omitempty"`
	Next    []explain.Step `json:"next,omitempty"`
	Unread  []Unread       `json:"unread,omitempty"`
}

// FenceAction is a write to a NodeFence.
type FenceAction string

// The writes.
const (
	// StatePoweredOff writes a person's statement into the NodeFence.
	StatePoweredOff FenceAction = "StatePoweredOff"
	// DeleteFence asks recovery to release the node: its finalizer keeps the NodeFence until the taints are gone.
	DeleteFence FenceAction = "DeleteNodeFence"
)

// FenceStatement is a person's word that a machine is off.
type FenceStatement struct {
	By        string    `json:"by"`
	Reason    string    `json:"reason"`
	MachineID string    `json:"machineID"`
	Expires   time.Time `json:"expires"`
}

// Precondition is one thing that has to be true.
type Precondition struct {
	Name    string `json:"name"`
	Met     bool   `json:"met"`
	Message string `json:"message"`
}

// StatementRequest is what a person says.
type StatementRequest struct {
	// PoweredOff is set when the person confirms that the machine is off.
	PoweredOff      bool
	Machine, Reason string
	// Expires is for how long the statement counts.
	Expires time.Duration
}

// Author is the user, and whether it may do what it asks for. Problem is why that could not be found out.
type Author struct {
	Name    string
	May     decision.Knowledge
	Problem string
}

// StatementAtMost is for how long a statement may count.
const StatementAtMost = fencing.StatementFor

// errNotInstalled is the error where there are no NodeFences at all.
var errNotInstalled = errors.New("recovery is not installed: the API server has no NodeFences")

func newFencePlan(s *Snapshot, node string) FencePlan {
	return FencePlan{TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: "FencePlan"}, Node: node, Unread: s.Unread}
}

// knowsFences is an error if it is unknown whether the node has a NodeFence.
func (x *state) knowsFences(node string) error {
	switch {
	case slices.Contains(x.Absent, Ref{Resource: Fences}):
		return errNotInstalled
	case !slices.Contains(x.Whole, Fences):
		return x.missing(Ref{Resource: Fences, Name: node})
	}
	return nil
}

// PlanStatement returns what the statement that a machine is off would do. Only recovery creates NodeFences: without one there is nothing
// that a statement could be about.
func PlanStatement(s *Snapshot, node string, request StatementRequest, author Author) (FencePlan, error) {
	x := newState(s)
	if err := x.knowsFences(node); err != nil {
		return FencePlan{}, err
	}
	p := newFencePlan(s, node)
	f := x.fenceOfMachine(node, request.Machine)
	if f == nil {
		x.withoutFence(&p, "state")
		return p, nil
	}
	p.about(f)
	p.Preconditions = slices.Concat(request.preconditions(f, x.otherMachines(f)), x.preconditions(f), author.preconditions("confirm that its machine is off (ClusterRole belay-fence-confirm)"))
	if other := x.notShown(f); other != "" {
		p.Risks = []string{other}
	}
	p.Risks = append(p.Risks, "if the machine still runs, it writes while another node mounts its volumes, and the file systems are corrupted")
	if p.refuse("a statement") {
		return p, nil
	}
	p.Action = StatePoweredOff
	p.Statement = &FenceStatement{
		By: author.Name, Reason: request.Reason, MachineID: f.Boot.Machine, Expires: s.Now.Add(request.Expires).UTC().Truncate(time.Second),
	}
	then := "sets the out-of-service taint, deletes the pods of the node and detaches its volumes"
	if x.replaced(f) {
		then = "detaches the volumes of that machine, and takes nothing from the one that has its name now"
	}
	if f.reason == fencing.AwaitingReturn { // it was deleted, or the node opted out
		then = "ends the fence, and moves nothing"
	}
	p.Does = []string{
		"writes the statement into spec.statement of the NodeFence, which is the record of it",
		"recovery then " + then + ", unless the power switch says On or the node shows a sign of life before that",
	}
	if f.reason == fencing.AwaitingReturn {
		p.Does = append(p.Does, "a node that is still silent and not opted out is suspected again after that")
	}
	if old := f.Statement; old != nil {
		p.Does = append(p.Does, "replaces the statement by "+x.foreign(old.By)+", which "+x.stands(old))
	}
	return p, nil
}

// withoutFence refuses to do anything about a node that has no NodeFence.
func (x *state) withoutFence(p *FencePlan, what string) {
	p.Refusal = "node " + p.Node + " has no NodeFence, so there is nothing to " + what + ": " + x.whyNoFence(p.Node)
	if x.nodes[p.Node] != nil {
		p.Next = []explain.Step{explain.EvidenceOf(p.Node)}
	}
}

// stands says whether a statement counts, and until when.
func (x *state) stands(s *fencing.Statement) string {
	switch {
	case !s.Limited(x.Now):
		return fmt.Sprintf("is no evidence: it expires at %s, more than %d hours after it was written", stamp(s.Expires), int(StatementAtMost.Hours()))
	case !x.Now.Before(s.Expires):
		return "expired at " + stamp(s.Expires)
	}
	return "expires at " + stamp(s.Expires)
}

func (p *FencePlan) about(f *fence) {
	p.Phase, p.UID, p.ResourceVersion = string(f.Phase), f.UID, f.ResourceVersion
	p.names(f.object.Name)
}

// names records the name of the NodeFence.
func (p *FencePlan) names(fence string) {
	if p.Fence = fence; fence == p.Node {
		p.Fence = ""
	}
}

// FenceName is the name of the NodeFence.
func (p *FencePlan) FenceName() string { return cmp.Or(p.Fence, p.Node) }

func precondition(name string, met bool, message string, args ...any) Precondition {
	return Precondition{Name: name, Met: met, Message: fmt.Sprintf(message, args...)}
}

// longestReason is what the API takes.
const longestReason = 1024

// preconditions are those of the words of the person.
func (r StatementRequest) preconditions(f *fence, others string) []Precondition {
	all := []Precondition{
		precondition("confirmation", r.PoweredOff, "--confirm-powered-off: you have looked at the machine, and it is off"),
		precondition("machine", r.Machine != "" && fencing.MachineID(r.Machine) == fencing.MachineID(f.Boot.Machine),
			"--machine is the system UUID that you read at the machine; the fence is about %s%s", cmp.Or(f.Boot.Machine, "an unknown machine"), others),
		precondition("reason", strings.TrimSpace(r.Reason) != "" && len(r.Reason) <= longestReason, "--reason says how you know that, in at most %d bytes", longestReason),
		precondition("expiry", r.Expires > 0 && r.Expires <= StatementAtMost, "--expires is %v, more than 0 and at most %v", r.Expires, StatementAtMost),
	}
	return all
}

// preconditions are those of the fence and its node.
func (x *state) preconditions(f *fence) []Precondition {
	n := x.node(f.node())
	power := precondition("power switch", true, "no power switch has said On")
	if source := x.sources[n.Name]; source != nil && source.Status.Bound != nil {
		power.Message = "the power switch has not answered yet: a statement counts only after the fencer has asked it"
	}
	if a := x.lastAnswer(f.object); a != nil {
		power.Met = a.Power != powerOn
		power.Message = fmt.Sprintf("the power switch said %s at %s", a.Power, stamp(a.Time.Time))
	}
	if x.replaced(f) {
		silent := precondition("silence", true, "the Node shows another machine, whose lease says nothing about this one")
		return []Precondition{awaitsEvidence(f), silent, power}
	}
	return []Precondition{awaitsEvidence(f), x.isSilent(n, f.object), notReady(n), power}
}

// isSilent is the precondition that a node does not renew its lease, and has not since its fence began, if it has one.
func (x *state) isSilent(n NodeState, fence *fencingv1.NodeFence) Precondition {
	silent := precondition("silence", n.State == NodeDeleted, "the Node was deleted")
	if lease := x.heartbeats[n.Name]; n.State != NodeDeleted {
		switch {
		case lease == nil || n.LastHeartbeat == nil:
			silent.Message = fmt.Sprintf("whether the node renews its lease is unknown, and it must have been silent for %v", silence)
		case fence != nil && kube.FenceRenewal(fence) != "" && kube.Renewal(lease) != kube.FenceRenewal(fence):
			silent.Message = "the node has renewed its lease since it was suspected: a sign of life"
		default:
			silent.Met = x.Now.Sub(*n.LastHeartbeat) > silence
			silent.Message = "the node last renewed its lease at " + stamp(*n.LastHeartbeat)
			if !silent.Met {
				silent.Message += fmt.Sprintf(", and must be silent for more than %v: wait, and try again", silence)
			}
		}
	}
	return silent
}

// notReady is the precondition that a node is not Ready, or was deleted.
func notReady(n NodeState) Precondition {
	ready := precondition("not Ready", n.State == NodeNotReady || n.State == NodeUnreachable || n.State == NodeDeleted, "%s", n.is("the node"))
	if !ready.Met {
		ready.Message += ", and must be NotReady, Unreachable or deleted: a node that is silent counts as Ready for 50 s by default. Wait, and try again"
	}
	return ready
}

// awaitsEvidence is the precondition that recovery looks at a statement in this phase.
func awaitsEvidence(f *fence) Precondition {
	early := slices.Contains([]fencing.Phase{fencing.Suspected, fencing.Isolating, fencing.Fencing}, f.Phase)
	late := slices.Contains([]fencing.Phase{fencing.Tainting, fencing.Evicting, fencing.Detaching}, f.Phase)
	ends := f.Deleting && f.Intent.Nonce == "" && f.reason != fencing.AwaitingReturn
	phase := precondition("phase", (early || late) && !ends, "the fence is in phase %s and awaits evidence", f.Phase)
	switch {
	case ends:
		phase.Message = "the NodeFence is being deleted, and no command was sent: recovery cancels it"
	case late:
		phase.Message = fmt.Sprintf("the fence is in phase %s, in which a statement counts while the power switch does not answer", f.Phase)
	case !early:
		phase.Message = fmt.Sprintf("the fence is in phase %s, in which a statement is not looked at", f.Phase)
	}
	return phase
}

// The answers of a power switch. A person cannot overrule On.
const powerOn, powerOff = "On", "Off"

// lastAnswer is the latest answer of a power switch in the record of a fence; nil without one.
func (x *state) lastAnswer(f *fencingv1.NodeFence) *fencingv1.Evidence {
	var last *fencingv1.Evidence
	for i := range f.Status.Evidence {
		if e := &f.Status.Evidence[i]; e.Power != "" && (last == nil || !e.Time.Time.Before(last.Time.Time)) {
			last = e
		}
	}
	return last
}

// preconditions are those of the user.
func (a Author) preconditions(to string) []Precondition {
	user := precondition("user", a.Name != "", "the API server knows you as %s", cmp.Or(a.Name, "(unknown)"))
	may := precondition("permission", a.May == decision.Yes, "you may %s", to)
	switch a.May {
	case decision.No:
		may.Message = "you may not " + to
	case decision.Unknown:
		may.Message = "whether you may " + to + " is unknown: " + a.Problem
	case decision.Yes:
	}
	if a.Name == "" && a.Problem != "" {
		user.Message += ": " + a.Problem
	}
	return []Precondition{user, may}
}

// whyNoFence is why recovery has not suspected a node, as far as the snapshot shows.
func (x *state) whyNoFence(name string) string {
	n, node := x.node(name), x.nodes[name]
	r, _ := x.heldBack(name)
	switch {
	case n.State == NodeDeleted:
		return "the Node does not exist; recovery fences nodes that were silent while they existed"
	case r != "":
		return "recovery does not fence it, because " + explain.NotFencedBecause(r) + " (" + string(r) + ")"
	case node == nil:
		return "the Node could not be read"
	case kube.FenceOptedOut(node):
		return explain.NotFencedBecause(fencing.NodeOptedOut)
	case kube.UnderMaintenance(node):
		return explain.NotFencedBecause(fencing.NodeUnderMaintenance)
	case kube.ControlPlane(node):
		return explain.NotFencedBecause(fencing.ControlPlaneNode)
	case n.State == NodeReady && !x.silentNode(n):
		return "the node is Ready and renews its lease"
	case x.recoveryRuns(roleDetector) == decision.No:
		return "the detector of recovery does not run: no process holds its lease"
	}
	return "recovery has not suspected it yet, only reports (--recovery-dry-run), or is kept from it by something that it reports in its log"
}
