package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// uninitializedTaint is what a kubelet with --cloud-provider=external registers
// with, until the cloud has said where the node is.
const uninitializedTaint = "node.cloudprovider.kubernetes.io/uninitialized"

// AdoptNode plays the cloud's part for a kubelet node of the lab: it waits until the
// kubelet has registered, writes the loopback address of the node, which leads the API server to the
// kubelet (kubelet itself refuses a loopback address), and takes the
// uninitialized taint off. client needs the rights of an administrator. Harmless
// on a node that is adopted already, and on one of the belay kind.
func AdoptNode(ctx context.Context, client kubernetes.Interface, name, address string) error {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	source := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			return client.CoreV1().Nodes().List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			return client.CoreV1().Nodes().Watch(ctx, options)
		},
	}, client)
	_, err := watchtools.UntilWithSync(ctx, source, &corev1.Node{}, nil, func(event watch.Event) (bool, error) {
		node, ok := event.Object.(*corev1.Node)
		if !ok || event.Type == watch.Deleted {
			return false, nil
		}
		err := adopt(ctx, client, node, address)
		if apierrors.IsConflict(err) {
			return false, nil // the write that came between brings the next event
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("adopt node %s: %w", name, err)
	}
	return nil
}

func adopt(ctx context.Context, client kubernetes.Interface, node *corev1.Node, address string) error {
	if !reachableAt(node, address) {
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": node.UID},
			"status":   map[string]any{"addresses": addresses(node.Name, address)},
		})
		if err != nil {
			return fmt.Errorf("encode addresses: %w", err)
		}
		if _, err := client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch,
			metav1.PatchOptions{}, "status"); err != nil {
			return fmt.Errorf("write addresses: %w", err)
		}
	}
	return takeOffUninitialized(ctx, client, node.Name)
}

// takeOffUninitialized writes the taints under the node's resourceVersion: the node
// life cycle controller writes them at the same time.
func takeOffUninitialized(ctx context.Context, client kubernetes.Interface, name string) error {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("take off taint %s: %w", uninitializedTaint, err)
	}
	kept := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(taint corev1.Taint) bool {
		return taint.Key == uninitializedTaint
	})
	if len(kept) == len(node.Spec.Taints) {
		return nil
	}
	node.Spec.Taints = kept
	if _, err := client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("take off taint %s: %w", uninitializedTaint, err)
	}
	return nil
}

func addresses(hostname, ip string) []corev1.NodeAddress {
	return []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: ip},
		{Type: corev1.NodeHostName, Address: hostname},
	}
}

func reachableAt(node *corev1.Node, ip string) bool {
	return slices.Contains(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
}
