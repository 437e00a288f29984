package nodekill

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"belay.dev/belay/lab/labtest"
)

// Method is a call of the Node service that makes or undoes a mount.
type Method string

// The methods, as the CSI specification names them.
const (
	Stage     Method = "NodeStageVolume"
	Publish   Method = "NodePublishVolume"
	Unpublish Method = "NodeUnpublishVolume"
	Unstage   Method = "NodeUnstageVolume"
)

func methods() []Method { return []Method{Stage, Publish, Unpublish, Unstage} }

// Moment of a call.
type Moment string

// The moments of a call, in their order. AnyTime belongs to no call.
const (
	// RecordBegun: the file that becomes the record has been made.
	RecordBegun Moment = "record being written"
	// RecordWritten: the record is in place and the call has not come in.
	RecordWritten Moment = "record written"
	// Arrived: the driver has the call and has done nothing.
	Arrived Moment = "call came in"
	// AtWork: the driver mounts or unmounts.
	AtWork Moment = "driver at work"
	// Done: the driver is done and has not answered.
	Done Moment = "done, not answered"
	// Answered: the agent has the answer and tidies up.
	Answered Moment = "answered"
	AnyTime  Moment = "any time"
)

func moments() []Moment {
	return []Moment{RecordBegun, RecordWritten, Arrived, AtWork, Done, Answered}
}

// Plan is one kill.
type Plan struct {
	// Method is what the pods of the plan lead to; it is the one killed in unless Moment is AnyTime.
	Method Method
	Moment Moment
	// Delay from the moment to the kill.
	Delay time.Duration
	// Settle: after the restart all is checked; else the next kill falls into the recovery.
	Settle bool
}

// anyTimes are the plans of a round that belong to no call.
const anyTimes = 6

// longestAny is the time in which an agent starts and brings a volume up.
const longestAny = 600 * time.Millisecond

// longest is the bound of a plan's delay: about as long as the moment lasts.
func longest(method Method, moment Moment) time.Duration {
	switch moment {
	case AnyTime:
		return longestAny
	case AtWork:
		return map[Method]time.Duration{
			Stage: 30 * time.Millisecond, Publish: 10 * time.Millisecond, Unpublish: 4 * time.Millisecond, Unstage: 15 * time.Millisecond,
		}[method]
	case Answered:
		return 2 * time.Millisecond
	default:
		return 0
	}
}

// Plans are the first n of a seed. Every round of 30 meets each moment of each method
// once, in an order of its own, so that ten such rounds do so ten times.
func Plans(seed uint64, n int) []Plan {
	random := rand.New(rand.NewPCG(seed, 0xbe1a7))
	var plans []Plan
	for len(plans) < n {
		var round []Plan
		for _, method := range methods() {
			for _, moment := range moments() {
				round = append(round, Plan{Method: method, Moment: moment})
			}
		}
		for i := range anyTimes {
			round = append(round, Plan{Method: methods()[i%len(methods())], Moment: AnyTime})
		}
		random.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
		plans = append(plans, round...)
	}
	plans = plans[:n]
	for i := range plans {
		p := &plans[i]
		if bound := longest(p.Method, p.Moment); bound > 0 {
			p.Delay = time.Duration(random.Int64N(int64(bound)))
		}
		p.Settle = random.IntN(3) > 0 || i == n-1
	}
	return plans
}

// strikesAt reports whether the moment is the plan's. A record that is being written may be seen only when it is in place.
func (p Plan) strikesAt(moment Moment) bool {
	return p.Moment == moment || (p.Moment == RecordBegun && moment == RecordWritten)
}

// String names the plan in one line.
func (p Plan) String() string {
	text := fmt.Sprintf("%s, %s", p.Method, p.Moment)
	if p.Delay > 0 {
		text += fmt.Sprintf(" + %.1f ms", float64(p.Delay)/float64(time.Millisecond))
	}
	if !p.Settle {
		text += ", and the next in its recovery"
	}
	return text
}

// tally counts what was in progress at kills, by moment and method: a call has its own, otherwise it is AnyTime and no
// method.
type tally = labtest.Tally[Moment, Method]

// missed are the moments that no kill met. Whether a record is still being written or
// was written a moment ago is the disk's business: one of both is enough.
func missed(t tally) []string {
	var names []string
	for _, method := range methods() {
		for _, moment := range moments()[1:] {
			met := t[moment][method]
			if moment == RecordWritten {
				met += t[RecordBegun][method]
			}
			if met == 0 {
				names = append(names, fmt.Sprintf("%s, %s", method, moment))
			}
		}
	}
	return names
}

func TestRoundOfPlansMeetsEveryMoment(t *testing.T) {
	plans := Plans(7, 30)
	if !slices.Equal(plans, Plans(7, 30)) {
		t.Error("the same seed made other plans")
	}
	met := tally{}
	for _, p := range plans {
		met.Add(p.Moment, p.Method)
	}
	if names := missed(met); len(names) > 0 {
		t.Errorf("missed: %v", names)
	}
	if names := missed(tally{}); len(names) != len(methods())*(len(moments())-1) {
		t.Errorf("of nothing missed: %v", names)
	}
	if !plans[len(plans)-1].Settle {
		t.Error("the last kill is not checked")
	}
}
