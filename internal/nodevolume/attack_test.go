package nodevolume

import (
	"slices"
	"strings"
	"testing"
)

// These are no faults: the simulation is to know by itself which pods run, and not by what the agent believes.
const (
	strictOracle     plant = "the oracle knows which containers run"
	strictUnlabelled plant = "the oracle knows which containers run, where nothing is mounted with labels"
	strictSeen       plant = "what the agent has seen of the CSIDriver by the time of the call counts, as docs/invariants.md has it"
	strictStage      plant = "the driver publishes from what is staged, and from nothing else"
	twoSteps         plant = "the controller withdraws its report, reads the answer, and deletes the VolumeAttachment after that"
)

// TestAttackSimulationKnowsWhichContainersRun: the oracle asks the agent whether a pod runs (call.Before == Confirmed). After a restart with a
// record that was torn, or not confirmed, the agent is wrong: it takes the volume from running pods, by halfPublishedOtherwise and by restage.
func TestAttackSimulationKnowsWhichContainersRun(t *testing.T) {
	for _, oracle := range []plant{strictOracle, strictUnlabelled} {
		t.Run(string(oracle), func(t *testing.T) {
			for seed := range uint64(plantedSeeds) {
				if w, err := simulate(seed, oracle); err != nil {
					t.Fatalf("seed %d: %v\n%s", seed, err, strings.Join(w.trace[max(0, len(w.trace)-60):], "\n"))
				}
			}
		})
	}
}

// TestAttackSimulationExcusesWhatTheAgentHasSeen: docs/invariants.md excuses a stage without the handshake until the node has seen the CSIDriver; the
// oracle (simAgent.attached) excuses it until the next decision.
func TestAttackSimulationExcusesWhatTheAgentHasSeen(t *testing.T) {
	for seed := range uint64(plantedSeeds) {
		if w, err := simulate(seed, strictSeen); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, strings.Join(w.trace[max(0, len(w.trace)-30):], "\n"))
		}
	}
}

// TestAttackStartWritesAnEmptyName: an agent that starts twice with a record that is torn writes the volume twice, then four names, one of them
// empty, and so on. slices.Compact in sorted clears the tail of the list that Start goes on to use.
func TestAttackStartWritesAnEmptyName(t *testing.T) {
	listed := []string{"v"}
	for restart := range 4 { // each time killed after its first write
		var l InUseList
		l.Start(NodeStatus{UID: "n", ResourceVersion: "1000", InUse: listed}, func(string) Knowledge { return Unknown })
		write, due := l.Next()
		if !due {
			t.Fatal("no write")
		}
		listed = write.InUse
		if slices.Contains(listed, "") || len(listed) > 2 {
			t.Errorf("restart %d: the agent writes %q", restart, listed)
		}
	}
	// And an agent that lives cleans up what is double, and not the name that nobody speaks of.
	var l InUseList
	l.Start(NodeStatus{UID: "n", ResourceVersion: "1000", InUse: listed}, func(string) Knowledge { return Yes })
	l.Want("v", false)
	write, _ := l.Next()
	if slices.Contains(write.InUse, "") {
		t.Errorf("in the end it says %q", write.InUse)
	}
}

// TestAttackLateNotFoundLooksLikeAnotherHistory: a Node was deleted and recreated; the watch delivers the new one before the read that found none has
// returned. The next read finds the version that is known.
func TestAttackLateNotFoundLooksLikeAnotherHistory(t *testing.T) {
	var l InUseList
	l.Start(NodeStatus{UID: "n", ResourceVersion: "1000"}, func(string) Knowledge { return No })
	recreated := NodeStatus{UID: "m", ResourceVersion: "1002"}
	l.Observe(recreated) // while the read is under way
	l.Lost()             // which then says that there is none
	if l.TurnedBack(l.Version(), recreated) {
		t.Error("the Node has gone back to an earlier version, it says; all is begun anew")
	}
}

// TestAttackAnUnpublishThatNobodyLooksBefore: the driver does not stage, so this unpublish is the last call; the pod is wanted, and it may run on what a record that
// was not confirmed speaks of.
func TestAttackAnUnpublishThatNobodyLooksBefore(t *testing.T) {
	key := PublishKey{PodUID: "a", SpecName: "pv"}
	d := Decide(now, Desired{Pods: []Pod{{Key: key, Claim: Wanted, Publish: Uncertain, PublishedLabel: "x"}}}, Observed{
		Node: Node{InUse: Yes, Attached: Yes}, AttachRequired: Yes, RecordedInUse: true, Driver: Driver{Registered: true, Stages: No},
	})
	if _, looks := d.Next.(LookForUsers); !looks {
		t.Errorf("%T %+v, and nobody has looked who has the volume", d.Next, d.Next)
	}
}

// TestAttackWorldsThatTheSimulationLacks hold. They are here because of what the simulation misses without them: see the report on planted faults.
func TestAttackWorldsThatTheSimulationLacks(t *testing.T) {
	for _, world := range []plant{strictStage, twoSteps} {
		t.Run(string(world), func(t *testing.T) {
			for seed := range uint64(seeds) {
				if w, err := simulate(seed, world); err != nil {
					t.Fatalf("seed %d: %v\n%s", seed, err, strings.Join(w.trace[max(0, len(w.trace)-60):], "\n"))
				}
			}
		})
	}
}
