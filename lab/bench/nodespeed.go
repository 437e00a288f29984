package bench

import (
	"context"
	"fmt"
	"time"
)

// Names of the node agent's figures.
const (
	figureBoundInUse   = "pod made -> in use"
	figurePublished    = "reported -> published"
	figureCleared      = "pod deleted -> cleared"
	figureOne          = "one volume"
	figureMany         = "%d volumes at once"
	figureAgentMemory  = "peak memory"
	figureAgentIdle    = "CPU when nothing happens"
	figureAgentsMemory = "peak memory of all agents"
)

// nodeLatency brings one volume up and takes it down at a time.
func nodeLatency(ctx context.Context, size Size, r *rig) ([]*Figure, error) {
	n, err := startNode(ctx, r)
	if err != nil {
		return nil, err
	}
	var figures []*Figure
	next := 0
	for _, latency := range size.NodeLatencies {
		n.driver.setLatency(latency)
		all := &samples{}
		for i := range size.NodeCycles + 1 {
			into := all
			if i == 0 {
				into = &samples{} // to warm up
			}
			if err := n.nodeCycle(ctx, volumeName(next), into); err != nil {
				return nil, fmt.Errorf("volume %d with a driver of %s: %w", i, spaced(latency), err)
			}
			next++
		}
		named := func(name string) string { return fmt.Sprintf("%s, calls of %s", name, spaced(latency)) }
		published := numbers(named(figurePublished), "ms", all.all[figurePublished]).limit("<= 30 ms over the driver", 30)
		cleared := numbers(named(figureCleared), "ms", all.all[figureCleared]).limit("<= 50 ms over the driver", 50)
		figures = append(figures, numbers(named(figureBoundInUse), "ms", all.all[figureBoundInUse]), published, cleared)
		n.say("latency, calls of %s: reported -> published %.1f ms, pod deleted -> cleared %.1f ms", spaced(latency),
			published.Value[planeBelay], cleared.Value[planeBelay])
	}
	return figures, nil
}

// nodeCycle is the life of one volume on the node. What the API server takes to store the report, or the pod's end, is
// counted, what the driver takes is not.
func (n *nodeRig) nodeCycle(ctx context.Context, volume string, into *samples) error {
	ctx, cancel := limited(ctx)
	defer cancel()
	if err := n.readyVolume(ctx, volume, n.node); err != nil {
		return err
	}
	pod := "pod-of-" + volume
	made := time.Now()
	if err := n.podWith(ctx, pod, n.node, volume); err != nil {
		return err
	}
	inUse, err := n.observer.when(ctx, volumeInUse(n.node, volume))
	if err != nil {
		return err
	}
	into.milliseconds(figureBoundInUse, planeBelay, inUse.Sub(made))
	if err := n.breathe(ctx); err != nil {
		return err
	}
	reporting := time.Now()
	if err := n.report(ctx, n.node, []string{volume}); err != nil {
		return err
	}
	published, err := n.driver.published(ctx, volume)
	if err != nil {
		return err
	}
	into.milliseconds(figurePublished, planeBelay, published.Sub(reporting)-n.driver.ownTime(volume))
	if err := n.breathe(ctx); err != nil {
		return err
	}
	n.driver.forget(volume)
	n.observer.forget(volumeFree(n.node, volume))
	deleting := time.Now()
	if err := n.remove(ctx, pod); err != nil {
		return err
	}
	cleared, err := n.observer.when(ctx, volumeFree(n.node, volume))
	if err != nil {
		return err
	}
	into.milliseconds(figureCleared, planeBelay, cleared.Sub(deleting)-n.driver.ownTime(volume))
	return n.report(ctx, n.node, nil)
}

// nodeParallel reports one volume, and then many at once.
func nodeParallel(ctx context.Context, size Size, r *rig) ([]*Figure, error) {
	n, err := startNode(ctx, r)
	if err != nil {
		return nil, err
	}
	var figures []*Figure
	next := 0
	for _, latency := range size.ParallelLatencies {
		n.driver.setLatency(latency)
		one, many := map[string][]float64{}, map[string][]float64{}
		for range size.Rounds + 1 {
			for _, volumes := range []int{1, size.NodeParallel} {
				took, err := n.together(ctx, next, volumes)
				if err != nil {
					return nil, err
				}
				next += volumes
				into := one
				if volumes > 1 {
					into = many
				}
				into[planeBelay] = append(into[planeBelay], milli(took))
			}
		}
		// The first of each warms up.
		one[planeBelay], many[planeBelay] = one[planeBelay][1:], many[planeBelay][1:]
		named := func(name string) string { return fmt.Sprintf("%s, calls of %s", name, spaced(latency)) }
		single := numbers(named(figureOne), "ms", one)
		all := numbers(named(fmt.Sprintf(figureMany, size.NodeParallel)), "ms", many)
		if latency > 0 {
			all.limit("<= 3x one", 3*single.Value[planeBelay])
			all.Targets[0].Is = fmt.Sprintf("%.1fx", all.Value[planeBelay]/single.Value[planeBelay])
		} // else there is only processor time, of the API server above all, and of that they need a hundred times as much
		figures = append(figures, single, all)
		n.say("parallel, calls of %s: one %.0f ms, %d at once %.0f ms", spaced(latency), single.Value[planeBelay], size.NodeParallel, all.Value[planeBelay])
	}
	return figures, nil
}

// together reports some volumes in one write, each of a pod of its own, and returns how long it took until the last was
// published, the driver's time included. Then it takes them all down.
func (n *nodeRig) together(ctx context.Context, first, volumes int) (time.Duration, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	var names []string
	for i := range volumes {
		names = append(names, volumeName(first+i))
	}
	if err := each(ctx, volumes, func(ctx context.Context, i int) error {
		if err := n.readyVolume(ctx, names[i], n.node); err != nil {
			return err
		}
		return n.podWith(ctx, "pod-of-"+names[i], n.node, names[i])
	}); err != nil {
		return 0, err
	}
	var used, free []fact
	for _, name := range names {
		used, free = append(used, volumeInUse(n.node, name)), append(free, volumeFree(n.node, name))
	}
	if _, err := n.observer.last(ctx, used); err != nil {
		return 0, err
	}
	if err := pause(ctx, settle); err != nil {
		return 0, err
	}
	reporting := time.Now()
	if err := n.report(ctx, n.node, names); err != nil {
		return 0, err
	}
	published, err := n.driver.published(ctx, names...)
	if err != nil {
		return 0, err
	}
	if err := each(ctx, volumes, func(ctx context.Context, i int) error { return n.remove(ctx, "pod-of-"+names[i]) }); err != nil {
		return 0, err
	}
	if _, err := n.observer.last(ctx, free); err != nil {
		return 0, err
	}
	return published.Sub(reporting), n.report(ctx, n.node, nil)
}
