package nodevolume

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// The simulation has to find the fault that is planted in the production code, and name the
// invariant. The plants of sim_test.go are in what surrounds it.
func TestSimulationFindsTheFaultInTheCode(t *testing.T) {
	program := filepath.Join(t.TempDir(), "nodevolume.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-tags", "belay_faults", "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build with the fault: %v\n%s", err, out)
	}
	run := exec.CommandContext(t.Context(), program, "-test.run=^TestSimulationKeepsS7ThroughCrashes$")
	run.Env = append(os.Environ(), "BELAY_SIM_SEED=", "BELAY_FAULT=s7")
	out, err := run.CombinedOutput()
	found := regexp.MustCompile(`seed \d+ .*: S7: .*`).Find(out)
	if err == nil || found == nil {
		t.Fatalf("%d seeds did not find the fault:\n%s", seeds, out)
	}
	t.Logf("%s", found)
}
