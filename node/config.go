package node

import (
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/nodeagent"
)

// Config configures an agent: its node, and where its files are.
type Config struct {
	// NodeName is the name of the Node object. Required.
	NodeName string

	// Root is the directory that drivers and their registrars use as kubelet's root; sockets, staging and pod directories are below
	// it under kubelet's names. Default /var/lib/kubelet. Mounts below it must propagate to where the pods run.
	Root string

	// RESTConfig configures the connection to the API server. The permissions of system:node:<NodeName> under the Node authorizer
	// suffice; deploy/belay-node has them as a ClusterRole too. Without QPS and Burst the client is not limited. Required.
	RESTConfig *rest.Config

	// Logger logs one line for each step taken or refused at V(0). Default: nothing.
	Logger logr.Logger

	// RPCTimeout limits one call to a driver. Default 2 minutes, as for kubelet.
	RPCTimeout time.Duration

	// SyncPeriod is after how long the claims of a pod are read again, to see whether one has grown, plus a random time of up to
	// half of it. A change of the pod's labels or annotations triggers a read at once. Default 1 minute, kubelet's syncFrequency.
	SyncPeriod time.Duration

	// BootID identifies this boot of the machine: mounts of a record with another one are gone. Default
	// /proc/sys/kernel/random/boot_id. A node that is a container or a namespace has its own lifetime and needs its own ID.
	BootID string

	// MountPoints lists every path with a mount on it. Default: the kernel's table. Simulated nodes, whose drivers mount nothing,
	// replace it; it must list what a driver published, block volumes too, or the publish counts as failed.
	MountPoints func() ([]string, error)

	// Containers reports when the containers of a pod have ended, to [Agent.FollowPods] only: a caller of [Agent.RemovePod]
	// guarantees it itself. Default: the pods' locks below Root/belay/pods, as docs/adopt-node.md defines them.
	Containers Containers

	// Metrics is the registry for the agent's metrics while it runs; docs/metrics.md lists them. Agents that share one need a label
	// each: prometheus.WrapRegistererWith(prometheus.Labels{"node": name}, registry). Default: no metrics.
	Metrics prometheus.Registerer

	// StatsPeriod is how often the driver of each volume with GET_VOLUME_STATS is asked for its usage: after one to two periods.
	// Default 1 minute (kubelet's volumeStatsAggPeriod); negative: never.
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
