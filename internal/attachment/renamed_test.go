package attachment

import (
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
