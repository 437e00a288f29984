package chaos

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/timeline"
)

// Victim is a part of the plane that is killed with SIGKILL, or cut off from the API server.
type Victim string

// The victims. Of controller and attacher it is the one that leads. The agent is that of the node at which the step happens.
const (
	Controller    Victim = "controller"
	Attacher      Victim = "attacher"
	Agent         Victim = "node agent"
	APIServer     Victim = "API server"
	CutController Victim = "controller cut off"
	CutAttacher   Victim = "attacher cut off"
)

var victims = []Victim{Controller, Attacher, Agent, APIServer, CutController, CutAttacher}

// steps are the moments at which it happens to a victim: every step of the life of a
// volume, in its order.
var steps = []timeline.StepName{
	timeline.StepPodDeleted, timeline.StepUnpublished, timeline.StepUnstaged, timeline.StepOutOfUse,
	timeline.StepWithdrawn, timeline.StepVADeleted, timeline.StepCtrlUnpublish, timeline.StepVAGone,
	timeline.StepBound, timeline.StepVACreated, timeline.StepPrepared, timeline.StepCtrlPublish,
	timeline.StepAttached, timeline.StepReported, timeline.StepStaged, timeline.StepPublished,
}

// Plan is what one seed does.
type Plan struct {
	Seed   int
	Step   timeline.StepName
	Victim Victim
	// Delay from the moment at which the step is seen to the kill or the cut.
	Delay time.Duration
	// Held is how long a victim stays cut off: in all, or, with Deposed, from when its standby leads.
	Held    time.Duration
	Deposed bool
	// Drain moves the pod by drain, else it is deleted and its node cordoned.
	Drain bool
}

// maxDelay: a step takes 2 to 10 ms, so the kill lands in it, at its end, or in the next.
const maxDelay = 12 * time.Millisecond

// maxHeld: a leader that is cut off loses its lease after 4 s, and its standby leads after 6 s.
const maxHeld = 5 * time.Second

// PlanFor makes the plan of a seed. Sixteen seeds in a row hit every step once; which
// victim a step meets changes from one such round to the next until it has met all.
func PlanFor(seed int) Plan {
	random := rand.New(rand.NewPCG(uint64(seed), 0xbe1a7))
	step, round := seed%len(steps), seed/len(steps)
	order := rand.New(rand.NewPCG(uint64(step), 0xbe1a7)).Perm(len(victims))
	plan := Plan{
		Seed: seed, Step: steps[step], Victim: victims[order[round%len(victims)]],
		Delay: time.Duration(random.Int64N(int64(maxDelay))), Drain: (seed+round)%2 == 0,
	}
	if plan.cuts() {
		plan.Held, plan.Deposed = time.Duration(random.Int64N(int64(maxHeld))), random.IntN(4) > 0
	}
	return plan
}

// cuts reports whether the victim is cut off, and not killed.
func (p Plan) cuts() bool { return p.Victim == CutController || p.Victim == CutAttacher }

// String names the plan in one line.
func (p Plan) String() string {
	way := "delete and cordon"
	if p.Drain {
		way = "drain"
	}
	what := fmt.Sprintf("kill -9 of the %s", p.Victim)
	if p.cuts() {
		what = fmt.Sprintf("%s for %v", p.Victim, p.Held.Round(time.Millisecond))
	}
	if p.Deposed {
		what += " after its standby leads"
	}
	return fmt.Sprintf("seed %d: %s; %s, %.1f ms after %q", p.Seed, way, what, float64(p.Delay)/float64(time.Millisecond), p.Step)
}

// tally counts kills and cuts by step and victim.
type tally = labtest.Tally[timeline.StepName, Victim]

// table draws them by step and victim with their sums.
func table(t tally) string { return t.Table(timeline.StepNames(), victims) }

func TestSeedsSpreadOverStepsAndVictims(t *testing.T) {
	for name, tc := range map[string]struct {
		first, seeds int
		wantPerStep  int
		wantAll      bool // every step meets every victim
	}{
		"two rounds hit every step twice":              {seeds: 32, wantPerStep: 2},
		"two rounds from any first seed":               {first: 1234, seeds: 32, wantPerStep: 2},
		"six rounds let every step meet every victim":  {seeds: 96, wantPerStep: 6, wantAll: true},
		"six rounds from a first seed that is not low": {first: 160, seeds: 96, wantPerStep: 6, wantAll: true},
	} {
		t.Run(name, func(t *testing.T) {
			seen := tally{}
			for seed := tc.first; seed < tc.first+tc.seeds; seed++ {
				plan := PlanFor(seed)
				if again := PlanFor(seed); again != plan {
					t.Fatalf("seed %d gave %v and then %v", seed, plan, again)
				}
				seen.Add(plan.Step, plan.Victim)
			}
			for _, step := range steps {
				sum := 0
				for _, victim := range victims {
					sum += seen[step][victim]
					if tc.wantAll && seen[step][victim] == 0 {
						t.Errorf("step %q never meets the %s", step, victim)
					}
				}
				if sum != tc.wantPerStep {
					t.Errorf("step %q is hit %d times, want %d", step, sum, tc.wantPerStep)
				}
			}
		})
	}
}

func TestEveryStepHasASign(t *testing.T) {
	for _, step := range steps {
		if _, ok := timeline.SignOf(step); !ok {
			t.Errorf("the recorder does not know step %q", step)
		}
	}
}
