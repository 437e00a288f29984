package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"belay.dev/belay/lab/proc"
)

// initSuffix ends the record name of a node's process 1, the child of the process that made the
// namespaces. It ends after every process of the node.
const initSuffix = ".init"

// startNode boots a node.
func (c *Cluster) startNode(name string) error {
	spec, node, err := c.specs.node(name)
	if err != nil {
		return err
	}
	spec.Exited = func(error) { c.nodeDied(name) }
	c.mu.Lock()
	c.nodes[name] = node
	c.mu.Unlock()
	if err := c.launch(spec); err != nil {
		return err
	}
	return nil
}

// nodeDied runs after the process that holds a node's namespaces has ended and before it is
// started again: whatever the node still had is taken from it.
func (c *Cluster) nodeDied(name string) {
	if err := c.takePower(name); err != nil {
		c.options.Progress("after the end of %s: %v", name, err)
	}
}

// takePower makes sure that nothing of a node continues: its processes, its I/O, its loop devices.
func (c *Cluster) takePower(name string) error {
	errs := []error{endNodeProcesses(c.paths, name)}
	if fabric := c.Fabric(); fabric != nil {
		ctx, cancel := context.WithTimeout(context.Background(), cutWithin)
		defer cancel()
		if err := fabric.Cut(ctx, name); err != nil && !c.isDown() {
			errs = append(errs, err)
		}
	}
	if node := c.Node(name); node != nil {
		errs = append(errs, node.AwaitEnd()) // after the cut: I/O that hangs would keep them
	}
	_, err := releaseLoops(context.Background(), c.paths.node(name))
	return errors.Join(append(errs, err)...)
}

const cutWithin = 30 * time.Second

// endNodeProcesses waits for the end of a node's process 1, which the death of its parent kills,
// and ends it if that did not happen.
func endNodeProcesses(p paths, name string) error {
	inits, err := findInits(p, name)
	if err != nil {
		return err
	}
	var errs []error
	for _, record := range inits {
		errs = append(errs, record.End(0))
	}
	return errors.Join(errs...)
}

// findInits finds the processes 1 of a node by their command line, which names the node's own
// configuration file: belay-lab node-init --config <that file>. The process that made the
// namespaces has the same arguments after its own name, which distinguishes it.
func findInits(p paths, name string) ([]proc.Record, error) {
	commandLines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var found []proc.Record
	for _, path := range commandLines {
		content, err := os.ReadFile(path)
		if err != nil {
			continue // ended since the listing
		}
		args := strings.Split(strings.TrimSuffix(string(content), "\x00"), "\x00")
		if len(args) < 4 || args[1] != "node-init" || args[len(args)-1] != p.nodeConfig(name) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		if record, err := proc.Of(name+initSuffix, pid); err == nil {
			found = append(found, record)
		}
	}
	return found, nil
}

// PowerOff cuts the power of a node: all its processes die at once, its mounts vanish, its I/O
// fails. The node stays off until PowerOn. Attachments stay as they are, as with a real machine.
func (c *Cluster) PowerOff(node string) error {
	if c.Node(node) == nil {
		return fmt.Errorf("the lab has no node %q", node)
	}
	process, err := c.process(node)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- process.PowerOff() }() // a frozen node ends only once it is thawed
	if err := errors.Join(c.cutFrozen(node), <-ended); err != nil {
		return fmt.Errorf("powering off %s: %w", node, err)
	}
	// The supervisor has done this when the process ended, but only logged what went wrong.
	if err := c.takePower(node); err != nil {
		return fmt.Errorf("powering off %s: %w", node, err)
	}
	c.links[node].loseMachine()
	return c.awaitPortFree(node)
}

// cutFrozen lets the processes of a frozen node be killed, which the kernel does not while they are frozen. Their I/O is cut before: what
// they could still do until the kill has no effect.
func (c *Cluster) cutFrozen(node string) error {
	c.mu.Lock()
	frozen := c.frozen[node]
	delete(c.frozen, node)
	c.mu.Unlock()
	if !frozen {
		return nil
	}
	if fabric := c.Fabric(); fabric != nil {
		ctx, cancel := context.WithTimeout(context.Background(), cutWithin)
		defer cancel()
		if err := fabric.Cut(ctx, node); err != nil {
			return fmt.Errorf("cutting the I/O of a frozen node: %w", err)
		}
	}
	return errors.Join(c.Node(node).KillFrozen(), c.Node(node).Thaw())
}

// PowerOn starts a node that was powered off, as a machine that boots: with a new boot ID. It
// returns when the node has been started, not when it is Ready; nil if it is on.
func (c *Cluster) PowerOn(node string) error {
	if c.Node(node) == nil {
		return fmt.Errorf("the lab has no node %q", node)
	}
	process, err := c.process(node)
	if err != nil {
		return err
	}
	select {
	case <-process.Done():
		c.links[node].boot()
		return c.startNode(node)
	default:
		return nil
	}
}

// IsOn reports whether a node has power.
func (c *Cluster) IsOn(node string) bool {
	process, err := c.process(node)
	if err != nil {
		return false
	}
	select {
	case <-process.Done():
		return false
	default:
		return true
	}
}
