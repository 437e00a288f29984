package node

import (
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/nodeagent"
	"belay.dev/belay/internal/telemetry"
)

// Config configures an [Agent].
type Config struct {
	// NodeName is the name of the Node object. Required.
	NodeName string

	// Root is kubelet's root directory as drivers and their registrars know it. Sockets, staging and pod directories have kubelet's names
	// below it. Mounts below it must propagate to where the pods run. Default: /var/lib/kubelet.
	Root string

	// RESTConfig is for the API server. The permissions of system:node:<NodeName> under the Node authorizer are sufficient; the ClusterRole
	// in deploy/belay-node grants the same. Without QPS and Burst the client is not throttled. Required.
	RESTConfig *rest.Config

	// Logger gets one line at V(0) for each step taken or refused. Default: no logs.
	Logger logr.Logger

	// RPCTimeout limits one call to a driver. Default: 2 minutes, as in kubelet.
	RPCTimeout time.Duration

	// SyncPeriod is the interval at which the claims of a pod are read to find expanded volumes, extended by a random part of up to one
	// half. A change of the pod's labels or annotations triggers a read at once. Default: 1 minute, kubelet's syncFrequency.
	SyncPeriod time.Duration

	// BootID identifies this boot of the machine: mounts recorded with another boot ID are gone. A node that is a container or a namespace
	// starts independently of the machine and needs its own. Default: the content of /proc/sys/kernel/random/boot_id.
	BootID string

	// MountPoints lists all mount points. Simulated nodes, whose drivers mount nothing, set it: what a driver has published, including
	// block volumes, must be in the list, or the publish counts as failed. Default: the kernel's mount table.
	MountPoints func() ([]string, error)

	// Containers reports to [Agent.FollowPods] whether the containers of a pod have ended. Callers of [Agent.RemovePod] do not need it.
	// Default: the pod locks below Root/belay/pods, as defined in docs/adopt-node.md.
	Containers Containers

	// Metrics is where the agent registers its metrics until it stops; docs/metrics.md lists them. Agents that share a registry need a
	// label each: prometheus.WrapRegistererWith(prometheus.Labels{"node": name}, registry). Default: no metrics.
	Metrics prometheus.Registerer

	// StatsPeriod is how often volume stats are collected from drivers with GET_VOLUME_STATS: after one to two periods. Default: 1 minute,
	// kubelet's volumeStatsAggPeriod. If negative, they are not collected.
	StatsPeriod time.Duration

	// TracerProvider makes the spans of mounts and unmounts; docs/traces.md lists them. Default: no spans.
	TracerProvider trace.TracerProvider
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
		Traces:      telemetry.NewTraces(c.TracerProvider),
	}
}
