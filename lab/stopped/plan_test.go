package stopped

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Moment is how far the fence of a node has come.
type Moment string

// The moments at which a kubelet is started again, in their order.
const (
	// Silent: the node does not renew its lease, and there is no fence.
	Silent Moment = "silent"
	// Suspected: there is a NodeFence.
	Suspected Moment = "suspected"
	// Isolated: the node takes no new pods, and evidence is gathered.
	Isolated Moment = "isolated"
	// Commanded: the command to switch off is stored.
	Commanded Moment = "commanded"
	// Off: the BMC has carried the command out.
	Off Moment = "off"
	// Tainting: recovery knows that, and sets the taint out-of-service.
	Tainting Moment = "tainting"
	// Evicting: the pods are being deleted.
	Evicting Moment = "evicting"
	// Detaching: the volumes are being detached.
	Detaching Moment = "detaching"
	// Moved: nothing of the boot is left.
	Moved Moment = "moved"
	// Writing: the writer writes on another node.
	Writing Moment = "writing elsewhere"
)

func moments() []Moment {
	return []Moment{Silent, Suspected, Isolated, Commanded, Off, Tainting, Evicting, Detaching, Moved, Writing}
}

// longestDelay is about as long as a step of a fence takes.
const longestDelay = 500 * time.Millisecond

// Plan is one restart of a kubelet.
type Plan struct {
	Moment Moment
	// Delay from the moment to the restart.
	Delay time.Duration
}

// String names the plan in one line.
func (p Plan) String() string { return fmt.Sprintf("%s + %.3f s", p.Moment, p.Delay.Seconds()) }

// Plans are the first n of a seed. Every ten meet each moment once, in an order of their own. silence is how long a node is silent until it is suspected.
func Plans(seed uint64, n int, silence time.Duration) []Plan {
	random := rand.New(rand.NewPCG(seed, 0xbe1a7))
	var plans []Plan
	for len(plans) < n {
		round := moments()
		random.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
		for _, m := range round {
			bound := longestDelay
			if m == Silent {
				bound = silence
			}
			plans = append(plans, Plan{Moment: m, Delay: time.Duration(random.Int64N(int64(bound)))})
		}
	}
	return plans[:n]
}

func TestPlansMeetEveryMoment(t *testing.T) {
	plans := Plans(7, 20, time.Minute)
	if !slices.Equal(plans, Plans(7, 20, time.Minute)) {
		t.Error("the same seed made other plans")
	}
	if slices.Equal(plans, Plans(8, 20, time.Minute)) {
		t.Error("another seed made the same plans")
	}
	for _, m := range moments() {
		for _, ten := range [][]Plan{plans[:10], plans[10:]} {
			if !slices.ContainsFunc(ten, func(p Plan) bool { return p.Moment == m }) {
				t.Errorf("no restart at the moment %q in %v", m, ten)
			}
		}
	}
}
