package bench

import (
	"context"
	"fmt"
	"time"
)

// shippedTarget bounds the last attach of FewVolumes with the slowest driver, flags as shipped.
const shippedTarget = 5 * time.Second

// called adds what a driver was asked in a turn of so many attaches and as many detaches, to the figures of each label.
func (s *samples) called(plane string, asked calls, attaches int, labels ...string) {
	for _, label := range labels {
		s.add(label+": "+figurePublish, plane, float64(asked.publishes)/float64(attaches))
		s.add(label+": "+figureUnpublish, plane, float64(asked.unpublishes)/float64(attaches))
	}
	s.add(figureOverlaps, plane, float64(asked.overlaps))
	s.add(figureSecondNode, plane, float64(asked.secondNode))
}

// callFigures are what must be so whatever is measured.
func (s *samples) callFigures(labels ...string) []*Figure {
	var figures []*Figure
	for _, label := range labels {
		figures = append(figures,
			s.figure(label+": "+figurePublish, "calls").limitEach("exactly one", 1),
			s.figure(label+": "+figureUnpublish, "calls").limitEach("exactly one", 1))
	}
	return append(figures,
		s.figure(figureOverlaps, "calls").limitEach("none", 0),
		s.figure(figureSecondNode, "calls").limitEach("none", 0))
}

// labelsOf lists the labels of lanes.
func labelsOf(lanes ...*lane) []string {
	var labels []string
	for _, l := range lanes {
		labels = append(labels, l.label)
	}
	return labels
}

// shippedLanes are those of shipped; shippedTarget is for the one of FewVolumes.
func shippedLanes(size Size) []*lane {
	slowest := size.Latencies[len(size.Latencies)-1]
	var lanes []*lane
	for _, latency := range size.Latencies {
		lanes = append(lanes, laneOf(latency, size.AttachVolumes))
	}
	lanes = append(lanes, laneOf(slowest, size.FewVolumes), laneOf(size.SlowLatency, size.DrainVolumes))
	for _, l := range lanes {
		l.label += ", " + asShipped
	}
	return lanes
}

// shipped attaches many volumes at once with the flags as shipped.
func shipped(ctx context.Context, size Size, r *rig) ([]*Figure, error) {
	lanes := shippedLanes(size)
	if err := r.addLanes(ctx, lanes...); err != nil {
		return nil, err
	}
	found := &samples{}
	r.say("shipped: upstream, %d lanes side by side; this takes minutes", len(lanes))
	if err := sideBySide(ctx, lanes, func(ctx context.Context, l *lane) error {
		return r.laneTurn(ctx, size, planeUpstream, l, found)
	}); err != nil {
		return nil, err
	}
	for round := range size.Rounds {
		for _, l := range lanes {
			if round >= size.roundsOf(l) {
				continue
			}
			if err := r.laneTurn(ctx, size, planeBelay, l, found); err != nil {
				return nil, err
			}
		}
	}
	var figures []*Figure
	for _, l := range lanes {
		in := found.figure(l.figure(figureAllAttached), "s")
		if l.volumes == size.FewVolumes {
			in.limit("<= "+spaced(shippedTarget), shippedTarget.Seconds())
		}
		in.atMost(planeUpstream, 1)
		figures = append(figures, in, found.figure(l.figure(figureAllDetached), "s").atMost(planeUpstream, 1))
	}
	return append(figures, found.callFigures(labelsOf(lanes...)...)...), nil
}

// tuned does the same with flags that do not bind, and measures the attachers' CPU time.
func tuned(ctx context.Context, size Size, r *rig) ([]*Figure, error) {
	var lanes []*lane
	for _, latency := range size.Latencies {
		l := laneOf(latency, size.AttachVolumes)
		l.label += ", both tuned"
		lanes = append(lanes, l)
	}
	if err := r.addLanes(ctx, lanes...); err != nil {
		return nil, err
	}
	found := &samples{}
	for round := range size.Rounds {
		for _, l := range lanes {
			for _, plane := range turns(attacherPlanes(), round) {
				if err := r.laneTurn(ctx, size, plane, l, found, tunedFlags(size)...); err != nil {
					return nil, err
				}
			}
		}
	}
	var figures []*Figure
	for _, l := range lanes {
		for _, name := range []string{figureAllAttached, figureAllDetached} {
			figures = append(figures, found.figure(l.figure(name), "s").atMost(planeUpstream, 1))
		}
		for _, name := range []string{figureSidecarIn, figureSidecarOut} {
			figures = append(figures, found.figure(l.figure(name), "ms").atMost(planeUpstream, 1))
		}
	}
	return append(figures, found.callFigures(labelsOf(lanes...)...)...), nil
}

// linear bounds the CPU time per attach of a shared volume at many nodes as a multiple of that at a few. What is quadratic has
// four times as much at four times the nodes.
const linear = 1.5

// attacherShared attaches one volume to some nodes, and to many.
func attacherShared(ctx context.Context, size Size, r *rig) ([]*Figure, error) {
	var lanes []*lane
	for _, nodes := range size.AttachNodes {
		l := laneOf(0, nodes)
		l.shared, l.label = true, fmt.Sprintf("one volume on %d nodes", nodes)
		lanes = append(lanes, l.named(fmt.Sprintf("%s-%d", sharedVolume, nodes), 0))
	}
	if err := r.addLanes(ctx, lanes...); err != nil {
		return nil, err
	}
	found := &samples{}
	for round := range size.Rounds {
		for _, l := range lanes {
			for _, plane := range turns(attacherPlanes(), round) {
				if err := r.laneTurn(ctx, size, plane, l, found, tunedFlags(size)...); err != nil {
					return nil, err
				}
			}
		}
	}
	few, many := lanes[0], lanes[len(lanes)-1]
	var figures []*Figure
	for _, l := range lanes {
		for _, name := range []string{figureAllAttached, figureAllDetached} {
			figures = append(figures, found.figure(l.figure(name), "s").atMost(planeUpstream, 1))
		}
		for _, name := range []string{figureSidecarIn, figureSidecarOut} {
			f := found.figure(l.figure(name), "ms").atMost(planeUpstream, 1)
			if l == many {
				least := found.figure(few.figure(name), "ms").Value[planeBelay]
				f.limit(fmt.Sprintf("<= %gx that on %d nodes", linear, few.volumes), linear*least)
			}
			figures = append(figures, f)
		}
	}
	return append(figures, found.callFigures(labelsOf(lanes...)...)...), nil
}

// laneTurn is one turn of one plane's attacher on a lane.
func (r *rig) laneTurn(ctx context.Context, size Size, plane string, l *lane, found *samples, flags ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, size.AttachLimit, fmt.Errorf("%s's turn, %s, did not end within %v", plane, l.label, size.AttachLimit))
	defer cancel()
	s, _, err := r.startSidecar(ctx, plane, l, flags...)
	if err != nil {
		return err
	}
	before := l.driver.asked()
	in, cpuIn, err := s.costOf(ctx, s.attachAll)
	if err != nil {
		return err
	}
	out, cpuOut, err := s.costOf(ctx, s.detachAll)
	if err != nil {
		return err
	}
	asked := l.driver.asked().since(before)
	found.called(plane, asked, l.volumes, l.label)
	found.seconds(l.figure(figureAllAttached), plane, in)
	found.seconds(l.figure(figureAllDetached), plane, out)
	perVolume := func(d time.Duration) float64 { return milli(d) / float64(l.volumes) }
	found.add(l.figure(figureSidecarIn), plane, perVolume(cpuIn))
	found.add(l.figure(figureSidecarOut), plane, perVolume(cpuOut))
	r.say("%s, %s: all attached %.2f s, all detached %.2f s, %d publishes, %d unpublishes, CPU %.2f and %.2f ms each", l.label, plane,
		in.Seconds(), out.Seconds(), asked.publishes, asked.unpublishes, perVolume(cpuIn), perVolume(cpuOut))
	return s.end(ctx)
}

// costOf returns how long something took, and the attacher's CPU time for it and a moment longer.
func (s *sidecar) costOf(ctx context.Context, do func(context.Context, int) (time.Duration, error)) (took, cpu time.Duration, err error) {
	before, err := s.cpu()
	if err != nil {
		return 0, 0, err
	}
	if took, err = do(ctx, 0); err != nil {
		return 0, 0, err
	}
	if err := pause(ctx, settle); err != nil {
		return 0, 0, err
	}
	after, err := s.cpu()
	return took, after - before, err
}
