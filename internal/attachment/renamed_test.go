package attachment

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// renamed is a node for which the driver has another CSI node ID than the one that the attachment recorded.
func renamed(machine func(*Node), edits ...func(*Attachment)) (Attachment, Node) {
	recorded := func(a *Attachment) { a.NodeID = "i-1" }
	a, n := attached("a", append([]func(*Attachment){recorded}, edits...)...), node("a", healthy, reported, inUse)
	n.NodeID = "i-2"
	machine(&n)
	return a, n
}

func decideRenamed(a Attachment, n Node, wanted bool, p Policy) []Step {
	want := Desired{}
	if wanted {
		want.Wants = []Want{{Node: "a", PersistentVolume: a.PersistentVolume, Since: t0}}
	}
	return Decide(t0.Add(time.Hour), want, Observed{Attachments: []Attachment{a}, Nodes: map[NodeName]Node{"a": n}}, p).Steps
}

// TestRecordsSameMachine (S5): where the form of a node ID has changed, and the machine is known to be the same, the present ID is recorded,
// whatever else is to be done. It touches nothing that is mounted. Without that knowledge nothing is recorded.
func TestRecordsSameMachine(t *testing.T) {
	unnamed := func(n *Node) { rebooted(n); n.Machine.SystemUUID, n.Machine.ProviderID = "", "" }
	deleting := func(a *Attachment) { a.Deleting = true }
	again := func(a *Attachment) { a.SameMachineAs = "i-2" }
	for name, c := range map[string]struct {
		machine func(*Node)
		edit    func(*Attachment)
		wanted  bool
		want    bool
	}{
		"the driver was upgraded":          {func(*Node) {}, func(*Attachment) {}, true, true},
		"and no pod wants the volume":      {func(*Node) {}, func(*Attachment) {}, false, true},
		"and it is being detached":         {func(*Node) {}, deleting, false, true},
		"and the machine was restarted":    {rebooted, func(*Attachment) {}, true, true},
		"it is recorded":                   {func(*Node) {}, again, true, false},
		"it was recorded by an old cache":  {func(n *Node) { n.NodeID = "i-1" }, again, true, true},
		"it is recorded as another":        {func(n *Node) { n.NodeID = "i-3" }, again, true, true},
		"another machine":                  {replaced, func(*Attachment) {}, true, false},
		"nothing says whether it is":       {unnamed, func(*Attachment) {}, true, false},
		"the UUID is another's too":        {func(n *Node) { reborn(n); rebooted(n); n.Shared.SystemUUID = true }, func(*Attachment) {}, true, false},
		"the present ID is unknown":        {func(n *Node) { n.NodeID = "" }, func(*Attachment) {}, true, false},
		"none was recorded":                {func(*Node) {}, func(a *Attachment) { a.NodeID = "" }, true, false},
		"the ID is the same":               {func(n *Node) { n.NodeID = "i-1" }, func(*Attachment) {}, true, false},
		"an object that is another client": {func(*Node) {}, func(a *Attachment) { a.Computed = false }, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			a, n := renamed(c.machine, c.edit)
			n.Machine.ProviderID, a.Machine.ProviderID = "", ""
			steps := decideRenamed(a, n, c.wanted, Policy{})
			record := RecordSameMachine{Node: "a", Attachment: a.Ref, NodeID: n.NodeID}
			if got := slices.Contains(steps, Step(record)); got != c.want || got && len(steps) != 1 {
				t.Errorf("%v, want %v", steps, c.want)
			}
		})
	}
}

// TestAttachedToMachineNotName (S9): where the driver has another ID for the node, the boot is another, and no identity agrees, the volume is
// at another machine. What the new one lists in use says nothing about that one: the report is withdrawn at once, and the policy for a deleted
// Node decides when the recorded ID is unpublished. Then it is attached again.
func TestAttachedToMachineNotName(t *testing.T) {
	unknown := func(n *Node) { rebooted(n); n.Machine.SystemUUID, n.Machine.ProviderID = board, "" }
	for name, machine := range map[string]func(*Node){
		"another UUID": func(n *Node) { rebooted(n); n.Machine.SystemUUID = system }, "nothing says that it is the same": unknown,
	} {
		for _, p := range []Policy{{}, {DeletedNode: DeletedNodeDetach}} {
			for _, wanted := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, %v, wanted %v", name, p.DeletedNode, wanted), func(t *testing.T) {
					a, n := renamed(machine)
					steps := decideRenamed(a, n, wanted, p)
					if !slices.ContainsFunc(steps, func(s Step) bool { _, ok := s.(WithdrawReport); return ok }) {
						t.Fatalf("not withdrawn: %v", steps)
					}
					n.Reported, n.Checked = false, true
					steps = decideRenamed(a, n, wanted, p)
					forced := slices.ContainsFunc(steps, func(s Step) bool { f, ok := s.(ForceDetach); return ok && f.Authority == DeletedNode{} })
					waits := slices.ContainsFunc(steps, func(s Step) bool { w, ok := s.(Wait); return ok && w.Reason == NodeReplaced })
					if forced != (p.DeletedNode == DeletedNodeDetach) || waits == forced {
						t.Errorf("%v", steps)
					}
				})
			}
		}
	}
}

// TestNodeIDAloneTouchesNothing: without another boot, or with an identity that agrees, the volume stays, and so does a volume whose IDs are not
// both known, or that has none.
func TestNodeIDAloneTouchesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		machine func(*Node)
		edit    func(*Attachment)
	}{
		"the same boot":               {func(*Node) {}, func(*Attachment) {}},
		"the same UUID":               {rebooted, func(*Attachment) {}},
		"the boot was not recorded":   {rebooted, func(a *Attachment) { a.Machine = Machine{NodeUID: a.Machine.NodeUID} }},
		"the present ID is unknown":   {func(n *Node) { rebooted(n); n.Machine.SystemUUID, n.NodeID = board, "" }, func(*Attachment) {}},
		"the ID was not recorded":     {func(n *Node) { rebooted(n); n.Machine.SystemUUID = board }, func(a *Attachment) { a.NodeID = "" }},
		"found to be the same before": {func(n *Node) { rebooted(n); n.Machine.SystemUUID = board }, func(a *Attachment) { a.SameMachineAs = "i-2" }},
		"the ID is the same":          {func(n *Node) { rebooted(n); n.Machine.SystemUUID, n.NodeID = board, "i-1" }, func(*Attachment) {}},
		"another UUID, IDs not known": {func(n *Node) { rebooted(n); n.Machine.SystemUUID, n.NodeID = system, "" }, func(*Attachment) {}},
	} {
		t.Run(name, func(t *testing.T) {
			a, n := renamed(c.machine, c.edit)
			a.Machine.ProviderID, n.Machine.ProviderID = "", ""
			steps := decideRenamed(a, n, true, Policy{DeletedNode: DeletedNodeDetach})
			if len(steps) == 0 {
				return
			}
			if _, ok := steps[0].(RecordSameMachine); ok {
				a.SameMachineAs = n.NodeID
				steps = decideRenamed(a, n, true, Policy{DeletedNode: DeletedNodeDetach})
			}
			if slices.ContainsFunc(steps, func(s Step) bool {
				switch s.(type) {
				case WithdrawReport, Detach, ForceDetach:
					return true
				}
				return false
			}) {
				t.Errorf("%v", steps)
			}
		})
	}
}
