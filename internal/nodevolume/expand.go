package nodevolume

import "slices"

// Expand asks the driver to expand the volume where it is published for the pod
// (NodeExpandVolume, KEP-556).
type Expand struct{ Key PublishKey }

func (Expand) step() {}

// Growth is what Decide needs to know about an [Expansion].
type Growth struct {
	// Due: the driver has not been asked yet, or has not finished.
	Due bool
	// Failure is the last one in a row for the expansion.
	Failure Failure
}

// expand comes last: the file system of one pod must not delay the mount or unmount of another. The driver is called with a
// confirmed publish, and not while an unanswered call may still be changing the stage below it.
func (c *decider) expand() Step {
	if !c.observed.Growth.Due || c.observed.Stage.Phase == Uncertain && c.anyPod(isBeingMounted) {
		return nil
	}
	for _, p := range c.desired.Pods {
		if p.Demand != Wanted || p.Publish != Confirmed || p.ReadOnly {
			continue
		}
		if c.mayCall(p.Key, c.observed.Growth.Failure) {
			return Expand{Key: p.Key}
		}
	}
	return nil
}

// isBeingMounted: the pod wants the volume and does not have it yet.
func isBeingMounted(p Pod) bool { return p.Demand == Wanted && p.Publish != Confirmed }

// Size is the size of a volume.
type Size struct {
	Bytes int64
	// Text is how the API object spells it. It is written to the claim as it was read.
	Text string
}

// Resizing is how far the expansion of a claim has come, according to the claim (KEP-1790).
type Resizing int

// The values of Resizing.
const (
	// Untracked: an old resizer, which does not report progress.
	Untracked Resizing = iota
	// NotReported: no expansion is running, or the controller has not reported it yet.
	NotReported
	// NodeIsNext: NodeResizePending or NodeResizeInProgress.
	NodeIsNext
	// OtherIsNext: the controller is resizing, or has to act because the size is infeasible.
	OtherIsNext
)

// ClaimSize holds the fields of a claim that concern its size.
type ClaimSize struct {
	// Capacity is status.capacity; zero if it is not set.
	Capacity Size
	// Requested is what the user asks for, Allocated what the controller works on.
	Requested, Allocated Size
	Resizing             Resizing
	// EveryNode: each node that has the volume mounted has to expand it.
	EveryNode bool
}

// Behind reports whether status.capacity is smaller than the capacity of the PersistentVolume.
func (c ClaimSize) Behind(capacity Size) bool {
	return c.Capacity.Bytes > 0 && c.Capacity.Bytes < capacity.Bytes
}

// Plan is what the node has to do for a volume that may have grown.
type Plan int

// The plans.
const (
	NothingToDo Plan = iota
	// WaitForController: another component has to act and to update the claim first.
	WaitForController
	// WrittenByController: the claim has its new size, and this node has nothing to do.
	WrittenByController
	// CallDriver: the claim has its new size, but the file system on this node does not.
	CallDriver
	// CallDriverThenWriteClaim: this node expands the volume and writes the new size to the claim.
	CallDriverThenWriteClaim
)

// planOf follows kubelet's rules: which component acts next, and to which size the volume is expanded. What the claim says
// comes before the sizes, which may be equal already (k/k#131402): only this node ends its turn.
func planOf(c ClaimSize, capacity, here Size) (Plan, Size) {
	grown := capacity.Bytes > here.Bytes
	switch {
	case c.Capacity.Bytes == 0:
		return NothingToDo, Size{}
	case c.Resizing == NodeIsNext && c.Allocated.Bytes == 0:
		return CallDriverThenWriteClaim, capacity
	case c.Resizing == NodeIsNext:
		return CallDriverThenWriteClaim, c.Allocated
	case !grown && !c.Behind(capacity):
		return NothingToDo, Size{}
	case c.Resizing == Untracked && c.Behind(capacity):
		return CallDriverThenWriteClaim, capacity
	case c.Resizing == Untracked:
		return CallDriver, capacity
	case c.Resizing == OtherIsNext, c.Capacity.Bytes < c.Allocated.Bytes:
		return WaitForController, Size{}
	case c.EveryNode && grown:
		return CallDriver, c.Allocated
	default: // by the controller, or it was never this node's turn
		return WrittenByController, Size{}
	}
}

func (p Plan) calls() bool { return p == CallDriver || p == CallDriverThenWriteClaim }

// Refusal is why a volume was not expanded, in the classes that kubelet 1.36 distinguishes (KEP-1790).
type Refusal int

// The refusals.
const (
	// NotRefused: no answer, or one after which the driver may still be at work.
	NotRefused Refusal = iota
	// RefusedForNow: it failed, and may succeed another time.
	RefusedForNow
	// RefusedInUse: the driver does not expand the volume while it is used.
	RefusedInUse
	// RefusedForGood: the volume cannot have that size.
	RefusedForGood
	// NotSupported: the driver does not have the capability EXPAND_VOLUME.
	NotSupported
)

// Expansion is the state of a volume's size on one node. The zero value is a volume of unknown size.
type Expansion struct {
	// Current is the size of the file system on this node: that of the claim when the volume
	// was first mounted, and since then what the driver confirmed.
	Current Size
	// Failure is the last one in a row.
	Failure Failure
	// capacity is the PersistentVolume's.
	capacity Size
	plan     Plan
	// refusal is the last final error since the volume last had its desired size.
	refusal Refusal
	// joined: another pod has come since the last attempt began.
	joined bool
	// waiting are the pods that must not start before the volume is expanded or no longer has to be.
	waiting []PublishKey
}

// Due reports whether the driver has to be called. After RefusedInUse that is not before another pod wants the volume.
func (e *Expansion) Due() bool { return e.plan.calls() && e.refusal != RefusedInUse }

// Waits reports whether a pod must not start yet.
func (e *Expansion) Waits(key PublishKey) bool { return slices.Contains(e.waiting, key) }

// Release returns the pods that no longer have to wait, each once.
func (e *Expansion) Release() (released []PublishKey) {
	if !e.Due() {
		released, e.waiting = e.waiting, nil
	}
	return released
}

// NeedsRead reports whether the claim waits for this node, or names a larger size than the volume has here, so that the
// PersistentVolume has to be read.
func (e *Expansion) NeedsRead(c ClaimSize) bool {
	return c.Capacity.Bytes > 0 && (e.Due() || c.Resizing == NodeIsNext || max(c.Requested.Bytes, c.Allocated.Bytes, c.Capacity.Bytes) > e.Current.Bytes)
}

// PodAdded records that another pod wants the volume: a driver that did not expand it in use is called again.
func (e *Expansion) PodAdded() {
	e.joined = true
	if e.refusal == RefusedInUse {
		e.refusal = RefusedForNow
	}
}

// Update records a claim and the capacity of its PersistentVolume as they were read. Pods that are being mounted wait
// if the claim is behind: their containers may rely on the new size.
func (e *Expansion) Update(c ClaimSize, capacity Size, mounting ...PublishKey) {
	e.waiting = slices.DeleteFunc(e.waiting, func(key PublishKey) bool { return slices.Contains(mounting, key) })
	if c.Behind(capacity) {
		e.waiting = append(e.waiting, mounting...)
	}
	if e.Current.Bytes == 0 {
		e.Current = c.Capacity
	}
	wasDue := e.Due()
	e.capacity = capacity
	e.plan, _ = planOf(c, capacity, e.Current)
	if e.plan == WrittenByController {
		e.Current = capacity
	}
	if e.Due() && !wasDue {
		e.Failure = Failure{}
	}
}

// Begin records the claim as it is now and returns the attempt to expand the volume, which may turn out unnecessary.
func (e *Expansion) Begin(c ClaimSize) Attempt {
	e.Update(c, e.capacity)
	e.joined = false
	a := Attempt{claim: c, current: e.Current, capacity: e.capacity, refused: e.refusal != NotRefused}
	a.plan, a.Size = planOf(c, e.capacity, e.Current)
	return a
}

// Confirmed records that the driver has expanded the volume and that the claim was updated. A larger size that was read meanwhile
// is still to come.
func (e *Expansion) Confirmed(a Attempt) {
	done := Expansion{Current: a.capacity, capacity: a.capacity, waiting: e.waiting}
	if e.capacity.Bytes > a.capacity.Bytes {
		done.capacity, done.plan = e.capacity, e.plan
	}
	*e = done
}

// Refused records that the volume was not expanded, and reports whether that is a failure to be retried. So is an
// infeasible size: the retry reads the claim, which by then is marked infeasible.
func (e *Expansion) Refused(a Attempt, r Refusal) (again bool) {
	if r == RefusedInUse && e.joined {
		r = RefusedForNow
	}
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
	NoClaimWrite ClaimWrite = iota
	MarkInProgress
	WriteSize
	MarkFailed
	// MarkInfeasible implies MarkFailed.
	MarkInfeasible
)

// Attempt is one attempt to expand a volume.
type Attempt struct {
	// Size is what the driver is asked for.
	Size              Size
	claim             ClaimSize
	plan              Plan
	current, capacity Size
	// refused: an earlier attempt ended with a final error. If the user has requested another size since, the next
	// error returns the expansion to the controller (KEP-1790).
	refused bool
}

// CallsDriver reports whether the driver has to be called.
func (a Attempt) CallsDriver() bool { return a.plan.calls() }

// expected: according to the claim this node is next.
func (a Attempt) expected() bool {
	return a.plan == CallDriverThenWriteClaim && a.claim.Resizing != Untracked
}

// Before is what is written before the call.
func (a Attempt) Before() ClaimWrite {
	if a.expected() {
		return MarkInProgress
	}
	return NoClaimWrite
}

// After is what is written when the driver has expanded the volume.
func (a Attempt) After() ClaimWrite {
	if a.plan == CallDriverThenWriteClaim {
		return WriteSize
	}
	return NoClaimWrite
}

// AfterRefusal is what is written when it has not.
func (a Attempt) AfterRefusal(r Refusal) ClaimWrite {
	switch {
	case a.claim.Resizing == Untracked, r == NotRefused, r == NotSupported && !a.expected():
		return NoClaimWrite
	case r == RefusedForGood, a.refused && a.claim.Requested.Bytes != a.Size.Bytes:
		return MarkInfeasible
	default:
		return MarkFailed
	}
}

// StillApplies reports whether a claim that another client has changed meanwhile still requires the same of this node.
func (a *Attempt) StillApplies(c ClaimSize) bool {
	plan, size := planOf(c, a.capacity, a.current)
	if plan != a.plan || size.Bytes != a.Size.Bytes {
		return false
	}
	a.claim = c
	return true
}
