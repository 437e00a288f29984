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
