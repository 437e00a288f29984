package bench

import (
	"context"
	"fmt"
)

// shared attaches one volume to many nodes at once, by belay and by the floor in turn.
func shared(ctx context.Context, size Size, r *rig) ([]*Figure, error) {
	r.say("shared: making %d nodes", size.SharedNodes)
	if err := each(ctx, size.SharedNodes, func(ctx context.Context, i int) error { return r.node(ctx, nodeName(i)) }); err != nil {
		return nil, err
	}
	for _, volume := range []string{volumeName(0), sharedVolume} {
		if err := r.volume(ctx, volume); err != nil {
			return nil, err
		}
	}
	all := &samples{}
	for round := range size.Rounds {
		for _, plane := range turns([]string{planeBelay, planeFloor}, round) {
			if err := r.sharedOf(ctx, size, plane, all); err != nil {
				return nil, fmt.Errorf("shared volume of %s, round %d: %w", plane, round+1, err)
			}
			r.say("shared, round %d of %d: %s done, first pod made -> reported on all nodes %s so far", round+1, size.Rounds, plane, all.soFar(figureShared, plane))
		}
	}
	figures := []*Figure{all.figure(figureShared, "ms").atMost(planeFloor, 1.5)}
	for _, name := range []string{figureBurst, figureSharedDetach, figureBurstDetach, figureCPUAttach, figureCPUDetach} {
		figures = append(figures, all.figure(name, "ms"))
	}
	return figures, nil
}

// sharedOf is one turn of one plane.
func (r *rig) sharedOf(ctx context.Context, size Size, plane string, all *samples) error {
	if err := r.start(plane); err != nil {
		return err
	}
	if err := r.cycle(ctx, 0, &samples{}); err != nil {
		return err
	}
	pods := r.podNames(size.SharedNodes)
	for _, s := range []step{
		{
			whole: figureShared, tail: figureBurst, cpu: figureCPUAttach,
			do:     func(ctx context.Context, i int) error { return r.pod(ctx, pods[i], sharedVolume, nodeName(i)) },
			begins: func(i int) fact { return podBound(pods[i]) },
			ends:   func(i int) fact { return volumeReported(nodeName(i), sharedVolume) },
		},
		{
			whole: figureSharedDetach, tail: figureBurstDetach, cpu: figureCPUDetach,
			do:     func(ctx context.Context, i int) error { return r.remove(ctx, pods[i]) },
			begins: func(i int) fact { return podGone(pods[i]) },
			ends:   func(i int) fact { return volumeDetached(nodeName(i), sharedVolume) },
		},
	} {
		s.n, s.within = size.SharedNodes, size.BurstLimit
		if _, err := r.atOnce(ctx, all, s); err != nil {
			return err
		}
	}
	return r.stop(ctx)
}
