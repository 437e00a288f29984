package cluster

import (
	"context"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"belay.dev/belay/lab/nodes"
	"belay.dev/belay/lab/proc"
)

// Status is what a running lab reports about itself.
type Status struct {
	Name       string       `json:"name"`
	Plane      string       `json:"plane"`
	NodeKind   string       `json:"nodeKind"`
	Permissive bool         `json:"permissive"`
	Drivers    []string     `json:"drivers"`
	Dir        string       `json:"dir"`
	Kubeconfig string       `json:"kubeconfig"`
	Kubectl    string       `json:"kubectl"`
	Server     string       `json:"server"`
	HolderPID  int          `json:"holderPID"`
	Components []proc.State `json:"components"`
	// Children are what runs inside the nodes, by the name of the node. Those of a node that does not answer are
	// listed with what is known without it.
	Children map[string][]Child `json:"children,omitempty"`
	// Off are the nodes without power.
	Off []string `json:"off,omitempty"`
	// Frozen are the nodes that Freeze stopped.
	Frozen []string `json:"frozen,omitempty"`
	// Partitioned are the nodes and components that are cut off, and what is lost.
	Partitioned map[string]Direction `json:"partitioned,omitempty"`
	// BMCs are the addresses (UDP) of the nodes' BMCs, by the name of the node.
	BMCs map[string]string `json:"bmcs,omitempty"`
	// Logs are the files that the components and the children write to while the lab runs, by their names; that of the
	// lab's supervisor is named "lab".
	Logs map[string]string `json:"logs"`
	// Metrics are the addresses at which components and children serve Prometheus metrics, by their names. Those with
	// https ask for a client certificate or a token.
	Metrics map[string]string `json:"metrics,omitempty"`
}

// Child is a process that a node keeps running.
type Child struct {
	// Name as Cluster.Kill takes it, such as node-1/agent.
	Name  string     `json:"name"`
	State ChildState `json:"state"`
	// Restarts counts how often it was started again since the node was switched on.
	Restarts int `json:"restarts"`
}

// ChildState is the state of a child of a node.
type ChildState string

// The states of a child.
const (
	ChildUnknown ChildState = "unknown" // the node did not answer
	ChildRunning ChildState = "running"
	ChildStopped ChildState = "stopped" // by a signal (SIGSTOP), until SIGCONT
	ChildDown    ChildState = "down"
	ChildOff     ChildState = "off" // the node has no power
)

// Status of the lab now.
func (c *Cluster) Status() Status {
	s := Status{
		Name: c.options.Name, Plane: c.Plane(), NodeKind: c.options.NodeKind, Permissive: c.options.Permissive,
		Drivers: c.options.Drivers, Dir: c.Dir(), Kubeconfig: c.Kubeconfig(), Kubectl: c.Kubectl(),
		Server: c.ports.server(), HolderPID: os.Getpid(), Components: c.states(),
	}
	for _, node := range c.options.nodeNames() {
		if !c.IsOn(node) {
			s.Off = append(s.Off, node)
		}
	}
	s.Frozen = c.frozenNodes()
	s.Partitioned, s.BMCs = map[string]Direction{}, map[string]string{}
	for name, l := range c.links {
		if direction := l.direction(); direction != "" {
			s.Partitioned[name] = direction
		}
	}
	for _, node := range c.options.nodeNames() {
		if bmc := c.BMC(node); bmc != "" {
			s.BMCs[node] = bmc
		}
	}
	s.Children = c.children(s.Off, s.Frozen)
	s.Logs = logsOf(c.paths, s)
	s.Metrics = metricsOf(c.ports, s)
	return s
}

// states of all components in the order of their start.
func (c *Cluster) states() []proc.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]proc.State, 0, len(c.started))
	for _, name := range c.started {
		all = append(all, c.processes[name].State())
	}
	return all
}

func (c *Cluster) frozenNodes() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.frozen))
}

// childrenWithin bounds how long a node may take to report its children.
const childrenWithin = time.Second

// children asks all nodes side by side what runs on them, but for frozen ones: they never answer, and a BMC that asks for the power does not
// wait for its machine.
func (c *Cluster) children(off, frozen []string) map[string][]Child {
	c.mu.Lock()
	handles := make([]*nodes.Node, 0, len(c.nodes))
	for _, node := range c.nodes {
		handles = append(handles, node)
	}
	c.mu.Unlock()
	found := make([][]Child, len(handles))
	var group sync.WaitGroup
	for i, node := range handles {
		group.Go(func() {
			if slices.Contains(off, node.Config.Name) {
				found[i] = childrenOf(node.Config, nil, ChildOff)
				return
			}
			if slices.Contains(frozen, node.Config.Name) {
				found[i] = childrenOf(node.Config, nil, ChildUnknown)
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), childrenWithin)
			defer cancel()
			states, err := node.Children(ctx)
			if err != nil {
				found[i] = childrenOf(node.Config, nil, ChildUnknown)
				return
			}
			found[i] = childrenOf(node.Config, states, ChildDown)
		})
	}
	group.Wait()
	byNode := map[string][]Child{}
	for i, node := range handles {
		byNode[node.Config.Name] = found[i]
	}
	return byNode
}

// childrenOf lists the children that a node has, each with what it reported; those that it did not report have the state given.
func childrenOf(config nodes.Config, reported []nodes.ChildState, otherwise ChildState) []Child {
	var all []Child
	for _, name := range config.Children() {
		child := Child{Name: config.Name + "/" + name, State: otherwise}
		if i := slices.IndexFunc(reported, func(s nodes.ChildState) bool { return s.Name == name }); i >= 0 {
			child.Restarts = max(reported[i].Starts-1, 0)
			switch {
			case reported[i].PID == 0:
				child.State = ChildDown
			case reported[i].Stopped:
				child.State = ChildStopped
			default:
				child.State = ChildRunning
			}
		}
		all = append(all, child)
	}
	return all
}

// supervisorLog is the name of the supervisor's own log among the others.
const supervisorLog = "lab"

func logsOf(p paths, s Status) map[string]string {
	logs := map[string]string{supervisorLog: p.log(supervisorLog)}
	for _, component := range s.Components {
		logs[component.Name] = p.log(component.Name)
	}
	for node, children := range s.Children {
		config := nodes.Config{Dir: p.node(node)}
		for _, child := range children {
			logs[child.Name] = config.LogOf(child.Name[len(node)+1:])
		}
	}
	return logs
}

// metricsOf are the addresses of metrics of those components that the lab has.
func metricsOf(p ports, s Status) map[string]string {
	all := map[string]string{
		componentEtcd:       "https://" + address(p.Etcd) + "/metrics",
		componentAPIServer:  p.server() + "/metrics",
		componentKCM:        "https://" + address(p.ControllerManager) + "/metrics",
		componentScheduler:  "https://" + address(p.Scheduler) + "/metrics",
		componentController: "http://" + address(p.ControllerMetrics) + "/metrics",
	}
	for name, port := range p.Sidecars {
		all[name] = "http://" + address(port) + "/metrics"
	}
	metrics := map[string]string{}
	for _, component := range s.Components {
		if at := all[component.Name]; at != "" {
			metrics[component.Name] = at
		}
	}
	for node := range s.Children {
		metrics[node+"/"+nodes.ChildAgent] = "https://" + p.kubelet(node) + "/metrics"
	}
	return metrics
}

// StateOf is the state of a component in one word.
func (s Status) StateOf(component proc.State) string {
	switch {
	case slices.Contains(s.Off, component.Name):
		return string(ChildOff)
	case component.PID == 0:
		return string(ChildDown)
	case component.Stopped:
		return string(ChildStopped)
	default:
		return string(ChildRunning)
	}
}
