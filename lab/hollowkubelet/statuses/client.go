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

// Client is the one with which a kubelet writes its status. It takes back what was counted for a status that could not be written: kubelet
// computes it again, up to five times (updateNodeStatus in pkg/kubelet/kubelet_node_status.go), so that with an API server which does not keep
// up kubelets would seem to compute more than they do.
type Client struct {
	clientset.Interface

	Count *atomic.Int64
}

// CoreV1 has the nodes.
func (c Client) CoreV1() corev1client.CoreV1Interface { return core{c.Interface.CoreV1(), c.Count} }

type core struct {
	corev1client.CoreV1Interface

	count *atomic.Int64
}

func (c core) Nodes() corev1client.NodeInterface { return nodes{c.CoreV1Interface.Nodes(), c.count} }

type nodes struct {
	corev1client.NodeInterface

	count *atomic.Int64
}

// Patch writes a status: a kubelet patches nothing else with this client.
func (n nodes) Patch(
	ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string,
) (*corev1.Node, error) {
	node, err := n.NodeInterface.Patch(ctx, name, kind, data, options, subresources...)
	if err != nil {
		n.count.Add(-1)
	}
	return node, err
}
