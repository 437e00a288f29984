package simulation

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// faultSeeds is how many seeds may pass before a planted fault is found.
const faultSeeds = "10"

// plantedFaults are the build tags (files fault_*_on.go), without their common beginning. S4, S5
// and S10 are the attacher's alone; of S1 and S6 both programs have a part.
var plantedFaults = []string{"s1", "s1_attacher", "s2", "s3", "s4", "s5", "s6", "s6_attacher", "s9", "s10"}

// The simulation has to find the faults that are planted in the production code, at least
// one for each invariant, and name the invariant.
func TestPlantedFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the simulation once for each fault")
	}
	for _, fault := range plantedFaults {
		t.Run(fault, func(t *testing.T) {
			invariant, _, _ := strings.Cut(fault, "_")
			program := filepath.Join(t.TempDir(), "simulation.test")
			build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-ldflags=-s -w",
				"-tags", "belay_fault_"+fault, "-o", program, ".")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("build with the fault: %v\n%s", err, out)
			}
			run := exec.CommandContext(t.Context(), program, "-test.run=^TestSimulation$")
			run.Env = append(os.Environ(), "BELAY_SEED=", "BELAY_SEEDS="+faultSeeds)
			out, err := run.CombinedOutput()
			found := regexp.MustCompile(`seed \d+: (?i:` + invariant + `): .*`).Find(out)
			if err == nil || found == nil {
				t.Fatalf("%s seeds did not find the fault:\n%s", faultSeeds, out)
			}
			t.Logf("%s", found)
		})
	}
}
