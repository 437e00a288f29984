package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/scenario"
	"belay.dev/belay/lab/timeline"
)

// Settings of one run.
type Settings struct {
	// Name of the lab, NodeKind and Plane as in cluster.Options.
	Name, NodeKind, Plane string
	// Rounds is how often the volume is placed and drained; at least once.
	Rounds int
	// Say receives the progress, a line at a time; may be nil.
	Say func(format string, args ...any)
	// Show is given what a move came to, as soon as it is over; may be nil.
	Show func(plane string, step Step) error
}

// The titles of the moves in the result.
const (
	TitleDrain = "move 1, drain"
	titleCut   = "move 3, power cut"
)

// Step is one part of the demo: a move, or the refusal of a second user.
type Step struct {
	Move    *timeline.Move    `json:"move,omitempty"`
	Refused *scenario.Refused `json:"refused,omitempty"`
}

// Result is one run through one plane.
type Result struct {
	Plane    string `json:"plane"`
	NodeKind string `json:"nodeKind"`
	// Recovery is the profile of recovery; empty if none ran.
	Recovery string `json:"recovery,omitempty"`
	Steps    []Step `json:"steps"`
	// Outcomes are the moves as a user sees them.
	Outcomes []Outcome          `json:"outcomes"`
	Verified *scenario.Verified `json:"verified"`
	// Answers are what kubectl belay said of the moves.
	Answers []Answer `json:"answers"`
	// Violations are writes that the storage refused, or should have.
	Violations int     `json:"violations"`
	Seconds    float64 `json:"seconds"`
}

// Moves are the moves among the steps.
func (r *Result) Moves() []*timeline.Move {
	var moves []*timeline.Move
	for _, step := range r.Steps {
		if step.Move != nil {
			moves = append(moves, step.Move)
		}
	}
	return moves
}

const (
	// nodeMonitorGrace: a node renews its lease every 10 s; see the command's help.
	nodeMonitorGrace = 16 * time.Second
	// StatusTick is nodeStatusUpdateFrequency of the demo's kubelets.
	StatusTick = time.Second
	// settle lets the start's own work pass, so that the first move times the plane and not
	// the start of three nodes on few cores. The same for both planes.
	settle = 3 * time.Second
)

// Run plays the demo once and takes its lab down, whatever happens.
func Run(ctx context.Context, set Settings) (result *Result, err error) {
	if set.Say == nil {
		set.Say = func(string, ...any) {}
	}
	if set.Show == nil {
		set.Show = func(string, Step) error { return nil }
	}
	plugin, err := cluster.Program("kubectl-belay")
	if err != nil {
		return nil, err
	}
	began := time.Now()
	set.Say("starting a lab: three %s nodes, %s's attach plane", set.NodeKind, set.Plane)
	recovery := ""
	if set.Plane == cluster.PlaneBelay && cluster.CanFence() {
		recovery = fencing.Fast.Name
	}
	scene, err := scenario.Open(ctx, cluster.Options{
		Recovery: recovery,
		Name:     set.Name, Nodes: 3, NodeKind: set.NodeKind, Plane: set.Plane,
		Drivers:          []string{labdisk.DriverDisk},
		NodeMonitorGrace: nodeMonitorGrace, NodeStatusUpdateFrequency: StatusTick,
	}, set.Say)
	if err != nil {
		return nil, err
	}
	defer func() {
		set.Say("taking the lab down")
		err = errors.Join(err, scene.Close(ctx))
	}()
	result = &Result{Plane: set.Plane, NodeKind: set.NodeKind, Recovery: recovery}
	set.Say("letting the work of the start pass (%v)", settle)
	select {
	case <-time.After(settle):
	case <-ctx.Done():
		return result, fmt.Errorf("play the demo: %w", context.Cause(ctx))
	}
	ask := &questions{program: plugin, kubeconfig: scene.Cluster.Kubeconfig()}
	for _, act := range acts(set.Rounds, ask) {
		set.Say("%s", act.says)
		step, err := act.play(ctx, scene)
		if err != nil {
			return result, fmt.Errorf("%s: %w", act.says, err)
		}
		result.Steps = append(result.Steps, step)
		if err := set.Show(set.Plane, step); err != nil {
			return result, err
		}
	}
	result.Answers, result.Outcomes = ask.answers, result.outcomes()
	if err := result.verify(ctx, scene, set.Say); err != nil {
		return result, err
	}
	result.Seconds = time.Since(began).Seconds()
	return result, nil
}

// act is one step of the demo and the line that announces it.
type act struct {
	says string
	play func(context.Context, *scenario.Scene) (Step, error)
}

// acts is what the demo plays. Placement and drain are cheap and are made once a round,
// each placement with a new volume.
func acts(rounds int, ask *questions) []act {
	all := []act{{"a StatefulSet claims a volume and writes records to it", place}}
	for range rounds - 1 {
		all = append(all, act{"again: the writer and its volume are removed, a new one is placed", placeAnew})
	}
	for range max(rounds, 1) {
		all = append(all, act{"move 1: the writer's node is drained", drain})
	}
	return append(all,
		act{"move 2: a second pod on a third node wants the volume", ask.refuse},
		act{"move 3: the writer's node loses its power", ask.cutPower})
}

func place(ctx context.Context, s *scenario.Scene) (Step, error) {
	move, err := s.Place(ctx)
	return Step{Move: move}, err
}

func placeAnew(ctx context.Context, s *scenario.Scene) (Step, error) {
	if err := s.RemoveWriter(ctx); err != nil {
		return Step{}, err
	}
	return place(ctx, s)
}

func drain(ctx context.Context, s *scenario.Scene) (Step, error) {
	move, err := s.Drain(ctx, TitleDrain)
	return Step{Move: move}, err
}

// verify stops the writer, reads all records back elsewhere and asks the storage
// for forbidden writes.
func (r *Result) verify(ctx context.Context, scene *scenario.Scene, say func(string, ...any)) error {
	say("the writer is stopped and all records are read back")
	if err := scene.StopWriter(ctx); err != nil {
		return err
	}
	var err error
	if r.Verified, err = scene.Verify(ctx); err != nil {
		return err
	}
	forbidden, err := scene.Violations(ctx)
	if err != nil {
		return err
	}
	if r.Violations = len(forbidden); r.Violations != 0 {
		return fmt.Errorf("the storage counted %d forbidden writes, the first is %+v", r.Violations, forbidden[0])
	}
	return nil
}
