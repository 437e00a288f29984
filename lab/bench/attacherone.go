package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"belay.dev/belay/lab/timeline"
)

// stepPause is the pause before each step of one volume. As shipped, csi-attacher may send ten requests at once, and then five
// a second; a move takes four. So the limit does not bind, as in a cluster in which little happens.
const stepPause = time.Second

// The two comparisons: csi-attacher as shipped, or with tunedFlags. belay-attacher is as shipped in both.
const (
	asShipped     = "as shipped"
	upstreamTuned = "csi-attacher tuned"
)

func comparisons() []string { return []string{asShipped, upstreamTuned} }

// variant is an attacher with its flags. in has the comparisons that its numbers belong to.
type variant struct {
	plane string
	flags []string
	in    []string
}

func (v variant) String() string { return v.plane + " " + v.in[0] }

// variants returns upstream as shipped, upstream tuned, and belay as shipped, in this order.
func variants(s Size) []variant {
	return []variant{
		{planeUpstream, nil, []string{asShipped}},
		{planeUpstream, tunedFlags(s), []string{upstreamTuned}},
		{planeBelay, nil, comparisons()},
	}
}

// took adds a number to the figures of the variant's comparisons; name returns the figure's name for a comparison.
func (v variant) took(found *samples, name func(comparison string) string, number float64) {
	for _, comparison := range v.in {
		found.add(name(comparison), v.plane, number)
	}
}

// labels returns the label of a lane in each comparison of the variant.
func (v variant) labels(l *lane) []string {
	var labels []string
	for _, comparison := range v.in {
		labels = append(labels, l.label+", "+comparison)
	}
	return labels
}

// comparedLabels returns the labels of lanes in both comparisons.
func comparedLabels(lanes ...*lane) []string {
	var labels []string
	for _, l := range lanes {
		labels = append(labels, variant{in: comparisons()}.labels(l)...)
	}
	return labels
}

// alternately reverses the order in every other round: of each two, each is before the other equally often.
func alternately[T any](all []T, round int) []T {
	all = slices.Clone(all)
	if round%2 == 1 {
		slices.Reverse(all)
	}
	return all
}

// slowdownLimit bounds belay's time as a multiple of upstream's where both consist of the same driver calls and API writes. With a
// driver that answers at once, an additional write would take more than the limit allows; a lower limit would be met or missed by chance.
func slowdownLimit(l *lane) float64 {
	if l.driver.latency == 0 {
		return 1.25
	}
	return 1.1
}

// oneAttach and oneMove name the figures of a lane.
func oneAttach(l *lane) func(string) string {
	return func(comparison string) string {
		return "one attach, " + driverThat(l.driver.latency) + ", " + comparison
	}
}

func oneMove(l *lane) func(string) string {
	return func(comparison string) string { return "one move, " + driverThat(l.driver.latency) + ", " + comparison }
}

// oneUnit returns the unit of a lane's figures, and what converts to it.
func oneUnit(l *lane) (unit string, of func(time.Duration) float64) {
	if l.driver.latency < time.Second {
		return "ms", milli
	}
	return "s", time.Duration.Seconds
}

// oneLanes returns a lane with a driver that answers at once, on which all variants take turns, and a lane with a slow driver for
// each variant.
func oneLanes(size Size) (fast *lane, slow []*lane) {
	fast = laneOf(0, size.OneVolumes)
	for range variants(size) {
		slow = append(slow, laneOf(size.SlowLatency, size.SlowVolumes))
	}
	distinct(slow)
	for _, l := range append(slow, fast) {
		l.label = "one volume at a time, " + driverThat(l.driver.latency)
	}
	return fast, slow
}

// attacherOne attaches and moves one volume at a time.
func attacherOne(ctx context.Context, size Size, r *rig) ([]*Figure, error) {
	fast, slow := oneLanes(size)
	if err := r.addLanes(ctx, append(slow, fast)...); err != nil {
		return nil, err
	}
	all, found := variants(size), &samples{}
	for round := range size.Rounds {
		for _, v := range alternately(all, round) {
			if err := r.oneTurn(ctx, size, v, fast, found); err != nil {
				return nil, err
			}
		}
	}
	// While a slow driver works, the machine is idle: the variants do not disturb each other.
	r.say("%s, %d attachers side by side", slow[0].label, len(slow))
	if err := sideBySide(ctx, slow, func(ctx context.Context, l *lane) error {
		return r.oneTurn(ctx, size, all[slices.Index(slow, l)], l, found)
	}); err != nil {
		return nil, err
	}
	return append(oneFigures(found, fast, slow[0]), found.callFigures(comparedLabels(fast, slow[0])...)...), nil
}

// oneFigures returns the figures of one attach and of one move on each lane, for both comparisons.
func oneFigures(found *samples, lanes ...*lane) []*Figure {
	var figures []*Figure
	for _, l := range lanes {
		unit, _ := oneUnit(l)
		for _, name := range []func(string) string{oneAttach(l), oneMove(l)} {
			for _, comparison := range comparisons() {
				figures = append(figures, found.figure(name(comparison), unit).atMost(planeUpstream, slowdownLimit(l)).withSpread())
			}
		}
	}
	return figures
}

// oneTurn is one turn of a variant: it attaches and moves each volume. At the end it detaches all, which is not measured.
func (r *rig) oneTurn(ctx context.Context, size Size, v variant, l *lane, found *samples) error {
	ctx, cancel := context.WithTimeoutCause(ctx, size.AttachLimit, fmt.Errorf("the turn of %v, %s, did not end within %v", v, l.label, size.AttachLimit))
	defer cancel()
	s, _, err := r.startSidecar(ctx, v.plane, l, v.flags...)
	if err != nil {
		return err
	}
	unit, of := oneUnit(l)
	before := l.driver.asked()
	var attaches, moves []float64
	for i := range l.volumes {
		attach, err := s.attachOne(ctx, i)
		if err != nil {
			return err
		}
		move, err := s.moveOne(ctx, i)
		if err != nil {
			return err
		}
		v.took(found, oneAttach(l), of(attach))
		v.took(found, oneMove(l), of(move))
		attaches, moves = append(attaches, of(attach)), append(moves, of(move))
	}
	if _, err := s.detachAll(ctx, 1); err != nil {
		return err
	}
	found.called(v.plane, l.driver.asked().since(before), 2*l.volumes, v.labels(l)...)
	r.say("%s, %v: medians of %d: attach %.2f %s, move %.2f %s", l.label, v, l.volumes, timeline.Median(attaches), unit, timeline.Median(moves), unit)
	return s.end(ctx)
}

// attachOne attaches a volume that has no attacher's finalizer yet.
func (s *sidecar) attachOne(ctx context.Context, i int) (time.Duration, error) {
	volume, node := s.lane.volume(i), s.lane.nodeOf(i, 0)
	if err := s.pauseBefore(ctx, volumeAttached(node, volume), volumeDetached(node, volume)); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := s.makeAttachment(ctx, volume, s.lane.driver.name, node); err != nil {
		return 0, err
	}
	return s.allSeen(ctx, began, []fact{volumeAttached(node, volume)})
}

// moveOne deletes the volume's attachment, and creates the one for the next node as soon as it is gone, as a controller does.
func (s *sidecar) moveOne(ctx context.Context, i int) (time.Duration, error) {
	volume, from, to := s.lane.volume(i), s.lane.nodeOf(i, 0), s.lane.nodeOf(i, 1)
	if err := s.pauseBefore(ctx, volumeDetached(from, volume), volumeAttached(to, volume), volumeDetached(to, volume)); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := s.deleteAttachment(ctx, volume, s.lane.driver.name, from); err != nil {
		return 0, err
	}
	if err := s.follow(ctx, volume, from, to); err != nil {
		return 0, err
	}
	return s.allSeen(ctx, began, []fact{volumeAttached(to, volume)})
}

// follow creates a volume's next attachment as soon as the previous one is gone.
func (s *sidecar) follow(ctx context.Context, volume, from, to string) error {
	if _, err := s.observer.when(ctx, volumeDetached(from, volume)); err != nil {
		return s.orEnded(err)
	}
	return s.makeAttachment(ctx, volume, s.lane.driver.name, to)
}

// pauseBefore pauses before a step, and forgets the facts that the step leads to.
func (s *sidecar) pauseBefore(ctx context.Context, facts ...fact) error {
	if err := pause(ctx, stepPause); err != nil {
		return err
	}
	// No attacher is always met at the same moment of its ticks.
	if err := s.breathe(ctx); err != nil {
		return err
	}
	s.observer.forget(facts...)
	return nil
}
