package bench

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"belay.dev/belay/lab/audit"
	"belay.dev/belay/lab/cluster"
)

// moveLatency is that of the driver in moves.
const moveLatency = 200 * time.Millisecond

// attacherRequests counts what attaches and detaches cost the API server.
func attacherRequests(ctx context.Context, size Size, r *rig) ([]*Figure, error) {
	l := laneOf(0, size.FewVolumes)
	if err := r.addLanes(ctx, l); err != nil {
		return nil, err
	}
	in, out := requestsFigures()
	for _, plane := range attacherPlanes() {
		s, _, err := r.startSidecar(ctx, plane, l, tunedFlags(size)...)
		if err != nil {
			return nil, err
		}
		if err := s.countInto(ctx, in, s.attachAll); err != nil {
			return nil, err
		}
		if err := s.countInto(ctx, out, s.detachAll); err != nil {
			return nil, err
		}
		if err := s.end(ctx); err != nil {
			return nil, err
		}
		r.say("requests: %s done", plane)
	}
	return []*Figure{in.limit("<= 3: two finalizers, status", 3), out.limit("<= 1: finalizer", 1)}, nil
}

// requestsFigures are those of an attach and a detach, nothing measured yet.
func requestsFigures() (in, out *Figure) {
	return numbers(figureRequestsAttach, "requests", map[string][]float64{}), numbers(figureRequestsDetach, "requests", map[string][]float64{})
}

// countInto does something with all volumes and adds to a figure what the attacher asked the API server for meanwhile.
func (s *sidecar) countInto(ctx context.Context, f *Figure, do func(context.Context, int) (time.Duration, error)) error {
	// What the start, or the step before, asks for is not part of this.
	if err := pause(ctx, settle); err != nil {
		return err
	}
	began := time.Now()
	if _, err := do(ctx, 0); err != nil {
		return err
	}
	if err := pause(ctx, settle); err != nil {
		return err
	}
	all, err := s.lab.Requests(ctx, began, time.Time{})
	if err != nil {
		return err
	}
	if f.Parts == nil {
		f.Parts = map[string]map[string]float64{}
	}
	f.Parts[s.plane] = perVolume(audit.Of(all, userOf(s.plane)), s.lane.volumes)
	sum := 0.0
	for _, n := range f.Parts[s.plane] {
		sum += n
	}
	f.Value[s.plane] = math.Round(sum*1e6) / 1e6
	f.Samples[s.plane] = []float64{f.Value[s.plane]}
	return nil
}

// userOf is the user of a plane's attacher at the API server.
func userOf(plane string) string {
	if plane == planeUpstream {
		return cluster.UserCSIAttacher
	}
	return cluster.UserAttacher
}

// perVolume counts requests by right. It leaves out what is independent of volumes: leases, and watches that are opened again.
func perVolume(all []audit.Request, volumes int) map[string]float64 {
	all = slices.DeleteFunc(slices.Clone(all), func(r audit.Request) bool { return r.Resource == "leases" || r.Verb == "watch" })
	counts := map[string]float64{}
	for right, n := range maps.All(audit.Rights(all)) {
		counts[right] = float64(n) / float64(volumes)
	}
	return counts
}

// attacherMoves moves volumes whose next attachment is there before the last one is detached.
func attacherMoves(ctx context.Context, size Size, r *rig) ([]*Figure, error) {
	l := laneOf(moveLatency, size.FewVolumes)
	if err := r.addLanes(ctx, l); err != nil {
		return nil, err
	}
	found := &samples{}
	for round := range size.Rounds {
		for _, plane := range turns(attacherPlanes(), round) {
			if err := r.moveAll(ctx, size, plane, l, found); err != nil {
				return nil, err
			}
		}
	}
	// A publish that the driver has to refuse is one too many: the targets of callFigures hold for all.
	figures := []*Figure{found.figure(figureAllMoved, "s").atMost(planeUpstream, 1)}
	return append(figures, found.callFigures(l.label)...), nil
}

// moveAll is one turn of one plane: two attaches and two detaches of each volume.
func (r *rig) moveAll(ctx context.Context, size Size, plane string, l *lane, found *samples) error {
	ctx, cancel := context.WithTimeoutCause(ctx, size.BurstLimit, fmt.Errorf("%s's moves did not end within %v", plane, size.BurstLimit))
	defer cancel()
	s, _, err := r.startSidecar(ctx, plane, l, tunedFlags(size)...)
	if err != nil {
		return err
	}
	if _, err := s.attachAll(ctx, 0); err != nil {
		return err
	}
	before := l.driver.asked()
	there := s.facts(volumeAttached, 1)
	s.observer.forget(append(there, s.facts(volumeDetached, 1)...)...)
	began := time.Now()
	if err := each(ctx, l.volumes, func(ctx context.Context, i int) error {
		if err := s.makeAttachment(ctx, l.volume(i), l.driver.name, l.nodeOf(i, 1)); err != nil {
			return err
		}
		return s.deleteAttachment(ctx, l.volume(i), l.driver.name, l.nodeOf(i, 0))
	}); err != nil {
		return err
	}
	took, err := s.allSeen(ctx, began, there)
	if err != nil {
		return err
	}
	asked := l.driver.asked().since(before)
	found.called(plane, asked, l.volumes, l.label)
	found.seconds(figureAllMoved, plane, took)
	r.say("moves, %s: %.2f s, %d publishes, %d of them to a second node, %d calls overlapped", plane, took.Seconds(),
		asked.publishes, asked.secondNode, asked.overlaps)
	if _, err := s.detachAll(ctx, 1); err != nil {
		return err
	}
	return s.end(ctx)
}
