package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/proxy"
)

// Direction is which requests a partition loses: by who sends the request, not by where single packets go, because a connection on which one
// side is not heard is of no use to the other.
type Direction string

// The directions.
const (
	// Both loses the requests of both sides.
	Both Direction = "both"
	// ToAPI loses what the node asks the API server.
	ToAPI Direction = "to-api"
	// FromAPI loses what the API server, and recovery, ask the node's kubelet.
	FromAPI Direction = "from-api"
)

// Directions are all values of Direction.
func Directions() []Direction { return []Direction{Both, ToAPI, FromAPI} }

// ParseDirection reads the name of a direction.
func ParseDirection(name string) (Direction, error) {
	for _, d := range Directions() {
		if name == string(d) {
			return d, nil
		}
	}
	return "", usage.Errorf("--direction must be one of %v, not %q", Directions(), name)
}

// kubeletAddress is where the agents of the nodes listen. The Node objects name the address of the node, where the links are: all nodes
// share the machine's network, and each of them can be cut off from it.
const kubeletAddress = "127.0.0.2"

// links are all connections of a node, or of a component, to the rest of the cluster. Storage is none of them: it is another network.
type links struct {
	up   *proxy.Link // to the API server
	down *proxy.Link // to the port of the kubelet; nil for a component, which the API server asks nothing

	mu          sync.Mutex
	partitioned Direction // empty for none
	off         bool      // the machine has no power
}

// connect lays the links of all components and nodes.
func (c *Cluster) connect() error {
	c.links = map[string]*links{}
	for component, identity := range c.options.apiClients() {
		if err := c.connectComponent(component, identity); err != nil {
			return fmt.Errorf("connecting %s: %w", component, err)
		}
	}
	for _, node := range c.options.nodeNames() {
		up, err := proxy.NewLink(context.Background(), c.ports.uplink(node), address(c.ports.APIServer))
		if err != nil {
			return fmt.Errorf("connecting %s: %w", node, err)
		}
		c.links[node] = &links{up: up}
		down, err := proxy.NewLink(context.Background(), c.ports.kubelet(node), kubeletAt(c.ports.Kubelets[node]))
		if err != nil {
			return fmt.Errorf("connecting %s: %w", node, err)
		}
		c.links[node].down = down
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.unfollow = cancel
	go c.follow(ctx)
	return nil
}

// connectComponent lays the link of a component and writes the kubeconfig that leads over it.
func (c *Cluster) connectComponent(component, identity string) error {
	at := address(c.ports.Uplinks[component])
	up, err := proxy.NewLink(context.Background(), at, address(c.ports.APIServer))
	if err != nil {
		return err
	}
	c.links[component] = &links{up: up}
	config, err := clientcmd.LoadFromFile(c.paths.kubeconfig(identity))
	if err != nil {
		return fmt.Errorf("reading the credential of %s: %w", identity, err)
	}
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + at
	}
	if err := clientcmd.WriteToFile(*config, c.paths.linkedKubeconfig(component)); err != nil {
		return fmt.Errorf("writing the kubeconfig: %w", err)
	}
	return nil
}

func kubeletAt(port int) string { return net.JoinHostPort(kubeletAddress, strconv.Itoa(port)) }

// followEvery is how soon the port of a kubelet that has ended refuses connections, and that of one that has started takes them.
const followEvery = 100 * time.Millisecond

// follow has the port of each node refuse connections while no kubelet listens there and the machine runs with its network, as the kernel of a real one
// does: a link that accepts and then resets would hide a stopped kubelet from who asks it. The sockets are read from the kernel: a connection that ends
// before a request is an error in kubelet's log.
func (c *Cluster) follow(ctx context.Context) {
	wait.UntilWithContext(ctx, func(context.Context) {
		sockets, err := os.ReadFile("/proc/net/tcp")
		if err != nil {
			return
		}
		for node, port := range c.ports.Kubelets {
			if l := c.links[node]; l != nil && l.down != nil {
				_ = l.refuse(!listens(sockets, port)) // it is tried again
			}
		}
	}, followEvery)
}

// listens reports whether a process listens at the port of kubeletAddress, as /proc/net/tcp has the sockets: local address and port in hexadecimal, the
// address in the machine's byte order, the remote address, and the state 0A for TCP_LISTEN (Linux Documentation/networking/proc_net_tcp.rst).
func listens(sockets []byte, port int) bool {
	return bytes.Contains(sockets, fmt.Appendf(nil, ": %s:%04X 00000000:0000 0A ", kubeletHex, port))
}

// kubeletHex is kubeletAddress, as /proc/net/tcp has it on machines with the low byte first.
const kubeletHex = "0200007F"

// refuse has the kubelet's port refuse connections, unless nothing arrives there at all.
func (l *links) refuse(refuse bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down.Refuse(refuse && !l.dark())
}

// disconnect takes up the links.
func (c *Cluster) disconnect() error {
	var errs []error
	if c.unfollow != nil {
		c.unfollow()
	}
	for _, l := range c.links {
		errs = append(errs, l.up.Close())
		if l.down != nil {
			errs = append(errs, l.down.Close())
		}
	}
	return errors.Join(errs...)
}

// set cuts and heals the links as the state says. mu is held.
func (l *links) set() {
	pass(l.up, !l.off && l.partitioned != Both && l.partitioned != ToAPI)
	if l.down != nil {
		if l.dark() {
			_ = l.down.Refuse(false) // what asks gets no answer at all
		}
		pass(l.down, !l.dark())
	}
}

// dark reports whether nothing arrives at the kubelet's port. mu is held.
func (l *links) dark() bool { return l.off || l.partitioned == Both || l.partitioned == FromAPI }

func pass(link *proxy.Link, traffic bool) {
	if traffic {
		link.Heal()
	} else {
		link.Cut()
	}
}

func (l *links) partition(d Direction) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partitioned = d
	l.set()
}

func (l *links) direction() Direction {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.partitioned
}

// loseMachine is what the network sees of a power cut: a machine without power answers nothing, and does not refuse connections either.
func (l *links) loseMachine() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.off = true
	l.set()
}

// boot is what it sees when the machine starts again, which knows no connection of its last boot.
func (l *links) boot() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.off = false
	l.up.Reset()
	l.down.Reset()
	l.set()
}

// Partition cuts a node off from the API server, and the API server from the node's kubelet, or one of both. The node, its pods and its
// storage continue. Connections hang, as when packets are lost; none is refused. It lasts until Heal, also through power cuts.
func (c *Cluster) Partition(node string, d Direction) error {
	l := c.links[node]
	if l == nil || l.down == nil {
		return fmt.Errorf("the lab has no node %q", node)
	}
	l.partition(d)
	return nil
}

// Heal ends the partition of a node; nil if there is none.
func (c *Cluster) Heal(node string) error { return c.Partition(node, "") }

// PartitionComponent cuts a component off from the API server. It runs on, and reaches the storage. Its requests hang, as when packets are
// lost, and those that it sent meanwhile arrive at HealComponent, also if it has ended by then. It lasts until HealComponent, also through
// restarts of the component.
func (c *Cluster) PartitionComponent(component string) error {
	return c.partitionComponent(component, ToAPI)
}

// HealComponent ends the partition of a component; nil if there is none.
func (c *Cluster) HealComponent(component string) error { return c.partitionComponent(component, "") }

func (c *Cluster) partitionComponent(component string, d Direction) error {
	name := c.alias(component)
	if _, err := c.process(name); err != nil {
		return err
	}
	switch l := c.links[name]; {
	case l == nil:
		return fmt.Errorf("%s is not a client of the API server", component)
	case l.down != nil:
		return fmt.Errorf("%s is a node: see `belay-lab node partition --help`", component)
	default:
		l.partition(d)
		return nil
	}
}

// Partition cuts a node off, see Cluster.Partition.
func (r *Remote) Partition(ctx context.Context, node string, d Direction) error {
	return r.ask(ctx, http.MethodPost, "/partition/"+string(d), node, nil)
}

// Heal ends a partition, see Cluster.Heal.
func (r *Remote) Heal(ctx context.Context, node string) error {
	return r.ask(ctx, http.MethodPost, "/heal", node, nil)
}

// PartitionComponent cuts a component off, see Cluster.PartitionComponent.
func (r *Remote) PartitionComponent(ctx context.Context, component string) error {
	return r.ask(ctx, http.MethodPost, "/partition/component", component, nil)
}

// HealComponent ends a partition, see Cluster.HealComponent.
func (r *Remote) HealComponent(ctx context.Context, component string) error {
	return r.ask(ctx, http.MethodPost, "/heal/component", component, nil)
}

// portWithin is how long the sockets of killed processes may take to be closed.
const portWithin = time.Minute

// awaitPortFree waits until the kernel has closed the sockets of a killed node, a moment after its end: its next boot needs the port.
func (c *Cluster) awaitPortFree(node string) error {
	var last error
	err := wait.PollUntilContextTimeout(context.Background(), lookAgain, portWithin, true, func(context.Context) (bool, error) {
		listener, err := net.Listen("tcp", kubeletAt(c.ports.Kubelets[node]))
		if last = err; err != nil {
			return false, nil //nolint:nilerr // it is tried again
		}
		return true, listener.Close()
	})
	if err != nil {
		return fmt.Errorf("waiting for the port of %s, which is still in use: %w", node, errors.Join(last, err))
	}
	return nil
}
