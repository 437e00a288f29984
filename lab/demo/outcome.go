package demo

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/timeline"
)

// Outcome is what one part of the demo came to, as a user sees it.
type Outcome struct {
	Happened string `json:"happened"`
	Saw      string `json:"saw"`
	// Seconds until the user saw it; of several moves, those of the median one, or the mean of the two in the middle.
	Seconds float64 `json:"seconds"`
	// Moves is how many were made.
	Moves int `json:"moves"`
	// Waits are what Seconds are made of, the longest first. They have the steps that the pod waited for; what ran beside those is not in them.
	Waits []Wait `json:"waits,omitempty"`
	// Holder is what keeps a second user from the volume.
	Holder string `json:"holder,omitempty"`
	// PlaneSeconds is how long all steps of the controller and the attacher took, also those that ran beside longer ones.
	PlaneSeconds float64 `json:"planeSeconds,omitempty"`
}

// Wait is one cause of the time that a move took.
type Wait struct {
	For     string  `json:"for"`
	Seconds float64 `json:"seconds"`
}

const (
	happenedDrain   = "node drained"
	happenedRefused = "second pod wants the volume"
	happenedCut     = "node lost its power"

	sawRunning = "pod ran elsewhere"
	sawRefused = "refused"
)

// outcomes are the three moves; one that was not made is left out.
func (r *Result) outcomes() []Outcome {
	var all []Outcome
	if drained, ok := r.moved(happenedDrain, TitleDrain); ok {
		all = append(all, drained)
	}
	for _, step := range r.Steps {
		if refused := step.Refused; refused != nil {
			all = append(all, Outcome{
				Happened: happenedRefused, Saw: sawRefused, Seconds: refused.Seconds, Moves: 1,
				Holder: refused.Holder + " uses it",
			})
		}
	}
	if cut, ok := r.moved(happenedCut, titleCut); ok {
		all = append(all, cut)
	}
	return all
}

// moved is the median of the moves with a title, by the time until the pod ran elsewhere.
func (r *Result) moved(happened, title string) (Outcome, bool) {
	var moves []*timeline.Move
	for _, move := range r.Moves() {
		if running := move.Step(timeline.StepRunning); move.Title == title && running != nil && running.Seen {
			moves = append(moves, move)
		}
	}
	if len(moves) == 0 {
		return Outcome{}, false
	}
	ran := func(m *timeline.Move) time.Duration { return m.Step(timeline.StepRunning).Ended }
	slices.SortFunc(moves, func(a, b *timeline.Move) int { return cmp.Compare(ran(a), ran(b)) })
	middle := timeline.Middle(moves)
	mean := func(of func(*timeline.Move) time.Duration) float64 {
		var sum time.Duration
		for _, move := range middle {
			sum += of(move)
		}
		return sum.Seconds() / float64(len(middle))
	}
	return Outcome{
		Happened: happened, Saw: sawRunning, Seconds: mean(ran), Moves: len(moves), Waits: r.waits(middle), PlaneSeconds: mean(planeSteps),
	}, true
}

// planeSteps is how long the steps of the controller and of the attacher took together.
func planeSteps(m *timeline.Move) time.Duration {
	var sum time.Duration
	for _, step := range m.Steps {
		if step.Seen && ofPlane(step) {
			sum += step.Took()
		}
	}
	return sum
}

func ofPlane(step timeline.Step) bool { return step.Owner == "controller" || step.Owner == "attacher" }

// waits are what the time until the pod ran was made of, as a mean of the moves.
func (r *Result) waits(moves []*timeline.Move) []Wait {
	sums := map[string]time.Duration{}
	for _, move := range moves {
		r.divide(move, sums)
	}
	var all []Wait
	for what, took := range sums {
		all = append(all, Wait{For: what, Seconds: took.Seconds() / float64(len(moves))})
	}
	slices.SortFunc(all, func(a, b Wait) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), strings.Compare(a.For, b.For))
	})
	return all
}

// divide adds the time until the pod ran to the steps that it waited for: the last step, the one whose end that one waited for, and so on to
// the start of the move.
func (r *Result) divide(m *timeline.Move, sums map[string]time.Duration) {
	i := slices.IndexFunc(m.Steps, func(s timeline.Step) bool { return s.Name == timeline.StepRunning })
	for i >= 0 {
		step, cause := m.Steps[i], -1
		for j, earlier := range m.Steps[:i] {
			// A step waits only for earlier ones, and its turn comes when the last of them ends.
			if earlier.Seen && step.Began > 0 && (cause < 0 || (earlier.Ended-step.Began).Abs() <= (m.Steps[cause].Ended-step.Began).Abs()) {
				cause = j
			}
		}
		took := step.Ended
		if cause >= 0 {
			took -= m.Steps[cause].Ended
		}
		sums[r.cause(step)] += max(took, 0)
		i = cause
	}
}

// cause names what a user waits for while a step is made.
func (r *Result) cause(step timeline.Step) string {
	if ofPlane(step) {
		return r.Plane + "'s controller and attacher"
	}
	switch step.Name {
	case timeline.StepNotReady:
		return "node counts as NotReady"
	case timeline.StepOutOfService:
		if r.Recovery != "" {
			return "silence and proof of power-off"
		}
		return "out-of-service taint"
	case timeline.StepPodDeleted:
		return "pod is deleted"
	case timeline.StepEnded:
		return "containers end"
	case timeline.StepPodGone:
		return step.Owner + " removes the pod"
	case timeline.StepPodCreated:
		return step.Owner + " replaces the pod"
	case timeline.StepUnpublished, timeline.StepUnstaged:
		return "unmount"
	case timeline.StepInUse, timeline.StepOutOfUse:
		if r.NodeKind == cluster.NodeKindKubelet {
			return "kubelet's status tick"
		}
		return "node publishes volumesInUse"
	case timeline.StepStaged, timeline.StepPublished:
		return "mount"
	case timeline.StepRunning:
		return "containers start"
	default: // the scheduler and the driver
		return step.Owner
	}
}
