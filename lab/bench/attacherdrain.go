package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/timeline"
)

// shippedDrains is how often upstream as shipped drains a node with each driver. All run side by side: its rate limit or its ten
// worker threads bind, so it uses hardly any CPU time.
const shippedDrains = 3

func drainLast(l *lane) func(string) string {
	return func(comparison string) string { return l.label + ", " + comparison + ": last attached elsewhere" }
}

func drainMedian(l *lane) func(string) string {
	return func(comparison string) string {
		return l.label + ", " + comparison + ": median volume attached elsewhere"
	}
}

// drainLanes returns, for each driver, a lane on which belay and upstream tuned take turns, and the lanes of upstream as shipped.
func drainLanes(size Size) (inTurn, shipped []*lane) {
	for _, latency := range size.drainLatencies() {
		lanes := []*lane{laneOf(latency, size.DrainVolumes)}
		for range shippedDrains {
			lanes = append(lanes, laneOf(latency, size.DrainVolumes))
		}
		distinct(lanes)
		for _, l := range lanes {
			l.label = fmt.Sprintf("drain of %d, %s", l.volumes, driverThat(latency))
			l.finalizers = []string{kube.AttacherFinalizer(l.driver.name)}
		}
		inTurn, shipped = append(inTurn, lanes[0]), append(shipped, lanes[1:]...)
	}
	return inTurn, shipped
}

// drainLatencies are those of a driver that answers at once, of the slowest of Latencies, and of a slow driver.
func (s Size) drainLatencies() []time.Duration {
	return []time.Duration{s.Latencies[0], s.Latencies[len(s.Latencies)-1], s.SlowLatency}
}

// roundsOf is how often each attacher has its turn on a lane.
func (s Size) roundsOf(l *lane) int {
	if l.driver.latency == s.SlowLatency {
		return s.slowRounds()
	}
	return s.Rounds
}

// slowRounds is how often each attacher has its turn with the slow driver, whose own time is most of it.
func (s Size) slowRounds() int { return (s.Rounds + 1) / 2 }

// attacherDrain moves all volumes of a node to other nodes.
func attacherDrain(ctx context.Context, size Size, r *rig) ([]*Figure, error) {
	inTurn, shipped := drainLanes(size)
	if err := r.addLanes(ctx, append(shipped, inTurn...)...); err != nil {
		return nil, err
	}
	all, found := variants(size), &samples{}
	r.say("drain: %v, %d drains side by side; this takes minutes", all[0], len(shipped))
	if err := sideBySide(ctx, shipped, func(ctx context.Context, l *lane) error { return r.drainTurn(ctx, size, all[0], l, found) }); err != nil {
		return nil, err
	}
	for round := range size.Rounds {
		for _, l := range inTurn {
			if round >= size.roundsOf(l) {
				continue
			}
			for _, v := range alternately(all[1:], round) {
				if err := r.drainTurn(ctx, size, v, l, found); err != nil {
					return nil, err
				}
			}
		}
	}
	return append(drainFigures(found, inTurn...), found.callFigures(comparedLabels(inTurn...)...)...), nil
}

// drainFigures returns the figures of each lane, for both comparisons.
func drainFigures(found *samples, lanes ...*lane) []*Figure {
	var figures []*Figure
	for _, l := range lanes {
		for _, comparison := range comparisons() {
			factor := 1.0 // as shipped, upstream is bound by its flags
			if comparison == upstreamTuned {
				factor = slowdownLimit(l)
			}
			for _, name := range []func(string) string{drainLast(l), drainMedian(l)} {
				figures = append(figures, found.figure(name(comparison), "s").atMost(planeUpstream, factor).withSpread())
			}
		}
	}
	return figures
}

// drainTurn is one turn of a variant. It starts with all volumes attached to one node.
func (r *rig) drainTurn(ctx context.Context, size Size, v variant, l *lane, found *samples) error {
	ctx, cancel := context.WithTimeoutCause(ctx, size.AttachLimit, fmt.Errorf("the turn of %v, %s, did not end within %v", v, l.label, size.AttachLimit))
	defer cancel()
	if err := r.fillNode(ctx, l); err != nil {
		return err
	}
	s, _, err := r.startSidecar(ctx, v.plane, l, v.flags...)
	if err != nil {
		return err
	}
	// The requests of the start and of the probe are not part of the drain. Afterwards the rate limit allows a whole burst again.
	if err := pause(ctx, settle); err != nil {
		return err
	}
	before := l.driver.asked()
	took, err := s.drain(ctx)
	if err != nil {
		return err
	}
	asked := l.driver.asked().since(before)
	found.called(v.plane, asked, l.volumes, v.labels(l)...)
	v.took(found, drainLast(l), slices.Max(took))
	v.took(found, drainMedian(l), timeline.Median(took))
	r.say("%s, %v: last %.2f s, median volume %.2f s, %d publishes, %d unpublishes", l.label, v, slices.Max(took), timeline.Median(took),
		asked.publishes, asked.unpublishes)
	if err := s.halt(ctx); err != nil {
		return err
	}
	return r.emptyNodes(ctx, l)
}

// drainedNode is the node that all volumes leave; nextNode is where the i-th volume goes.
func drainedNode() string   { return nodeName(0) }
func nextNode(i int) string { return nodeName(1 + i%(laneNodes-1)) }

// drain deletes all attachments at once, and creates each volume's next one as soon as the previous one is gone. It returns
// after how many seconds each volume was attached to its next node.
func (s *sidecar) drain(ctx context.Context) ([]float64, error) {
	l := s.lane
	for i := range l.volumes {
		s.observer.forget(volumeDetached(drainedNode(), l.volume(i)), volumeAttached(nextNode(i), l.volume(i)), volumeDetached(nextNode(i), l.volume(i)))
	}
	began := time.Now()
	group, groupCtx := errgroup.WithContext(ctx)
	for i := range l.volumes {
		group.Go(func() error { return s.follow(groupCtx, l.volume(i), drainedNode(), nextNode(i)) })
	}
	group.Go(func() error {
		return each(groupCtx, l.volumes, func(ctx context.Context, i int) error {
			return s.deleteAttachment(ctx, l.volume(i), l.driver.name, drainedNode())
		})
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	took := make([]float64, l.volumes)
	for i := range took {
		d, err := s.allSeen(ctx, began, []fact{volumeAttached(nextNode(i), l.volume(i))})
		if err != nil {
			return nil, err
		}
		took[i] = d.Seconds()
	}
	return took, nil
}

// fillNode writes attachments of all volumes of a lane to the node to be drained, as if attached long ago. No attacher may be running.
func (r *rig) fillNode(ctx context.Context, l *lane) error {
	var full []fact
	for i := range l.volumes {
		full = append(full, volumeAttached(drainedNode(), l.volume(i)))
	}
	r.observer.forget(full...)
	if err := each(ctx, l.volumes, func(ctx context.Context, i int) error {
		if err := l.driver.hold(l.volume(i), drainedNode()); err != nil {
			return err
		}
		return r.attached(ctx, l.driver.name, l.volume(i), drainedNode())
	}); err != nil {
		return err
	}
	_, err := r.observer.last(ctx, full)
	return err
}

// emptyNodes removes the attachments that the drain leaves. No attacher may be running.
func (r *rig) emptyNodes(ctx context.Context, l *lane) error {
	return each(ctx, l.volumes, func(ctx context.Context, i int) error {
		if err := r.stripAttachment(ctx, kube.AttachmentName(l.volume(i), l.driver.name, nextNode(i))); err != nil {
			return err
		}
		if err := r.deleteAttachment(ctx, l.volume(i), l.driver.name, nextNode(i)); err != nil {
			return err
		}
		if _, err := r.observer.when(ctx, volumeDetached(nextNode(i), l.volume(i))); err != nil {
			return err
		}
		l.driver.release(l.volume(i))
		return nil
	})
}

// stripAttachment removes all finalizers from a VolumeAttachment.
func (o objects) stripAttachment(ctx context.Context, attachment string) error {
	body := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := o.client.StorageV1().VolumeAttachments().Patch(ctx, attachment, types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("removing the finalizers of attachment %s: %w", attachment, err)
	}
	return nil
}
