package cluster

import (
	"path/filepath"
	"slices"
)

// The parts of a lab that need programs which not every machine has.
const (
	// PartRecovery needs BMCs and the fence agent that asks them, see CanFence.
	PartRecovery = "recovery"
	// PartKubelets needs a container runtime, see DefaultNodeKind.
	PartKubelets = "kubelets"
)

// Missing is a part of a lab that this machine cannot run.
type Missing struct {
	// Part is PartRecovery or PartKubelets.
	Part string
	// Programs are those that are not installed, Packages those of Debian and Ubuntu that hold them.
	Programs, Packages []string
}

// partPrograms are the programs of each part, with their packages.
var partPrograms = []struct {
	part     string
	programs [][2]string
}{
	{PartRecovery, [][2]string{{"ipmi_sim", "openipmi"}, {"ipmitool", "ipmitool"}, {"/usr/sbin/fence_ipmilan", "fence-agents"}}},
	{PartKubelets, [][2]string{{"containerd", "containerd"}, {"ctr", "containerd"}, {"runc", "runc"}}},
}

// programsOf are the programs of a part, with their packages.
func programsOf(part string) [][2]string {
	for _, p := range partPrograms {
		if p.part == part {
			return p.programs
		}
	}
	return nil
}

// MissingParts are the parts that this machine cannot run, each with the programs that it lacks.
func MissingParts() []Missing {
	return missingParts(func(program string) bool {
		_, err := lookPath(program)
		return err == nil
	})
}

// missingOf are the programs that this machine lacks for a part.
func missingOf(part string) []string {
	for _, m := range MissingParts() {
		if m.Part == part {
			return m.Programs
		}
	}
	return nil
}

func missingParts(installed func(program string) bool) []Missing {
	var all []Missing
	for _, p := range partPrograms {
		missing := Missing{Part: p.part}
		for _, program := range p.programs {
			if installed(program[0]) {
				continue
			}
			missing.Programs = append(missing.Programs, filepath.Base(program[0]))
			if !slices.Contains(missing.Packages, program[1]) {
				missing.Packages = append(missing.Packages, program[1])
			}
		}
		if len(missing.Programs) > 0 {
			all = append(all, missing)
		}
	}
	return all
}
