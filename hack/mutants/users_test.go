package mutants

import "testing"

const (
	holdersFile, resolveFile, openersFile, rightsFile = "internal/mounttable/holders.go", "internal/mounttable/resolve.go", "internal/mounttable/openers.go", "internal/mounttable/process.go"
	usersFile                                         = "internal/nodeagent/users.go"
	tables, agent                                     = "internal/mounttable", "internal/nodeagent"
)

// lookings are rules of the node agent's search for other users of a volume (S7). The numbers are its ways to miss one.
var lookings = []hole{
	{"1", "a copy with another mount below it goes with ours", holdersFile, "child.parent == e.id && ", "false && child.parent == e.id && ", tables, "TestHolders"},
	{"1", "the same, with real mounts", holdersFile, "child.parent == e.id && ", "false && child.parent == e.id && ", tables, "TestWhoIsSeen"},
	{"1", "a copy keeps what goes with ours below it", holdersFile, "!t.goes(t.own, child, n)", "true", tables, "TestHolders"},
	{"2", "a link is not searched for", resolveFile, "err == nil && len(mounts) == 0", "err == nil && false", tables, "TestLinkedVolume"},
	{"2", "the agent does not search for a volume that is published as a link", usersFile, "s.root.MountedOrLinked(record.Path)", "s.root.MountedByKernel(record.Path)", agent, "TestLinkedVolumeIsSearchedFor"},
	{"2", "a link on a mount that may hang is read", resolveFile, "|| ok && !m.local {", "|| ok && m.id < 0 {", tables, "TestMountThatHangsIsNotTouched"},
	{"3", "open files that may not be read count as none", openersFile, "case errors.Is(err, fs.ErrPermission):", "case false:", tables, "TestUnreadableFilesCountAsUsed"},
	{"3", "the files of a thread of its own are not read", openersFile, "errno == 0 && order == 0", "errno == 0 || order == 0", tables, "TestWhoHasADeviceOpen"},
	{"3", "a missing capability has no name", rightsFile, "if len(missing) > 0 {", "if len(missing) > 2 {", tables, "TestRights"},
	{"3", "an agent starts that sees not all users", "internal/nodeagent/config.go", "if err := c.checkRights(); err != nil {", "if err := c.checkRights(); err != nil && false {", "cmd/belay-node", "TestMissingCapabilityIsRefused"},
}

// TestUsers: a test fails without each rule.
func TestUsers(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT RUN: builds the tests once for each rule; `make mutants` does")
	}
	for _, h := range lookings {
		t.Run(h.number+" "+h.what, func(t *testing.T) { h.mutant().build(t).fails(t, h.test) })
	}
}

func TestRulesOfTheSearchAreThere(t *testing.T) {
	for _, h := range lookings {
		if _, err := h.mutant().source(); err != nil {
			t.Errorf("%s: %v", h.what, err)
		}
	}
}
