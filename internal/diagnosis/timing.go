package diagnosis

import (
	"fmt"
	"time"
)

// NotYet is why an interval of a move that is not over is unknown.
const NotYet = "not yet"

// timing is the table that says where the time of an attach goes. The usual times are those of Amazon EBS.
func timing(hops []Hop) []Interval {
	at := map[HopName]*Hop{}
	for i := range hops {
		at[hops[i].Name] = &hops[i]
	}
	freed := HopScheduled
	if d := at[HopDetached]; d != nil && d.At != nil && at[HopScheduled] != nil && at[HopScheduled].At != nil && d.At.After(*at[HopScheduled].At) {
		freed = HopDetached
	}
	attached := HopAttached
	if r := at[HopReported]; r != nil && r.State == HopDone {
		attached = HopReported
	}
	if a := at[HopAttachRequested]; a != nil && a.State == HopNotNeeded {
		attached = HopScheduled
	}
	rows := []Interval{between(at, "scheduler assigns the node", "~100 ms", HopPodCreated, HopScheduled)}
	created := between(at, "controller creates the VolumeAttachment", "~500 ms", freed, HopAttachRequested)
	if release, ok := released(at); ok {
		rows = append(rows, release)
		if release.AtMost != nil {
			created.Seconds, created.AtMost, created.Unknown = nil, release.AtMost, "when the previous node gave the volume back has no time"
		}
	}
	return append(rows,
		created,
		between(at, "attacher begins", "~1 s", HopAttachRequested, HopTaken),
		between(at, "driver attaches, status.attached is true", "5-30 s, then ~1 s", HopTaken, HopAttached),
		between(at, "node stages and publishes", "2-10 s", attached, HopMounted),
		between(at, "container starts", "1-3 s", HopMounted, HopStarted),
		between(at, "total, from scheduled to container started", "15-45 s", HopScheduled, HopStarted),
	)
}

// released is how long the pod that had a node waited for the previous node to give the volume back; false if it did not wait.
func released(at map[HopName]*Hop) (Interval, bool) {
	scheduled, detached, requested := at[HopScheduled], at[HopDetached], at[HopAttachRequested]
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
	return between(at, "previous node gives the volume back", "~1 s; minutes if lost", HopScheduled, HopDetached), bound != nil || detached.State == HopWaiting
}

// between measures from one hop to the next.
func between(at map[HopName]*Hop, name, usual string, from, to HopName) Interval {
	v := Interval{Name: name, Usual: usual}
	a, b := at[from], at[to]
	switch {
	case a == nil || b == nil:
		v.Unknown = "no pod has wanted the volume since"
	case b.State == HopNotNeeded || b.State == HopWaiting && b.Why != "":
		v.Unknown = map[HopState]string{HopNotNeeded: "not needed: ", HopWaiting: "not yet: "}[b.State] + b.Why
	case b.State == HopWaiting || b.State == HopPending:
		v.Unknown = NotYet
	case a.State == HopNotNeeded:
		v.Unknown = a.Why
	case a.At == nil || b.At == nil:
		v.bound(last(at, from), from, a, b)
	default:
		v.Exact = a.Exact && b.Exact
		v.Seconds = gap(*a.At, *b.At, v.Exact)
	}
	return v
}

// bound says why a time is unknown, and how long it was at most. earliest is the last known time before.
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
}

// last is the last known time of the hops before one.
func last(at map[HopName]*Hop, before HopName) *time.Time {
	var found *time.Time
	for _, name := range order {
		if name == before {
			break
		}
		if h := at[name]; h != nil && h.At != nil && (found == nil || h.At.After(*found)) {
			found = h.At
		}
	}
	return found
}

// order has the hops of the node that the volume comes to.
var order = []HopName{HopPodCreated, HopScheduled, HopAttachRequested, HopTaken, HopAttached, HopReported, HopMounted, HopStarted, HopReady}

// limit is the longest time between two that may have whole seconds.
func limit(from, to time.Time) *float64 { return gap(from, to.Add(second), true) }
