package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// volumesPerPod in the memory parts.
const volumesPerPod = 2

// nodeMemory runs one belay-node with many pods.
func nodeMemory(ctx context.Context, size Size, r *rig) ([]*Figure, error) {
	n, err := startNode(ctx, r)
	if err != nil {
		return nil, err
	}
	names, err := n.fill(ctx, 0, size.NodePods, n.node)
	if err != nil {
		return nil, err
	}
	if err := n.mounted(ctx, size, len(names), n.driver.count); err != nil {
		return nil, err
	}
	peak, idle, err := n.useOf(ctx, nodeComponent, settle, size.Idle)
	if err != nil {
		return nil, err
	}
	n.say("memory: %d pods with %d volumes on one agent: peak %.0f MiB, idle %.2f %% of a core; stats were asked for %d times",
		size.NodePods, len(names), peak, idle, n.driver.statsCalls())
	return []*Figure{
		numbers(figureAgentMemory, "MiB", map[string][]float64{planeBelay: {peak}}).limit("< 150 MiB", 150),
		numbers(figureAgentIdle, "% of a core", map[string][]float64{planeBelay: {idle}}).limit("< 1 %", 1),
	}, nil
}

// fill makes pods with their volumes on a node: attached, reported, and not yet in use.
func (r *rig) fill(ctx context.Context, first, pods int, node string) ([]string, error) {
	var names []string
	for i := range pods * volumesPerPod {
		names = append(names, volumeName(first+i))
	}
	if err := each(ctx, len(names), func(ctx context.Context, i int) error { return r.readyVolume(ctx, names[i], node) }); err != nil {
		return nil, err
	}
	if err := r.report(ctx, node, names); err != nil {
		return nil, err
	}
	return names, each(ctx, pods, func(ctx context.Context, i int) error {
		return r.podWith(ctx, fmt.Sprintf("pod-%s-%04d", node, i), node, names[volumesPerPod*i:volumesPerPod*(i+1)]...)
	})
}

// mounted waits until so many volumes have been published.
func (r *rig) mounted(ctx context.Context, size Size, volumes int, count func() int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, size.BurstLimit, fmt.Errorf("not within %v", size.BurstLimit))
	defer cancel()
	return r.poll(ctx, fmt.Sprintf("%d volumes to be published", volumes), func() bool { return count() >= volumes })
}

// useOf leaves a component alone. It returns the peak memory since the start of the component, in MiB, and what the component used of
// a core during idle, in percent. That begins when the component has had the time calm to finish its work.
func (r *rig) useOf(ctx context.Context, component string, calm, idle time.Duration) (peakMiB, percent float64, err error) {
	if err := pause(ctx, calm); err != nil {
		return 0, 0, err
	}
	pid, err := r.pidOf(component)
	if err != nil {
		return 0, 0, err
	}
	before, err := cpuTime(pid)
	if err != nil {
		return 0, 0, err
	}
	from := time.Now()
	if err := pause(ctx, idle); err != nil {
		return 0, 0, err
	}
	after, err := cpuTime(pid)
	if err != nil {
		return 0, 0, err
	}
	percent = 100 * (after - before).Seconds() / time.Since(from).Seconds()
	peak, err := peakMemory(pid)
	return float64(peak) / (1 << 20), percent, err
}

// agentsComponent is the process of many agents in the lab.
const agentsComponent = "agents"

// nodeAgents runs many agents in one process.
func nodeAgents(ctx context.Context, size Size, r *rig) ([]*Figure, error) {
	began := time.Now()
	pods := size.AgentVolumes / volumesPerPod
	// One node after the other: what is made for each is made side by side.
	for i := range size.Agents {
		if err := r.plainNode(ctx, nodeName(i)); err != nil {
			return nil, err
		}
		if _, err := r.fill(ctx, i*size.AgentVolumes, pods, nodeName(i)); err != nil {
			return nil, err
		}
		if (i+1)%max(size.Agents/5, 1) == 0 {
			r.say("agents: the objects of %d of %d nodes are made (%.0f s)", i+1, size.Agents, time.Since(began).Seconds())
		}
	}
	root := filepath.Join(r.lab.Dir(), "a")
	if err := os.MkdirAll(root, 0o750); err != nil {
		return nil, fmt.Errorf("making the agents' folder: %w", err)
	}
	began = time.Now()
	if err := r.lab.StartTool(agentsComponent, "bench", "agents", "--kubeconfig", r.lab.Kubeconfig(), "--root", root,
		"--agents", fmt.Sprint(size.Agents), "--volumes", fmt.Sprint(size.Agents*pods*volumesPerPod)); err != nil {
		return nil, err
	}
	ready := func() int {
		if _, err := os.Stat(filepath.Join(root, agentsReady)); err == nil {
			return 1
		}
		return 0
	}
	if err := r.mounted(ctx, size, 1, ready); err != nil {
		_, ended := r.pidOf(agentsComponent)
		return nil, errors.Join(err, ended)
	}
	took := time.Since(began)
	peak, idle, err := r.useOf(ctx, agentsComponent, settle, size.Idle)
	if err != nil {
		return nil, err
	}
	r.say("agents: %d agents of %d volumes: all published after %.1f s, peak %.0f MiB, idle %.1f %% of a core",
		size.Agents, size.AgentVolumes, took.Seconds(), peak, idle)
	return []*Figure{
		numbers(figureAgentsMemory, "MiB", map[string][]float64{planeBelay: {peak}}).limit("< 2 GiB", 2048),
		numbers("start -> all published", "s", map[string][]float64{planeBelay: {took.Seconds()}}),
		numbers(figureAgentIdle, "% of a core", map[string][]float64{planeBelay: {idle}}),
	}, r.noneLeftOut(ctx, size)
}

// noneLeftOut checks at the Nodes that what was counted is what they list.
func (r *rig) noneLeftOut(ctx context.Context, size Size) error {
	return each(ctx, size.Agents, func(ctx context.Context, i int) error {
		node, err := r.client.CoreV1().Nodes().Get(ctx, nodeName(i), metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading node %s: %w", nodeName(i), err)
		}
		if used := len(node.Status.VolumesInUse); used != size.AgentVolumes {
			return fmt.Errorf("node %s lists %d volumes in use, not %d", node.Name, used, size.AgentVolumes)
		}
		return nil
	})
}
