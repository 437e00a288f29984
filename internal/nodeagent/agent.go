package nodeagent

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// Config is what belay.dev/belay/node.Config documents, field by field.
type Config struct {
	NodeName    string
	Root        string
	RESTConfig  *rest.Config
	Logger      logr.Logger
	RPCTimeout  time.Duration
	BootID      string
	MountPoints func() ([]string, error)
}

// Mount is one volume of a pod, ready for its containers.
type Mount struct {
	VolumeName string
	Path       string
	Block      bool
	ReadOnly   bool
}

// Agent looks after the CSI volumes of one node.
type Agent struct{ config Config }

// New makes an agent.
func New(config Config) (*Agent, error) { return &Agent{config: config}, nil }

// Run serves until ctx ends.
func (a *Agent) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// SetPod says that the pod's volumes shall be mounted.
func (a *Agent) SetPod(*corev1.Pod) {}

// RemovePod says that the pod's containers have ended.
func (a *Agent) RemovePod(types.UID) {}

// PodsSynced says that every pod of the owner has been set.
func (a *Agent) PodsSynced() {}

// Pods returns the UIDs of all known pods.
func (a *Agent) Pods() []types.UID { return nil }

// WaitMounted blocks until the pod's volumes are published.
func (a *Agent) WaitMounted(ctx context.Context, _ types.UID) ([]Mount, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// WaitUnmounted blocks until nothing of the pod is published.
func (a *Agent) WaitUnmounted(context.Context, types.UID) error { return nil }
