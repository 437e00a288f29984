package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"belay.dev/belay/lab/nodes"
	"belay.dev/belay/lab/proc"
)

// shutdownWithin bounds the orderly stop of a node; then its power is cut.
const shutdownWithin = 10 * time.Second

// Down stops everything and removes it: processes, mounts, loop devices, the lab's folder. Only
// the logs stay, at LogDir. Calling it again is harmless.
func (c *Cluster) Down(ctx context.Context) error {
	c.mu.Lock()
	again := c.down
	c.down = true
	c.mu.Unlock()
	if again {
		return nil
	}
	errs := []error{c.stopNodes(ctx), c.stopOthers(ctx)}
	if fabric := c.Fabric(); fabric != nil {
		fabric.Close()
	}
	if c.control != nil {
		errs = append(errs, c.control.close())
	}
	errs = append(errs, c.disconnect())
	_, err := cleanLab(ctx, c.paths)
	errs = append(errs, err)
	c.chooser.release()
	if c.lock != nil {
		errs = append(errs, c.lock.Close())
	}
	if err := errors.Join(errs...); err != nil {
		err = fmt.Errorf("shutting lab %s down: %w", c.options.Name, err)
		c.options.Progress("%v", err)
		return err
	}
	return nil
}

func (c *Cluster) isDown() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.down
}

// stopNodes shuts all nodes down side by side while the storage still answers, so that file
// systems are unmounted; a node that does not manage, or hangs, loses its power.
func (c *Cluster) stopNodes(ctx context.Context) error {
	c.mu.Lock()
	handles := make([]*nodes.Node, 0, len(c.nodes))
	for _, node := range c.nodes {
		handles = append(handles, node)
	}
	c.mu.Unlock()
	errs := make([]error, len(handles))
	var group sync.WaitGroup
	for i, node := range handles {
		group.Go(func() { errs[i] = c.stopNode(ctx, node) })
	}
	group.Wait()
	return errors.Join(errs...)
}

func (c *Cluster) stopNode(ctx context.Context, node *nodes.Node) error {
	name := node.Config.Name
	if slices.Contains(c.frozenNodes(), name) {
		return c.PowerOff(name)
	}
	process, err := c.process(name)
	if err != nil {
		return nil // it never started
	}
	if c.IsOn(name) {
		process.LetEnd() // it would boot again
		orderly, cancel := context.WithTimeout(ctx, shutdownWithin)
		defer cancel()
		if err := node.Shutdown(orderly); err != nil {
			c.options.Progress("%s does not shut down in order, its power is cut: %v", name, err)
		}
	}
	return process.PowerOff()
}

// stopOthers ends the components of the attach plane with a warning, so that they may finish what
// they do, and the rest without: the API server takes long to end while watches are open, and
// what it holds is thrown away.
func (c *Cluster) stopOthers(ctx context.Context) error {
	c.mu.Lock()
	processes := make([]*proc.Process, 0, len(c.processes))
	for _, process := range c.processes {
		processes = append(processes, process)
	}
	c.mu.Unlock()
	gentle := func(process *proc.Process) bool {
		return !slices.Contains([]string{componentEtcd, componentAPIServer, componentKCM, componentScheduler}, process.Name())
	}
	return errors.Join(
		stopSideBySide(ctx, processes, gentle, func(ctx context.Context, p *proc.Process) error {
			grace, cancel := context.WithTimeout(ctx, gentleGrace)
			defer cancel()
			return p.Stop(grace)
		}),
		stopSideBySide(ctx, processes, func(p *proc.Process) bool { return !gentle(p) }, func(_ context.Context, p *proc.Process) error { return p.PowerOff() }),
	)
}

const gentleGrace = 2 * time.Second

func stopSideBySide(ctx context.Context, processes []*proc.Process, which func(*proc.Process) bool, stop func(context.Context, *proc.Process) error) error {
	errs := make([]error, len(processes))
	var group sync.WaitGroup
	for i, process := range processes {
		if which(process) {
			group.Go(func() { errs[i] = stop(ctx, process) })
		}
	}
	group.Wait()
	return errors.Join(errs...)
}
