package nodevolume

import "slices"

// Expand asks the driver to expand the volume where it is published for the pod
// (NodeExpandVolume, KEP-556).
type Expand struct{ Key PublishKey }

func (Expand) step() {}

// Growth is what Decide has to know of an [Expansion].
type Growth struct {
	// Due: the driver has not been asked yet, or has not done it.
	Due bool
	// Failure is the last one in a row for the expansion.
	Failure Failure
}

// expand comes last: no pod waits for its mount, or for its end, because another
// one's file system grows. The driver is told of a place where the volume stands,
// and not while a call without an answer may still be changing the stage below it.
func (c *decision) expand() Step {
	if !c.observed.Growth.Due || c.observed.Stage.Phase == Uncertain && c.anyPod(isBroughtUp) {
		return nil
	}
	for _, p := range c.desired.Pods {
		if p.Claim != Wanted || p.Publish != Confirmed || p.ReadOnly {
			continue
		}
		if c.mayCall(p.Key, c.observed.Growth.Failure) {
			return Expand{Key: p.Key}
		}
	}
	return nil
}

// isBroughtUp: the pod wants the volume and has not got it yet.
func isBroughtUp(p Pod) bool { return p.Claim == Wanted && p.Publish != Confirmed }

// Size is one of a volume.
type Size struct {
	Bytes int64
	// Text is how the API object spells it. What is written to a claim is spelled as it was read.
	Text string
}

// Resizing is how far a claim says that its expansion has come (KEP-1790).
type Resizing int

// What a claim can say.
const (
	// Untracked: its resizer is an old one, which does not write that.
	Untracked Resizing = iota
	// Unstated: no expansion runs, or the controller has not written yet that it does.
	Unstated
	// NodeIsNext: NodeResizePending or NodeResizeInProgress.
	NodeIsNext
	// OtherIsNext: the controller is at work, or has to be since the size was found infeasible.
	OtherIsNext
)

// ClaimSize is what a claim says about its size.
type ClaimSize struct {
	// Given is status.capacity; zero: the claim does not say it.
	Given Size
	// Requested is what the user asks for, Allocated what the controller works on.
	Requested, Allocated Size
	Resizing             Resizing
	// EveryNode: each node that has the volume expands it for itself.
	EveryNode bool
}

// Behind: the claim does not have the size of its PersistentVolume yet.
func (c ClaimSize) Behind(capacity Size) bool {
	return c.Given.Bytes > 0 && c.Given.Bytes < capacity.Bytes
}

// Plan is what a node has to do for a volume that may have grown.
type Plan int

// The plans.
const (
	NothingToDo Plan = iota
	// WaitForController: another component writes to the claim whose turn it is.
	WaitForController
	// WrittenByController: the claim has its new size, and nothing is left to do here.
	WrittenByController
	// CallDriver: the claim has its new size, and the file system here has not.
	CallDriver
	// CallDriverThenWriteClaim: this node reports to the claim that it has its new size.
	CallDriverThenWriteClaim
)

// planOf follows kubelet's rules: whose turn it is, and to which size the volume is expanded.
func planOf(c ClaimSize, capacity, here Size) (Plan, Size) {
	grown := capacity.Bytes > here.Bytes
	switch {
	case c.Given.Bytes == 0, !grown && !c.Behind(capacity):
		return NothingToDo, Size{}
	case c.Resizing == Untracked && c.Behind(capacity):
		return CallDriverThenWriteClaim, capacity
	case c.Resizing == Untracked:
		return CallDriver, capacity
	case c.Resizing == NodeIsNext:
		return CallDriverThenWriteClaim, c.Allocated
	case c.Resizing == OtherIsNext, c.Given.Bytes < c.Allocated.Bytes:
		return WaitForController, Size{}
	case c.EveryNode && grown:
		return CallDriver, c.Allocated
	default: // by the controller, or it was never this node's turn
		return WrittenByController, Size{}
	}
}

func (p Plan) calls() bool { return p == CallDriver || p == CallDriverThenWriteClaim }

// Refusal is why a volume was not expanded, by the answers that kubelet 1.36 tells apart (KEP-1790).
type Refusal int

// The refusals.
const (
	// NotRefused: there was no answer, or one that says that the work goes on.
	NotRefused Refusal = iota
	// RefusedForNow: it failed, and may succeed another time.
	RefusedForNow
	// RefusedInUse: the driver does not expand the volume while it is used.
	RefusedInUse
	// RefusedForGood: the volume cannot have that size.
	RefusedForGood
	// NotSupported: the driver has not the capability EXPAND_VOLUME.
	NotSupported
)

// Expansion is the life of a volume's size on one node. Its zero value knows nothing.
type Expansion struct {
	// Here is what the file system reaches up to: what the claim said when the volume
	// came, and since then what the driver confirmed here.
	Here Size
	// Failure is the last one in a row.
	Failure Failure
	// capacity is the PersistentVolume's.
	capacity Size
	plan     Plan
	// refusal is the last final answer since the volume had the size that it should have.
	refusal Refusal
	// waiting are the pods that get the volume with its new size, or when the expansion is due no more.
	waiting []PublishKey
}

// Due: the driver shall be called. If the volume was in use, not before it is mounted for another pod.
func (e *Expansion) Due() bool { return e.plan.calls() && e.refusal != RefusedInUse }

// Waits says whether a pod must not start before the expansion.
func (e *Expansion) Waits(key PublishKey) bool { return slices.Contains(e.waiting, key) }

// Through are the pods that waited and need not any more. It says so once.
func (e *Expansion) Through() (through []PublishKey) {
	if !e.Due() {
		through, e.waiting = e.waiting, nil
	}
	return through
}

// Outgrown: the claim names a size that the volume has not here, and its PersistentVolume is to be read.
func (e *Expansion) Outgrown(c ClaimSize) bool {
	return c.Given.Bytes > 0 && (e.Due() || max(c.Requested.Bytes, c.Allocated.Bytes, c.Given.Bytes) > e.Here.Bytes)
}

// Come says that another pod wants the volume: a driver that could not expand it in use may be asked again.
func (e *Expansion) Come() {
	if e.refusal == RefusedInUse {
		e.refusal = RefusedForNow
	}
}

// Learn takes in what was read of a claim and its PersistentVolume. Pods that are being mounted wait if the claim
// is behind: their containers may have been made for the new size.
func (e *Expansion) Learn(c ClaimSize, capacity Size, mounting ...PublishKey) {
	e.waiting = slices.DeleteFunc(e.waiting, func(key PublishKey) bool { return slices.Contains(mounting, key) })
	if c.Behind(capacity) {
		e.waiting = append(e.waiting, mounting...)
	}
	if e.Here.Bytes == 0 {
		e.Here = c.Given
	}
	wasDue := e.Due()
	e.capacity = capacity
	e.plan, _ = planOf(c, capacity, e.Here)
	if e.plan == WrittenByController {
		e.Here = capacity
	}
	if e.Due() && !wasDue {
		e.Failure = Failure{}
	}
}

// Begin learns the claim as it is now. The attempt calls the driver if it is still to be called.
func (e *Expansion) Begin(c ClaimSize) Attempt {
	e.Learn(c, e.capacity)
	a := Attempt{claim: c, here: e.Here, capacity: e.capacity, refused: e.refusal != NotRefused}
	a.plan, a.Size = planOf(c, e.capacity, e.Here)
	return a
}

// Confirmed says that the driver has expanded the volume, and that the claim knows.
func (e *Expansion) Confirmed(a Attempt) {
	*e = Expansion{Here: a.capacity, capacity: a.capacity, waiting: e.waiting}
}

// Refused says that the driver has not expanded the volume, or was not asked, and whether that is a failure after
// which it is tried again. A size that was found infeasible is: the next try finds the claim saying so.
func (e *Expansion) Refused(a Attempt, r Refusal) (again bool) {
	switch {
	case r == NotSupported && !a.expected():
		e.Confirmed(a)
		return false
	case r != NotRefused:
		e.refusal = r
	}
	return r != RefusedInUse
}

// ClaimWrite is what is written to the status of a claim.
type ClaimWrite int

// What can be written.
const (
	LeaveClaim ClaimWrite = iota
	MarkInProgress
	WriteSize
	MarkFailed
	// MarkInfeasible marks it failed, too.
	MarkInfeasible
)

// Attempt is one to expand a volume.
type Attempt struct {
	// Size is what the driver is asked for.
	Size           Size
	claim          ClaimSize
	plan           Plan
	here, capacity Size
	// refused: there was a final answer before. If the claim asks for another size by now, the next
	// one hands the matter back to the controller (KEP-1790).
	refused bool
}

// CallsDriver: there is something to do.
func (a Attempt) CallsDriver() bool { return a.plan.calls() }

// expected: the claim says that it is this node's turn.
func (a Attempt) expected() bool {
	return a.plan == CallDriverThenWriteClaim && a.claim.Resizing != Untracked
}

// Before is what is written before the call.
func (a Attempt) Before() ClaimWrite {
	if a.expected() {
		return MarkInProgress
	}
	return LeaveClaim
}

// After is what is written when the driver has expanded the volume.
func (a Attempt) After() ClaimWrite {
	if a.plan == CallDriverThenWriteClaim {
		return WriteSize
	}
	return LeaveClaim
}

// AfterRefusal is what is written when it has not.
func (a Attempt) AfterRefusal(r Refusal) ClaimWrite {
	switch {
	case a.claim.Resizing == Untracked, r == NotRefused, r == NotSupported && !a.expected():
		return LeaveClaim
	case r == RefusedForGood, a.refused && a.claim.Requested.Bytes != a.Size.Bytes:
		return MarkInfeasible
	default:
		return MarkFailed
	}
}

// Continues says whether a claim that another client has written meanwhile wants the same of this node.
func (a *Attempt) Continues(c ClaimSize) bool {
	plan, size := planOf(c, a.capacity, a.here)
	if plan != a.plan || size.Bytes != a.Size.Bytes {
		return false
	}
	a.claim = c
	return true
}
