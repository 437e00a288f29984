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

// rareSeeds is the number of seeds for what is rare. The clock of a machine must be set forward by more than the rest of an unmount
// timeout, while a machine without network has the volume mounted; a PersistentVolume must be recreated before the attacher has
// recorded the volume of an attachment; of two PersistentVolumes of a volume one must go while attachments wait for each other; a
// driver must fail or hang while a node waits for it and for another one.
const rareSeeds = "40"

// mostSeeds all run, for a fault that first breaks something else: "recreated" keeps volumes from being detached too.
const mostSeeds = "60"

// plantedFaults are faults of internal/planted, and the invariant that each breaks. S4, S5 and S10 are the attacher's alone; of S1 and
// S6 both programs have a part.
var plantedFaults = []struct{ name, invariant, seeds string }{
	{"s1", "S1", faultSeeds}, {"s1_attacher", "S1", faultSeeds}, {"s2", "S2", faultSeeds}, {"s3", "S3", faultSeeds},
	{"s4", "S4", faultSeeds}, {"s5", "S5", faultSeeds}, {"s6", "S6", faultSeeds}, {"s6_attacher", "S6", faultSeeds},
	{"s9", "S9", faultSeeds}, {"bogus", "S2", faultSeeds}, {"s10", "S10", faultSeeds}, {"clock", "S2", faultSeeds}, {"abandoned", "S2", faultSeeds}, {"wall", "S2", rareSeeds},
	{"isolation", "isolation", rareSeeds}, {"wake", "wake", faultSeeds}, {"shared_wake", "wake", rareSeeds}, {"recreated", "S(?:5|10)", mostSeeds},
	{"places", "liveness", faultSeeds}, {"shared_place", "S2", faultSeeds},
	{"doubt", "S[15]", faultSeeds}, {"listing", "S2", faultSeeds},
}

// tableFaults are those that take several rare things at once, and that the tables of
// internal/attachment find.
var tableFaults = []string{"premount", "identity"}

// The tables have to find the faults that are planted in what they list.
func TestPlantedFaultsInTables(t *testing.T) {
	program := withFaults(t, "../attachment")
	for _, fault := range tableFaults {
		t.Run(fault, func(t *testing.T) {
			run := exec.CommandContext(t.Context(), program, "-test.run=^(TestUse|TestRunSince)$")
			run.Env = append(os.Environ(), "BELAY_FAULT="+fault)
			out, err := run.CombinedOutput()
			if err == nil || !regexp.MustCompile(`--- FAIL: Test(Use|RunSince) `).Match(out) {
				t.Fatalf("the tables did not find the fault:\n%s", out)
			}
		})
	}
}

// withFaults builds the tests of a package with the faults in the production code.
func withFaults(t *testing.T, dir string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "faults.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-tags", "belay_faults", "-o", program, dir)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build with the faults: %v\n%s", err, out)
	}
	return program
}

// The simulation has to find the faults that are planted in the production code, at least
// one for each invariant, and name the invariant.
func TestPlantedFaults(t *testing.T) {
	program := withFaults(t, ".")
	for _, fault := range plantedFaults {
		t.Run(fault.name, func(t *testing.T) {
			run := exec.CommandContext(t.Context(), program, "-test.run=^TestSimulation$")
			run.Env = append(os.Environ(), "BELAY_SEED=", "BELAY_SEEDS="+fault.seeds, "BELAY_FAULT="+fault.name)
			if fault.seeds == mostSeeds {
				run.Env = append(run.Env, "BELAY_COLLECT=1")
			}
			out, err := run.CombinedOutput()
			found := regexp.MustCompile(`seeds?(?: \d+)?: ` + fault.invariant + `: .*`).Find(out)
			if err == nil || found == nil {
				t.Fatalf("%s seeds did not find the fault:\n%s", fault.seeds, out)
			}
			t.Logf("%s", found)
		})
	}
}
