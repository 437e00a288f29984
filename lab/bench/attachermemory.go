package bench

import (
	"context"
	"time"

	"belay.dev/belay/internal/kube"
)

// attacherMemory starts the attachers over a large state in which nothing is to be done.
func attacherMemory(ctx context.Context, size Size, r *rig) ([]*Figure, error) {
	l := laneOf(0, size.ScaleVolumes)
	if err := r.seedAttached(ctx, size, l); err != nil {
		return nil, err
	}
	if err := r.serveLane(l); err != nil {
		return nil, err
	}
	if err := r.observe(ctx); err != nil {
		return nil, err
	}
	before, err := r.versions(ctx)
	if err != nil {
		return nil, err
	}
	found := &samples{}
	for round := range size.Rounds {
		for _, plane := range turns(attacherPlanes(), round) {
			if err := r.memoryOf(ctx, size, plane, l, found); err != nil {
				return nil, err
			}
			after, err := r.versions(ctx)
			if err != nil {
				return nil, err
			}
			found.add(figureWritten, plane, float64(differences(before, after)))
			before = after
		}
	}
	return []*Figure{
		found.figure(figureMemory, "MiB").atMost(planeUpstream, 1.0/2),
		found.figure(figureIdle, "% of a core").limit("< 1 %", 1),
		found.figure(figureWritten, "objects").limitEach("<= 1: the new leader's mark", 1),
		found.figure(figureSidecarOn, "s"),
		found.figure(figureStartCPU, "s"),
	}, nil
}

// seedAttached makes nodes, and volumes that were attached to them long ago.
func (r *rig) seedAttached(ctx context.Context, size Size, l *lane) error {
	began := time.Now()
	if err := each(ctx, size.ScaleNodes, func(ctx context.Context, i int) error { return r.csiNode(ctx, nodeName(i), l) }); err != nil {
		return err
	}
	if err := r.csiNode(ctx, probeNode, l); err != nil {
		return err
	}
	if err := r.persistentVolume(ctx, l.probe(), l.driver.name); err != nil {
		return err
	}
	interval := max(size.ScaleVolumes/5, 1)
	return each(ctx, size.ScaleVolumes, func(ctx context.Context, i int) error {
		node := nodeName(i % size.ScaleNodes)
		if err := r.persistentVolume(ctx, l.volume(i), l.driver.name, kube.AttacherFinalizer(l.driver.name)); err != nil {
			return err
		}
		if err := r.attached(ctx, l.driver.name, l.volume(i), node); err != nil {
			return err
		}
		if (i+1)%interval == 0 {
			r.say("memory: %d of %d volumes (%.0f s)", i+1, size.ScaleVolumes, time.Since(began).Seconds())
		}
		return nil
	})
}

// memoryOf starts one attacher over the state, sees it attach and detach one volume more, and measures what it costs when
// nothing happens.
func (r *rig) memoryOf(ctx context.Context, size Size, plane string, l *lane, found *samples) error {
	s, ready, err := r.startSidecar(ctx, plane, l)
	if err != nil {
		return err
	}
	used, err := s.cpu()
	if err != nil {
		return err
	}
	peak, idle, err := r.useOf(ctx, s.component, rest, size.idleTime())
	if err != nil {
		return err
	}
	found.add(figureMemory, plane, peak)
	found.add(figureIdle, plane, idle)
	found.seconds(figureSidecarOn, plane, ready)
	found.seconds(figureStartCPU, plane, used)
	r.say("memory, %s: peak %.0f MiB, first attach after %.1f s, %.2f s of CPU until then, idle %.2f %% of a core", plane, peak,
		ready.Seconds(), used.Seconds(), idle)
	return s.halt(ctx)
}
