package nodevolume

import (
	"strings"
	"testing"
)

// strictOracle is no fault: it has the simulation know by itself which pods run, and not by what the agent believes.
const strictOracle plant = "the oracle knows which containers run"

// TestAttackSimulationKnowsWhichContainersRun: the oracle asks the agent whether a pod runs (call.Before == Confirmed). After a restart with a
// record that was torn, or not confirmed, the agent is wrong.
func TestAttackSimulationKnowsWhichContainersRun(t *testing.T) {
	for seed := range uint64(plantedSeeds) {
		if w, err := simulate(seed, strictOracle); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, strings.Join(w.trace[max(0, len(w.trace)-60):], "\n"))
		}
	}
}
