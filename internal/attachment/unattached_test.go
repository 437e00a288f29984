package attachment

import (
	"testing"
	"time"
)

func fc(d Desired) Desired { d.Unattached = true; return d }

// idle is nobody's volume.
func idle() Desired { return Desired{Shared: No} }

func TestUnattached(t *testing.T) {
	at := t0.Add(time.Minute)
	reportOn := func(n NodeName) Report { return Report{Node: n, NodeUID: "uid-" + string(n)} }
	withdrawOn := func(n NodeName) WithdrawReport { return WithdrawReport{Node: n, NodeUID: "uid-" + string(n)} }
	noteOn := func(n NodeName, at time.Time) NoteNode {
		return NoteNode{Node: n, NodeUID: "uid-" + string(n), DetachRequested: at}
	}
	on := func(list ...Node) Observed {
		seen := Observed{Nodes: map[NodeName]Node{}}
		for i, n := range list {
			seen.Nodes[NodeName(rune('a'+i))] = n
		}
		return seen
	}
	cases := map[string]timed{
		"wanted": {
			want: fc(wantAt("a")), seen: on(node("a")), steps: []Step{reportOn("a")},
		},
		"wanted, and kubelet claims it": {
			want: fc(wantAt("a")), seen: on(node("a", inUse)), steps: []Step{reportOn("a")},
		},
		"wanted and reported": {
			want: fc(wantAt("a")), seen: on(node("a", inUse, reported)),
		},
		"node not there yet": {
			want: fc(wantAt("a")), seen: on(node("a", lost)),
			steps: []Step{Hold{Node: "a", Reason: NodeGone, Wanted: true}},
		},
		"node attaches by itself": {
			want: fc(wantAt("a")), seen: on(node("a", unmanaged)),
			steps: []Step{Hold{Node: "a", Reason: NodeNotManaged, Wanted: true}},
		},
		"shared, on two nodes": {
			want: fc(shared(wantAt("a", "b"))), seen: on(node("a"), node("b")),
			steps: []Step{reportOn("a"), reportOn("b")},
		},
		"S1: on two nodes at once": {
			want: fc(wantAt("a", "b")), seen: on(node("a", inUse), node("b", inUse)),
			steps: []Step{reportOn("a"), blockedAt("b", OtherWriterAttached, Blocker{"a", ByTurn})},
		},
		"S1: reported elsewhere, idle: withdrawn, and given when that is answered": {
			want: fc(wantAt("b")), seen: on(node("a", reported), node("b")),
			steps: []Step{withdrawOn("a"), blockedAt("b", OtherWriterAttached, Blocker{"a", ByReport})},
		},
		"S1: in use elsewhere": {
			want: fc(wantAt("b")), seen: on(node("a", reported, inUse, notedAt(t0)), node("b")),
			steps: []Step{
				Hold{Node: "a", Reason: StillInUse},
				blockedAt("b", OtherWriterAttached, Blocker{"a", ByUse}),
			},
		},
		"S1: in use elsewhere, not reported": {
			want: fc(wantAt("b")), seen: on(node("a", inUse, notedAt(t0)), node("b")),
			steps: []Step{
				Hold{Node: "a", Reason: StillInUse},
				blockedAt("b", OtherWriterAttached, Blocker{"a", ByUse}),
			},
		},
		"S1: a report elsewhere may be on its way": {
			want: fc(wantAt("b", "a")),
			seen: on(node("a", inUse, underway), node("b", inUse)),
			steps: []Step{
				WithdrawReport{Node: "a", NodeUID: "uid-a", NewVersion: true},
				blockedAt("a", OtherWriterAttached, Blocker{"b", ByTurn}),
			},
		},
		"S1: reported on two nodes, one in use: the idle one goes": {
			want: fc(wantAt("a", "b")), seen: on(node("a", reported), node("b", reported, inUse)),
			steps: []Step{withdrawOn("a"), blockedAt("a", OtherWriterAttached, Blocker{"b", ByUse})},
		},
		"S1: reported on two nodes, both in use: nothing is taken away": {
			want: fc(wantAt("a", "b")), seen: on(node("a", reported, inUse), node("b", reported, inUse)),
			steps: []Step{blockedAt("b", OtherWriterAttached, Blocker{"a", ByUse})},
		},
		"access modes unknown: exclusive": {
			want: fc(Desired{Wants: wantAt("a", "b").Wants}), seen: on(node("a", reported), node("b")),
			steps: []Step{blockedAt("b", OtherWriterAttached, Blocker{"a", ByReport})},
		},
		"S2: unwanted and in use: the clock begins": {
			want: fc(idle()), seen: on(node("a", reported, inUse, healthy)),
			steps: []Step{noteOn("a", at), Hold{Node: "a", Reason: StillInUse}},
		},
		"unwanted, idle": {
			want: fc(idle()), seen: on(node("a", reported)), steps: []Step{withdrawOn("a")},
		},
		"unwanted, idle, withdrawn: the clock is cleared": {
			want: fc(idle()), seen: on(node("a", notedAt(t0))), steps: []Step{noteOn("a", time.Time{})},
		},
		"wanted again: the clock is cleared": {
			want: fc(wantAt("a")), seen: on(node("a", reported, inUse, notedAt(t0))),
			steps: []Step{noteOn("a", time.Time{})},
		},
		"unwanted on a node that attaches by itself": {
			want: fc(idle()), seen: on(node("a", reported, inUse, unmanaged)),
			steps: []Step{Hold{Node: "a", Reason: NodeNotManaged}},
		},
		"out of service": {
			want: fc(idle()), seen: on(node("a", reported, inUse, outOfService)),
			steps: []Step{WithdrawReport{Node: "a", NodeUID: "uid-a", Authority: OutOfServiceTaint{}}},
		},
		"out of service and withdrawn: its list blocks nobody": {
			want: fc(wantAt("b")), seen: on(node("a", inUse, outOfService), node("b")),
			steps: []Step{reportOn("b")},
		},
		"S1: node gone, in use when it went": {
			want: fc(wantAt("b")), seen: on(node("a", inUse, lost, notedAt(t0)), node("b")),
			steps: []Step{
				Hold{Node: "a", Reason: NodeGone},
				blockedAt("b", OtherWriterAttached, Blocker{"a", ByUse}),
			},
			recheck: t0.Add(6 * time.Minute),
		},
		"S1: node gone, in use when it went, its pod still there": {
			want: fc(wantAt("a", "b")), seen: on(node("a", inUse, lost, notedAt(t0)), node("b")),
			steps: []Step{
				Hold{Node: "a", Reason: NodeGone, Wanted: true},
				blockedAt("b", OtherWriterAttached, Blocker{"a", ByUse}),
			},
			recheck: t0.Add(6 * time.Minute),
		},
		"node gone, idle when it went": {
			want: fc(wantAt("b")), seen: on(node("a", lost, notedAt(t0)), node("b")),
			steps: []Step{reportOn("b")},
		},
		"S1: node came back and has said nothing": {
			want: fc(wantAt("b")), seen: on(node("a", useUnknown, notedAt(t0)), node("b")),
			steps: []Step{
				Hold{Node: "a", Reason: NodeReturned},
				blockedAt("b", OtherWriterAttached, Blocker{"a", ByUse}),
			},
		},
	}
	for name, tc := range cases {
		tc.at, tc.policy = at, sixMinutes
		cases[name] = tc
	}
	late := t0.Add(6 * time.Minute)
	cases["timeout on a dead node, a moment too early"] = timed{
		want: fc(idle()), at: late.Add(-1), policy: sixMinutes,
		seen:  on(node("a", reported, inUse, unhealthy, notedAt(t0))),
		steps: []Step{Hold{Node: "a", Reason: StillInUse}}, recheck: late,
	}
	cases["timeout on a dead node"] = timed{
		want: fc(idle()), at: late, policy: sixMinutes,
		seen:  on(node("a", reported, inUse, unhealthy, notedAt(t0))),
		steps: []Step{WithdrawReport{Node: "a", NodeUID: "uid-a", DetachRequested: t0, Authority: UnmountTimeout{}}},
	}
	cases["timeout on a dead node, withdrawn: its list blocks nobody"] = timed{
		want: fc(wantAt("b")), at: late, policy: sixMinutes,
		seen:  on(node("a", inUse, unhealthy, notedAt(t0)), node("b")),
		steps: []Step{reportOn("b")},
	}
	cases["S2: no timeout on a healthy node"] = timed{
		want: fc(idle()), at: late.Add(time.Hour), policy: sixMinutes,
		seen:  on(node("a", reported, inUse, healthy, notedAt(t0))),
		steps: []Step{Hold{Node: "a", Reason: StillInUse}},
	}
	cases["S1: node gone for the timeout"] = timed{
		want: fc(wantAt("b")), at: late, policy: sixMinutes,
		seen:  on(node("a", inUse, lost, notedAt(t0)), node("b")),
		steps: []Step{reportOn("b")},
	}
	cases["node gone, where deletion is a word for it"] = timed{
		want: fc(wantAt("b")), at: t0, policy: Policy{DeletedNode: DeletedNodeDetach},
		seen:  on(node("a", inUse, lost, notedAt(t0)), node("b")),
		steps: []Step{reportOn("b")},
	}
	runTimed(t, cases)
}
