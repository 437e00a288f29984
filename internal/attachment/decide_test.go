package attachment

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var (
	t0     = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	policy = Policy{OutOfService: true}
)

func machine(node NodeName) Machine {
	return Machine{NodeUID: "uid-" + string(node), BootID: "boot-" + string(node), SystemUUID: "hw-" + string(node)}
}

func ref(node NodeName) Ref {
	return Ref{Name: "csi-" + string(node), UID: "va-" + string(node), ResourceVersion: "7"}
}

// node returns an idle managed node; each edit changes it.
func node(name NodeName, edits ...func(*Node)) Node {
	n := Node{Exists: Yes, Machine: machine(name), Created: t0.Add(-time.Hour), Managed: true, InUse: No}
	for _, e := range edits {
		e(&n)
	}
	return n
}

func reported(n *Node)     { n.Reported = true }
func inUse(n *Node)        { n.InUse = Yes }
func checked(n *Node)      { n.Checked = true }
func outOfService(n *Node) { n.OutOfService, n.Healthy = true, No }
func unmanaged(n *Node)    { n.Managed = false }
func gone(n *Node)         { *n = Node{Exists: No, InUse: n.InUse, Machine: n.Machine, Created: n.Created} }
func reborn(n *Node)       { n.Machine.NodeUID += "-2"; n.Created = t0.Add(time.Minute) }
func replaced(n *Node)     { reborn(n); n.Machine.SystemUUID += "-2"; n.Machine.BootID += "-2" }
func rebooted(n *Node)     { n.Machine.BootID += "-2" }
func underway(n *Node)     { n.WriteMayBeUnderway = true }
func quiet(n *Node)        { n.QuietSince, n.QuietUntil = t0, t0.Add(SyncWindow) }
func useUnknown(n *Node)   { n.InUse = Unknown }

// attached returns a confirmed attachment to the node; each edit changes it.
func attached(at NodeName, edits ...func(*Attachment)) Attachment {
	a := Attachment{
		Ref: ref(at), Node: at, PersistentVolume: "pv", Computed: true, Confirmed: Yes,
		Created: t0, Machine: machine(at),
	}
	for _, e := range edits {
		e(&a)
	}
	return a
}

func unconfirmed(a *Attachment)     { a.Confirmed = Unknown }
func deleting(a *Attachment)        { a.Deleting = true }
func contested(a *Attachment)       { a.DeleteMayBeUnderway = true }
func waiting(a *Attachment)         { a.DetachRequested = t0 }
func foreign(a *Attachment)         { a.Computed = false; a.Name = "by-hand" }
func byUpstream(a *Attachment)      { a.Machine = Machine{} }
func refusedByDriver(a *Attachment) { a.Confirmed = Unknown; a.AttachError = "no room" }
func stuck(a *Attachment)           { a.Deleting = true; a.DetachError = "busy" }
func volumeGone(a *Attachment)      { a.VolumeGone = true; a.PersistentVolume = "old-pv" }

func wantAt(names ...NodeName) Desired {
	d := Desired{Shared: No}
	for i, name := range names {
		d.Wants = append(d.Wants, Want{Node: name, PersistentVolume: "pv", Since: t0.Add(time.Duration(i) * time.Second)})
	}
	return d
}

func shared(d Desired) Desired { d.Shared = Yes; return d }

func nodes(list map[NodeName]Node) map[NodeName]Node { return list }

func blockedAt(at NodeName, reason Reason, blockers ...Blocker) Wait {
	return Wait{Node: at, Reason: reason, Wanted: true, Blockers: blockers}
}

// bare leaves to tests of their own what only explains a step.
var bare = cmp.Options{
	cmpopts.IgnoreFields(Wait{}, "Unconfirmed", "Since", "At", "Forces", "Overdue"), cmpopts.IgnoreFields(Blocker{}, "Cause", "Ready"),
	cmpopts.IgnoreFields(WithdrawReport{}, "Expect"), cmpopts.IgnoreFields(ForceDetach{}, "Reason"),
}

type decideCase struct {
	want   Desired
	seen   Observed
	policy *Policy
	steps  []Step
}

func runDecide(t *testing.T, cases map[string]decideCase) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := policy
			if tc.policy != nil {
				p = *tc.policy
			}
			got := Decide(t0.Add(time.Minute), tc.want, tc.seen, p)
			if diff := cmp.Diff(tc.steps, got.Steps, cmpopts.EquateEmpty(), bare); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			again := Decide(t0.Add(time.Minute), tc.want, tc.seen, p)
			if diff := cmp.Diff(got, again); diff != "" {
				t.Errorf("equal arguments, other decision:\n%s", diff)
			}
		})
	}
}

func TestAttachAndReport(t *testing.T) {
	attachA := Attach{Node: "a", PersistentVolume: "pv", Machine: machine("a")}
	reportA := Report{Node: "a", NodeUID: "uid-a", Attachment: ref("a")}
	runDecide(t, map[string]decideCase{
		"nothing wanted, nothing there": {},
		"first pod on a free volume": {
			want:  wantAt("a"),
			seen:  Observed{Nodes: nodes(map[NodeName]Node{"a": node("a")})},
			steps: []Step{attachA},
		},
		"attacher has not answered": {
			want:  wantAt("a"),
			seen:  Observed{Attachments: []Attachment{attached("a", unconfirmed)}, Nodes: nodes(map[NodeName]Node{"a": node("a")})},
			steps: []Step{Wait{Node: "a", Attachment: "csi-a", Reason: Attaching, Wanted: true}},
		},
		"driver refused": {
			want:  wantAt("a"),
			seen:  Observed{Attachments: []Attachment{attached("a", refusedByDriver)}, Nodes: nodes(map[NodeName]Node{"a": node("a")})},
			steps: []Step{Wait{Node: "a", Attachment: "csi-a", Reason: AttachFailed, Wanted: true, Detail: "no room"}},
		},
		"confirmed": {
			want:  wantAt("a"),
			seen:  Observed{Attachments: []Attachment{attached("a")}, Nodes: nodes(map[NodeName]Node{"a": node("a")})},
			steps: []Step{reportA},
		},
		"confirmed, and the node lists it in use already, as it does before the first attach": {
			want:  wantAt("a"),
			seen:  Observed{Attachments: []Attachment{attached("a")}, Nodes: nodes(map[NodeName]Node{"a": node("a", inUse)})},
			steps: []Step{reportA},
		},
		"confirmed and reported": {
			want: wantAt("a"),
			seen: Observed{Attachments: []Attachment{attached("a")}, Nodes: nodes(map[NodeName]Node{"a": node("a", reported, inUse)})},
		},
		"S9: report of an attachment that is no longer confirmed, not in use": {
			want: wantAt("a"),
			seen: Observed{Attachments: []Attachment{attached("a", unconfirmed)}, Nodes: nodes(map[NodeName]Node{"a": node("a", reported)})},
			steps: []Step{
				WithdrawReport{Node: "a", NodeUID: "uid-a"},
				Wait{Node: "a", Attachment: "csi-a", Reason: Attaching, Wanted: true},
			},
		},
		"S9: attachment deleted by another client, wanted, not in use": {
			want:  wantAt("a"),
			seen:  Observed{Nodes: nodes(map[NodeName]Node{"a": node("a", reported)})},
			steps: []Step{WithdrawReport{Node: "a", NodeUID: "uid-a"}},
		},
		"attachment deleted by another client, wanted and in use: attached again under the report": {
			want:  wantAt("a"),
			seen:  Observed{Nodes: nodes(map[NodeName]Node{"a": node("a", reported, inUse)})},
			steps: []Step{attachA},
		},
		"S9: being deleted, so not reported": {
			want:  wantAt("a"),
			seen:  Observed{Attachments: []Attachment{attached("a", deleting)}, Nodes: nodes(map[NodeName]Node{"a": node("a")})},
			steps: []Step{Wait{Node: "a", Attachment: "csi-a", Reason: Detaching, Wanted: true}},
		},
		"being deleted and reported": {
			want: wantAt("a"),
			seen: Observed{Attachments: []Attachment{attached("a", deleting)}, Nodes: nodes(map[NodeName]Node{"a": node("a", reported)})},
			steps: []Step{
				WithdrawReport{Node: "a", NodeUID: "uid-a"},
				Wait{Node: "a", Attachment: "csi-a", Reason: Detaching, Wanted: true},
			},
		},
		"node not there yet": {
			want:  wantAt("a"),
			seen:  Observed{Nodes: nodes(map[NodeName]Node{"a": node("a", gone)})},
			steps: []Step{Wait{Node: "a", Reason: NodeGone, Wanted: true}},
		},
		"node could not be read": {
			want:  wantAt("a"),
			steps: []Step{Wait{Node: "a", Reason: NodeUnknown, Wanted: true}},
		},
		"node attaches by itself": {
			want:  wantAt("a"),
			seen:  Observed{Nodes: nodes(map[NodeName]Node{"a": node("a", unmanaged)})},
			steps: []Step{Wait{Node: "a", Reason: NodeNotManaged, Wanted: true}},
		},
		"shared volume on two nodes at once": {
			want: shared(wantAt("a", "b")),
			seen: Observed{Nodes: nodes(map[NodeName]Node{"a": node("a"), "b": node("b")})},
			steps: []Step{
				attachA,
				Attach{Node: "b", PersistentVolume: "pv", Machine: machine("b")},
			},
		},
		"attachment of a vanished PersistentVolume, pods come by another": {
			want: wantAt("a"),
			seen: Observed{Attachments: []Attachment{attached("a", volumeGone)}, Nodes: nodes(map[NodeName]Node{"a": node("a", checked)})},
			steps: []Step{
				Detach{Node: "a", Attachment: ref("a")},
			},
		},
		"wanted again while a detach waited": {
			want: wantAt("a"),
			seen: Observed{Attachments: []Attachment{attached("a", waiting)}, Nodes: nodes(map[NodeName]Node{"a": node("a", reported, inUse)})},
			steps: []Step{
				AnnotateAttachment{Node: "a", Attachment: ref("a"), Machine: machine("a")},
			},
		},
		"node restarted under the attachment: the record follows": {
			want: wantAt("a"),
			seen: Observed{Attachments: []Attachment{attached("a")}, Nodes: nodes(map[NodeName]Node{"a": node("a", reported, rebooted)})},
			steps: []Step{
				AnnotateAttachment{Node: "a", Attachment: ref("a"), Machine: Machine{NodeUID: "uid-a", BootID: "boot-a-2", SystemUUID: "hw-a"}},
			},
		},
		"S2: withdrawal of an earlier leader called off by a new pod": {
			want: wantAt("a"),
			seen: Observed{Attachments: []Attachment{attached("a", contested)}, Nodes: nodes(map[NodeName]Node{"a": node("a")})},
			steps: []Step{
				AnnotateAttachment{Node: "a", Attachment: ref("a"), Machine: machine("a"), CalledOff: t0.Add(time.Minute)},
				reportA,
			},
		},
	})
}

func TestExclusiveVolume(t *testing.T) {
	attachB := Attach{Node: "b", PersistentVolume: "pv", Machine: machine("b")}
	settledA := node("a", reported, inUse)
	runDecide(t, map[string]decideCase{
		"S1: attached elsewhere": {
			want:  wantAt("a", "b"),
			seen:  Observed{Attachments: []Attachment{attached("a")}, Nodes: nodes(map[NodeName]Node{"a": settledA, "b": node("b")})},
			steps: []Step{blockedAt("b", OtherWriterAttached, Blocker{Node: "a", Kind: ByAttachment})},
		},
		"S1: uncertain elsewhere counts as attached": {
			want: wantAt("a", "b"),
			seen: Observed{Attachments: []Attachment{attached("a", refusedByDriver)}, Nodes: nodes(map[NodeName]Node{"a": node("a"), "b": node("b")})},
			steps: []Step{
				Wait{Node: "a", Attachment: "csi-a", Reason: AttachFailed, Wanted: true, Detail: "no room"},
				blockedAt("b", OtherWriterAttached, Blocker{Node: "a", Kind: ByAttachment}),
			},
		},
		"S1: being detached elsewhere": {
			want: wantAt("b"),
			seen: Observed{Attachments: []Attachment{attached("a", deleting)}, Nodes: nodes(map[NodeName]Node{"a": node("a"), "b": node("b")})},
			steps: []Step{
				Wait{Node: "a", Attachment: "csi-a", Reason: Detaching},
				blockedAt("b", OtherWriterDetaching, Blocker{Node: "a", Kind: ByDeletion}),
			},
		},
		"S1: detach failed elsewhere": {
			want: wantAt("b"),
			seen: Observed{Attachments: []Attachment{attached("a", stuck)}, Nodes: nodes(map[NodeName]Node{"a": node("a"), "b": node("b")})},
			steps: []Step{
				Wait{Node: "a", Attachment: "csi-a", Reason: DetachFailed, Detail: "busy"},
				blockedAt("b", OtherWriterDetaching, Blocker{Node: "a", Kind: ByDeletion}),
			},
		},
		"reported elsewhere, where it never was: withdrawn, and blocks no other": {
			want: wantAt("b"),
			seen: Observed{Nodes: nodes(map[NodeName]Node{"a": node("a", reported), "b": node("b")})},
			steps: []Step{
				WithdrawReport{Node: "a", NodeUID: "uid-a"},
				attachB,
			},
		},
		"listed elsewhere, where it never was: blocks no other": {
			want:  wantAt("b"),
			seen:  Observed{Nodes: nodes(map[NodeName]Node{"a": node("a", inUse), "b": node("b")})},
			steps: []Step{attachB},
		},
		"two kubelets claim it before it is attached anywhere: the first gets it": {
			want: wantAt("a", "b"),
			seen: Observed{Nodes: nodes(map[NodeName]Node{"a": node("a", inUse), "b": node("b", inUse)})},
			steps: []Step{
				Attach{Node: "a", PersistentVolume: "pv", Machine: machine("a")},
				blockedAt("b", OtherWriterAttached, Blocker{Node: "a", Kind: ByNewAttachment}),
			},
		},
		"S1: made by hand under another name": {
			want: wantAt("b"),
			seen: Observed{Attachments: []Attachment{attached("a", foreign)}, Nodes: nodes(map[NodeName]Node{"a": node("a"), "b": node("b")})},
			steps: []Step{
				Wait{Node: "a", Attachment: "by-hand", Reason: ForeignAttachment},
				blockedAt("b", OtherWriterAttached, Blocker{Node: "a", Kind: ByForeignAttachment}),
			},
		},
		"S1: by a node that is not ours": {
			want: wantAt("b"),
			seen: Observed{Attachments: []Attachment{attached("a")}, Nodes: nodes(map[NodeName]Node{"a": node("a", unmanaged, reported), "b": node("b")})},
			steps: []Step{
				Wait{Node: "a", Attachment: "csi-a", Reason: NodeNotManaged},
				blockedAt("b", OtherWriterAttached, Blocker{Node: "a", Kind: ByAttachment}),
			},
		},
		"S1: on a node that is gone": {
			want: wantAt("b"),
			seen: Observed{Attachments: []Attachment{attached("a", waiting)}, Nodes: nodes(map[NodeName]Node{"a": node("a", useUnknown, gone), "b": node("b")})},
			steps: []Step{
				Wait{Node: "a", Attachment: "csi-a", Reason: NodeGone},
				blockedAt("b", OtherWriterAttached, Blocker{Node: "a", Kind: ByAttachment}),
			},
		},
		"S1: access modes unknown": {
			want: Desired{Wants: wantAt("a", "b").Wants},
			seen: Observed{Nodes: nodes(map[NodeName]Node{"a": node("a"), "b": node("b")})},
			steps: []Step{
				Attach{Node: "a", PersistentVolume: "pv", Machine: machine("a")},
				blockedAt("b", OtherWriterAttached, Blocker{Node: "a", Kind: ByNewAttachment}),
			},
		},
		"the node that waits longest goes first": {
			want: Desired{Shared: No, Wants: []Want{
				{Node: "a", PersistentVolume: "pv", Since: t0.Add(time.Second)},
				{Node: "b", PersistentVolume: "pv", Since: t0},
			}},
			seen:  Observed{Nodes: nodes(map[NodeName]Node{"a": node("a"), "b": node("b")})},
			steps: []Step{attachB, blockedAt("a", OtherWriterAttached, Blocker{Node: "b", Kind: ByNewAttachment})},
		},
		"list of a machine that is out of service, its attachment gone": {
			want:  wantAt("b"),
			seen:  Observed{Nodes: nodes(map[NodeName]Node{"a": node("a", inUse, outOfService), "b": node("b")})},
			steps: []Step{attachB},
		},
		"S1: another controller attached it twice: one stays, the idle one goes": {
			want: wantAt("a", "b"),
			seen: Observed{
				Attachments: []Attachment{attached("a"), attached("b")},
				Nodes:       nodes(map[NodeName]Node{"a": node("a"), "b": node("b", reported, inUse)}),
			},
			steps: []Step{
				WithdrawReport{Node: "a", NodeUID: "uid-a"},
				Wait{Node: "a", Attachment: "csi-a", Reason: Detaching, Wanted: true},
			},
		},
		"attached twice by a late write, both kubelets claim it: the younger goes": {
			want: wantAt("a", "b"),
			seen: Observed{
				Attachments: []Attachment{attached("a"), attached("b", func(a *Attachment) { a.Created = t0.Add(time.Second) })},
				Nodes:       nodes(map[NodeName]Node{"a": node("a", inUse), "b": node("b", inUse, checked)}),
			},
			steps: []Step{
				blockedAt("a", OtherWriterAttached, Blocker{Node: "b", Kind: ByAttachment}),
				Detach{Node: "b", Attachment: ref("b")},
			},
		},
		"a new pod makes a shared volume exclusive: what is wanted stays, an unconfirmed one goes": {
			want: func() Desired { d := wantAt("a", "b", "c", "d"); d.SharedAttached = Yes; return d }(),
			seen: Observed{
				Attachments: []Attachment{attached("a"), attached("b"), attached("c", unconfirmed)},
				Nodes: nodes(map[NodeName]Node{
					"a": node("a", reported, inUse), "b": node("b", reported), "c": node("c", checked), "d": node("d"),
				}),
			},
			steps: []Step{
				Detach{Node: "c", Attachment: ref("c")},
				blockedAt("d", OtherWriterAttached, Blocker{Node: "a", Kind: ByAttachment}, Blocker{Node: "b", Kind: ByAttachment}, Blocker{Node: "c", Kind: ByAttachment}),
			},
		},
		"S1: attached twice, neither mounted: no second report": {
			want: wantAt("a", "b"),
			seen: Observed{
				Attachments: []Attachment{attached("a", foreign), attached("b")},
				Nodes:       nodes(map[NodeName]Node{"a": node("a"), "b": node("b")}),
			},
			steps: []Step{
				Wait{Node: "a", Attachment: "by-hand", Reason: ForeignAttachment, Wanted: true},
				blockedAt("b", OtherWriterAttached, Blocker{Node: "a", Kind: ByForeignAttachment}),
				blockedAt("a", OtherWriterAttached, Blocker{Node: "a", Kind: ByForeignAttachment}, Blocker{Node: "b", Kind: ByAttachment}),
			},
		},
	})
}

func TestDetach(t *testing.T) {
	withdrawA := WithdrawReport{Node: "a", NodeUID: "uid-a"}
	detachA := Detach{Node: "a", Attachment: ref("a")}
	going := Wait{Node: "a", Attachment: "csi-a", Reason: Detaching}
	waitAtA := func(r Reason) Wait { return Wait{Node: "a", Attachment: "csi-a", Reason: r} }
	requested := AnnotateAttachment{Node: "a", Attachment: ref("a"), Machine: machine("a"), DetachRequested: t0.Add(time.Minute)}
	one := func(a Attachment, n Node) Observed {
		return Observed{Attachments: []Attachment{a}, Nodes: nodes(map[NodeName]Node{"a": n})}
	}
	runDecide(t, map[string]decideCase{
		"S2: in use": {
			seen:  one(attached("a"), node("a", reported, inUse)),
			steps: []Step{requested, waitAtA(StillInUse)},
		},
		"S2: in use, the time of the request is kept": {
			seen:  one(attached("a", waiting), node("a", reported, inUse)),
			steps: []Step{waitAtA(StillInUse)},
		},
		"S2: whether in use is unknown": {
			seen:  one(attached("a", waiting), node("a", reported, useUnknown)),
			steps: []Step{waitAtA(NodeUnknown)},
		},
		"S2: node unknown": {
			seen:  Observed{Attachments: []Attachment{attached("a")}},
			steps: []Step{waitAtA(NodeUnknown)},
		},
		"S3: reported": {
			seen:  one(attached("a"), node("a", reported)),
			steps: []Step{withdrawA, going},
		},
		"S3: reported still, by the server's answer": {
			seen:  one(attached("a"), node("a", reported, checked)),
			steps: []Step{withdrawA, going},
		},
		"S3: not reported, but only a cache says so": {
			seen:  one(attached("a"), node("a")),
			steps: []Step{withdrawA, going},
		},
		"S3: checked, but a report of an earlier leader may be in flight": {
			seen:  one(attached("a"), node("a", checked, underway)),
			steps: []Step{WithdrawReport{Node: "a", NodeUID: "uid-a", NewVersion: true}, going},
		},
		"S3: withdrawn, and the answer lists it in use after all": {
			seen: one(attached("a"), node("a", inUse, checked)),
			steps: []Step{
				requested,
				Report{Node: "a", NodeUID: "uid-a", Attachment: ref("a"), Repeated: true},
				waitAtA(StillInUse),
			},
		},
		"S2: the same, and a leader before us may have sent a delete": {
			seen: one(attached("a", waiting, contested), node("a", inUse, checked)),
			steps: []Step{
				AnnotateAttachment{Node: "a", Attachment: ref("a"), Machine: machine("a"), DetachRequested: t0, CalledOff: t0.Add(time.Minute)},
				Report{Node: "a", NodeUID: "uid-a", Attachment: ref("a"), Repeated: true},
				waitAtA(StillInUse),
			},
		},
		"S6: withdrawn and checked": {
			seen:  one(attached("a"), node("a", checked)),
			steps: []Step{detachA},
		},
		"never confirmed": {
			seen:  one(attached("a", refusedByDriver), node("a", checked)),
			steps: []Step{detachA},
		},
		"made by hand under another name": {
			seen:  one(attached("a", foreign), node("a", checked)),
			steps: []Step{Wait{Node: "a", Attachment: "by-hand", Reason: ForeignAttachment}},
		},
		"node attaches by itself": {
			seen:  one(attached("a"), node("a", unmanaged, checked)),
			steps: []Step{waitAtA(NodeNotManaged)},
		},
		"out of service, in use": {
			seen:  one(attached("a"), node("a", reported, inUse, outOfService)),
			steps: []Step{withdrawA, going},
		},
		"out of service, in use, withdrawn": {
			seen:  one(attached("a"), node("a", inUse, outOfService, checked)),
			steps: []Step{ForceDetach{Node: "a", Attachment: ref("a"), Authority: OutOfServiceTaint{}}},
		},
		"out of service, not in use: nothing to force": {
			seen:  one(attached("a"), node("a", outOfService, checked)),
			steps: []Step{detachA},
		},
		"S2: out of service where that policy is off": {
			policy: &Policy{},
			seen:   one(attached("a", waiting), node("a", reported, inUse, outOfService)),
			steps:  []Step{waitAtA(StillInUse)},
		},
		"out of service, but its pod still wants the volume": {
			want: wantAt("a"),
			seen: one(attached("a"), node("a", reported, inUse, outOfService)),
		},
		"S2: node gone, last seen in use": {
			seen:  one(attached("a"), node("a", inUse, gone)),
			steps: []Step{requested, waitAtA(NodeGone)},
		},
		"S2: node gone, no record of it": {
			seen:  one(attached("a"), node("a", useUnknown, gone)),
			steps: []Step{requested, waitAtA(NodeGone)},
		},
		"node gone by the cache, last seen not in use": {
			seen:  one(attached("a"), node("a", gone)),
			steps: []Step{WithdrawReport{Node: "a"}, going},
		},
		"node gone by the server, last seen not in use": {
			seen:  one(attached("a"), node("a", gone, checked)),
			steps: []Step{detachA},
		},
		"S2: node gone, came back, and gone again: its empty list said nothing": {
			seen:  one(attached("a", waiting), node("a", reborn, gone)),
			steps: []Step{waitAtA(NodeGone)},
		},
		"S2: node came back under its name, same boot: its empty list says nothing": {
			seen: one(attached("a", waiting), node("a", reborn, checked)),
			steps: []Step{
				Report{Node: "a", NodeUID: "uid-a-2", Attachment: ref("a"), Repeated: true},
				waitAtA(NodeReturned),
			},
		},
		"node came back, same boot, and lists the volume: it stays another Node object": {
			seen:  one(attached("a", waiting), node("a", reborn, reported, inUse)),
			steps: []Step{waitAtA(StillInUse)},
		},
		"node came back, another boot, and lists the volume: the boot is recorded": {
			seen: one(attached("a", waiting, func(a *Attachment) { a.Machine.SystemUUID = "" }), node("a", reborn, rebooted, reported, inUse)),
			steps: []Step{
				AnnotateAttachment{
					Node: "a", Attachment: ref("a"), DetachRequested: t0,
					Machine: Machine{NodeUID: "uid-a", BootID: "boot-a-2", SystemUUID: "hw-a"},
				},
				waitAtA(StillInUse),
			},
		},
		"node came back after a reboot": {
			seen:  one(attached("a"), node("a", reborn, rebooted, checked)),
			steps: []Step{detachA},
		},
		"S2: node came back with the boot ID unknown: nothing shows a restart": {
			seen:  one(attached("a", waiting), node("a", reborn, reported, func(n *Node) { n.Machine.BootID = "" })),
			steps: []Step{waitAtA(NodeReturned)},
		},
		"S2: node came back with the machine unknown: its new boot may be another machine's": {
			seen:  one(attached("a", waiting), node("a", reborn, rebooted, reported, func(n *Node) { n.Machine.SystemUUID = "" })),
			steps: []Step{waitAtA(NodeReplaced)},
		},
		"S2: another machine under the name: says nothing about the one before": {
			seen:  one(attached("a", waiting), node("a", replaced, healthy)),
			steps: []Step{waitAtA(NodeReplaced)},
		},
		"S2: another machine by its provider ID": {
			seen: one(attached("a", waiting, func(a *Attachment) { a.Machine.ProviderID = "vm-1" }),
				node("a", reborn, rebooted, healthy, func(n *Node) { n.Machine.ProviderID = "vm-2" })),
			steps: []Step{waitAtA(NodeReplaced)},
		},
		"S2: another machine under the name, whose pod waits: not released either": {
			want:  wantAt("a"),
			seen:  one(attached("a", waiting), node("a", replaced, healthy, inUse)),
			steps: []Step{Wait{Node: "a", Attachment: "csi-a", Reason: NodeReplaced, Wanted: true}},
		},
		"S1: a Node that does not say which machine it stands for is not given the volume again": {
			seen:  one(attached("a", waiting), node("a", silenced, healthy)),
			steps: []Step{waitAtA(NodeReturned)},
		},
		"S2: nor is its list believed": {
			seen:  one(attached("a", waiting), node("a", silenced, healthy, quiet)),
			steps: []Step{waitAtA(NodeReturned)},
		},
		"node came back, same boot, kubelet ready: looked at": {
			seen:  one(attached("a", waiting), node("a", reborn, reported, healthy)),
			steps: []Step{CheckKubelet{Node: "a", NodeUID: "uid-a-2"}, waitAtA(NodeReturned)},
		},
		"node came back, same boot, kubelet looked at once": {
			seen: one(attached("a", waiting), node("a", reborn, reported, healthy, func(n *Node) {
				n.QuietSince, n.QuietUntil, n.NextKubeletCheck = t0, t0.Add(SyncWindow-1), t0.Add(time.Hour)
			})),
			steps: []Step{waitAtA(NodeReturned)},
		},
		"node came back, same boot, kubelet has sent its list: released": {
			seen:  one(attached("a", waiting), node("a", reborn, healthy, checked, quiet)),
			steps: []Step{detachA},
		},
		"S2: attached by upstream's controller, node object is younger": {
			seen: one(attached("a", byUpstream, waiting), node("a", reborn, reported)),
			steps: []Step{
				waitAtA(NodeReturned),
			},
		},
		"attached by upstream's controller": {
			seen:  one(attached("a", byUpstream), node("a", checked)),
			steps: []Step{detachA},
		},
		"S3: stale report without an attachment": {
			seen:  Observed{Nodes: nodes(map[NodeName]Node{"a": node("a", reported)})},
			steps: []Step{withdrawA},
		},
		"S9: report of a volume that the node was never given, and lists in use": {
			seen:  Observed{Nodes: nodes(map[NodeName]Node{"a": node("a", reported, inUse)})},
			steps: []Step{WithdrawReport{Node: "a", NodeUID: "uid-a", Expect: NodeFacts{InUse: Yes}}},
		},
		"being deleted while in use stays reported": {
			seen:  one(attached("a", deleting), node("a", reported, inUse)),
			steps: []Step{going},
		},
		"S2: being deleted, on a Node that was recreated and does not list what is mounted yet: stays reported": {
			seen:  one(attached("a", deleting), node("a", reborn, reported)),
			steps: []Step{going},
		},
		"being deleted, on a Node that was recreated and has unmounted the volume": {
			seen:  one(attached("a", deleting, waiting), node("a", reborn, reported, quiet)),
			steps: []Step{WithdrawReport{Node: "a", NodeUID: "uid-a-2"}, going},
		},
		"being deleted, and another machine took over the Node with its report: it must not mount by that": {
			seen:  one(attached("a", deleting), node("a", replaced, reported)),
			steps: []Step{WithdrawReport{Node: "a", NodeUID: "uid-a-2"}, going},
		},
		"shared volume leaves one node of two": {
			want: shared(wantAt("b")),
			seen: Observed{
				Attachments: []Attachment{attached("a"), attached("b")},
				Nodes:       nodes(map[NodeName]Node{"a": node("a", checked), "b": node("b", reported, inUse)}),
			},
			steps: []Step{detachA},
		},
	})
}

func TestKnowledgeBeginsUnknown(t *testing.T) {
	var k Knowledge
	if k != Unknown || k.String() != "unknown" {
		t.Errorf("zero Knowledge is %v", k)
	}
	if got := Decide(t0, Desired{}, Observed{Attachments: []Attachment{{Ref: ref("a"), Node: "a", Computed: true}}}, policy); got.Reason != NodeUnknown {
		t.Errorf("an empty attachment: reason %q, want %q", got.Reason, NodeUnknown)
	}
}

// TestReasonsListsAll that are declared.
func TestReasonsListsAll(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "decision.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := 0
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			if of, ok := spec.Type.(*ast.Ident); ok && of.Name == "Reason" {
				declared += len(spec.Names)
			}
		}
		return true
	})
	listed := map[Reason]bool{}
	for _, reason := range Reasons() {
		listed[reason] = true
	}
	if declared == 0 || len(listed) != declared {
		t.Errorf("%d reasons are declared, Reasons lists %d", declared, len(listed))
	}
}
