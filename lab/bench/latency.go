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

// latency moves one volume at a time.
func latency(ctx context.Context, size Size, r *rig) ([]*Figure, error) {
	for i := range 2 {
		if err := r.node(ctx, nodeName(i)); err != nil {
			return nil, err
		}
	}
	if err := each(ctx, size.Cycles+1, func(ctx context.Context, i int) error { return r.volume(ctx, volumeName(i)) }); err != nil {
		return nil, err
	}
	all := &samples{}
	for round := range size.Rounds {
		for _, plane := range turns(planes(), round) {
			if err := r.latencyOf(ctx, size, plane, all); err != nil {
				return nil, fmt.Errorf("latency of %s, round %d: %w", plane, round+1, err)
			}
			r.say("latency, round %d of %d: %s done, pod bound -> reported %s so far", round+1, size.Rounds, plane, all.soFar(figureAttach, plane))
		}
	}
	attach := all.figure(figureAttach, "ms")
	return []*Figure{
		attach.atMost(planeFloor, 2).atMost(planeUpstream, 1.0/20), all.figure(figureDetach, "ms").atMost(planeFloor, 2),
		all.figure(figureMove, "ms").limit("<= 3x bound -> reported", 3*attach.Value[planeBelay]),
	}, nil
}

// latencyOf is one turn of one plane: a cycle and a move to warm up, then those that count.
func (r *rig) latencyOf(ctx context.Context, size Size, plane string, all *samples) error {
	if err := r.start(plane); err != nil {
		return err
	}
	warm := &samples{}
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
func (r *rig) cycle(ctx context.Context, i int, into *samples) error {
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
	into.milliseconds(figureAttach, r.plane, took)
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
	into.milliseconds(figureDetach, r.plane, took)
	return nil
}

// move hands a volume over: the next pod is bound to another node and waits there, the one
// before is gone, and then its node has unmounted.
func (r *rig) move(ctx context.Context, i int, into *samples) error {
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
	into.milliseconds(figureMove, r.plane, took)
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
