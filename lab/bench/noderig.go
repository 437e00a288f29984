package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// nodeComponent is the node agent in the lab.
const nodeComponent = "belay-node"

// nodeRig is a bare lab with one belay-node and a driver in memory. The bench plays the controller and the attacher.
type nodeRig struct {
	*rig

	// driver serves the node side.
	driver *nodeDriver
	root   string
	node   string
}

// startNode makes a node, and starts belay-node on it. It returns when belay-node has registered the driver.
func startNode(ctx context.Context, r *rig) (*nodeRig, error) {
	n := &nodeRig{rig: r, driver: newNodeDriver(), root: filepath.Join(r.lab.Dir(), "kubelet"), node: nodeName(0)}
	r.stops = append(r.stops, func() error { n.driver.stop(); return nil })
	if err := r.observe(ctx); err != nil {
		return nil, err
	}
	if err := n.plainNode(ctx, n.node); err != nil {
		return nil, err
	}
	if err := n.driver.register(n.root); err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(n.lab.Dir(), n.node+".kubeconfig")
	if err := n.lab.NodeKubeconfig(n.node, kubeconfig); err != nil {
		return nil, err
	}
	if err := n.lab.StartNodeAgent(nodeComponent, "--node-name="+n.node, "--root-dir="+n.root, "--kubeconfig="+kubeconfig); err != nil {
		return nil, err
	}
	return n, n.poll(ctx, "belay-node to register the driver", func() bool {
		csiNode, err := n.client.StorageV1().CSINodes().Get(ctx, n.node, metav1.GetOptions{})
		return err == nil && len(csiNode.Spec.Drivers) > 0
	})
}

// poll waits for what no watch reports.
func (r *rig) poll(ctx context.Context, what string, is func() bool) error {
	condition := func(context.Context) (bool, error) { return is(), nil }
	if err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, condition); err != nil {
		return fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
	}
	return nil
}

// plainNode makes a Node that is Ready, as the process does that runs the pods of such a node.
func (o objects) plainNode(ctx context.Context, name string) error {
	_, err := create(ctx, o.client.CoreV1().Nodes().Create, readyNode(name))
	return err
}

// podWith makes a pod of several volumes that is bound to a node.
func (o objects) podWith(ctx context.Context, name, node string, volumes ...string) error {
	pod := podOf(name, volumes[0])
	pod.Spec.NodeName = node
	for i, volume := range volumes[1:] {
		also := fmt.Sprintf("data-%d", i+1)
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: also, MountPath: "/" + also})
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: also, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: volume},
		}})
	}
	return o.createPod(ctx, pod)
}

// report does what the controller does for volumes that are attached: it lists them, and no others, as attached.
func (o objects) report(ctx context.Context, node string, volumes []string) error {
	list := make([]corev1.AttachedVolume, 0, len(volumes))
	for _, volume := range volumes {
		list = append(list, corev1.AttachedVolume{Name: corev1.UniqueVolumeName(unique(volume))})
	}
	return setList(ctx, o.client, node, "volumesAttached", list)
}

// readyVolume makes a volume with its claim, attached to a node but not reported there.
func (o objects) readyVolume(ctx context.Context, volume, node string) error {
	if err := o.volume(ctx, volume); err != nil {
		return err
	}
	return o.attached(ctx, driverName, volume, node)
}
