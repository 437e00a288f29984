package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// NodeEvidence is what is known about the machine of a node, and whether it could be fenced.
type NodeEvidence struct {
	metav1.TypeMeta `json:",inline"`

	Node string `json:"node"`
	// Time is when the objects were read, by the clock of the API server.
	Time    time.Time       `json:"time"`
	State   EvidenceState   `json:"state"`
	Verdict Verdict         `json:"verdict"`
	Reason  decision.Reason `json:"reason"`
	Summary string          `json:"summary"`
	// Since is when the wait of the fence began.
	Since *time.Time `json:"since,omitempty"`
	// Health is that of the node, with its last heartbeat.
	Health NodeState `json:"health"`
	// Boot is what the Node shows now.
	Boot *BootIdentity `json:"boot,omitempty"`
	// Notes are what a fence that is not over depends on besides its evidence: an opt-out, a maintenance, a taint that is not its own.
	Notes []string `json:"notes,omitempty"`
	// Fence is the NodeFence. Of one that is over, it has the phase, the epoch, the boot and the class of the proof.
	Fence *FenceRecord `json:"fence,omitempty"`
	// Source is the FenceSource.
	Source *SourceRecord `json:"source,omitempty"`
	// Answers are those of power switches to the NodeFence that is not over, the latest first.
	Answers []PowerAnswer `json:"answers,omitempty"`
	// Parts are the parts of recovery, and whether each runs.
	Parts   []RecoveryPart `json:"parts"`
	Facts   []Fact         `json:"facts,omitempty"`
	Clock   []string       `json:"clock,omitempty"`
	Next    []explain.Step `json:"next,omitempty"`
	Runbook string         `json:"runbook,omitempty"`
	Unread  []Unread       `json:"unread,omitempty"`
}

// EvidenceState is what recovery can do, or does.
type EvidenceState string

// The states.
const (
	// Fenceable: if the node were silent now, recovery could prove that its machine is off.
	Fenceable EvidenceState = "Fenceable"
	// NotFenceable: it could not.
	NotFenceable EvidenceState = "NotFenceable"
	// EvidenceUnknown: too little could be read to tell.
	EvidenceUnknown EvidenceState = "Unknown"
	// Held: the node is silent, and a brake or a doubt keeps recovery from it.
	Held EvidenceState = "Held"
	// BeingFenced: recovery looks for evidence.
	BeingFenced EvidenceState = "BeingFenced"
	// ProvenOff: the boot has ended.
	ProvenOff EvidenceState = "ProvenOff"
	// BeingReleased: recovery releases the node, or waits until it may. Its machine may run again.
	BeingReleased EvidenceState = "BeingReleased"
	// Contradicted: a boot that was proven to have ended shows a sign of life.
	Contradicted EvidenceState = "Contradicted"
)

// BootIdentity is one run of one machine.
type BootIdentity struct {
	NodeUID   string `json:"nodeUID,omitempty"`
	BootID    string `json:"bootID,omitempty"`
	MachineID string `json:"machineID,omitempty"`
}

// FenceRecord is a NodeFence.
type FenceRecord struct {
	Phase   string       `json:"phase"`
	Epoch   int64        `json:"epoch"`
	Created *time.Time   `json:"created,omitempty"`
	Boot    BootIdentity `json:"boot"`
	// Relation is what the Node shows now: "SameBoot", "Rebooted", "OtherMachine" or "Unknown".
	Relation string `json:"relation"`
	// Evidence is the class of the proof, empty before one.
	Evidence string   `json:"evidence,omitempty"`
	Missing  []string `json:"missing,omitempty"`
	Advice   string   `json:"advice,omitempty"`
	// Statement is a person's word.
	Statement *FenceStatement `json:"statement,omitempty"`
	// RequestedBy is the person who asked for the power-off, and RequestReason why; empty for a fence that recovery began by itself.
	RequestedBy   string `json:"requestedBy,omitempty"`
	RequestReason string `json:"requestReason,omitempty"`
	// StatementExpired is set when it counts no longer.
	StatementExpired bool `json:"statementExpired,omitempty"`
	// StatementTooLong is set when it never counted: it expires too long after it was written, or says that it was written in the future.
	StatementTooLong bool `json:"statementTooLong,omitempty"`
	// CommandUntil is until when a command to switch off may be carried out.
	CommandUntil  *time.Time `json:"commandUntil,omitempty"`
	ManualRelease bool       `json:"manualRelease,omitempty"`
	Deleting      bool       `json:"deleting,omitempty"`
	// Over is set when the fence is only a record.
	Over bool `json:"over,omitempty"`
}

// SourceRecord is a FenceSource without what may be secret.
type SourceRecord struct {
	// Levels are tried in order. All feeds of one must be off.
	Levels []SourceLevel `json:"levels"`
	// Ready is the condition FenceReady: "True", "False" or "Unknown".
	Ready   string     `json:"ready"`
	Reason  string     `json:"reason,omitempty"`
	Message string     `json:"message,omitempty"`
	Since   *time.Time `json:"since,omitempty"`
	// Bound is the boot during which the source last said On, and BoundAt when.
	Bound   *BootIdentity `json:"bound,omitempty"`
	BoundAt *time.Time    `json:"boundAt,omitempty"`
	// Hardware is the identity that the hardware gave.
	Hardware string `json:"hardware,omitempty"`
	// Current is set when that is the boot that the Node shows, and a fence would be about.
	Current      bool  `json:"current"`
	FailedLogins int32 `json:"failedLogins,omitempty"`
}

// SourceLevel is one way to switch a machine off.
type SourceLevel struct {
	Feeds []SourceFeed `json:"feeds"`
}

// SourceFeed is one power switch.
type SourceFeed struct {
	Agent string `json:"agent"`
	Plug  string `json:"plug,omitempty"`
}

// Switches names the switches, in the order in which they are tried.
func (s *SourceRecord) Switches() string {
	var levels []string
	for _, l := range s.Levels {
		var feeds []string
		for _, f := range l.Feeds {
			text := f.Agent
			if f.Plug != "" {
				text += " plug " + f.Plug
			}
			feeds = append(feeds, text)
		}
		levels = append(levels, strings.Join(feeds, " and "))
	}
	return strings.Join(levels, ", then ")
}

// PowerAnswer is what a power switch, or a person, said.
type PowerAnswer struct {
	Power     string    `json:"power,omitempty"`
	Class     string    `json:"class,omitempty"`
	Source    string    `json:"source,omitempty"`
	MachineID string    `json:"machineID,omitempty"`
	At        time.Time `json:"at"`
	Raw       string    `json:"raw,omitempty"`
}

// RecoveryPart is a part of recovery.
type RecoveryPart struct {
	Name string `json:"name"`
	// Runs is "yes", "no" or "unknown": a process holds its lease.
	Runs string `json:"runs"`
}

// Evidence returns what is known about the machine of a node. It is an error without recovery, and for a name that neither a Node nor a
// NodeFence has.
func Evidence(s *Snapshot, node string) (NodeEvidence, error) {
	x := newState(s)
	if err := x.knowsFences(node); err != nil {
		return NodeEvidence{}, err
	}
	object := x.fences[node]
	if x.nodes[node] == nil && object == nil {
		return NodeEvidence{}, x.missing(Ref{Resource: Nodes, Name: node})
	}
	e := NodeEvidence{
		TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: "NodeEvidence"}, Node: node, Time: s.Now, Health: x.node(node), Unread: s.Unread,
		Parts: []RecoveryPart{}, Facts: x.recoveryFacts(node), Clock: x.fenceClock(node),
	}
	if said := x.takedown(node); said != "" {
		e.Facts = append(e.Facts, Fact{Component: "node", Message: said})
	}
	for _, role := range RecoveryRoles() {
		e.Parts = append(e.Parts, RecoveryPart{Name: role, Runs: x.recoveryRuns(role).String()})
	}
	if n := x.nodes[node]; n != nil {
		e.Boot = identity(kube.BootOf(n))
	}
	if object != nil {
		e.Fence = x.recordOf(object)
		if !e.Fence.Over {
			x.addWaits(e.Fence, object)
			e.Answers = x.answersOf(object)
			for _, other := range x.others(x.read(object)) {
				e.Facts = append(e.Facts, Fact{Component: "recovery", Message: other})
			}
		}
	}
	e.Source = x.sourceOf(node)
	x.judge(&e)
	e.Runbook = explain.Runbook(e.Reason)
	return e, nil
}

func identity(b fencing.Boot) *BootIdentity {
	return &BootIdentity{NodeUID: b.NodeUID, BootID: b.ID, MachineID: b.Machine}
}

func (x *state) recordOf(object *fencingv1.NodeFence) *FenceRecord {
	f := kube.FenceState(object)
	r := &FenceRecord{
		Phase: string(f.Phase), Epoch: f.Epoch, Created: timePointer(object.CreationTimestamp.Time), Boot: *identity(f.Boot), Relation: "Unknown",
		Evidence: string(f.Evidence), Deleting: f.Deleting, Over: kube.FenceFinished(object),
	}
	if q := object.Spec.Request; q != nil {
		r.RequestedBy, r.RequestReason = x.foreign(q.By), x.foreign(q.Reason)
	}
	if node := x.nodes[object.Spec.NodeName]; node != nil {
		r.Relation = map[fencing.Relation]string{
			fencing.RelationUnknown: "Unknown", fencing.SameBoot: "SameBoot", fencing.Rebooted: "Rebooted", fencing.OtherMachine: "OtherMachine",
		}[kube.BootOf(node).Since(f.Boot)]
	}
	return r
}

// addWaits adds what a fence that is not over waits for, and what may still be done.
func (x *state) addWaits(r *FenceRecord, object *fencingv1.NodeFence) {
	f := kube.FenceState(object)
	r.Advice, r.ManualRelease = x.forMachine(f.Boot, x.foreign(object.Status.Advice)), f.ManualRelease
	for _, m := range object.Status.Missing {
		r.Missing = append(r.Missing, x.foreign(m))
	}
	if w := f.Statement; w != nil {
		r.Statement = &FenceStatement{By: x.foreign(w.By), Reason: x.foreign(w.Reason), MachineID: w.Machine, Expires: w.Expires}
		r.StatementExpired, r.StatementTooLong = !x.Now.Before(w.Expires), !w.Limited(x.Now)
	}
	if f.Intent.Nonce != "" {
		r.CommandUntil = timePointer(f.Intent.NotAfter)
	}
}

// answersOf are the answers in the record, the latest first.
func (x *state) answersOf(object *fencingv1.NodeFence) []PowerAnswer {
	var answers []PowerAnswer
	for i := range object.Status.Evidence {
		e := &object.Status.Evidence[i]
		answers = append(answers, PowerAnswer{
			Power: e.Power, Class: e.Class, Source: x.foreign(e.Source), MachineID: e.MachineID, At: e.Time.Time, Raw: x.foreign(e.Raw),
		})
	}
	slices.SortStableFunc(answers, func(a, b PowerAnswer) int { return b.At.Compare(a.At) })
	return answers
}

// sourceOf describes the FenceSource of a node; nil without one.
func (x *state) sourceOf(node string) *SourceRecord {
	object := x.sources[node]
	if object == nil {
		return nil
	}
	r := &SourceRecord{Levels: []SourceLevel{}, Ready: string(metav1.ConditionUnknown)}
	for _, refused := range object.Status.Refused {
		r.FailedLogins = max(r.FailedLogins, refused.Times)
	}
	for _, level := range object.Spec.Levels {
		l := SourceLevel{Feeds: []SourceFeed{}}
		for _, feed := range level.Feeds {
			l.Feeds = append(l.Feeds, SourceFeed{Agent: feed.Agent, Plug: feed.Plug})
		}
		r.Levels = append(r.Levels, l)
	}
	if c := meta.FindStatusCondition(object.Status.Conditions, kube.ConditionFenceReady); c != nil {
		r.Ready, r.Reason, r.Message, r.Since = string(c.Status), c.Reason, x.foreignOf(object, c.Reason, c.Message), timePointer(c.LastTransitionTime.Time)
	}
	if b := object.Status.Bound; b != nil {
		r.Bound = &BootIdentity{NodeUID: b.NodeUID, BootID: b.BootID, MachineID: b.MachineID}
		r.BoundAt, r.Hardware = timePointer(b.Time.Time), b.HardwareID
		if n := x.nodes[node]; n != nil {
			r.Current = *r.Bound == *identity(kube.BootOf(n)) && r.Hardware == r.Bound.MachineID
		}
	}
	return r
}

// next is what a person can do about a power switch that cannot be used.
func (s *SourceRecord) next(node string) []explain.Step {
	return explain.SourceNext(s.Reason, s.FailedLogins > 0, node)
}

// unusable is why the FenceSource of a node is no help to a fence that waits for one; empty without a FenceSource.
func (s *SourceRecord) unusable() string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf("its power switch is not known to be its own (%s): %s", cmp.Or(s.Reason, "not asked yet"), cmp.Or(s.Message, "it has said nothing"))
}

// judge decides in which state the evidence is.
func (x *state) judge(e *NodeEvidence) {
	held, _ := x.heldBack(e.Node)
	if f := x.fenceOf(e.Node); f != nil && held == "" {
		x.judgeFence(e, f)
		return
	}
	if x.nodes[e.Node] == nil && x.exists(Ref{Resource: Nodes, Name: e.Node}) != decision.No {
		e.unknown("the Node could not be read")
		return
	}
	if held != "" {
		e.say(Held, x.heldVerdict(e, held), held, explain.Situation{Node: e.Node})
		return
	}
	if r := x.excepted(e.Node); r != "" {
		e.say(NotFenceable, Blocked, r, explain.Situation{Node: e.Node})
		return
	}
	x.judgeSource(e)
}

// heldVerdict grades a silence that recovery does not end: most end by themselves soon, as a restart of a kubelet does. A node that is never fenced is not fenceable while
// it lives either.
func (x *state) heldVerdict(e *NodeEvidence, held decision.Reason) Verdict {
	at := e.Health.LastHeartbeat
	switch {
	case held == fencing.NothingToLose:
		return NotVolume
	case x.excepted(e.Node) == "" && at != nil && x.Now.Sub(*at) < unmountUsual:
		return InProgress
	}
	return Blocked
}

func (e *NodeEvidence) say(state EvidenceState, v Verdict, r decision.Reason, s explain.Situation) {
	g := explain.GuideTo(r)
	e.State, e.Verdict, e.Reason, e.Summary = state, v, r, g.Summary(s)
	e.steps(g.Steps(s))
}

// steps are the next ones, without the one that leads here.
func (e *NodeEvidence) steps(steps []explain.Step) {
	e.Next = slices.DeleteFunc(steps, func(step explain.Step) bool { return step == explain.EvidenceOf(e.Node) })
}

// judgeFence decides for a fence that is under way.
func (x *state) judgeFence(e *NodeEvidence, f *fence) {
	state, v := BeingFenced, x.fenceVerdict(f)
	switch {
	case f.reason == fencing.Contradicted:
		state = Contradicted
	case f.ends():
		state = BeingReleased
	case f.Proven():
		state = ProvenOff
	case v == Unsafe: // nothing is taken from the node without evidence: the wait is safe
		v = Blocked
	}
	e.say(state, v, f.reason, x.situationOf(f))
	if other := x.notShown(f); other != "" {
		defer func() { e.Summary = other + "; " + e.Summary }()
	}
	e.Summary, e.Since, e.Notes = x.fenceSummary(f, x.situationOf(f))+x.doneBy(f), timePointer(f.since), x.fenceNotes(f)
	if at := x.unanswered(f); !at.IsZero() {
		e.Facts = append(e.Facts, unansweredFact(at))
	}
	e.steps(x.fenceSteps(f))
}

// excepted is why a node is never fenced; empty for one that may be.
func (x *state) excepted(name string) decision.Reason {
	node := x.nodes[name]
	switch {
	case node == nil:
		return ""
	case kube.FenceOptedOut(node):
		return fencing.NodeOptedOut
	case kube.UnderMaintenance(node):
		return fencing.NodeUnderMaintenance
	case kube.ControlPlane(node):
		return fencing.ControlPlaneNode
	case !kube.BootOf(node).Complete():
		return fencing.NodeIdentityUnknown
	}
	return ""
}

// judgeSource decides for a node that is not being fenced, by its power switch and the parts of recovery.
func (x *state) judgeSource(e *NodeEvidence) {
	var stopped []string
	for _, p := range e.Parts {
		if p.Runs == decision.No.String() {
			stopped = append(stopped, p.Name)
		}
	}
	no := func(reason decision.Reason, why string) {
		e.State, e.Verdict, e.Reason = NotFenceable, Blocked, reason
		e.Summary = "the machine of node " + e.Node + " could not be proven off: " + why
	}
	switch s := e.Source; {
	case s == nil && x.exists(Ref{Resource: FenceSources, Name: e.Node}) == decision.Unknown:
		e.unknown("the FenceSource could not be read")
	case s == nil:
		no(fencing.NoEvidence, "it has no FenceSource, so no power switch is known to be its own")
		e.Next = []explain.Step{{Text: "Create a FenceSource of the node's name. The command describes its fields.", Command: "kubectl explain fencesource.spec"}}
	case s.Ready != string(metav1.ConditionTrue):
		no(explain.SourceReason(s.Reason), strings.TrimSuffix(fmt.Sprintf("its power switch cannot be used (%s): %s", s.Reason, s.Message), " (): "))
		e.Next = s.next(e.Node)
	case !s.Current:
		no(fencing.NoEvidence, "its power switch said On during another boot, and has not been asked since; it is asked about once a minute while the node lives")
	case len(stopped) > 0:
		no(explain.RecoveryNotRunning, "these parts of recovery do not run: "+strings.Join(stopped, ", "))
		e.Next = []explain.Step{{Text: "Find out why they do not run.", Command: "kubectl get pods -n belay-system"}}
	case slices.ContainsFunc(x.Unread, func(u Unread) bool { return u.Resource == Leases }):
		e.unknown("whether the node is silent and recovery runs could not be read")
	default:
		e.State, e.Verdict, e.Reason = Fenceable, Clear, fencing.Settled
		e.Summary = "the power switch of node " + e.Node + " could prove that its machine is off, if the node were silent"
		x.judgeLost(e)
	}
}

// unknown says that something could not be read, without which there is no answer.
func (e *NodeEvidence) unknown(what string) {
	e.State, e.Verdict, e.Reason, e.Summary = EvidenceUnknown, Unknown, explain.Incomplete, "whether node "+e.Node+" could be fenced is unknown: "+what
}

// judgeLost decides for a node that is silent, has a power switch, and has no fence.
func (x *state) judgeLost(e *NodeEvidence) {
	if e.Health.State == NodeReady && !x.silentNode(e.Health) {
		return
	}
	e.State, e.Verdict, e.Reason = Held, Blocked, fencing.SilenceTooShort
	if at := e.Health.LastHeartbeat; at != nil && x.Now.Sub(*at) < unmountUsual {
		e.Verdict = InProgress
	}
	e.Summary = e.Health.is("node "+e.Node) + ", and recovery does not fence it: " + x.whyNoFence(e.Node)
}
