package bench

import (
	"context"
	"fmt"
	"time"
)

// settle is how long a plane may finish what nobody waits for, events above all, before its CPU
// time is read.
const settle = 2 * time.Second

// burst makes and binds many pods at once. All planes have one attacher.
func burst(ctx context.Context, size Size, rig rigOptions) ([]*Figure, error) {
	all, published, err := bursts(ctx, size, rig)
	if err != nil {
		return nil, err
	}
	return burstFigures(size, all, published), nil
}

// whole is burst with each plane's own attacher: upstream's with flags that bound nothing, belay's as shipped.
func whole(ctx context.Context, size Size, rig rigOptions) ([]*Figure, error) {
	rig.ownAttacher = map[string][]string{planeUpstream: tunedFlags(size)}
	all, _, err := bursts(ctx, size, rig)
	if err != nil {
		return nil, err
	}
	in, out := all[figureCPUAttach], all[figureCPUDetach]
	sum := map[string][]time.Duration{}
	for _, plane := range planes() {
		for round := range in[plane] {
			sum[plane] = append(sum[plane], in[plane][round]+out[plane][round])
		}
	}
	return []*Figure{
		durations(figureBurst, all[figureBurst]).atMost(planeFloor, 1.5).atMost(planeUpstream, 1.0/2),
		durations(figureBurstWhole, all[figureBurstWhole]), durations(figureBurstDetach, all[figureBurstDetach]),
		durations(figureCPUPlane, sum).atMost(planeUpstream, 0.8), // ADR 13: the floor takes half
	}, nil
}

func bursts(ctx context.Context, size Size, rig rigOptions) (_ samples, _ map[string][]float64, err error) {
	r, err := openRig(ctx, rig)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = joinClose(ctx, r, err) }()
	r.say("burst: making %d nodes and %d volumes", size.BurstNodes, size.BurstPods)
	if err := each(ctx, size.BurstNodes, func(ctx context.Context, i int) error { return r.node(ctx, nodeName(i)) }); err != nil {
		return nil, nil, err
	}
	if err := each(ctx, size.BurstPods+1, func(ctx context.Context, i int) error { return r.volume(ctx, volumeName(i)) }); err != nil {
		return nil, nil, err
	}
	if _, err := r.lab.StartScheduler(); err != nil {
		return nil, nil, err
	}
	all, published := samples{}, map[string][]float64{}
	for round := range size.Rounds {
		for _, plane := range planes() {
			before := r.driver.published()
			if err := r.burstOf(ctx, size, plane, all); err != nil {
				return nil, nil, fmt.Errorf("burst of %s, round %d: %w", plane, round+1, err)
			}
			published[plane] = append(published[plane], float64(r.driver.published()-before))
			r.say("burst, round %d of %d: %s done, last bound -> last reported %s so far", round+1, size.Rounds, plane,
				milliseconds(median(all[figureBurst][plane])))
		}
	}
	return all, published, nil
}

// burstOf is one turn of one plane.
func (r *rig) burstOf(ctx context.Context, size Size, plane string, all samples) error {
	pods := make([]string, size.BurstPods)
	for i := range pods {
		r.pods++
		pods[i] = fmt.Sprintf("pod-%06d", r.pods)
	}
	if err := r.start(plane); err != nil {
		return err
	}
	if err := r.cycle(ctx, 0, samples{}); err != nil {
		return err
	}
	if err := r.burstIn(ctx, size, pods, all); err != nil {
		return err
	}
	if err := r.burstOut(ctx, size, pods, all); err != nil {
		return err
	}
	if err := r.stop(ctx); err != nil || r.ownAttacher == nil {
		return err
	}
	// The next plane's attacher finds the volumes as new: without its finalizer.
	return each(ctx, size.BurstPods, func(ctx context.Context, i int) error { return r.unprotect(ctx, volumeName(i+1)) })
}

// burstIn makes and binds all pods, as a workload and the scheduler do, and waits until all
// volumes are reported.
func (r *rig) burstIn(ctx context.Context, size Size, pods []string, all samples) error {
	ctx, cancel := context.WithTimeoutCause(ctx, size.BurstLimit, fmt.Errorf("the burst did not end within %v", size.BurstLimit))
	defer cancel()
	node := func(i int) string { return nodeName(i % size.BurstNodes) }
	var bound, reported []fact
	for i, pod := range pods {
		bound = append(bound, podBound(pod))
		reported = append(reported, volumeReported(node(i), volumeName(i+1)))
		r.observer.forget(reported[i], volumeDetached(node(i), volumeName(i+1)))
	}
	began := time.Now()
	took, err := r.cpuOf(ctx, func(ctx context.Context) error {
		if err := each(ctx, len(pods), func(ctx context.Context, i int) error {
			return r.podFor(ctx, pods[i], volumeName(i+1), node(i))
		}); err != nil {
			return err
		}
		lastBound, err := r.observer.last(ctx, bound)
		if err != nil {
			return err
		}
		lastReported, err := r.observer.last(ctx, reported)
		if err != nil {
			return fmt.Errorf("%s's plane: %w", r.plane, err)
		}
		all.add(figureBurst, r.plane, lastReported.Sub(lastBound))
		all.add(figureBurstWhole, r.plane, lastReported.Sub(began))
		return nil
	})
	all.add(figureCPUAttach, r.plane, took/time.Duration(len(pods)))
	return err
}

// burstOut deletes all pods and waits until all volumes are detached.
func (r *rig) burstOut(ctx context.Context, size Size, pods []string, all samples) error {
	ctx, cancel := context.WithTimeoutCause(ctx, size.BurstLimit, fmt.Errorf("the end of the burst was not there within %v", size.BurstLimit))
	defer cancel()
	var gone, detached []fact
	for i, pod := range pods {
		gone = append(gone, podGone(pod))
		detached = append(detached, volumeDetached(nodeName(i%size.BurstNodes), volumeName(i+1)))
	}
	took, err := r.cpuOf(ctx, func(ctx context.Context) error {
		if err := each(ctx, len(pods), func(ctx context.Context, i int) error { return r.remove(ctx, pods[i]) }); err != nil {
			return err
		}
		lastGone, err := r.observer.last(ctx, gone)
		if err != nil {
			return err
		}
		lastDetached, err := r.observer.last(ctx, detached)
		if err != nil {
			return fmt.Errorf("%s's plane: %w", r.plane, err)
		}
		all.add(figureBurstDetach, r.plane, lastDetached.Sub(lastGone))
		return nil
	})
	all.add(figureCPUDetach, r.plane, took/time.Duration(len(pods)))
	return err
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

func burstFigures(size Size, all samples, published map[string][]float64) []*Figure {
	in := durations(figureBurst, all[figureBurst])
	in.atMost(planeFloor, 2).atMost(planeUpstream, 1.0/4)
	cpu := durations(figureCPUAttach, all[figureCPUAttach]) // its target is set at scale
	calls := numbers(figurePublishes, "calls", published)
	calls.limit("<= one per attach", float64(size.BurstPods+1))
	return []*Figure{
		in, durations(figureBurstWhole, all[figureBurstWhole]), durations(figureBurstDetach, all[figureBurstDetach]),
		cpu, durations(figureCPUDetach, all[figureCPUDetach]), calls,
	}
}
