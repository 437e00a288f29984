package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"

	"belay.dev/belay/lab/jsonfile"
	"belay.dev/belay/lab/proc"
)

// ports of a lab: on 127.0.0.1, and those of the kubelets at the address of the node.
type ports struct {
	Etcd              int            `json:"etcd"`
	EtcdPeer          int            `json:"etcdPeer"`
	APIServer         int            `json:"apiServer"`
	ControllerManager int            `json:"controllerManager"`
	Scheduler         int            `json:"scheduler"`
	ControllerHealth  int            `json:"controllerHealth"`
	ControllerMetrics int            `json:"controllerMetrics"`
	Sidecars          map[string]int `json:"sidecars"`       // component -> metrics port
	Uplinks           map[string]int `json:"uplinks"`        // component -> port that leads to the API server
	Kubelets          map[string]int `json:"kubelets"`       // node -> port
	BMCs              map[string]int `json:"bmcs,omitempty"` // node -> UDP port
}

// The lab's ports lie below Linux' default range for outgoing connections (32768 and above), so
// that no connection can take one between the choice and the server's start.
const (
	firstPort = 20000
	lastPort  = 31999
)

// portChooser chooses ports that are free and that no other lab on this machine has chosen, whatever its cache.
type portChooser struct {
	claims []net.Listener
	err    error
}

func (c *portChooser) choose() int {
	var last error
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort+1) //nolint:gosec // not a secret
		claim, err := claimPort(port)
		if err == nil {
			c.claims = append(c.claims, claim)
			return port
		}
		last = err
	}
	c.err = fmt.Errorf("no free port between %d and %d on %s: %w", firstPort, lastPort, loopback, last)
	return 0
}

// claimPort reserves a port until the claim is closed: its server starts later and may be restarted. The claim is an abstract unix
// socket, because such a socket belongs to a network namespace, as ports do, and the kernel removes it when this process dies.
func claimPort(port int) (net.Listener, error) {
	claim, err := net.Listen("unix", fmt.Sprintf("@belay-lab-port-%d", port))
	if err != nil {
		return nil, fmt.Errorf("claim port %d: %w", port, err)
	}
	listener, err := net.Listen("tcp", address(port))
	if err != nil {
		_ = claim.Close()
		return nil, fmt.Errorf("try port %d: %w", port, err)
	}
	_ = listener.Close()
	return claim, nil
}

// release lets other labs choose the ports.
func (c *portChooser) release() {
	for _, claim := range c.claims {
		_ = claim.Close()
	}
	c.claims = nil
}

// choosePorts chooses the ports of a lab.
func (c *portChooser) choosePorts(o Options) (ports, error) {
	p := ports{
		Etcd: c.choose(), EtcdPeer: c.choose(), APIServer: c.choose(), ControllerManager: c.choose(), Scheduler: c.choose(),
		ControllerHealth: c.choose(), ControllerMetrics: c.choose(),
		Sidecars: map[string]int{}, Uplinks: map[string]int{}, Kubelets: map[string]int{}, BMCs: map[string]int{},
	}
	for component := range o.apiClients() {
		p.Uplinks[component] = c.choose()
		if !slices.Contains([]string{componentKCM, componentScheduler, componentController}, component) {
			p.Sidecars[component] = c.choose()
		}
	}
	for _, node := range o.nodeNames() {
		p.Kubelets[node] = c.choose()
		if o.BMC {
			p.BMCs[node] = c.choose()
		}
	}
	return p, c.err
}

// nodeAddress is the loopback address of a node. The port of the API server is no other lab's, and makes it the node's alone.
func (p ports) nodeAddress(node string) string {
	number, _ := strconv.Atoi(strings.TrimPrefix(node, nodePrefix)) // nodeName made it
	return net.IPv4(127, byte(p.APIServer>>8), byte(p.APIServer), byte(number)).String()
}

// uplinkPort is the port at each node's address that leads to the API server. It is the same on all nodes, so that a pod in the network
// of its node finds the API server at status.hostIP.
const uplinkPort = "6443"

// uplink is where a node finds the API server.
func (p ports) uplink(node string) string { return net.JoinHostPort(p.nodeAddress(node), uplinkPort) }

// kubelet is where a node's agent is reached.
func (p ports) kubelet(node string) string {
	return net.JoinHostPort(p.nodeAddress(node), strconv.Itoa(p.Kubelets[node]))
}

func (p ports) server() string { return "https://" + address(p.APIServer) }

func address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

// state is what a lab's folder says about it, for other processes and later runs.
type state struct {
	Options Options `json:"options"`
	Ports   ports   `json:"ports"`
	// Holder is the process that supervises the lab.
	Holder proc.Record `json:"holder"`
	// Upstream is the folder of the upstream programs in use.
	Upstream string `json:"upstream"`
}

func readState(path string) (s state, err error) {
	if err := jsonfile.Read(path, &s); err != nil {
		return s, fmt.Errorf("reading the lab's state: %w", err)
	}
	return s, nil
}
