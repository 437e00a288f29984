package bench

import (
	"context"
	"time"

	"belay.dev/belay/internal/kube"
)

// attacherMemory starts the attachers over a large state that is as it shall be.
func attacherMemory(ctx context.Context, size Size, rig rigOptions) (_ []*Figure, err error) {
	rig.later = true
	r, err := openRig(ctx, rig)
	if err != nil {
		return nil, err
	}
	defer func() { err = joinClose(ctx, r, err) }()
	l := laneOf(0, size.ScaleVolumes)
	if err := r.seedAttached(ctx, size, l); err != nil {
		return nil, err
	}
	if err := r.serveLane(l); err != nil {
		return nil, err
	}
	if r.observer, err = observe(ctx, r.client); err != nil {
		return nil, err
	}
	before, err := r.versions(ctx)
	if err != nil {
		return nil, err
	}
	var found findings
	for range size.Rounds {
		for _, plane := range attacherPlanes() {
			if err := r.memoryOf(ctx, size, plane, l, &found); err != nil {
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
		numbers(figureMemory, "MiB", found.all[figureMemory]).atMost(planeUpstream, 1.0/2),
		numbers(figureIdle, "% of a core", found.all[figureIdle]).limit("< 1 %", 1),
		worst(figureWritten, "objects", found.all[figureWritten]).limit("<= 1: the new leader's mark", 1),
		numbers(figureSidecarOn, "s", found.all[figureSidecarOn]),
		numbers(figureStartCPU, "s", found.all[figureStartCPU]),
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
	told := max(size.ScaleVolumes/5, 1)
	return each(ctx, size.ScaleVolumes, func(ctx context.Context, i int) error {
		node := nodeName(i % size.ScaleNodes)
		if err := r.persistentVolume(ctx, l.volume(i), l.driver.name, kube.AttacherFinalizer(l.driver.name)); err != nil {
			return err
		}
		if err := r.attachedBy(ctx, l.driver.name, l.volume(i), node); err != nil {
			return err
		}
		if (i+1)%told == 0 {
			r.say("memory: %d of %d volumes (%.0f s)", i+1, size.ScaleVolumes, time.Since(began).Seconds())
		}
		return nil
	})
}

// memoryOf starts one attacher over the state, sees it attach and detach one volume more, and measures what it costs when
// nothing happens.
func (r *rig) memoryOf(ctx context.Context, size Size, plane string, l *lane, found *findings) error {
	s, ready, err := r.startSidecar(ctx, plane, l)
	if err != nil {
		return err
	}
	used, err := s.cpu()
	if err != nil {
		return err
	}
	if err := pause(ctx, rest); err != nil {
		return err
	}
	before, err := s.cpu()
	if err != nil {
		return err
	}
	from := time.Now()
	if err := pause(ctx, size.idleTime()); err != nil {
		return err
	}
	after, err := s.cpu()
	if err != nil {
		return err
	}
	idle := 100 * (after - before).Seconds() / time.Since(from).Seconds()
	pid, err := s.pid()
	if err != nil {
		return err
	}
	peak, err := peakMemory(pid)
	if err != nil {
		return err
	}
	found.add(figureMemory, plane, float64(peak)/(1<<20))
	found.add(figureIdle, plane, idle)
	found.seconds(figureSidecarOn, plane, ready)
	found.seconds(figureStartCPU, plane, used)
	r.say("memory, %s: peak %.0f MiB, first attach after %.1f s, %.2f s of CPU until then, idle %.2f %% of a core", plane, float64(peak)/(1<<20),
		ready.Seconds(), used.Seconds(), idle)
	return s.halt(ctx)
}
