package chaos

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"belay.dev/belay/lab/timeline"
)

// Victim is a part of the plane that is killed with SIGKILL.
type Victim string

// The victims. The agent is that of the node at which the hop happens.
const (
	Controller Victim = "controller"
	Attacher   Victim = "attacher"
	Agent      Victim = "node agent"
	APIServer  Victim = "API server"
)

var victims = []Victim{Controller, Attacher, Agent, APIServer}

// hops are the moments at which a victim is killed: every hop of the life of a
// volume, in its order.
var hops = []timeline.HopName{
	timeline.HopPodDeleted, timeline.HopUnpublished, timeline.HopUnstaged, timeline.HopOutOfUse,
	timeline.HopWithdrawn, timeline.HopVADeleted, timeline.HopCtrlUnpublish, timeline.HopVAGone,
	timeline.HopBound, timeline.HopVACreated, timeline.HopPrepared, timeline.HopCtrlPublish,
	timeline.HopAttached, timeline.HopReported, timeline.HopStaged, timeline.HopPublished,
}

// Plan is what one seed does.
type Plan struct {
	Seed   int
	Hop    timeline.HopName
	Victim Victim
	// Delay from the moment at which the hop is seen to the kill.
	Delay time.Duration
	// Drain moves the pod by drain, else it is deleted and its node cordoned.
	Drain bool
}

// maxDelay: a hop takes 2 to 10 ms, so the kill lands in it, at its end, or in the next.
const maxDelay = 12 * time.Millisecond

// PlanFor makes the plan of a seed. Sixteen seeds in a row hit every hop once; which
// victim a hop meets changes from one such round to the next until it has met all.
func PlanFor(seed int) Plan {
	random := rand.New(rand.NewPCG(uint64(seed), 0xbe1a7)) //nolint:gosec // a seed that can be replayed is the point
	hop, round := seed%len(hops), seed/len(hops)
	order := rand.New(rand.NewPCG(uint64(hop), 0xbe1a7)).Perm(len(victims)) //nolint:gosec // as above
	return Plan{
		Seed: seed, Hop: hops[hop], Victim: victims[order[round%len(victims)]],
		Delay: time.Duration(random.Int64N(int64(maxDelay))), Drain: (seed+round)%2 == 0,
	}
}

// String names the plan in one line.
func (p Plan) String() string {
	way := "delete and cordon"
	if p.Drain {
		way = "drain"
	}
	return fmt.Sprintf("seed %d: %s; kill -9 of the %s %.1f ms after %q",
		p.Seed, way, p.Victim, float64(p.Delay)/float64(time.Millisecond), p.Hop)
}

// Histogram counts kills by hop and victim.
type Histogram map[timeline.HopName]map[Victim]int

// Add counts one kill.
func (h Histogram) Add(hop timeline.HopName, victim Victim) {
	if h[hop] == nil {
		h[hop] = map[Victim]int{}
	}
	h[hop][victim]++
}

// String draws the table hop x victim with sums.
func (h Histogram) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%-22s", "step")
	for _, v := range victims {
		fmt.Fprintf(&out, "%12s", v)
	}
	fmt.Fprintf(&out, "%12s\n", "all")
	total := 0
	for _, hop := range timeline.HopNames() {
		if h[hop] == nil {
			continue
		}
		sum := 0
		fmt.Fprintf(&out, "%-22s", hop)
		for _, v := range victims {
			sum += h[hop][v]
			fmt.Fprintf(&out, "%12d", h[hop][v])
		}
		total += sum
		fmt.Fprintf(&out, "%12d\n", sum)
	}
	fmt.Fprintf(&out, "%-22s%60d\n", "all", total)
	return out.String()
}
