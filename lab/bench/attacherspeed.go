package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// shippedTarget bounds the last attach of FewVolumes with the slowest driver, flags as shipped.
const shippedTarget = 5 * time.Second

// findings are measured numbers by figure and plane. They may come from several lanes at once.
type findings struct {
	mu  sync.Mutex
	all map[string]map[string][]float64
}

func (f *findings) add(figure, plane string, value float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[string]map[string][]float64{}
	}
	record(f.all, figure, plane, value)
}

func (f *findings) seconds(figure, plane string, d time.Duration) { f.add(figure, plane, d.Seconds()) }

// called adds what a lane's driver was asked in a turn of so many attaches and detaches.
func (f *findings) called(l *lane, plane string, asked calls) {
	f.add(l.figure(figurePublish), plane, float64(asked.publishes)/float64(l.volumes))
	f.add(l.figure(figureUnpublish), plane, float64(asked.unpublishes)/float64(l.volumes))
	f.add(figureOverlaps, plane, float64(asked.overlaps))
	f.add(figureSecondNode, plane, float64(asked.secondNode))
}

// callFigures are what must be so whatever is measured.
func (f *findings) callFigures(lanes ...*lane) []*Figure {
	var figures []*Figure
	for _, l := range lanes {
		figures = append(figures,
			worst(l.figure(figurePublish), "calls", f.all[l.figure(figurePublish)]).limit("exactly one", 1),
			worst(l.figure(figureUnpublish), "calls", f.all[l.figure(figureUnpublish)]).limit("exactly one", 1))
	}
	return append(figures,
		worst(figureOverlaps, "calls", f.all[figureOverlaps]).limit("none", 0),
		worst(figureSecondNode, "calls", f.all[figureSecondNode]).limit("none", 0))
}

// worst is numbers with the greatest sample of each plane for its value: of mistakes no median is of use.
func worst(name, unit string, samples map[string][]float64) *Figure {
	f := numbers(name, unit, samples)
	for plane, all := range samples {
		f.Value[plane] = slices.Max(all)
	}
	return f
}

// shipped attaches many volumes at once with the flags as shipped.
func shipped(ctx context.Context, size Size, rig rigOptions) (_ []*Figure, err error) {
	var lanes []*lane
	for _, latency := range size.Latencies {
		lanes = append(lanes, laneOf(latency, size.AttachVolumes))
	}
	few := laneOf(size.Latencies[len(size.Latencies)-1], size.FewVolumes)
	lanes = append(lanes, few)
	r, err := openLanes(ctx, rig, lanes...)
	if err != nil {
		return nil, err
	}
	defer func() { err = joinClose(ctx, r, err) }()
	var found findings
	r.say("shipped: upstream, %d lanes side by side; this takes minutes", len(lanes))
	if err := sideBySide(ctx, lanes, func(ctx context.Context, l *lane) error {
		return r.laneTurn(ctx, size, planeUpstream, l, &found)
	}); err != nil {
		return nil, err
	}
	for range size.Rounds {
		for _, l := range lanes {
			if err := r.laneTurn(ctx, size, planeBelay, l, &found); err != nil {
				return nil, err
			}
		}
	}
	var figures []*Figure
	for _, l := range lanes {
		in := numbers(l.figure(figureAllAttached), "s", found.all[l.figure(figureAllAttached)])
		if l == few {
			in.limit("<= "+spaced(shippedTarget), shippedTarget.Seconds())
		}
		in.atMost(planeUpstream, 1)
		figures = append(figures, in, numbers(l.figure(figureAllDetached), "s", found.all[l.figure(figureAllDetached)]).atMost(planeUpstream, 1))
	}
	return append(figures, found.callFigures(lanes...)...), nil
}

// tuned does the same with flags that do not bind, and measures the attachers' CPU time.
func tuned(ctx context.Context, size Size, rig rigOptions) (_ []*Figure, err error) {
	var lanes []*lane
	for _, latency := range size.Latencies {
		lanes = append(lanes, laneOf(latency, size.AttachVolumes))
	}
	r, err := openLanes(ctx, rig, lanes...)
	if err != nil {
		return nil, err
	}
	defer func() { err = joinClose(ctx, r, err) }()
	var found findings
	for range size.Rounds {
		for _, l := range lanes {
			for _, plane := range attacherPlanes() {
				if err := r.laneTurn(ctx, size, plane, l, &found, tunedFlags(size)...); err != nil {
					return nil, err
				}
			}
		}
	}
	var figures []*Figure
	for _, l := range lanes {
		for _, name := range []string{figureAllAttached, figureAllDetached} {
			figures = append(figures, numbers(l.figure(name), "s", found.all[l.figure(name)]).atMost(planeUpstream, 1))
		}
		for _, name := range []string{figureSidecarIn, figureSidecarOut} {
			figures = append(figures, numbers(l.figure(name), "ms", found.all[l.figure(name)]).atMost(planeUpstream, 1))
		}
	}
	return append(figures, found.callFigures(lanes...)...), nil
}

// laneTurn is one turn of one plane's attacher on a lane.
func (r *rig) laneTurn(ctx context.Context, size Size, plane string, l *lane, found *findings, flags ...string) error {
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
	found.called(l, plane, asked)
	found.seconds(l.figure(figureAllAttached), plane, in)
	found.seconds(l.figure(figureAllDetached), plane, out)
	perVolume := func(d time.Duration) float64 { return d.Seconds() * 1000 / float64(l.volumes) }
	found.add(l.figure(figureSidecarIn), plane, perVolume(cpuIn))
	found.add(l.figure(figureSidecarOut), plane, perVolume(cpuOut))
	r.say("%s, %s: all attached %.2f s, all detached %.2f s, %d publishes, %d unpublishes, CPU %.2f and %.2f ms each", l.label, plane,
		in.Seconds(), out.Seconds(), asked.publishes, asked.unpublishes, perVolume(cpuIn), perVolume(cpuOut))
	return s.end(ctx)
}

// costOf does something and tells how long it took and the attacher's CPU time, and that of a moment longer.
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
