package attachment

import (
	"testing"
	"time"

	"belay.dev/belay/internal/fencing"
)

// proves gives a node the proof that a boot has ended.
func proves(at time.Time, change ...func(*fencing.Boot)) func(*Node) {
	m := machine("a")
	boot := fencing.Boot{Node: "a", NodeUID: m.NodeUID, ID: m.BootID, Machine: m.SystemUUID}
	for _, c := range change {
		c(&boot)
	}
	ended := fencing.Decide(at, fencing.Fence{Phase: fencing.Evicting, Boot: boot, Evidence: fencing.PoweredOff}, fencing.Observed{Exists: fencing.No, Ended: true})
	proof := ended.Proof.At(t0)
	return func(n *Node) { n.Proofs = append(n.Proofs, proof) }
}

// TestProof (S2): the proof that a boot has ended permits a detach from that boot, whatever its node seems to be, and from no other.
func TestProof(t *testing.T) {
	forced := ForceDetach{Node: "a", Attachment: ref("a"), Authority: Fenced{}, Reason: StillInUse}
	held := Wait{Node: "a", Attachment: "csi-a", Reason: StillInUse}
	absent := forced
	absent.Reason = NodeGone
	runTimed(t, map[string]timed{
		"the node is still shown as Ready": {
			at: t0, seen: onA(attached("a", waiting), node("a", checked, inUse, healthy, proves(t0))), steps: []Step{forced},
		},
		"the Node is gone": {
			at: t0, seen: onA(attached("a", waiting), node("a", inUse, lost, checked, proves(t0))), steps: []Step{absent},
		},
		"an attachment by upstream, under the same Node": {
			at: t0, seen: onA(attached("a", waiting, byUpstream), node("a", checked, inUse, unhealthy, proves(t0))), steps: []Step{forced},
		},
		"of two machines of the name": {
			at: t0, seen: onA(attached("a", waiting), node("a", checked, inUse, healthy, proves(t0, func(b *fencing.Boot) { b.Machine = "hw-b" }), proves(t0))),
			steps: []Step{forced},
		},
		"S2: expired": {
			at: t0, seen: onA(attached("a", waiting), node("a", checked, reported, inUse, healthy, proves(t0.Add(-time.Hour)))), steps: []Step{held},
		},
		"S2: another boot": {
			at: t0, seen: onA(attached("a", waiting), node("a", checked, reported, inUse, healthy, proves(t0, func(b *fencing.Boot) { b.ID = "boot-b" }))),
			steps: []Step{held},
		},
		"S2: another machine": {
			at: t0, seen: onA(attached("a", waiting), node("a", checked, reported, inUse, healthy, proves(t0, func(b *fencing.Boot) { b.Machine = "hw-b" }))),
			steps: []Step{held},
		},
		"S2: another Node object": {
			at: t0, seen: onA(attached("a", waiting), node("a", checked, reported, inUse, healthy, proves(t0, func(b *fencing.Boot) { b.NodeUID = "uid-b" }))),
			steps: []Step{held},
		},
	})
}

// cuts gives a node the proof that the driver cuts a boot off before it confirms the unpublish of some volumes.
func cuts(at time.Time, of fencing.Volume, change ...func(*fencing.Boot)) func(*Node) {
	m := machine("a")
	boot := fencing.Boot{Node: "a", NodeUID: m.NodeUID, ID: m.BootID, Machine: m.SystemUUID}
	for _, c := range change {
		c(&boot)
	}
	proven := fencing.Decide(at, fencing.Fence{Phase: fencing.Fencing, Boot: boot, StorageProven: true}, fencing.Observed{
		Exists: fencing.Yes, Now: boot, Silent: true, ReadAt: at, Isolated: true, Cut: []fencing.Volume{of},
	})
	proof := proven.Proof.At(t0)
	return func(n *Node) { n.Proofs = append(n.Proofs, proof) }
}

func finalized(a *Attachment) { a.Finalized = true }
func noObject(a *Attachment)  { a.Implied, a.Ref = true, Ref{} }

// TestStorageProof (S1, S2; hole 11): the proof that a driver cuts at unpublish permits a detach of that volume from that boot, and of nothing
// else, and only through an object that stays until the driver confirmed the unpublish. Another node gets the volume only after that.
func TestStorageProof(t *testing.T) {
	own := VolumeKey{Driver: "disk.example.com", Handle: "vol-1"}
	of := func(o Observed) Observed { o.Volume = own; return o }
	mine := fencing.Volume(own)
	forced := ForceDetach{Node: "a", Attachment: ref("a"), Authority: StorageFenced{}, Reason: StillInUse}
	held := Wait{Node: "a", Attachment: "csi-a", Reason: StillInUse}
	exclusive := Desired{Shared: No}
	on := func(n Node) Observed { return of(onA(attached("a", waiting, finalized), n)) }
	waitsAtB := func(kind BlockerKind, cause Cause) Wait {
		return Wait{Node: "b", Reason: OtherWriterAttached, Wanted: true, Blockers: []Blocker{{Node: "a", Kind: kind, Cause: cause}}}
	}
	wanted := on(node("a", checked, inUse, unhealthy, cuts(t0, mine)))
	wanted.Nodes["b"] = node("b", healthy)
	leaving := of(onA(attached("a", waiting, finalized, deleting), node("a", checked, inUse, unhealthy, cuts(t0, mine))))
	leaving.Nodes["b"] = node("b", healthy)
	detaching := waitsAtB(ByDeletion, Cause{Reason: Detaching})
	detaching.Reason = OtherWriterDetaching
	runTimed(t, map[string]timed{
		"this volume of this boot": {at: t0, want: exclusive, seen: on(node("a", checked, inUse, unhealthy, cuts(t0, mine))), steps: []Step{forced}},
		"another node waits for the detach": {
			at: t0, want: wantAt("b"), seen: wanted, steps: []Step{forced, waitsAtB(ByAttachment, Cause{Reason: Detaching})},
		},
		"another node waits for the driver": {
			at: t0, want: wantAt("b"), seen: leaving, steps: []Step{Wait{Node: "a", Attachment: "csi-a", Reason: Detaching}, detaching},
		},
		"S2: pods want it there": {
			at: t0, want: wantAt("a"), seen: of(onA(attached("a", finalized), node("a", checked, reported, inUse, unhealthy, cuts(t0, mine)))),
		},
		"S2: another volume of the driver": {
			at: t0, want: exclusive, steps: []Step{held},
			seen: on(node("a", checked, reported, inUse, unhealthy, cuts(t0, fencing.Volume{Driver: own.Driver, Handle: "vol-2"}))),
		},
		"S2: the volume is not known": {
			at: t0, want: exclusive, seen: onA(attached("a", waiting, finalized), node("a", checked, reported, inUse, unhealthy, cuts(t0, mine))), steps: []Step{held},
		},
		"S2: another boot": {
			at: t0, want: exclusive, steps: []Step{held},
			seen: on(node("a", checked, reported, inUse, unhealthy, cuts(t0, mine, func(b *fencing.Boot) { b.ID = "boot-b" }))),
		},
		"S2: expired": {
			at: t0, want: exclusive, seen: on(node("a", checked, reported, inUse, unhealthy, cuts(t0.Add(-time.Hour), mine))), steps: []Step{held},
		},
		"S2: without the attacher's finalizer": {
			at: t0, want: exclusive, seen: of(onA(attached("a", waiting), node("a", checked, reported, inUse, unhealthy, cuts(t0, mine)))), steps: []Step{held},
		},
		"S2: a shared volume": {
			at: t0, want: Desired{Shared: Yes}, seen: on(node("a", checked, reported, inUse, unhealthy, cuts(t0, mine))), steps: []Step{held},
		},
		"S2: perhaps a shared volume": {
			at: t0, want: Desired{Shared: Unknown}, seen: on(node("a", checked, reported, inUse, unhealthy, cuts(t0, mine))), steps: []Step{held},
		},
		"S2: no VolumeAttachment": {
			at: t0, want: exclusive, steps: []Step{Wait{Node: "a", Reason: StillInUse}},
			seen: of(onA(attached("a", waiting, finalized, noObject), node("a", checked, reported, inUse, unhealthy, notedAt(t0), cuts(t0, mine)))),
		},
	})
}

// TestFenceTaint (S2; hole 1): where recovery proves in this process, the taint of a fence forces nothing before the proof: the fence sets it
// between two answers of the power switch. A person's taint, and one of a fence that is decided elsewhere, count as they are.
func TestFenceTaint(t *testing.T) {
	beside, here := Policy{OutOfService: true}, Policy{OutOfService: true, FencesProve: true}
	tainted := func(n *Node) { n.OutOfService = true }
	byFence := func(n *Node) { n.OutOfService, n.TaintedByFence = true, true }
	older := func(a *Attachment) { a.Machine.BootID = "boot-0" }
	forced := func(by Authority) []Step {
		return []Step{ForceDetach{Node: "a", Attachment: ref("a"), Authority: by, Reason: StillInUse}}
	}
	held := []Step{Wait{Node: "a", Attachment: "csi-a", Reason: StillInUse, Recovery: FenceUnderWay}}
	runTimed(t, map[string]timed{
		"decided elsewhere": {
			at: t0, policy: beside, seen: onA(attached("a", waiting), node("a", checked, inUse, unhealthy, byFence)), steps: forced(OutOfServiceTaint{}),
		},
		"a person's": {
			at: t0, policy: here, seen: onA(attached("a", waiting), node("a", checked, inUse, unhealthy, tainted)), steps: forced(OutOfServiceTaint{}),
		},
		"S2: before the proof": {
			at: t0, policy: here, seen: onA(attached("a", waiting), node("a", checked, reported, inUse, unhealthy, byFence)), steps: held,
		},
		"S2: the proof has expired": {
			at: t0, policy: here, seen: onA(attached("a", waiting), node("a", checked, reported, inUse, unhealthy, byFence, proves(t0.Add(-time.Hour)))), steps: held,
		},
		"S2: the proof is about another boot": {
			at: t0, policy: here, steps: held,
			seen: onA(attached("a", waiting), node("a", checked, reported, inUse, unhealthy, byFence, proves(t0, func(b *fencing.Boot) { b.ID = "boot-b" }))),
		},
		"S2: the proof is about other volumes": {
			at: t0, policy: here, steps: held,
			seen: onA(attached("a", waiting), node("a", checked, reported, inUse, unhealthy, byFence, cuts(t0, fencing.Volume{Driver: "other", Handle: "w"}))),
		},
		"proven": {
			at: t0, policy: here, seen: onA(attached("a", waiting), node("a", checked, inUse, unhealthy, byFence, proves(t0))), steps: forced(Fenced{}),
		},
		"proven, attached to an earlier boot": {
			at: t0, policy: here, seen: onA(attached("a", waiting, older), node("a", checked, inUse, unhealthy, byFence, proves(t0))), steps: forced(OutOfServiceTaint{}),
		},
	})
}
