package timeline

import (
	"slices"
	"time"
)

// HopName names one hop of a volume's life, in the order of a move.
type HopName string

// The hops of one move: first the old node gives the volume up, then the next one
// gets it. Most are the hops of design section 5, word for word; the others are
// what has to happen between them for a move to be understood.
const (
	HopNotReady      HopName = "node not ready"
	HopOutOfService  HopName = "marked out of service"
	HopPodDeleted    HopName = "pod deleted"
	HopEnded         HopName = "containers ended"
	HopUnpublished   HopName = "unpublished"
	HopUnstaged      HopName = "unstaged"
	HopOutOfUse      HopName = "out of volumesInUse"
	HopWithdrawn     HopName = "report withdrawn"
	HopVADeleted     HopName = "VA deleted"
	HopCtrlUnpublish HopName = "ControllerUnpublish"
	HopVAGone        HopName = "VA gone"
	HopPodGone       HopName = "pod gone"
	HopPodCreated    HopName = "pod created"
	HopBound         HopName = "pod bound"
	HopVACreated     HopName = "VA created"
	HopPrepared      HopName = "finalizer, node id"
	HopCtrlPublish   HopName = "ControllerPublish"
	HopAttached      HopName = "attached recorded"
	HopReported      HopName = "reported"
	HopInUse         HopName = "in volumesInUse"
	HopStaged        HopName = "staged"
	HopPublished     HopName = "published"
	HopRunning       HopName = "running"
)

// Hop is one step of a move. Its times count from the start of the move.
type Hop struct {
	Name  HopName `json:"name"`
	Owner string  `json:"owner"`
	Node  string  `json:"node,omitempty"`
	// Began is when the hop's turn came: the end of the last hop that it waits for.
	Began time.Duration `json:"began"`
	// Worked is when the call of the hop began; equal to Began for hops without a call.
	Worked time.Duration `json:"worked"`
	// Ended is when the hop was seen done.
	Ended time.Duration `json:"ended"`
	// Seen is false if the hop never happened, as on a node that lost its power.
	Seen bool `json:"seen"`
	// Calls counts the CSI calls of the hop, failed ones too.
	Calls int `json:"calls,omitempty"`
}

// Took is the hop's own length: from its turn to its end.
func (h Hop) Took() time.Duration { return h.Ended - h.Began }

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
}

// Move is one volume's way from one node to the next.
type Move struct {
	Title  string    `json:"title"`
	Volume Volume    `json:"volume"`
	From   string    `json:"from,omitempty"`
	To     string    `json:"to"`
	Start  time.Time `json:"start"`
	Hops   []Hop     `json:"hops"`
}

// hopRule says how one hop is recognised and what it waits for.
type hopRule struct {
	name  HopName
	owner string
	// leaving hops belong to the node that gives the volume up.
	leaving bool
	kind    Kind
	method  string // of the CSI call, instead of kind
	after   []HopName
	// optional hops are left out, not shown as missing, if they did not happen.
	optional bool
}

// hopRules are in the order in which a move shows them. A rule may wait only for
// earlier ones.
var hopRules = []hopRule{
	{name: HopNotReady, owner: "node lifecycle", leaving: true, kind: NodeNotReady, optional: true},
	{name: HopOutOfService, owner: "operator", leaving: true, kind: OutOfService, after: []HopName{HopNotReady}, optional: true},
	{name: HopPodDeleted, owner: "user", leaving: true, kind: PodDeleted, after: []HopName{HopOutOfService}},
	{name: HopEnded, owner: "node", leaving: true, kind: ContainersEnded, after: []HopName{HopPodDeleted}},
	{name: HopUnpublished, owner: "node", leaving: true, method: "NodeUnpublishVolume", after: []HopName{HopPodDeleted, HopEnded}},
	{name: HopUnstaged, owner: "node", leaving: true, method: "NodeUnstageVolume", after: []HopName{HopUnpublished}},
	{name: HopOutOfUse, owner: "node", leaving: true, kind: OutOfUse, after: []HopName{HopPodDeleted, HopUnstaged}},
	{name: HopPodGone, owner: "node", leaving: true, kind: PodGone, after: []HopName{HopPodDeleted, HopUnpublished}},
	{name: HopWithdrawn, owner: "controller", leaving: true, kind: Withdrawn, after: []HopName{HopPodDeleted, HopPodGone, HopOutOfUse}},
	{name: HopVADeleted, owner: "controller", leaving: true, kind: AttachmentDeleted, after: []HopName{HopWithdrawn}},
	{name: HopCtrlUnpublish, owner: "driver", leaving: true, method: "ControllerUnpublishVolume", after: []HopName{HopVADeleted}},
	{name: HopVAGone, owner: "attacher", leaving: true, kind: AttachmentGone, after: []HopName{HopCtrlUnpublish}},
	{name: HopPodCreated, owner: "workload", kind: PodCreated, after: []HopName{HopPodGone}, optional: true},
	{name: HopBound, owner: "scheduler", kind: PodBound, after: []HopName{HopPodCreated}},
	{name: HopVACreated, owner: "controller", kind: AttachmentCreated, after: []HopName{HopBound, HopVAGone}},
	{name: HopPrepared, owner: "attacher", kind: AttachmentPrepared, after: []HopName{HopVACreated}},
	{name: HopCtrlPublish, owner: "driver", method: "ControllerPublishVolume", after: []HopName{HopPrepared}},
	{name: HopAttached, owner: "attacher", kind: AttachmentAttached, after: []HopName{HopCtrlPublish}},
	{name: HopReported, owner: "controller", kind: Reported, after: []HopName{HopAttached}},
	{name: HopInUse, owner: "node", kind: InUse, after: []HopName{HopBound}},
	{name: HopStaged, owner: "node", method: "NodeStageVolume", after: []HopName{HopReported, HopInUse}},
	{name: HopPublished, owner: "node", method: "NodePublishVolume", after: []HopName{HopStaged}},
	{name: HopRunning, owner: "node", kind: PodRunning, after: []HopName{HopPublished}},
}

// powerCutOwners do the work of a node that is marked out of service.
var powerCutOwners = map[HopName]string{HopPodDeleted: "taint eviction", HopEnded: "pod GC", HopPodGone: "pod GC"}

// HopNames lists the hops of a move in their order.
func HopNames() []HopName {
	names := make([]HopName, 0, len(hopRules))
	for _, rule := range hopRules {
		names = append(names, rule.name)
	}
	return names
}

// NewMove finds the hops of one move among the changes and calls. It is pure: the
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
	for _, rule := range hopRules {
		if rule.leaving && q.From == "" {
			continue
		}
		hop := f.find(rule)
		if !hop.Seen && rule.optional {
			continue
		}
		if owner := powerCutOwners[rule.name]; owner != "" && m.Hop(HopOutOfService) != nil {
			hop.Owner = owner
		}
		m.begin(&hop, rule.after)
		m.Hops = append(m.Hops, hop)
	}
	return m
}

// skew is how far watches of different kinds, and the record of calls, may be out of
// step: what is seen this little after its effect was its cause all the same.
const skew = 200 * time.Millisecond

// begin sets the moment at which a hop's turn came: the latest end of those that it
// waits for. A hop that was done well before that did not wait for it.
func (m *Move) begin(hop *Hop, after []HopName) {
	called := hop.Calls > 0
	latest := hop.Ended
	if called {
		latest = hop.Worked
	}
	for _, name := range after {
		if cause := m.Hop(name); cause != nil && cause.Seen && cause.Ended <= latest+skew {
			hop.Began = max(hop.Began, min(cause.Ended, latest))
		}
	}
	if !called {
		hop.Worked = hop.Began
	}
}

// Hop returns a hop of the move, or nil if the move has no such hop.
func (m *Move) Hop(name HopName) *Hop {
	i := slices.IndexFunc(m.Hops, func(h Hop) bool { return h.Name == name })
	if i < 0 {
		return nil
	}
	return &m.Hops[i]
}

// Between is the time from the end of one hop to the end of another; false if
// either was not seen.
func (m *Move) Between(from, to HopName) (time.Duration, bool) {
	a, b := m.Hop(from), m.Hop(to)
	if a == nil || b == nil || !a.Seen || !b.Seen {
		return 0, false
	}
	return b.Ended - a.Ended, true
}

// Total is the time from the start of the move to its last hop.
func (m *Move) Total() time.Duration {
	var total time.Duration
	for _, hop := range m.Hops {
		if hop.Seen {
			total = max(total, hop.Ended)
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
)

// Figures derives the times by which planes are compared; those whose ends were
// not seen are left out.
func (m *Move) Figures() []Figure {
	var out []Figure
	add := func(name string, from, to HopName) {
		if took, ok := m.Between(from, to); ok {
			out = append(out, Figure{Name: name, Took: took})
		}
	}
	add(FigureBoundReported, HopBound, HopReported)
	// A pod that is bound only after the old node let go was not waited for by anybody before.
	add(FigureInUseReported, m.later(HopOutOfUse, HopBound), HopReported)
	add(FigureBoundRunning, HopBound, HopRunning)
	add(FigurePodGoneDetached, HopPodGone, HopVAGone)
	return out
}

// later is the one of two hops that ended last; the first if either was not seen.
func (m *Move) later(first, second HopName) HopName {
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

// finder looks for the hops of one query in the record.
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

func (f finder) find(rule hopRule) Hop {
	hop := Hop{Name: rule.name, Owner: rule.owner, Node: f.query.To}
	if rule.leaving {
		hop.Node = f.query.From
	}
	if rule.method != "" {
		f.findCall(&hop, rule.method)
		return hop
	}
	for _, c := range f.changes {
		if c.Kind == rule.kind && !c.At.Before(f.query.Start) && f.fits(c, hop.Node, rule.leaving) {
			hop.Ended, hop.Seen = c.At.Sub(f.query.Start), true
			return hop
		}
	}
	return hop
}

// fits tells whether a change belongs to the query's volume and node.
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
func (f finder) findCall(hop *Hop, method string) {
	calls := slices.Clone(f.calls)
	slices.SortFunc(calls, func(a, b Call) int { return a.Start.Compare(b.Start) })
	for _, call := range calls {
		if call.Method != method || call.Volume != f.query.Volume.Handle ||
			call.Node != hop.Node || call.Start.Before(f.query.Start) {
			continue
		}
		if hop.Calls == 0 {
			hop.Worked = call.Start.Sub(f.query.Start)
		}
		hop.Calls++
		if !call.Failed {
			hop.Ended, hop.Seen = call.End.Sub(f.query.Start), true
			return
		}
	}
}
