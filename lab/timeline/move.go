package timeline

import (
	"slices"
	"time"
)

// StepName names one step of a volume's life, in the order of a move.
type StepName string

// The steps of one move: first the old node gives the volume up, then the next one
// gets it. Most are the steps of design section 5, word for word; the others are
// what has to happen between them for a move to be understood.
const (
	StepNotReady      StepName = "node not ready"
	StepOutOfService  StepName = "marked out of service"
	StepPodDeleted    StepName = "pod deleted"
	StepEnded         StepName = "containers ended"
	StepUnpublished   StepName = "unpublished"
	StepUnstaged      StepName = "unstaged"
	StepOutOfUse      StepName = "out of volumesInUse"
	StepWithdrawn     StepName = "report withdrawn"
	StepVADeleted     StepName = "VA deleted"
	StepCtrlUnpublish StepName = "ControllerUnpublish"
	StepVAGone        StepName = "VA gone"
	StepPodGone       StepName = "pod gone"
	StepPodCreated    StepName = "pod created"
	StepBound         StepName = "pod bound"
	StepVACreated     StepName = "VA created"
	StepPrepared      StepName = "finalizer, node id"
	StepCtrlPublish   StepName = "ControllerPublish"
	StepAttached      StepName = "attached recorded"
	StepReported      StepName = "reported"
	StepInUse         StepName = "in volumesInUse"
	StepStaged        StepName = "staged"
	StepPublished     StepName = "published"
	StepRunning       StepName = "running"
)

// Step is one step of a move. Its times count from the start of the move.
type Step struct {
	Name  StepName `json:"name"`
	Owner string   `json:"owner"`
	Node  string   `json:"node,omitempty"`
	// Began is when the step's turn came: the end of the last step that it waits for.
	Began time.Duration `json:"began"`
	// Worked is when the call of the step began; equal to Began for steps without a call.
	Worked time.Duration `json:"worked"`
	// Ended is when the step was seen done.
	Ended time.Duration `json:"ended"`
	// Seen is false if the step never happened, as on a node that lost its power.
	Seen bool `json:"seen"`
	// Calls counts the CSI calls of the step, failed ones too.
	Calls int `json:"calls,omitempty"`
}

// Took is the step's own length: from its turn to its end.
func (h Step) Took() time.Duration { return h.Ended - h.Began }

// Query asks for one move of one volume.
type Query struct {
	Title  string
	Volume Volume
	// From is the node that gives the volume up; empty for the first placement.
	From string
	To   string
	// Start is the moment from which the move counts: earlier changes do not belong to it.
	Start time.Time
	// NextPod is the arriving pod as namespace/name; empty means any pod with the claim.
	NextPod string
	// Recovery is set if belay's recovery, and not an operator and pod GC, marks a dead node out of service and deletes its pods.
	Recovery bool
}

// Move is one volume's way from one node to the next.
type Move struct {
	Title  string    `json:"title"`
	Volume Volume    `json:"volume"`
	From   string    `json:"from,omitempty"`
	To     string    `json:"to"`
	Start  time.Time `json:"start"`
	Steps  []Step    `json:"steps"`
}

// stepRule says how one step is recognised and what it waits for.
type stepRule struct {
	name  StepName
	owner string
	// leaving steps belong to the node that gives the volume up.
	leaving bool
	kind    Kind
	method  string // of the CSI call, instead of kind
	after   []StepName
	// optional steps are left out, not shown as missing, if they did not happen.
	optional bool
}

// stepRules are in the order in which a move shows them. A rule may wait only for
// earlier ones.
var stepRules = []stepRule{
	{name: StepNotReady, owner: "node lifecycle", leaving: true, kind: NodeNotReady, optional: true},
	{name: StepOutOfService, owner: operator, leaving: true, kind: OutOfService, after: []StepName{StepNotReady}, optional: true},
	{name: StepPodDeleted, owner: "user", leaving: true, kind: PodDeleted, after: []StepName{StepOutOfService}},
	{name: StepEnded, owner: "node", leaving: true, kind: ContainersEnded, after: []StepName{StepPodDeleted}},
	{name: StepUnpublished, owner: "node", leaving: true, method: "NodeUnpublishVolume", after: []StepName{StepPodDeleted, StepEnded}},
	{name: StepUnstaged, owner: "node", leaving: true, method: "NodeUnstageVolume", after: []StepName{StepUnpublished}},
	{name: StepOutOfUse, owner: "node", leaving: true, kind: OutOfUse, after: []StepName{StepPodDeleted, StepUnstaged}},
	{name: StepPodGone, owner: "node", leaving: true, kind: PodGone, after: []StepName{StepPodDeleted, StepUnpublished}},
	{name: StepWithdrawn, owner: "controller", leaving: true, kind: Withdrawn, after: []StepName{StepPodDeleted, StepPodGone, StepOutOfUse}},
	{name: StepVADeleted, owner: "controller", leaving: true, kind: AttachmentDeleted, after: []StepName{StepWithdrawn}},
	{name: StepCtrlUnpublish, owner: "driver", leaving: true, method: "ControllerUnpublishVolume", after: []StepName{StepVADeleted}},
	{name: StepVAGone, owner: "attacher", leaving: true, kind: AttachmentGone, after: []StepName{StepCtrlUnpublish}},
	{name: StepPodCreated, owner: "workload", kind: PodCreated, after: []StepName{StepPodGone}, optional: true},
	{name: StepBound, owner: "scheduler", kind: PodBound, after: []StepName{StepPodCreated}},
	{name: StepVACreated, owner: "controller", kind: AttachmentCreated, after: []StepName{StepBound, StepVAGone}},
	{name: StepPrepared, owner: "attacher", kind: AttachmentPrepared, after: []StepName{StepVACreated}},
	{name: StepCtrlPublish, owner: "driver", method: "ControllerPublishVolume", after: []StepName{StepPrepared}},
	{name: StepAttached, owner: "attacher", kind: AttachmentAttached, after: []StepName{StepCtrlPublish}},
	{name: StepReported, owner: "controller", kind: Reported, after: []StepName{StepAttached}},
	{name: StepInUse, owner: "node", kind: InUse, after: []StepName{StepBound}},
	{name: StepStaged, owner: "node", method: "NodeStageVolume", after: []StepName{StepReported, StepInUse}},
	{name: StepPublished, owner: "node", method: "NodePublishVolume", after: []StepName{StepStaged}},
	{name: StepRunning, owner: "node", kind: PodRunning, after: []StepName{StepPublished}},
}

// What belay's recovery does in their place, where it runs.
const operator, podGC = "operator", "pod GC"

// powerCutOwners do the work of a node that is marked out of service.
var powerCutOwners = map[StepName]string{StepPodDeleted: "taint eviction", StepEnded: podGC, StepPodGone: podGC}

// StepNames lists the steps of a move in their order.
func StepNames() []StepName {
	names := make([]StepName, 0, len(stepRules))
	for _, rule := range stepRules {
		names = append(names, rule.name)
	}
	return names
}

// NewMove finds the steps of one move among the changes and calls. It is pure: the
// same record gives the same move.
func NewMove(q Query, changes []Change, calls []Call) *Move {
	m := &Move{Title: q.Title, Volume: q.Volume, From: q.From, To: q.To, Start: q.Start}
	f := finder{query: q, changes: changes, calls: calls}
	f.leavingUID = f.podOn(q.From, PodDeleted, "")
	if f.leavingUID == "" { // deleted without grace: it is gone at once
		f.leavingUID = f.podOn(q.From, PodGone, "")
	}
	f.arrivingUID = f.podOn(q.To, PodRunning, q.NextPod)
	if f.arrivingUID == "" {
		f.arrivingUID = f.podOn(q.To, PodBound, q.NextPod)
	}
	for _, rule := range stepRules {
		if rule.leaving && q.From == "" {
			continue
		}
		step := f.find(rule)
		if !step.Seen && rule.optional {
			continue
		}
		if owner := powerCutOwners[rule.name]; owner != "" && m.Step(StepOutOfService) != nil {
			step.Owner = owner
		}
		if q.Recovery && (step.Owner == operator || step.Owner == podGC) {
			step.Owner = "recovery"
		}
		m.begin(&step, rule.after)
		m.Steps = append(m.Steps, step)
	}
	return m
}

// skew is how far watches of different kinds, and the record of calls, may be out of
// step: what is seen this little after its effect still was its cause.
const skew = 200 * time.Millisecond

// begin sets the moment at which a step's turn came: the latest end of those that it
// waits for. A step that was done well before that did not wait for it.
func (m *Move) begin(step *Step, after []StepName) {
	called := step.Calls > 0
	latest := step.Ended
	if called {
		latest = step.Worked
	}
	for _, name := range after {
		if cause := m.Step(name); cause != nil && cause.Seen && cause.Ended <= latest+skew {
			step.Began = max(step.Began, min(cause.Ended, latest))
		}
	}
	if !called {
		step.Worked = step.Began
	}
}

// Step returns a step of the move, or nil if the move has no such step.
func (m *Move) Step(name StepName) *Step {
	i := slices.IndexFunc(m.Steps, func(h Step) bool { return h.Name == name })
	if i < 0 {
		return nil
	}
	return &m.Steps[i]
}

// Between is the time from the end of one step to the end of another; false if
// either was not seen.
func (m *Move) Between(from, to StepName) (time.Duration, bool) {
	a, b := m.Step(from), m.Step(to)
	if a == nil || b == nil || !a.Seen || !b.Seen {
		return 0, false
	}
	return b.Ended - a.Ended, true
}

// Total is the time from the start of the move to its last step.
func (m *Move) Total() time.Duration {
	var total time.Duration
	for _, step := range m.Steps {
		if step.Seen {
			total = max(total, step.Ended)
		}
	}
	return total
}

// Figure is one derived time of a move.
type Figure struct {
	Name string        `json:"name"`
	Took time.Duration `json:"took"`
}

// The figures by which planes are compared.
const (
	FigureBoundReported   = "pod bound -> reported"
	FigureInUseReported   = "last in use -> reported on next"
	FigureBoundRunning    = "pod bound -> running"
	FigurePodGoneDetached = "pod gone -> detached"
	// FigureDeletedRunning is the whole of a move, as users see it.
	FigureDeletedRunning = "pod deleted -> running elsewhere"
)

// Figures derives the times by which planes are compared; those whose ends were
// not seen are left out.
func (m *Move) Figures() []Figure {
	var out []Figure
	add := func(name string, from, to StepName) {
		if took, ok := m.Between(from, to); ok {
			out = append(out, Figure{Name: name, Took: took})
		}
	}
	add(FigureBoundReported, StepBound, StepReported)
	// No component waited for a pod that is bound only after the old node released the volume.
	add(FigureInUseReported, m.later(StepOutOfUse, StepBound), StepReported)
	add(FigureBoundRunning, StepBound, StepRunning)
	add(FigurePodGoneDetached, StepPodGone, StepVAGone)
	add(FigureDeletedRunning, StepPodDeleted, StepRunning)
	return out
}

// later is the one of two steps that ended last; the first if either was not seen.
func (m *Move) later(first, second StepName) StepName {
	if between, ok := m.Between(first, second); ok && between > 0 {
		return second
	}
	return first
}

// Figure returns one derived time.
func (m *Move) Figure(name string) (time.Duration, bool) {
	for _, f := range m.Figures() {
		if f.Name == name {
			return f.Took, true
		}
	}
	return 0, false
}

// finder looks for the steps of one query in the record.
type finder struct {
	query                   Query
	changes                 []Change
	calls                   []Call
	leavingUID, arrivingUID string
}

// podOn is the UID of the first pod with the claim on a node to which kind happened.
func (f finder) podOn(node string, kind Kind, name string) string {
	for _, c := range f.changes {
		if c.Kind == kind && c.Node == node && node != "" && !c.At.Before(f.query.Start) &&
			slices.Contains(c.Claims, f.query.Volume.Claim) && (name == "" || c.Object == name) {
			return c.UID
		}
	}
	return ""
}

func (f finder) find(rule stepRule) Step {
	step := Step{Name: rule.name, Owner: rule.owner, Node: f.query.To}
	if rule.leaving {
		step.Node = f.query.From
	}
	if rule.method != "" {
		f.findCall(&step, rule.method)
		return step
	}
	for _, c := range f.changes {
		if c.Kind == rule.kind && !c.At.Before(f.query.Start) && f.fits(c, step.Node, rule.leaving) {
			step.Ended, step.Seen = c.At.Sub(f.query.Start), true
			return step
		}
	}
	return step
}

// fits reports whether a change belongs to the query's volume and node.
func (f finder) fits(c Change, node string, leaving bool) bool {
	switch c.Kind {
	case PodCreated, PodBound, PodRunning, PodDeleted, ContainersEnded, PodGone:
		if leaving {
			return c.UID == f.leavingUID && c.UID != ""
		}
		return c.UID == f.arrivingUID && c.UID != ""
	case NodeNotReady, NodeReady, OutOfService:
		return c.Node == node
	case InUse, OutOfUse, Reported, Withdrawn:
		return c.Node == node && c.Volume == f.query.Volume.Unique
	case ClaimBound:
		return c.Volume == f.query.Volume.PV
	default: // the changes of a VolumeAttachment
		return c.Node == node && c.Volume == f.query.Volume.PV
	}
}

// findCall takes the span from the first call's start to the first success: what
// lies between are the repetitions.
func (f finder) findCall(step *Step, method string) {
	calls := slices.Clone(f.calls)
	slices.SortFunc(calls, func(a, b Call) int { return a.Start.Compare(b.Start) })
	for _, call := range calls {
		if call.Method != method || call.Volume != f.query.Volume.Handle ||
			call.Node != step.Node || call.Start.Before(f.query.Start) {
			continue
		}
		if step.Calls == 0 {
			step.Worked = call.Start.Sub(f.query.Start)
		}
		step.Calls++
		if !call.Failed {
			step.Ended, step.Seen = call.End.Sub(f.query.Start), true
			return
		}
	}
}
