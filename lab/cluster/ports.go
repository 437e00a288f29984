package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

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

// portChooser chooses ports that are free and that no other lab of this cache has chosen.
type portChooser struct {
	taken map[int]bool
	err   error
}

func newPortChooser(cache string) *portChooser {
	c := &portChooser{taken: map[int]bool{}}
	states, _ := filepath.Glob(filepath.Join(cache, "labs", "*", "lab.json"))
	for _, path := range states {
		s, err := readState(path)
		if err != nil {
			continue
		}
		for _, port := range s.Ports.all() {
			c.taken[port] = true
		}
	}
	return c
}

func (c *portChooser) choose() int {
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort+1) //nolint:gosec // not a secret
		if c.taken[port] {
			continue
		}
		listener, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
		if err != nil {
			continue
		}
		_ = listener.Close()
		c.taken[port] = true
		return port
	}
	c.err = fmt.Errorf("no free port between %d and %d on %s", firstPort, lastPort, loopback)
	return 0
}

// claimPorts chooses ports and writes the lab's state with them. Two labs that start at the same
// moment do so one after the other, so that the second sees what the first has chosen.
func claimPorts(p paths, s *state) error {
	lock, err := os.OpenFile(filepath.Join(p.cache, "labs", ".ports.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("opening the lock of ports: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("locking the choice of ports: %w", err)
	}
	if s.Ports, err = choosePorts(p.cache, s.Options); err != nil {
		return err
	}
	if err := jsonfile.Write(p.state(), s); err != nil {
		return fmt.Errorf("writing the lab's state: %w", err)
	}
	return nil
}

func choosePorts(cache string, o Options) (ports, error) {
	c := newPortChooser(cache)
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

func (p ports) all() []int {
	all := []int{p.Etcd, p.EtcdPeer, p.APIServer, p.ControllerManager, p.Scheduler, p.ControllerHealth, p.ControllerMetrics}
	for _, more := range []map[string]int{p.Sidecars, p.Uplinks, p.Kubelets, p.BMCs} {
		for _, port := range more {
			all = append(all, port)
		}
	}
	return all
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
