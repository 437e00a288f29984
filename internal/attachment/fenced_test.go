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
	return func(n *Node) { n.Proof = &ended.Proof }
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
