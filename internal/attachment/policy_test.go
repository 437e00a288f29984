package attachment

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sixMinutes is upstream's policy.
var sixMinutes = Policy{OutOfService: true, UnmountTimeout: 6 * time.Minute}

func healthy(n *Node)   { n.Healthy = Yes }
func unhealthy(n *Node) { n.Healthy = No }

// lost is a deleted Node as the controller observes it: nothing reports it healthy.
func lost(n *Node) { gone(n); n.Healthy = No }

func askedAt(t time.Time) func(*Attachment) { return func(a *Attachment) { a.DetachRequested = t } }

func notedAt(t time.Time) func(*Node) { return func(n *Node) { n.DetachRequested = t } }

// timed is a decision on time: its steps and when it asks to be made again.
type timed struct {
	want    Desired
	seen    Observed
	policy  Policy
	at      time.Time
	steps   []Step
	recheck time.Time
}

func runTimed(t *testing.T, cases map[string]timed) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := Decide(tc.at, tc.want, tc.seen, tc.policy)
			want := Decision{Steps: tc.steps, RecheckAt: tc.recheck, Reason: got.Reason}
			if diff := cmp.Diff(want, got, bare); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func onA(a Attachment, n Node) Observed {
	return Observed{Attachments: []Attachment{a}, Nodes: nodes(map[NodeName]Node{"a": n})}
}

// dated gives a snapshot the newest time that is known.
func dated(newest time.Time, seen Observed) Observed {
	seen.Newest = newest
	return seen
}

func TestUnmountTimeout(t *testing.T) {
	const limit = 6 * time.Minute
	late, early := t0.Add(limit), t0.Add(limit-1)
	waitAtA := func(r Reason) Wait { return Wait{Node: "a", Attachment: "csi-a", Reason: r} }
	going := waitAtA(Detaching)
	withdrawA := WithdrawReport{Node: "a", NodeUID: "uid-a"}
	forced := ForceDetach{Node: "a", Attachment: ref("a"), Authority: UnmountTimeout{}}
	asked := func(at time.Time) AnnotateAttachment {
		return AnnotateAttachment{Node: "a", Attachment: ref("a"), Machine: machine("a"), DetachRequested: at}
	}
	runTimed(t, map[string]timed{
		"the first look asks, and the clock begins": {
			at: t0, policy: sixMinutes,
			seen:  onA(attached("a"), node("a", reported, inUse, unhealthy)),
			steps: []Step{asked(t0), waitAtA(StillInUse)}, recheck: late,
		},
		"a moment too early": {
			at: early, policy: sixMinutes,
			seen:  onA(attached("a", waiting), node("a", reported, inUse, unhealthy)),
			steps: []Step{waitAtA(StillInUse)}, recheck: late,
		},
		"S3: run out, withdrawn first": {
			at: late, policy: sixMinutes,
			seen:  onA(attached("a", waiting), node("a", reported, inUse, unhealthy)),
			steps: []Step{withdrawA, going},
		},
		"S3: run out, not reported, but only a cache says so": {
			at: late, policy: sixMinutes,
			seen:  onA(attached("a", waiting), node("a", inUse, unhealthy)),
			steps: []Step{withdrawA, going},
		},
		"run out, withdrawn and checked": {
			at: late, policy: sixMinutes,
			seen:  onA(attached("a", waiting), node("a", inUse, unhealthy, checked)),
			steps: []Step{forced},
		},
		"S2: run out, and the answer says that the node is well again": {
			at: late, policy: sixMinutes,
			seen: onA(attached("a", waiting), node("a", inUse, healthy, checked)),
			steps: []Step{
				Report{Node: "a", NodeUID: "uid-a", Attachment: ref("a"), Repeated: true},
				waitAtA(StillInUse),
			},
		},
		"S2: never on a healthy node, and no timer": {
			at: t0.Add(time.Hour), policy: sixMinutes,
			seen:  onA(attached("a", waiting), node("a", reported, inUse, healthy)),
			steps: []Step{waitAtA(StillInUse)},
		},
		"S2: never while the health of the node is unknown": {
			at: t0.Add(time.Hour), policy: sixMinutes,
			seen:  onA(attached("a", waiting), node("a", reported, inUse)),
			steps: []Step{waitAtA(StillInUse)},
		},
		"S2: never where the policy is off": {
			at: t0.Add(time.Hour), policy: Policy{OutOfService: true},
			seen:  onA(attached("a", waiting), node("a", reported, inUse, unhealthy)),
			steps: []Step{waitAtA(StillInUse)},
		},
		"off, but the taint forces": {
			at: t0.Add(time.Hour), policy: Policy{OutOfService: true},
			seen:  onA(attached("a", waiting), node("a", inUse, unhealthy, outOfService, checked)),
			steps: []Step{ForceDetach{Node: "a", Attachment: ref("a"), Authority: OutOfServiceTaint{}}},
		},
		"run out and not in use: nothing to force": {
			at: late, policy: sixMinutes,
			seen:  onA(attached("a", waiting), node("a", unhealthy, checked)),
			steps: []Step{Detach{Node: "a", Attachment: ref("a")}},
		},
		"run out, but wanted again: the clock is cleared": {
			at: late, policy: sixMinutes, want: wantAt("a"),
			seen:  onA(attached("a", waiting), node("a", reported, inUse, unhealthy)),
			steps: []Step{AnnotateAttachment{Node: "a", Attachment: ref("a"), Machine: machine("a")}},
		},
		"wanted again on a node that is gone: the clock is cleared": {
			at: late, policy: sixMinutes, want: wantAt("a"),
			seen: onA(attached("a", waiting), node("a", inUse, lost)),
			steps: []Step{
				AnnotateAttachment{Node: "a", Attachment: ref("a"), Machine: machine("a")},
				Wait{Node: "a", Attachment: "csi-a", Reason: NodeGone, Wanted: true},
			},
		},
		"a time to come counts as now": {
			at: t0, policy: sixMinutes,
			seen:  onA(attached("a", askedAt(t0.Add(time.Hour))), node("a", reported, inUse, unhealthy)),
			steps: []Step{asked(t0), waitAtA(StillInUse)}, recheck: late,
		},
		"dated with the newest time that is known, and judged by our own": {
			at: late, policy: sixMinutes,
			seen:  dated(late.Add(time.Hour), onA(attached("a"), node("a", reported, inUse, unhealthy))),
			steps: []Step{asked(late.Add(time.Hour)), waitAtA(StillInUse)}, recheck: late.Add(time.Hour + 6*time.Minute),
		},
		"dated so already": {
			at: late, policy: sixMinutes,
			seen:  dated(late.Add(time.Hour), onA(attached("a", askedAt(late.Add(time.Minute))), node("a", reported, inUse, unhealthy))),
			steps: []Step{waitAtA(StillInUse)}, recheck: late.Add(7 * time.Minute),
		},
		"never confirmed, and the node claims it": {
			at: late, policy: sixMinutes,
			seen:  onA(attached("a", refusedByDriver, waiting), node("a", inUse, unhealthy, checked)),
			steps: []Step{forced},
		},
		"came back under its name, and is not well": {
			at: late, policy: sixMinutes,
			seen:  onA(attached("a", waiting), node("a", reborn, unhealthy, checked)),
			steps: []Step{forced},
		},
		"came back under its name, and is well": {
			at: late, policy: sixMinutes,
			seen:  onA(attached("a", waiting), node("a", reborn, healthy, reported)),
			steps: []Step{CheckKubelet{Node: "a", NodeUID: "uid-a-2"}, waitAtA(NodeReturned)},
		},
		"being deleted by another client while in use: the report stays until it has run out": {
			at: early, policy: sixMinutes,
			seen:  onA(attached("a", waiting, deleting), node("a", reported, inUse, unhealthy)),
			steps: []Step{going},
		},
		"being deleted by another client while in use, run out": {
			at: late, policy: sixMinutes,
			seen:  onA(attached("a", waiting, deleting), node("a", reported, inUse, unhealthy)),
			steps: []Step{withdrawA, going},
		},
		"S1: attached twice by others: no clock where pods are": {
			at: late, policy: sixMinutes, want: wantAt("b", "a"),
			seen: Observed{
				Attachments: []Attachment{attached("a", waiting), attached("b")},
				Nodes: nodes(map[NodeName]Node{
					"a": node("a", reported, inUse, unhealthy),
					"b": node("b", reported, inUse, func(n *Node) { n.Healthy = Yes }),
				}),
			},
			steps: []Step{
				AnnotateAttachment{Node: "a", Attachment: ref("a"), Machine: machine("a")},
				Wait{Node: "b", Attachment: "csi-b", Reason: StillInUse, Wanted: true},
			},
		},
	})
}

func TestDeletedNode(t *testing.T) {
	late := t0.Add(6 * time.Minute)
	detach := Policy{OutOfService: true, DeletedNode: DeletedNodeDetach}
	waitAtA := Wait{Node: "a", Attachment: "csi-a", Reason: NodeGone}
	ask := WithdrawReport{Node: "a"}
	going := Wait{Node: "a", Attachment: "csi-a", Reason: Detaching}
	asked := AnnotateAttachment{Node: "a", Attachment: ref("a"), Machine: machine("a"), DetachRequested: t0}
	byDeletion := ForceDetach{Node: "a", Attachment: ref("a"), Authority: DeletedNode{}}
	runTimed(t, map[string]timed{
		"wait: in use when it went": {
			at: t0, policy: sixMinutes,
			seen:  onA(attached("a"), node("a", inUse, lost)),
			steps: []Step{asked, waitAtA}, recheck: late,
		},
		"wait: no record": {
			at: t0, policy: sixMinutes,
			seen:  onA(attached("a"), node("a", useUnknown, lost)),
			steps: []Step{asked, waitAtA}, recheck: late,
		},
		"wait: run out, asked first": {
			at: late, policy: sixMinutes,
			seen:  onA(attached("a", waiting), node("a", inUse, lost)),
			steps: []Step{WithdrawReport{Node: "a"}, going},
		},
		"wait: run out": {
			at: late, policy: sixMinutes,
			seen:  onA(attached("a", waiting), node("a", inUse, lost, checked)),
			steps: []Step{ForceDetach{Node: "a", Attachment: ref("a"), Authority: UnmountTimeout{}}},
		},
		"wait: no timeout, so forever": {
			at: t0.Add(time.Hour), policy: Policy{OutOfService: true},
			seen:  onA(attached("a", waiting), node("a", inUse, lost)),
			steps: []Step{waitAtA},
		},
		"wait: not in use when it went, asked first": {
			at: t0, policy: Policy{},
			seen:  onA(attached("a"), node("a", lost)),
			steps: []Step{ask, going},
		},
		"wait: not in use when it went": {
			at: t0, policy: Policy{},
			seen:  onA(attached("a"), node("a", lost, checked)),
			steps: []Step{Detach{Node: "a", Attachment: ref("a")}},
		},
		"detach: in use when it went, asked first": {
			at: t0, policy: detach,
			seen:  onA(attached("a"), node("a", inUse, lost)),
			steps: []Step{ask, going},
		},
		"detach: in use when it went": {
			at: t0, policy: detach,
			seen:  onA(attached("a"), node("a", inUse, lost, checked)),
			steps: []Step{byDeletion},
		},
		"detach: no record": {
			at: t0, policy: detach,
			seen:  onA(attached("a"), node("a", useUnknown, lost, checked)),
			steps: []Step{byDeletion},
		},
		"detach: pods still want it there": {
			at: t0, policy: detach, want: wantAt("a"),
			seen:  onA(attached("a"), node("a", inUse, lost, checked)),
			steps: []Step{Wait{Node: "a", Attachment: "csi-a", Reason: NodeGone, Wanted: true}},
		},
		"detach: a Node that came back is not gone": {
			at: t0, policy: detach,
			seen: onA(attached("a"), node("a", reborn, checked)),
			steps: []Step{
				asked,
				Report{Node: "a", NodeUID: "uid-a-2", Attachment: ref("a"), Repeated: true},
				Wait{Node: "a", Attachment: "csi-a", Reason: NodeReturned},
			},
		},
		"detach: a Node that could not be read is not gone": {
			at: t0, policy: detach,
			seen:  Observed{Attachments: []Attachment{attached("a")}},
			steps: []Step{Wait{Node: "a", Attachment: "csi-a", Reason: NodeUnknown}},
		},
	})
}

// TestNoUnneededAnnotation: a request that a late write left on a Node is taken off.
func TestNoUnneededAnnotation(t *testing.T) {
	runTimed(t, map[string]timed{
		"its volume has an attachment": {
			at: t0, policy: sixMinutes, want: wantAt("a"),
			seen:  onA(attached("a"), node("a", inUse, reported, healthy, notedAt(t0))),
			steps: []Step{AnnotateNode{Node: "a", NodeUID: "uid-a"}},
		},
	})
}

// TestTaintOnReadyNode: a node that is Ready is alive, whatever a taint says.
func TestTaintOnReadyNode(t *testing.T) {
	tainted := func(n *Node) { n.OutOfService = true }
	detachA := ForceDetach{Node: "a", Attachment: ref("a"), Authority: OutOfServiceTaint{}}
	runTimed(t, map[string]timed{
		"S2: in use: held": {
			at: t0, policy: sixMinutes, seen: onA(attached("a", waiting), node("a", reported, inUse, healthy, tainted)),
			steps: []Step{Wait{Node: "a", Attachment: "csi-a", Reason: OutOfServiceNodeReady}},
		},
		"not in use: an ordinary detach": {
			at: t0, policy: sixMinutes, seen: onA(attached("a"), node("a", checked, healthy, tainted)),
			steps: []Step{Detach{Node: "a", Attachment: ref("a")}},
		},
		"no longer ready": {
			at: t0, policy: sixMinutes, seen: onA(attached("a"), node("a", inUse, checked, unhealthy, tainted)),
			steps: []Step{detachA},
		},
	})
}

func TestSilentAttacher(t *testing.T) {
	in, after := t0.Add(AnswerTimeout-1), t0.Add(AnswerTimeout)
	since := func(a *Attachment) { a.Deleting, a.DeletingSince = true, t0 }
	says := func(until time.Time) func(a *Attachment) {
		return func(a *Attachment) { a.Pending, a.PendingUntil = "in flight", until }
	}
	runTimed(t, map[string]timed{
		"attach, too long, and the attacher says why": {
			at: after, want: wantAt("a"), seen: onA(attached("a", unconfirmed, says(after.Add(1))), node("a")),
			steps: []Step{Wait{Node: "a", Attachment: "csi-a", Reason: AttachUnanswered, Wanted: true, Detail: "in flight"}},
		},
		"detach, too long, and the attacher said why": {
			at: after, seen: onA(attached("a", since, says(after)), node("a")),
			steps: []Step{Wait{Node: "a", Attachment: "csi-a", Reason: DetachUnanswered}},
		},
		"detach, too long, and the attacher says why": {
			at: after, seen: onA(attached("a", since, says(after.Add(1))), node("a")),
			steps: []Step{Wait{Node: "a", Attachment: "csi-a", Reason: DetachUnanswered, Detail: "in flight"}},
		},
		"attach, too long, and what another client wrote would count for years": {
			at: after, want: wantAt("a"), seen: onA(attached("a", unconfirmed, says(after.Add(MaxPending+1))), node("a")),
			steps: []Step{Wait{Node: "a", Attachment: "csi-a", Reason: AttachUnanswered, Wanted: true}},
		},
		"attach, not long": {
			at: in, want: wantAt("a"), seen: onA(attached("a", unconfirmed), node("a")),
			steps: []Step{Wait{Node: "a", Attachment: "csi-a", Reason: Attaching, Wanted: true}}, recheck: after,
		},
		"attach, too long": {
			at: after, want: wantAt("a"), seen: onA(attached("a", unconfirmed), node("a")),
			steps: []Step{Wait{Node: "a", Attachment: "csi-a", Reason: AttachUnanswered, Wanted: true}},
		},
		"attach refused: an answer": {
			at: after, want: wantAt("a"), seen: onA(attached("a", refusedByDriver), node("a")),
			steps: []Step{Wait{Node: "a", Attachment: "csi-a", Reason: AttachFailed, Wanted: true, Detail: "no room"}},
		},
		"detach, not long": {
			at: in, seen: onA(attached("a", since), node("a")),
			steps: []Step{Wait{Node: "a", Attachment: "csi-a", Reason: Detaching}}, recheck: after,
		},
		"detach, too long": {
			at: after, seen: onA(attached("a", since), node("a")),
			steps: []Step{Wait{Node: "a", Attachment: "csi-a", Reason: DetachUnanswered}},
		},
	})
}

// TestRecheckIsTheFirst of several timers.
func TestRecheckIsTheFirst(t *testing.T) {
	seen := Observed{
		Attachments: []Attachment{attached("a", askedAt(t0)), attached("b", askedAt(t0.Add(-time.Minute)))},
		Nodes: nodes(map[NodeName]Node{
			"a": node("a", reported, inUse, unhealthy), "b": node("b", reported, inUse, unhealthy),
		}),
	}
	got := Decide(t0, shared(Desired{}), seen, sixMinutes).RecheckAt
	if want := t0.Add(5 * time.Minute); !got.Equal(want) {
		t.Errorf("decide again at %v, want %v", got, want)
	}
}

func TestPolicyStrings(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{OutOfServiceTaint{}.String(), "out-of-service"},
		{UnmountTimeout{}.String(), "timeout"},
		{DeletedNode{}.String(), "deleted-node"},
		{DeletedNodeWait.String(), "wait"},
		{DeletedNodeDetach.String(), "detach"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
}
