package node

import (
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/nodeagent"
)

// Config says which node the agent serves and where its files are.
type Config struct {
	// NodeName is the name of the Node object. Required.
	NodeName string

	// Root is the directory that drivers and their registrars know as kubelet's
	// root; sockets, staging and pod directories lie below it under kubelet's names.
	// Default /var/lib/kubelet. Mounts below it must propagate to where the pods run.
	Root string

	// RESTConfig reaches the API server. The rights of system:node:<NodeName> under
	// the Node authorizer suffice; deploy/belay-node has them as a ClusterRole too.
	// Without QPS and Burst the client is not throttled. Required.
	RESTConfig *rest.Config

	// Logger gets one line for each step taken or refused at V(0). Default: nothing.
	Logger logr.Logger

	// RPCTimeout bounds one call of a driver. Default 2 minutes, as kubelet has it.
	RPCTimeout time.Duration

	// BootID names this boot of the machine: with another one than a record's, what
	// was mounted is gone. Default /proc/sys/kernel/random/boot_id. A node that is
	// a container or a namespace has a life of its own and gives its own.
	BootID string

	// MountPoints lists every path that has a mount on it. Default: the kernel's
	// table. Simulated nodes, whose drivers mount nothing, give their own.
	MountPoints func() ([]string, error)
}

func (c Config) shell() nodeagent.Config {
	return nodeagent.Config{
		NodeName:    c.NodeName,
		Root:        c.Root,
		RESTConfig:  c.RESTConfig,
		Logger:      c.Logger,
		RPCTimeout:  c.RPCTimeout,
		BootID:      c.BootID,
		MountPoints: c.MountPoints,
	}
}
