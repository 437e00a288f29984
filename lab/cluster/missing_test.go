package cluster

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
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
			lacks: []string{"ipmi_sim", "ipmitool", "/usr/sbin/fence_ipmilan", "containerd", "runc"},
			want: []Missing{
				{PartRecovery, []string{"ipmi_sim", "ipmitool", "fence_ipmilan"}, []string{"openipmi", "ipmitool", "fence-agents"}},
				{PartKubelets, []string{"containerd", "runc"}, []string{"containerd", "runc"}},
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

// TestMissingPartsAgreeWithWhatALabFallsBackTo: a part that is not listed runs, and one that is listed does not.
func TestMissingPartsAgreeWithWhatALabFallsBackTo(t *testing.T) {
	check := func(t *testing.T) {
		t.Helper()
		lacks := func(part string) bool {
			return slices.ContainsFunc(MissingParts(), func(m Missing) bool { return m.Part == part })
		}
		if kind, _ := DefaultNodeKind(); (kind == NodeKindKubelet) == lacks(PartKubelets) {
			t.Errorf("the nodes are of the kind %s, and kubelets are missing: %v", kind, lacks(PartKubelets))
		}
		if CanFence() == lacks(PartRecovery) {
			t.Errorf("CanFence is %v, and recovery is missing: %v", CanFence(), lacks(PartRecovery))
		}
	}
	t.Run("on this machine", check)
	t.Run("without any program in PATH", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		check(t)
	})
}
