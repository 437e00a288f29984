package bench

import (
	"context"
	"fmt"
	"time"
)

// settle is how long a plane may finish what no step waits for, events above all, before its CPU time is read.
const settle = 2 * time.Second

// burst makes and binds many pods at once. All planes share one attacher.
func burst(ctx context.Context, size Size, r *rig) ([]*Figure, error) {
	all, err := r.bursts(ctx, size)
	if err != nil {
		return nil, err
	}
	return []*Figure{
		all.figure(figureBurst, "ms").atMost(planeFloor, 2).atMost(planeUpstream, 1.0/4),
		all.figure(figureBurstWhole, "ms"), all.figure(figureBurstDetach, "ms"),
		all.figure(figureCPUAttach, "ms"), // its target is set at scale
		all.figure(figureCPUDetach, "ms"), all.figure(figurePublishes, "calls").limit("<= one per attach", float64(size.BurstPods+1)),
	}, nil
}

// whole is burst with each plane's own attacher: upstream's with flags that limit nothing, belay's as shipped.
func whole(ctx context.Context, size Size, r *rig) ([]*Figure, error) {
	r.ownAttacher = map[string][]string{planeUpstream: tunedFlags(size)}
	all, err := r.bursts(ctx, size)
	if err != nil {
		return nil, err
	}
	return []*Figure{
		all.figure(figureBurst, "ms").atMost(planeFloor, 1.5).atMost(planeUpstream, 1.0/2),
		all.figure(figureBurstWhole, "ms"), all.figure(figureBurstDetach, "ms"),
		all.figure(figureCPUPlane, "ms").atMost(planeUpstream, 0.8), // ADR 13: the floor takes half
	}, nil
}

func (r *rig) bursts(ctx context.Context, size Size) (*samples, error) {
	if err := r.equip(ctx); err != nil {
		return nil, err
	}
	r.say("burst: making %d nodes and %d volumes", size.BurstNodes, size.BurstPods)
	if err := each(ctx, size.BurstNodes, func(ctx context.Context, i int) error { return r.node(ctx, nodeName(i)) }); err != nil {
		return nil, err
	}
	if err := each(ctx, size.BurstPods+1, func(ctx context.Context, i int) error { return r.volume(ctx, volumeName(i)) }); err != nil {
		return nil, err
	}
	if _, err := r.lab.StartScheduler(0); err != nil {
		return nil, err
	}
	all := &samples{}
	for round := range size.Rounds {
		for _, plane := range turns(planes(), round) {
			before := r.driver.published()
			if err := r.burstOf(ctx, size, plane, all); err != nil {
				return nil, fmt.Errorf("burst of %s, round %d: %w", plane, round+1, err)
			}
			all.add(figurePublishes, plane, float64(r.driver.published()-before))
			r.say("burst, round %d of %d: %s done, last bound -> last reported %s so far", round+1, size.Rounds, plane, all.soFar(figureBurst, plane))
		}
	}
	return all, nil
}

// burstOf is one turn of one plane: all pods are made, and bound by the scheduler; then all are deleted.
func (r *rig) burstOf(ctx context.Context, size Size, plane string, all *samples) error {
	if err := r.start(plane); err != nil {
		return err
	}
	if err := r.cycle(ctx, 0, &samples{}); err != nil {
		return err
	}
	pods := r.podNames(size.BurstPods)
	node := func(i int) string { return nodeName(i % size.BurstNodes) }
	in, err := r.atOnce(ctx, all, step{
		n: size.BurstPods, within: size.BurstLimit, whole: figureBurstWhole, tail: figureBurst, cpu: figureCPUAttach,
		do:     func(ctx context.Context, i int) error { return r.podFor(ctx, pods[i], volumeName(i+1), node(i)) },
		begins: func(i int) fact { return podBound(pods[i]) },
		ends:   func(i int) fact { return volumeReported(node(i), volumeName(i+1)) },
	})
	if err != nil {
		return err
	}
	out, err := r.atOnce(ctx, all, step{
		n: size.BurstPods, within: size.BurstLimit, tail: figureBurstDetach, cpu: figureCPUDetach,
		do:     func(ctx context.Context, i int) error { return r.remove(ctx, pods[i]) },
		begins: func(i int) fact { return podGone(pods[i]) },
		ends:   func(i int) fact { return volumeDetached(node(i), volumeName(i+1)) },
	})
	if err != nil {
		return err
	}
	all.milliseconds(figureCPUPlane, plane, in+out)
	if err := r.stop(ctx); err != nil || r.ownAttacher == nil {
		return err
	}
	// The next plane's attacher finds the volumes as new: without its finalizer.
	return each(ctx, size.BurstPods, func(ctx context.Context, i int) error { return r.unprotect(ctx, volumeName(i+1)) })
}

// step is something that is done n times at once, the facts in which each begins and ends, and the figures that it goes into.
type step struct {
	n            int
	within       time.Duration
	whole        string // from the first request to the last end; empty if it is not measured
	tail         string // from the last begin to the last end
	cpu          string
	do           func(ctx context.Context, i int) error
	begins, ends func(i int) fact
}

// atOnce takes a step, waits until the plane has done its part, and returns the plane's CPU time for each.
func (r *rig) atOnce(ctx context.Context, all *samples, s step) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.within, fmt.Errorf("it did not happen within %v", s.within))
	defer cancel()
	begins, ends := make([]fact, s.n), make([]fact, s.n)
	for i := range begins {
		begins[i], ends[i] = s.begins(i), s.ends(i)
	}
	r.observer.forget(ends...)
	used, err := r.cpuOf(ctx, func(ctx context.Context) error {
		first := time.Now()
		if err := each(ctx, s.n, s.do); err != nil {
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
		if s.whole != "" {
			all.milliseconds(s.whole, r.plane, ended.Sub(first))
		}
		all.milliseconds(s.tail, r.plane, ended.Sub(begun))
		return nil
	})
	used /= time.Duration(s.n)
	all.milliseconds(s.cpu, r.plane, used)
	return used, err
}

// cpuOf is the CPU time that the plane at work uses while something is done, and a moment longer.
func (r *rig) cpuOf(ctx context.Context, do func(context.Context) error) (time.Duration, error) {
	before, err := r.cpu()
	if err != nil {
		return 0, err
	}
	if err := do(ctx); err != nil {
		return 0, err
	}
	if err := pause(ctx, settle); err != nil {
		return 0, err
	}
	after, err := r.cpu()
	return after - before, err
}
