package diagnosis

import (
	"fmt"
	"slices"
	"time"
)

// NotYet is why an interval of a move that is not over is unknown.
const NotYet = "not yet"

// span measures the times between hops.
type span struct {
	hops map[HopName]*Hop
	now  time.Time
}

// timing is the table that says where the time of a move goes. The usual times are those of Amazon EBS, and of kubelets with their defaults.
func timing(hops []Hop, now time.Time) []Interval {
	at := map[HopName]*Hop{}
	for i := range hops {
		at[hops[i].Name] = &hops[i]
	}
	x := span{at, now}
	began := beginning(hops)
	attached := HopAttached
	if r := at[HopReported]; r != nil && r.State == HopDone {
		attached = HopReported
	}
	if a := at[HopAttachRequested]; a != nil && a.State == HopNotNeeded {
		attached = HopScheduled
	}
	rows := x.departure(began)
	if at[HopPodCreated] == nil { // no pod has wanted the volume since
		return rows
	}
	created := x.between("controller creates the VolumeAttachment", "~500 ms", x.freed(), HopAttachRequested)
	if release, ok := x.released(); ok {
		rows = append(rows, release)
		if release.AtMost != nil {
			created.Seconds, created.AtMost, created.Unknown = nil, release.AtMost, "when the previous node gave the volume back has no time"
		}
	}
	rows = append(rows,
		x.between("scheduler assigns the node", "~100 ms", HopPodCreated, HopScheduled),
		created,
		x.between("attacher begins", "~1 s", HopAttachRequested, HopTaken),
		x.between("driver attaches, status.attached is true", "5-30 s, then ~1 s", HopTaken, HopAttached),
		x.between("node lists it in use, stages and publishes", "up to 10 s, then 2-10 s", attached, HopMounted),
		x.between("container starts", "1-3 s", HopMounted, HopStarted),
		x.between("total, from scheduled to container started", "15-45 s", HopScheduled, HopStarted),
	)
	if began != nil {
		name := map[HopName]string{
			HopPodDeleted: "whole move, from the old pod's deletion", HopEnded: "whole move, from the old pod's end", HopSilent: "whole move, from the node's last heartbeat",
		}[began.Name]
		rows = append(rows, x.between(name, "15-45 s after the departure", began.Name, HopStarted))
	}
	return rows
}

// freed is the hop after which the controller can create the VolumeAttachment.
func (x span) freed() HopName {
	detached, scheduled := x.hops[HopDetached], x.hops[HopScheduled]
	switch {
	case detached == nil:
	case detached.State == HopWaiting || detached.State == HopPending:
		return HopDetached
	case detached.At != nil && scheduled != nil && scheduled.At != nil && detached.At.After(*scheduled.At):
		return HopDetached
	}
	return HopScheduled
}

// departure is how long the node that had the volume took to release it. Nothing records the unmount: a kubelet publishes it with its next
// status.
func (x span) departure(first *Hop) []Interval {
	if first == nil {
		return nil
	}
	began := first.Name
	const status = "~1 s, then up to 10 s"
	var rows []Interval
	if x.hops[HopSilent] != nil {
		return []Interval{
			x.between("node is suspected, and the fence proven", "25 s, then the power switch", HopSilent, HopProven),
			x.between("fence taints the node, pods are deleted", "~1 s", HopProven, HopDetachRequested),
			x.between("attacher and driver detach", "seconds", HopDetachRequested, HopDetached),
		}
	}
	if ended := x.hops[HopEnded]; began == HopPodDeleted && ended != nil && ended.State != HopUnknown {
		rows, began = append(rows, x.between("old pod's containers end", "up to the grace period", began, HopEnded)), HopEnded
	}
	if requested := x.hops[HopDetachRequested]; requested != nil && requested.State == HopNotNeeded {
		return rows
	}
	if began == HopEnded {
		rows = append(rows, x.between("old node unmounts and publishes that", status, HopEnded, HopDetachRequested))
	} else {
		rows = append(rows, x.between("old pod ends, node unmounts and publishes it", "grace period, "+status, began, HopDetachRequested))
	}
	return append(rows, x.between("attacher and driver detach", "seconds", HopDetachRequested, HopDetached))
}

// released is how long the pod that had a node waited for the previous node to give the volume back; false if it did not wait.
func (x span) released() (Interval, bool) {
	scheduled, detached, requested := x.hops[HopScheduled], x.hops[HopDetached], x.hops[HopAttachRequested]
	if scheduled == nil || scheduled.At == nil || detached == nil || requested == nil || requested.State == HopNotNeeded {
		return Interval{}, false
	}
	bound := detached.At
	if bound == nil && detached.State == HopUnknown && requested.At != nil {
		bound = detached.NotAfter
	}
	if bound != nil && bound.Sub(*scheduled.At) < 2*time.Second {
		return Interval{}, false
	}
	waits := bound != nil || detached.State == HopWaiting || detached.State == HopPending
	return x.between("of these, after the new pod had its node", "~1 s; minutes if lost", HopScheduled, HopDetached), waits
}

// between measures from one hop to the next.
func (x span) between(name, usual string, from, to HopName) Interval {
	v := Interval{Name: name, Usual: usual}
	a, b := x.hops[from], x.hops[to]
	switch {
	case a == nil || b == nil:
		v.Unknown = "this move has no such step"
	case b.State == HopNotNeeded:
		v.Unknown = "not needed: " + b.Why
	case b.State == HopWaiting || b.State == HopPending:
		v.Unknown = NotYet
		if b.State == HopWaiting && b.Why != "" {
			v.Unknown += ": " + b.Why
		}
		v.lasts(a, x.now)
	case a.State == HopNotNeeded:
		v.Unknown = a.Why
	case a.At == nil || b.At == nil:
		v.bound(x.last(from), from, a, b)
	default:
		v.Exact = a.Exact && b.Exact
		v.Seconds = gap(*a.At, *b.At, v.Exact)
	}
	return v
}

// lasts sets how long an interval has lasted that has not ended.
func (v *Interval) lasts(a *Hop, now time.Time) {
	switch {
	case a.At != nil:
		v.SoFar = gap(*a.At, now, false)
	case a.State == HopUnknown && a.NotAfter != nil:
		v.SoFar = gap(*a.NotAfter, now, false)
		v.AtLeast = v.SoFar
	}
}

// bound says why a time is unknown, and how long it was at most and at least. earliest is the last known time before.
func (v *Interval) bound(earliest *time.Time, from HopName, a, b *Hop) {
	if b.At == nil {
		v.Unknown = b.Why
		if a.At != nil && b.NotAfter != nil {
			v.AtMost = limit(*a.At, *b.NotAfter)
		}
		return
	}
	v.Unknown = fmt.Sprintf("%q has no time", from)
	if earliest != nil {
		v.AtMost = limit(*earliest, *b.At)
	}
	if a.NotAfter != nil && a.NotAfter.Before(*b.At) && (earliest == nil || !a.NotAfter.Before(*earliest)) { // else the clocks contradict each other
		v.AtLeast = gap(*a.NotAfter, *b.At, false)
	}
}

// last is the last known time of the hops before one, on the same side of the move.
func (x span) last(before HopName) *time.Time {
	var found *time.Time
	for _, side := range [][]HopName{departing, arriving} {
		for _, name := range side[:max(slices.Index(side, before), 0)] {
			if h := x.hops[name]; h != nil && h.At != nil && (found == nil || h.At.After(*found)) {
				found = h.At
			}
		}
	}
	return found
}

// The hops of the node that the volume leaves, and of the one that it comes to.
var (
	departing = []HopName{HopSilent, HopProven, HopPodDeleted, HopEnded, HopUnmounted, HopDetachRequested, HopDetached}
	arriving  = []HopName{HopPodCreated, HopScheduled, HopAttachRequested, HopTaken, HopAttached, HopReported, HopMounted, HopStarted, HopReady}
)

// limit is the longest time between two that may have whole seconds.
func limit(from, to time.Time) *float64 { return gap(from, to.Add(second), true) }
