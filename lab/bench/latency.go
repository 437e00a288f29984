package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// gap is the longest pause between two steps. Each is of random length, so that no plane is
// always met at the same moment of its ticks.
const gap = 150 * time.Millisecond

// samples are measured durations, by figure and plane.
type samples map[string]map[string][]time.Duration

func (s samples) add(figure, plane string, d time.Duration) {
	if s[figure] == nil {
		s[figure] = map[string][]time.Duration{}
	}
	s[figure][plane] = append(s[figure][plane], d)
}

// latency moves one volume at a time.
func latency(ctx context.Context, size Size, rig rigOptions) (_ []*Figure, err error) {
	r, err := openRig(ctx, rig)
	if err != nil {
		return nil, err
	}
	defer func() { err = joinClose(ctx, r, err) }()
	for i := range 2 {
		if err := r.node(ctx, nodeName(i)); err != nil {
			return nil, err
		}
	}
	if err := each(ctx, size.Cycles+1, func(ctx context.Context, i int) error { return r.volume(ctx, volumeName(i)) }); err != nil {
		return nil, err
	}
	all := samples{}
	for round := range size.Rounds {
		for _, plane := range planes() {
			if err := r.latencyOf(ctx, size, plane, all); err != nil {
				return nil, fmt.Errorf("latency of %s, round %d: %w", plane, round+1, err)
			}
			r.say("latency, round %d of %d: %s done, pod bound -> reported %s so far", round+1, size.Rounds, plane,
				milliseconds(median(all[figureAttach][plane])))
		}
	}
	return latencyFigures(all), nil
}

// latencyOf is one turn of one plane: a cycle and a move to warm up, then those that count.
func (r *rig) latencyOf(ctx context.Context, size Size, plane string, all samples) error {
	if err := r.start(plane); err != nil {
		return err
	}
	warm := samples{}
	if err := r.cycle(ctx, 0, warm); err != nil {
		return err
	}
	if err := r.move(ctx, 0, warm); err != nil {
		return err
	}
	for i := range size.Cycles {
		if err := r.cycle(ctx, i+1, all); err != nil {
			return err
		}
	}
	for i := range size.Moves {
		if err := r.move(ctx, i%size.Cycles+1, all); err != nil {
			return err
		}
	}
	return r.stop(ctx)
}

func (r *rig) breathe(ctx context.Context) error {
	return pause(ctx, rand.N(gap)) //nolint:gosec // not a secret
}

// cycle attaches a volume, mounts, unmounts and detaches it.
func (r *rig) cycle(ctx context.Context, i int, into samples) error {
	volume, node := volumeName(i), nodeName(i%2)
	pod, err := r.newPod(ctx, volume)
	if err != nil {
		return err
	}
	if err := r.breathe(ctx); err != nil {
		return err
	}
	took, err := r.attach(ctx, pod, volume, node)
	if err != nil {
		return err
	}
	into.add(figureAttach, r.plane, took)
	if err := r.mount(ctx, volume, node); err != nil {
		return err
	}
	if err := r.breathe(ctx); err != nil {
		return err
	}
	if err := r.unmount(ctx, volume, node); err != nil {
		return err
	}
	took, err = r.detach(ctx, pod, volume, node)
	if err != nil {
		return err
	}
	into.add(figureDetach, r.plane, took)
	return nil
}

// move hands a volume over: the next pod is bound to another node and waits there, the one
// before is gone, and then its node has unmounted.
func (r *rig) move(ctx context.Context, i int, into samples) error {
	volume, from, to := volumeName(i), nodeName(i%2), nodeName((i+1)%2)
	before, err := r.newPod(ctx, volume)
	if err != nil {
		return err
	}
	if _, err := r.attach(ctx, before, volume, from); err != nil {
		return err
	}
	if err := r.mount(ctx, volume, from); err != nil {
		return err
	}
	next, err := r.newPod(ctx, volume)
	if err != nil {
		return err
	}
	r.observer.forget(volumeReported(to, volume), volumeDetached(to, volume))
	if err := r.bind(ctx, next, to); err != nil {
		return err
	}
	if _, err := r.observer.when(ctx, podBound(next)); err != nil {
		return err
	}
	if err := r.remove(ctx, before); err != nil {
		return err
	}
	if _, err := r.observer.when(ctx, podGone(before)); err != nil {
		return err
	}
	if err := r.breathe(ctx); err != nil {
		return err
	}
	took, err := r.handOver(ctx, volume, from, to)
	if err != nil {
		return err
	}
	into.add(figureMove, r.plane, took)
	_, err = r.detach(ctx, next, volume, to)
	return err
}

// handOver unmounts a volume on one node and returns how long it took from there until it was
// reported on the other.
func (r *rig) handOver(ctx context.Context, volume, from, to string) (time.Duration, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	if err := r.unmount(ctx, volume, from); err != nil {
		return 0, err
	}
	return r.between(ctx, volumeFree(from, volume), volumeReported(to, volume))
}

func latencyFigures(all samples) []*Figure {
	attach, detach, move := durations(figureAttach, all[figureAttach]), durations(figureDetach, all[figureDetach]), durations(figureMove, all[figureMove])
	attach.atMost(planeFloor, 2).atMost(planeUpstream, 1.0/20)
	detach.atMost(planeFloor, 2)
	move.limit("<= 3x bound -> reported", 3*attach.Value[planeBelay])
	return []*Figure{attach, detach, move}
}
