package bench

import (
	"context"
	"fmt"
	"time"
)

// shared gives one volume to many nodes at once, by belay and by the floor in turn.
func shared(ctx context.Context, size Size, rig rigOptions) (_ []*Figure, err error) {
	r, err := openRig(ctx, rig)
	if err != nil {
		return nil, err
	}
	defer func() { err = joinClose(ctx, r, err) }()
	r.say("shared: making %d nodes", size.SharedNodes)
	if err := each(ctx, size.SharedNodes, func(ctx context.Context, i int) error { return r.node(ctx, nodeName(i)) }); err != nil {
		return nil, err
	}
	for _, volume := range []string{volumeName(0), sharedVolume} {
		if err := r.volume(ctx, volume); err != nil {
			return nil, err
		}
	}
	all := samples{}
	for round := range size.Rounds {
		for _, plane := range []string{planeBelay, planeFloor} {
			if err := r.sharedOf(ctx, size, plane, all); err != nil {
				return nil, fmt.Errorf("shared volume of %s, round %d: %w", plane, round+1, err)
			}
			r.say("shared, round %d of %d: %s done, first pod made -> reported on all nodes %s so far", round+1, size.Rounds, plane,
				milliseconds(median(all[figureShared][plane])))
		}
	}
	return []*Figure{
		durations(figureShared, all[figureShared]).atMost(planeFloor, 1.5), durations(figureBurst, all[figureBurst]),
		durations(figureSharedDetach, all[figureSharedDetach]), durations(figureBurstDetach, all[figureBurstDetach]),
		durations(figureCPUAttach, all[figureCPUAttach]), durations(figureCPUDetach, all[figureCPUDetach]),
	}, nil
}

// sharedOf is one turn of one plane.
func (r *rig) sharedOf(ctx context.Context, size Size, plane string, all samples) error {
	if err := r.start(plane); err != nil {
		return err
	}
	if err := r.cycle(ctx, 0, samples{}); err != nil {
		return err
	}
	pods := make([]string, size.SharedNodes)
	for i := range pods {
		r.pods++
		pods[i] = fmt.Sprintf("pod-%06d", r.pods)
	}
	if err := r.atOnce(ctx, size, all, sharedStep{
		whole: figureShared, tail: figureBurst, cpu: figureCPUAttach,
		do:     func(ctx context.Context, i int) error { return r.pod(ctx, pods[i], sharedVolume, nodeName(i)) },
		begins: func(i int) fact { return podBound(pods[i]) },
		ends:   func(i int) fact { return volumeReported(nodeName(i), sharedVolume) },
	}); err != nil {
		return err
	}
	if err := r.atOnce(ctx, size, all, sharedStep{
		whole: figureSharedDetach, tail: figureBurstDetach, cpu: figureCPUDetach,
		do:     func(ctx context.Context, i int) error { return r.remove(ctx, pods[i]) },
		begins: func(i int) fact { return podGone(pods[i]) },
		ends:   func(i int) fact { return volumeDetached(nodeName(i), sharedVolume) },
	}); err != nil {
		return err
	}
	return r.stop(ctx)
}

// sharedStep is what is done for all nodes at once, how it is seen for each of them, and
// the figures that it goes into.
type sharedStep struct {
	whole, tail, cpu string
	do               func(ctx context.Context, i int) error
	begins, ends     func(i int) fact
}

// atOnce takes a step for all nodes and waits until the plane has done its part.
func (r *rig) atOnce(ctx context.Context, size Size, all samples, s sharedStep) error {
	ctx, cancel := context.WithTimeoutCause(ctx, size.BurstLimit, fmt.Errorf("it did not happen within %v", size.BurstLimit))
	defer cancel()
	begins, ends := make([]fact, size.SharedNodes), make([]fact, size.SharedNodes)
	for i := range begins {
		begins[i], ends[i] = s.begins(i), s.ends(i)
	}
	r.observer.forget(ends...)
	used, err := r.cpuOf(ctx, func(ctx context.Context) error {
		first := time.Now()
		if err := each(ctx, size.SharedNodes, s.do); err != nil {
			return err
		}
		begun, err := r.observer.last(ctx, begins)
		if err != nil {
			return err
		}
		ended, err := r.observer.last(ctx, ends)
		if err != nil {
			return fmt.Errorf("%s's plane: %w", r.plane, err)
		}
		all.add(s.whole, r.plane, ended.Sub(first))
		all.add(s.tail, r.plane, ended.Sub(begun))
		return nil
	})
	all.add(s.cpu, r.plane, used/time.Duration(size.SharedNodes))
	return err
}
