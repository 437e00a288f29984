package containers

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// podUIDLabel is on every sandbox and container that belongs to a pod (k/k pkg/kubelet/types, KubernetesPodUIDLabel).
const podUIDLabel = "io.kubernetes.pod.uid"

const (
	// criTimeout is kubelet's runtimeRequestTimeout.
	criTimeout = 2 * time.Minute
	// checkTimeout is how long a healthy runtime may take to answer.
	checkTimeout = 10 * time.Second
	// criMessage bounds a reply, as kubelet's client does.
	criMessage = 16 << 20
)

// CRI asks a container runtime over the Container Runtime Interface.
type CRI struct {
	client cri.RuntimeServiceClient
}

// NewCRI is the runtime at an endpoint: unix:///path, or the path alone. It connects when it is asked, and
// again after the runtime was restarted.
func NewCRI(endpoint string) (*CRI, error) {
	path, err := SocketPath(endpoint)
	if err != nil {
		return nil, err
	}
	connection, err := grpc.NewClient("unix:"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(criMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: 3 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("connect to container runtime %s: %w", endpoint, err)
	}
	return &CRI{client: cri.NewRuntimeServiceClient(connection)}, nil
}

// SocketPath returns the path in an endpoint, or an error if it is not one that NewCRI accepts.
func SocketPath(endpoint string) (string, error) {
	path, isURL := strings.CutPrefix(endpoint, "unix://")
	if !filepath.IsAbs(path) || (!isURL && strings.Contains(endpoint, "://")) {
		return "", fmt.Errorf("container runtime endpoint %q is not of the form unix:///path", endpoint)
	}
	return path, nil
}

// Check reports why the runtime does not answer now; nil if it does.
func (c *CRI) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if _, err := c.client.Version(ctx, &cri.VersionRequest{}); err != nil {
		return fmt.Errorf("get the version of the container runtime: %w", err)
	}
	return nil
}

// Ended returns nil if the runtime has no sandbox of the pod that is ready, and no container of it that has not
// exited. Any error means that something of the pod may run.
func (c *CRI) Ended(ctx context.Context, podUID string) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, criTimeout)
	defer cancel()
	label := map[string]string{podUIDLabel: podUID}
	sandboxes, err := c.client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: label}})
	if err != nil {
		return nil, fmt.Errorf("list the sandboxes of pod %s in the container runtime: %w", podUID, err)
	}
	ours := map[string]bool{}
	var running []string
	for _, s := range sandboxes.GetItems() {
		ours[s.GetId()] = true
		if s.GetState() != cri.PodSandboxState_SANDBOX_NOTREADY {
			running = append(running, "sandbox "+s.GetId())
		}
	}
	// List all of them: a container may lack the label of its pod.
	containers, err := c.client.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list the containers of pod %s in the container runtime: %w", podUID, err)
	}
	for _, one := range containers.GetContainers() {
		if one.GetLabels()[podUIDLabel] != podUID && !ours[one.GetPodSandboxId()] {
			continue
		}
		if one.GetState() != cri.ContainerState_CONTAINER_EXITED {
			running = append(running, fmt.Sprintf("container %s (%s, %s)", one.GetMetadata().GetName(), one.GetId(),
				strings.TrimPrefix(one.GetState().String(), "CONTAINER_")))
		}
	}
	if len(running) > 0 {
		return nil, &RunningError{What: running}
	}
	return func() {}, nil
}
