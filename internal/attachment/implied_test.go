package attachment

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// idle is a volume that no pod wants.
func idle() Desired { return Desired{Shared: No} }

// implied is an attachment without an object: what the shell remembers of a volume that
// the node was given.
func implied(at NodeName, edits ...func(*Attachment)) Attachment {
	a := Attachment{Node: at, Implied: true, Computed: true, Confirmed: Yes, Created: t0, Machine: machine(at)}
	for _, e := range edits {
		e(&a)
	}
	return a
}

func on(list ...Node) Observed {
	seen := Observed{Nodes: map[NodeName]Node{}}
	for i, n := range list {
		seen.Nodes[NodeName(rune('a'+i))] = n
	}
	return seen
}

// held is on, with implied attachments.
func held(a []Attachment, list ...Node) Observed {
	seen := on(list...)
	seen.Attachments = a
	return seen
}

func given(at ...NodeName) []Attachment {
	var list []Attachment
	for _, n := range at {
		list = append(list, implied(n))
	}
	return list
}

// TestAttachmentRemovedWhileInUse is about a VolumeAttachment that a person removed while the
// node held the volume.
func TestAttachmentRemovedWhileInUse(t *testing.T) {
	attachA := Attach{Node: "a", PersistentVolume: "pv", Machine: machine("a")}
	usedAtA := blockedAt("b", OtherWriterAttached, Blocker{Node: "a", Kind: ByUse})
	runDecide(t, map[string]decideCase{
		"S1: wanted there, an older pod waits elsewhere: created again where it was": {
			want: wantAt("b", "a"), seen: held(given("a"), node("a", inUse, reported), node("b", inUse)),
			steps: []Step{usedAtA, attachA},
		},
		"S1: wanted elsewhere only": {
			want: wantAt("b"), seen: held(given("a"), node("a", inUse, reported), node("b")),
			steps: []Step{
				AnnotateNode{Node: "a", NodeUID: "uid-a", DetachRequested: t0.Add(time.Minute)},
				Wait{Node: "a", Reason: StillInUse}, usedAtA,
			},
		},
		"S9: its wiped report does not come back without an object": {
			want: wantAt("b"), seen: held(given("a"), node("a", inUse), node("b")),
			steps: []Step{
				AnnotateNode{Node: "a", NodeUID: "uid-a", DetachRequested: t0.Add(time.Minute)},
				Wait{Node: "a", Reason: StillInUse}, usedAtA,
			},
		},
		"S9: wanted there, and not listed yet: its report is withdrawn": {
			want: wantAt("a"), seen: held(given("a"), node("a", reported)),
			steps: []Step{WithdrawReport{Node: "a", NodeUID: "uid-a"}},
		},
		"wanted there, not listed, withdrawn: created again": {
			want: wantAt("a"), seen: held(given("a"), node("a", checked)), steps: []Step{attachA},
		},
		"released: withdrawn": {
			want: wantAt("b"), seen: held(given("a"), node("a", reported), node("b")),
			steps: []Step{
				WithdrawReport{Node: "a", NodeUID: "uid-a"}, Wait{Node: "a", Reason: Detaching}, usedAtA,
			},
		},
		"released, withdrawn: forgotten": {
			want: wantAt("b"), seen: held(given("a"), node("a", checked), node("b")),
			steps: []Step{Detach{Node: "a"}, usedAtA},
		},
		"out of service, withdrawn": {
			want: wantAt("b"), seen: held(given("a"), node("a", inUse, outOfService, checked), node("b")),
			steps: []Step{ForceDetach{Node: "a", Authority: OutOfServiceTaint{}}, usedAtA},
		},
	})
	late := t0.Add(6 * time.Minute)
	asked := []Attachment{implied("a", waiting)}
	waitInUse := Wait{Node: "a", Reason: StillInUse}
	runTimed(t, map[string]timed{
		"timeout on a dead node, a moment too early": {
			want: idle(), at: late.Add(-1), policy: sixMinutes,
			seen:  held(asked, node("a", reported, inUse, unhealthy, notedAt(t0))),
			steps: []Step{waitInUse}, recheck: late,
		},
		"timeout on a dead node": {
			want: idle(), at: late, policy: sixMinutes,
			seen:  held(asked, node("a", reported, inUse, unhealthy, notedAt(t0))),
			steps: []Step{WithdrawReport{Node: "a", NodeUID: "uid-a"}, Wait{Node: "a", Reason: Detaching}},
		},
		"S2: no timeout on a healthy node": {
			want: idle(), at: late.Add(time.Hour), policy: sixMinutes,
			seen:  held(asked, node("a", reported, inUse, healthy, notedAt(t0))),
			steps: []Step{waitInUse},
		},
	})
}

func TestOrphan(t *testing.T) {
	orphan := Desired{Orphan: true}
	waitAtA := func(r Reason) Wait { return Wait{Node: "a", Attachment: "csi-a", Reason: r} }
	ask := AnnotateAttachment{Node: "a", Attachment: ref("a"), Machine: machine("a"), DetachRequested: t0.Add(time.Minute)}
	runDecide(t, map[string]decideCase{
		"asked first":  {want: orphan, seen: onA(attached("a"), node("a")), steps: []Step{Check{Node: "a"}, waitAtA(Detaching)}},
		"then deleted": {want: orphan, seen: onA(attached("a"), node("a", checked)), steps: []Step{Detach{Node: "a", Attachment: ref("a")}}},
		"its node uses the volume that its source names now": {
			want: orphan, seen: onA(attached("a"), node("a", inUse, checked)), steps: []Step{ask, waitAtA(StillInUse)},
		},
		"S9: on a Node that was recreated: nothing is reported": {
			want: orphan, seen: onA(attached("a"), node("a", reborn, checked)), steps: []Step{ask, waitAtA(NodeReturned)},
		},
		"on a Node that was recreated, whose kubelet is ready: looked at": {
			want: orphan, seen: onA(attached("a", waiting), node("a", reborn, checked, healthy)),
			steps: []Step{CheckKubelet{Node: "a", NodeUID: "uid-a-2"}, waitAtA(NodeReturned)},
		},
	})
}

func TestCreateUnanswered(t *testing.T) {
	pending := func(at NodeName) []Pending { return []Pending{{Node: at, Until: t0.Add(time.Minute)}} }
	attachB := Attach{Node: "b", PersistentVolume: "pv", Machine: machine("b")}
	runTimed(t, map[string]timed{
		"S1: it may still be created elsewhere": {
			at: t0, want: wantAt("b"), seen: Observed{Nodes: on(node("a"), node("b")).Nodes, Pending: pending("a")},
			steps:   []Step{blockedAt("b", OtherWriterAttached, Blocker{Node: "a", Kind: ByCreate})},
			recheck: t0.Add(time.Minute),
		},
		"not any more": {
			at: t0.Add(time.Minute), want: wantAt("b"), seen: Observed{Nodes: on(node("a"), node("b")).Nodes, Pending: pending("a")},
			steps: []Step{attachB},
		},
		"the same node tries again": {
			at: t0, want: wantAt("b"), seen: Observed{Nodes: on(node("a"), node("b")).Nodes, Pending: pending("b")},
			steps: []Step{attachB}, recheck: t0.Add(time.Minute),
		},
		"a shared volume does not wait": {
			at: t0, want: shared(wantAt("b")), seen: Observed{Nodes: on(node("a"), node("b")).Nodes, Pending: pending("a")},
			steps: []Step{attachB},
		},
	})
}

// TestWaitsExplain that a wait for another node carries the reason of that node, its health,
// the time and the policy.
func TestWaitsExplain(t *testing.T) {
	uncertain := func(a *Attachment) { a.Confirmed, a.AttachError = Unknown, "no answer" }
	overdue := t0.Add(6 * time.Minute)
	for name, tc := range map[string]struct {
		want    Desired
		at      Attachment
		node    Node
		blocker Blocker
	}{
		"in use, not Ready": {wantAt("b"), attached("a", waiting), node("a", reported, inUse, unhealthy), Blocker{
			Ready: No, Cause: Cause{Reason: StillInUse, Attachment: "csi-a", Since: t0, At: overdue, Forces: UnmountTimeout{}, Overdue: overdue},
		}},
		"in use, Ready": {wantAt("b"), attached("a", waiting), node("a", reported, inUse, healthy), Blocker{
			Ready: Yes, Cause: Cause{Reason: StillInUse, Attachment: "csi-a", Since: t0, Overdue: overdue},
		}},
		"in use, never confirmed": {wantAt("b"), attached("a", waiting, uncertain), node("a", inUse, healthy), Blocker{
			Ready: Yes, Cause: Cause{Reason: StillInUse, Attachment: "csi-a", Detail: "no answer", Unconfirmed: t0, Since: t0, Overdue: overdue},
		}},
		"pods there, not Ready": {wantAt("a", "b"), attached("a"), node("a", reported, inUse, unhealthy), Blocker{
			Ready: No, Cause: Cause{Since: t0, Forces: UnmountTimeout{}},
		}},
		"pods there, Ready": {wantAt("a", "b"), attached("a"), node("a", reported, inUse, healthy), Blocker{Ready: Yes, Cause: Cause{Since: t0}}},
		"pods there, never confirmed, not Ready": {wantAt("a", "b"), attached("a", uncertain), node("a", inUse, unhealthy), Blocker{
			Ready: No, Cause: Cause{Reason: AttachFailed, Attachment: "csi-a", Detail: "no answer", Since: t0, Forces: UnmountTimeout{}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.blocker.Node, tc.blocker.Kind = "a", ByAttachment
			seen := Observed{Attachments: []Attachment{tc.at}, Nodes: on(tc.node, node("b")).Nodes}
			steps := Decide(t0.Add(time.Minute), tc.want, seen, sixMinutes).Steps
			if diff := cmp.Diff(Step(blockedAt("b", OtherWriterAttached, tc.blocker)), steps[len(steps)-1]); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestEveryWaitEnds names what ends it.
func TestEveryWaitEnds(t *testing.T) {
	for _, r := range Reasons() {
		if (exits[r].By == "") != (r == Settled) {
			t.Errorf("%s ends by %q", r, exits[r].By)
		}
	}
}
