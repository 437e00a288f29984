package attachment

import (
	"slices"
	"testing"
)

const (
	board  = "03000200-0400-0500-0006-000700080009" // AMI's default
	system = "4c4c4544-0051-3910-8052-b4c04f4d3532"
)

// TestWhatIdentifiesAMachine: after another boot, the identities of a recreated Node say whether it is the machine that was recorded, another
// one, or nothing.
func TestWhatIdentifiesAMachine(t *testing.T) {
	other := "4c4c4544-0051-3910-8052-b4c04f4d3533"
	for name, c := range map[string]struct {
		was, is Machine
		shared  Shared
		want    Run
	}{
		"the same UUID": {Machine{SystemUUID: system}, Machine{SystemUUID: system}, Shared{}, Restarted},
		"the same UUID, written in another way": {
			Machine{SystemUUID: system}, Machine{SystemUUID: "{4C4C4544005139108052B4C04F4D3532}"}, Shared{}, Restarted,
		},
		"another UUID":          {Machine{SystemUUID: system}, Machine{SystemUUID: other}, Shared{}, Replaced},
		"the default of boards": {Machine{SystemUUID: board}, Machine{SystemUUID: board}, Shared{}, MayBeSameRun},
		"all zeros, and all ones": {
			Machine{SystemUUID: "00000000-0000-0000-0000-000000000000"}, Machine{SystemUUID: "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF"}, Shared{}, MayBeSameRun,
		},
		"a default where a UUID was": {Machine{SystemUUID: system}, Machine{SystemUUID: board}, Shared{}, MayBeSameRun},
		"another Node has the UUID too": {
			Machine{SystemUUID: system}, Machine{SystemUUID: system}, Shared{SystemUUID: true}, MayBeSameRun,
		},
		"another Node has the UUID, which is another": {
			Machine{SystemUUID: other}, Machine{SystemUUID: system}, Shared{SystemUUID: true}, Replaced,
		},
		"another Node has the provider ID too": {
			Machine{ProviderID: "cloud://1"}, Machine{ProviderID: "cloud://1"}, Shared{ProviderID: true}, MayBeSameRun,
		},
		"another Node has the UUID, not the provider ID": {
			Machine{SystemUUID: system, ProviderID: "cloud://1"}, Machine{SystemUUID: system, ProviderID: "cloud://1"}, Shared{SystemUUID: true}, Restarted,
		},
		"a provider ID that is the name of the node": {Machine{ProviderID: "k3s://a"}, Machine{ProviderID: "k3s://a"}, Shared{}, MayBeSameRun},
		"another Node has the boot ID too": {
			Machine{BootID: "boot-2", SystemUUID: other}, Machine{SystemUUID: system}, Shared{BootID: true}, Replaced,
		},
		"the same boot": {Machine{BootID: "boot-2", SystemUUID: other}, Machine{SystemUUID: system}, Shared{}, MayBeSameRun},
	} {
		t.Run(name, func(t *testing.T) {
			c.was.NodeUID, c.is.NodeUID, c.is.BootID = "uid-old", "uid-new", "boot-2"
			if c.was.BootID == "" {
				c.was.BootID = "boot-1"
			}
			a := attached("a")
			a.Machine, a.Created = c.was, t0
			n := node("a", healthy)
			n.Machine, n.Shared, n.Created = c.is, c.shared, t0.Add(1e12)
			if got := n.runSince(&a); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// TestRecordedNodeKeepsItsIdentity: a UUID that two Nodes have still says what it says about the very Node object that was recorded with it:
// another Node that writes the UUID into its own status must not take the identity of this one.
func TestRecordedNodeKeepsItsIdentity(t *testing.T) {
	a := attached("a")
	n := node("a", healthy)
	a.Machine = Machine{NodeUID: n.Machine.NodeUID, BootID: "boot-0", SystemUUID: system}
	n.Machine.BootID, n.Machine.SystemUUID, n.Machine.ProviderID, n.Shared = "boot-1", system, "", Shared{SystemUUID: true}
	if _, hardware := n.same(&a); !hardware {
		t.Error("the UUID says nothing about the Node that was recorded with it")
	}
	n.Machine.NodeUID = "uid-new"
	if _, hardware := n.same(&a); hardware {
		t.Error("the UUID says that a later Node has the machine")
	}
}

// TestAnotherBoxWithTheDefaultUUIDTakesNothing (S1, S2): another box with the board's default UUID registers under the name of a node whose
// Node was deleted. Its empty list says nothing yet about what its predecessor has mounted.
func TestAnotherBoxWithTheDefaultUUIDTakesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		uuid   string
		shared bool
	}{"default of boards": {board, false}, "shared": {system, true}} {
		t.Run(name, func(t *testing.T) {
			a := attached("a")
			a.Machine = Machine{NodeUID: "uid-old", BootID: "boot-1", SystemUUID: c.uuid}
			n := node("a", healthy)
			n.Machine, n.Created = Machine{NodeUID: "uid-new", BootID: "boot-2", SystemUUID: c.uuid}, t0.Add(1e12)
			n.Shared.SystemUUID, n.InUse, n.Reported, n.Checked = c.shared, No, false, true
			got := Decide(t0.Add(2e12), Desired{}, Observed{Attachments: []Attachment{a}, Nodes: map[NodeName]Node{"a": n}}, Policy{})
			if slices.ContainsFunc(got.Steps, func(s Step) bool { _, ok := s.(Detach); return ok }) {
				t.Errorf("detached from a machine that may have it mounted: %v", got.Steps)
			}
		})
	}
}

// TestRecordedIdentityStays: a kubelet that shows the default of the board, after its firmware was reset, does not overwrite the UUID that
// was recorded: another one is recognized by it later.
func TestRecordedIdentityStays(t *testing.T) {
	was := Machine{BootID: "boot-1", SystemUUID: system, ProviderID: "cloud://1"}
	got := was.updated(Machine{NodeUID: "uid", BootID: "boot-2", SystemUUID: board})
	if want := (Machine{NodeUID: "uid", BootID: "boot-2", SystemUUID: system, ProviderID: "cloud://1"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
