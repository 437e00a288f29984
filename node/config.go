package node

import (
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
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

	// SyncPeriod is after how long the claims of a pod are read again, to learn that
	// one has grown; up to a half of it is added by chance. A change of the pod's
	// labels or annotations has them read at once. Default 1 minute, kubelet's
	// syncFrequency.
	SyncPeriod time.Duration

	// BootID names this boot of the machine: with another one than a record's, what
	// was mounted is gone. Default /proc/sys/kernel/random/boot_id. A node that is
	// a container or a namespace has a life of its own and gives its own.
	BootID string

	// MountPoints lists every path that has a mount on it. Default: the kernel's
	// table. Simulated nodes, whose drivers mount nothing, give their own; what a
	// driver published must be in it, a block volume as well, or the publish is
	// taken for one that failed.
	MountPoints func() ([]string, error)

	// Containers says when the containers of a pod have ended, to [Agent.FollowPods] and to nobody
	// else: who calls [Agent.RemovePod] says so itself. Default: the pods' locks below Root/belay/pods, as
	// docs/adopt-node.md defines them.
	Containers Containers

	// Metrics is the registry in which the agent's metrics are while it lives; docs/metrics.md
	// lists them. Agents that share one need a label each:
	// prometheus.WrapRegistererWith(prometheus.Labels{"node": name}, registry). Default: nothing is measured.
	Metrics prometheus.Registerer

	// StatsPeriod is how often each volume's driver is asked how full it is, if it has
	// GET_VOLUME_STATS: after one to two periods. Default 1 minute (kubelet's
	// volumeStatsAggPeriod); negative: never.
	StatsPeriod time.Duration
}

func (c Config) shell() nodeagent.Config {
	return nodeagent.Config{
		NodeName:    c.NodeName,
		Root:        c.Root,
		RESTConfig:  c.RESTConfig,
		Logger:      c.Logger,
		RPCTimeout:  c.RPCTimeout,
		SyncPeriod:  c.SyncPeriod,
		BootID:      c.BootID,
		MountPoints: c.MountPoints,
		Containers:  c.Containers,
		Metrics:     c.Metrics,
		StatsPeriod: c.StatsPeriod,
	}
}
