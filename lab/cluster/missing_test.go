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
