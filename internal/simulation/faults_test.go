package simulation

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// faultSeeds is how many seeds may pass before a planted fault is found.
const faultSeeds = "10"

// plantedFaults are the build tags (files fault_*_on.go), without their common beginning, and
// the invariant that each breaks. S4, S5 and S10 are the attacher's alone; of S1 and S6 both
// programs have a part.
var plantedFaults = []struct{ tag, invariant string }{
	{"s1", "S1"}, {"s1_attacher", "S1"}, {"s2", "S2"}, {"s3", "S3"}, {"s4", "S4"}, {"s5", "S5"},
	{"s6", "S6"}, {"s6_attacher", "S6"}, {"s9", "S9"}, {"s10", "S10"}, {"clock", "S2"}, {"wall", "S2"},
	{"wake", "wake"}, {"premount", "S2"}, {"identity", "S2"},
}

// The simulation has to find the faults that are planted in the production code, at least
// one for each invariant, and name the invariant.
func TestPlantedFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the simulation once for each fault")
	}
	for _, fault := range plantedFaults {
		t.Run(fault.tag, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "simulation.test")
			build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-ldflags=-s -w",
				"-tags", "belay_fault_"+fault.tag, "-o", program, ".")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("build with the fault: %v\n%s", err, out)
			}
			run := exec.CommandContext(t.Context(), program, "-test.run=^TestSimulation$")
			run.Env = append(os.Environ(), "BELAY_SEED=", "BELAY_SEEDS="+faultSeeds)
			out, err := run.CombinedOutput()
			found := regexp.MustCompile(`seed \d+: ` + fault.invariant + `: .*`).Find(out)
			if err == nil || found == nil {
				t.Fatalf("%s seeds did not find the fault:\n%s", faultSeeds, out)
			}
			t.Logf("%s", found)
		})
	}
}
