// Package statuses counts what kubelets write. It is a package of its own because its tests need not link the kubelet.
package statuses

import (
	"context"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Socket is where the program of the kubelets answers GET /state, in its folder.
const Socket = "state.sock"

// State is what it answers.
type State struct {
	// Started kubelets have registered their node and written a status.
	Started int64 `json:"started"`
	// Ticks counts the statuses that all of them have computed, and written where they had changed or were to be reported.
	Ticks int64 `json:"ticks"`
}

// Client is the one with which a kubelet writes its status. It takes back what was counted for a status that could not be written: kubelet
// computes it again, up to five times (updateNodeStatus in pkg/kubelet/kubelet_node_status.go), so that with an API server which does not keep
// up kubelets would seem to compute more than they do.
type Client struct {
	clientset.Interface

	Count *atomic.Int64
	// Written is called after each status that was written; may be nil.
	Written func()
}

// CoreV1 has the nodes.
func (c Client) CoreV1() corev1client.CoreV1Interface { return core{c.Interface.CoreV1(), c} }

type core struct {
	corev1client.CoreV1Interface

	client Client
}

func (c core) Nodes() corev1client.NodeInterface { return nodes{c.CoreV1Interface.Nodes(), c.client} }

type nodes struct {
	corev1client.NodeInterface

	client Client
}

// Patch writes a status: a kubelet patches nothing else with this client.
func (n nodes) Patch(
	ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string,
) (*corev1.Node, error) {
	node, err := n.NodeInterface.Patch(ctx, name, kind, data, options, subresources...)
	if err != nil {
		n.client.Count.Add(-1)
	} else if n.client.Written != nil {
		n.client.Written()
	}
	return node, err
}
