package cluster

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"belay.dev/belay/lab/labdisk"
)

func TestMissingPartsNameProgramsAndPackages(t *testing.T) {
	for name, tc := range map[string]struct {
		lacks []string
		want  []Missing
	}{
		"nothing is missing": {},
		"one of three": {
			lacks: []string{"ipmitool"},
			want:  []Missing{{PartRecovery, []string{"ipmitool"}, []string{"ipmitool"}}},
		},
		"all": {
			lacks: []string{"ipmi_sim", "ipmitool", "/usr/sbin/fence_ipmilan", "containerd", "ctr", "runc"},
			want: []Missing{
				{PartRecovery, []string{"ipmi_sim", "ipmitool", "fence_ipmilan"}, []string{"openipmi", "ipmitool", "fence-agents"}},
				{PartKubelets, []string{"containerd", "ctr", "runc"}, []string{"containerd", "runc"}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := missingParts(func(program string) bool { return !slices.Contains(tc.lacks, program) })
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("missing parts (-want +got):\n%s", diff)
			}
		})
	}
}

// noAdminFolders leaves PATH alone to be looked in.
func noAdminFolders(t *testing.T) {
	t.Helper()
	was := adminFolders
	t.Cleanup(func() { adminFolders = was })
	adminFolders = ""
}

// TestMissingPartsLookWhereComponentsLook: Debian has runc in /usr/sbin, which is not in the PATH of a root of `su`. The lab's components find it
// (componentEnvironment), and so does the check before a lab starts.
func TestMissingPartsLookWhereComponentsLook(t *testing.T) {
	path, admin := t.TempDir(), t.TempDir()
	noAdminFolders(t)
	t.Setenv("PATH", path)
	for _, program := range []string{"unshare", "mount", "umount", "containerd", "ctr"} {
		program = filepath.Join(path, program)
		if err := os.WriteFile(program, nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(admin, "runc"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	kubelets := Options{Nodes: 1, Drivers: []string{labdisk.DriverLocal}, NodeKind: NodeKindKubelet}
	for _, found := range []bool{false, true} {
		if found {
			adminFolders = "/none:" + admin
		}
		if missing := missingOf(PartKubelets); (len(missing) == 0) != found {
			t.Errorf("with %q, missing: %q", adminFolders, missing)
		}
		if err := checkTools(kubelets); (err == nil) != found {
			t.Errorf("with %q, the check before the start says %v", adminFolders, err)
		}
	}
}

// TestRecoveryNeedsItsPrograms: what a lab with BMCs lacks is named at once, with what installs it, before anything is started.
func TestRecoveryNeedsItsPrograms(t *testing.T) {
	lacking := func(programs ...string) func(string) bool {
		return func(program string) bool { return !slices.Contains(programs, program) }
	}
	needed := toolsOf(Options{Recovery: "fast", BMC: true, NodeKind: NodeKindBelay})
	where := "neither in PATH nor in " + adminFolders
	for want, installed := range map[string]func(string) bool{
		"": lacking(),
		"fence_ipmilan is " + where + ": install it (apt-get install fence-agents)":                                          lacking("/usr/sbin/fence_ipmilan"),
		"ipmi_sim, ipmitool, fence_ipmilan are " + where + ": install them (apt-get install openipmi ipmitool fence-agents)": lacking("ipmi_sim", "ipmitool", "/usr/sbin/fence_ipmilan"),
	} {
		got := ""
		if err := lackingTools(needed, installed); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if err := lackingTools(toolsOf(Options{NodeKind: NodeKindBelay}), lacking("ipmi_sim", "/usr/sbin/fence_ipmilan")); err != nil {
		t.Errorf("without BMCs: %v", err)
	}
}
