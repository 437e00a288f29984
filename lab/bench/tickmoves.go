package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/scenario"
	"belay.dev/belay/lab/timeline"
)

// The parts of a move, in their order. They add up to the whole of it where the pod is bound before its volume is out of use, as in a drain.
const (
	figureUnmounted = "pod deleted -> unmounted"
	figureLeftUse   = "unmounted -> out of volumesInUse"
	figureCameInUse = "reported -> in volumesInUse on next"
	figureMounted   = "reported, in use on next -> running"
	moveSettle      = 3 * time.Second
	tickMoveNodes   = 3
)

// tickFigures are the names in the order of the report.
func tickFigures() []string {
	return []string{timeline.FigureDeletedRunning, figureUnmounted, figureLeftUse, timeline.FigureInUseReported, figureCameInUse, figureMounted}
}

// ofTick names a figure of one tick.
func ofTick(name string, tick time.Duration) string {
	return fmt.Sprintf("%s, status every %s", name, spaced(tick))
}

// tickMoves measures the moves of all ticks, each plane in a lab of its own.
func tickMoves(ctx context.Context, o *tickOptions, say func(string, ...any)) ([]*Figure, error) {
	found := &samples{}
	for i, tick := range o.ticks {
		for _, plane := range turns(attacherPlanes(), i) {
			if err := o.movesOf(ctx, plane, tick, found, say); err != nil {
				return nil, fmt.Errorf("%s, status every %v: %w", plane, tick, err)
			}
		}
	}
	var figures []*Figure
	for _, name := range tickFigures() {
		for _, tick := range o.ticks {
			figures = append(figures, found.figure(ofTick(name, tick), "s"))
		}
	}
	return figures, nil
}

// movesOf makes the drains of one plane at one tick.
func (o *tickOptions) movesOf(ctx context.Context, plane string, tick time.Duration, found *samples, say func(string, ...any)) (err error) {
	say("moves: %s, status every %v", plane, tick)
	scene, err := scenario.Open(ctx, cluster.Options{
		Name: o.name, Nodes: tickMoveNodes, NodeKind: cluster.NodeKindKubelet, Plane: plane, Drivers: []string{labdisk.DriverDisk},
		NodeStatusUpdateFrequency: tick,
	}, say)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, scene.Close(ctx)) }()
	if _, err := scene.Place(ctx); err != nil {
		return err
	}
	for round, wait := range phases(o.rounds, tick, o.seed) {
		node, err := scene.WriterNode()
		if err != nil {
			return err
		}
		if err := scene.AwaitSettled(ctx, node); err != nil {
			return err
		}
		if err := pause(ctx, moveSettle+wait); err != nil {
			return err
		}
		move, err := scene.Drain(ctx, "drain")
		if err != nil {
			return err
		}
		took, err := movePartsOf(move)
		if err != nil {
			return fmt.Errorf("drain %d: %w", round+1, err)
		}
		for _, name := range tickFigures() {
			found.seconds(ofTick(name, tick), plane, took[name])
		}
		say("moves: %s, status every %v, drain %d of %d after %.1f s of the tick: running elsewhere in %.2f s; out of use %.2f s after unmounted, reported %.3f s after that, in use on the next %.2f s later",
			plane, tick, round+1, o.rounds, wait.Seconds(), took[timeline.FigureDeletedRunning].Seconds(), took[figureLeftUse].Seconds(),
			took[timeline.FigureInUseReported].Seconds(), took[figureCameInUse].Seconds())
	}
	forbidden, err := scene.Violations(ctx)
	if err != nil {
		return err
	}
	if len(forbidden) > 0 {
		return fmt.Errorf("the storage counted %d forbidden writes, the first is %+v", len(forbidden), forbidden[0])
	}
	return nil
}

// phases are the pauses before the drains: one from each of as many equal shares of the tick, at random within its share, in random order.
// What was before them ends with a status of a kubelet: without them all drains would begin at one phase of the tick.
func phases(n int, tick time.Duration, seed uint64) []time.Duration {
	random := rand.New(rand.NewPCG(seed, uint64(tick))) //nolint:gosec // not a secret
	pauses := make([]time.Duration, 0, n)
	for _, share := range random.Perm(n) {
		pauses = append(pauses, time.Duration((float64(share)+random.Float64())*float64(tick)/float64(n)))
	}
	return pauses
}

// movePartsOf divides a move. A part that ended before it could begin took no time: the new node may list the volume before it is reported.
func movePartsOf(move *timeline.Move) (map[string]time.Duration, error) {
	took := map[string]time.Duration{}
	ended := map[timeline.StepName]time.Duration{}
	for _, name := range []timeline.StepName{
		timeline.StepPodDeleted, timeline.StepUnstaged, timeline.StepOutOfUse, timeline.StepReported, timeline.StepInUse, timeline.StepRunning,
	} {
		step := move.Step(name)
		if step == nil || !step.Seen {
			return nil, fmt.Errorf("the step %q was not seen", name)
		}
		ended[name] = step.Ended
	}
	usable := max(ended[timeline.StepReported], ended[timeline.StepInUse])
	took[figureUnmounted] = max(0, ended[timeline.StepUnstaged]-ended[timeline.StepPodDeleted])
	took[figureLeftUse] = max(0, ended[timeline.StepOutOfUse]-ended[timeline.StepUnstaged])
	took[figureCameInUse] = usable - ended[timeline.StepReported]
	took[figureMounted] = ended[timeline.StepRunning] - usable
	for _, name := range []string{timeline.FigureDeletedRunning, timeline.FigureInUseReported} {
		var ok bool
		if took[name], ok = move.Figure(name); !ok {
			return nil, fmt.Errorf("the figure %q could not be derived", name)
		}
	}
	return took, nil
}
