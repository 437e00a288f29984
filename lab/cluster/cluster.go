package cluster

import (
	"context"
	"errors"

	"k8s.io/client-go/rest"
)

// Cluster is a running lab whose processes this process supervises. They live until Down; if this
// process dies without it, Clean finds them by their records.
type Cluster struct {
	options Options
}

var errUnfinished = errors.New("not wired yet")

// Up starts a lab and returns when its nodes are Ready and their drivers are registered. If it
// fails, or ctx ends first, nothing is left behind. A lab of the same name that was killed is
// cleaned first; one that still runs is an error.
func Up(ctx context.Context, o Options) (*Cluster, error) { return nil, errUnfinished }

// Down stops everything and removes it: processes, mounts, loop devices, folders but for logs.
func (c *Cluster) Down(ctx context.Context) error { return errUnfinished }

// Kubeconfig is the path of the admin's kubeconfig.
func (c *Cluster) Kubeconfig() string { return "" }

// RESTConfig is the admin's client configuration, without client-side throttling. A new copy.
func (c *Cluster) RESTConfig() *rest.Config { return nil }

// Dir is the lab's folder, labs/<name> in the cache folder.
func (c *Cluster) Dir() string { return "" }

// Kill kills a component with SIGKILL; the supervisor starts it again. Names: etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler, csi-provisioner, attach-controller, attacher, fabric,
// node-1, node-1/agent, node-1/driver and so on.
func (c *Cluster) Kill(name string) error { return errUnfinished }

// PowerOff cuts the power of a node: all its processes die at once, its mounts vanish, its I/O
// fails. The node stays off until PowerOn.
func (c *Cluster) PowerOff(node string) error { return errUnfinished }

// PowerOn starts a node that was powered off, as a machine that boots: with a new boot ID.
func (c *Cluster) PowerOn(node string) error { return errUnfinished }
