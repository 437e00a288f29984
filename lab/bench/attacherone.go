package bench

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// breather is the pause before each step of one volume. csi-attacher as shipped may send ten requests at once, and five a
// second after that; a move takes four. So its limit does not bind, as in a cluster where little happens.
const breather = time.Second

// Comparisons of the two attachers. belay's has its flags as shipped in both.
const (
	asShipped     = "as shipped"
	upstreamTuned = "csi-attacher tuned"
)

func comparisons() []string { return []string{asShipped, upstreamTuned} }

// entrant is an attacher with its flags, and the comparisons that it takes part in.
type entrant struct {
	plane string
	flags []string
	in    []string
}

func (e entrant) String() string { return e.plane + " " + e.in[0] }

// entrants are, in this order: upstream as shipped, upstream tuned, belay as shipped.
func entrants(s Size) []entrant {
	return []entrant{
		{planeUpstream, nil, []string{asShipped}},
		{planeUpstream, tunedFlags(s), []string{upstreamTuned}},
		{planeBelay, nil, comparisons()},
	}
}

// took adds a number to a figure of each comparison that the entrant takes part in; name makes the figure's name of a comparison.
func (e entrant) took(found *samples, name func(comparison string) string, number float64) {
	for _, comparison := range e.in {
		found.add(name(comparison), e.plane, number)
	}
}

// alternately reverses the order in every other round: of each two, each is before the other equally often.
func alternately[T any](all []T, round int) []T {
	all = slices.Clone(all)
	if round%2 == 1 {
		slices.Reverse(all)
	}
	return all
}

// noSlower is how many times as long as upstream's belay may take where the driver's calls and the API writes are all there is. With a
// driver that answers at once this is less than one write more would take, and chance decides on less.
func noSlower(l *lane) float64 {
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

// oneUnit is that of the figures of a lane.
func oneUnit(l *lane) (unit string, of func(time.Duration) float64) {
	if l.driver.latency < time.Second {
		return "ms", milli
	}
	return "s", time.Duration.Seconds
}

// oneLanes are the lane of the driver that answers at once, on which all entrants take turns, and one for each entrant with a slow driver.
func oneLanes(size Size) (fast *lane, slow []*lane) {
	fast = laneOf(0, size.OneVolumes)
	for range entrants(size) {
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
	all, found := entrants(size), &samples{}
	for round := range size.Rounds {
		for _, e := range alternately(all, round) {
			if err := r.oneTurn(ctx, size, e, fast, found); err != nil {
				return nil, err
			}
		}
	}
	// While a slow driver works the machine has nothing to do.
	r.say("%s, %d attachers side by side", slow[0].label, len(slow))
	if err := sideBySide(ctx, slow, func(ctx context.Context, l *lane) error {
		return r.oneTurn(ctx, size, all[slices.Index(slow, l)], l, found)
	}); err != nil {
		return nil, err
	}
	return append(oneFigures(found, fast, slow[0]), found.callFigures(fast, slow[0])...), nil
}

// oneFigures are those of one attach and one move on the lanes, in both comparisons.
func oneFigures(found *samples, lanes ...*lane) []*Figure {
	var figures []*Figure
	for _, l := range lanes {
		unit, _ := oneUnit(l)
		for _, name := range []func(string) string{oneAttach(l), oneMove(l)} {
			for _, comparison := range comparisons() {
				figures = append(figures, found.figure(name(comparison), unit).atMost(planeUpstream, noSlower(l)).withSpread())
			}
		}
	}
	return figures
}

// oneTurn is one entrant's turn: each volume is attached, and then moved. In the end all are detached, which is not measured.
func (r *rig) oneTurn(ctx context.Context, size Size, e entrant, l *lane, found *samples) error {
	ctx, cancel := context.WithTimeoutCause(ctx, size.AttachLimit, fmt.Errorf("the turn of %v, %s, did not end within %v", e, l.label, size.AttachLimit))
	defer cancel()
	s, _, err := r.startSidecar(ctx, e.plane, l, e.flags...)
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
		e.took(found, oneAttach(l), of(attach))
		e.took(found, oneMove(l), of(move))
		attaches, moves = append(attaches, of(attach)), append(moves, of(move))
	}
	if _, err := s.detachAll(ctx, 1); err != nil {
		return err
	}
	found.called(l, e.plane, l.driver.asked().since(before), 2*l.volumes)
	r.say("%s, %v: medians of %d: attach %.2f %s, move %.2f %s", l.label, e, l.volumes, median(attaches), unit, median(moves), unit)
	return s.end(ctx)
}

// attachOne attaches a volume that no attacher has touched yet.
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

// moveOne detaches it, and attaches it to the next node once its attachment is gone, as a controller does.
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

// follow makes a volume's next attachment in the moment in which the one before is gone.
func (s *sidecar) follow(ctx context.Context, volume, from, to string) error {
	if _, err := s.observer.when(ctx, volumeDetached(from, volume)); err != nil {
		return s.orEnded(err)
	}
	return s.makeAttachment(ctx, volume, s.lane.driver.name, to)
}

// pauseBefore lets the attacher rest, and forgets what the next step is to bring about.
func (s *sidecar) pauseBefore(ctx context.Context, facts ...fact) error {
	if err := pause(ctx, breather); err != nil {
		return err
	}
	// No attacher is always met at the same moment of its ticks.
	if err := s.breathe(ctx); err != nil {
		return err
	}
	s.observer.forget(facts...)
	return nil
}
