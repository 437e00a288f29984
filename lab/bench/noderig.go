package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

// openNodeRig starts the lab; the agent is started by startAgent.
func openNodeRig(ctx context.Context, o rigOptions) (n *nodeRig, err error) {
	o.later = true
	r, err := openRig(ctx, o)
	if err != nil {
		return nil, err
	}
	n = &nodeRig{rig: r, driver: newNodeDriver(), root: filepath.Join(r.lab.Dir(), "kubelet"), node: nodeName(0)}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close(ctx))
		}
	}()
	if r.observer, err = observe(ctx, r.client); err != nil {
		return nil, err
	}
	if err := n.plainNode(ctx, n.node); err != nil {
		return nil, err
	}
	return n, n.driver.register(n.root)
}

func (n *nodeRig) close(ctx context.Context) error {
	n.driver.stop()
	return n.rig.close(ctx)
}

// startAgent starts belay-node and returns when it has registered the driver.
func (n *nodeRig) startAgent(ctx context.Context) error {
	kubeconfig := filepath.Join(n.lab.Dir(), n.node+".kubeconfig")
	if err := n.lab.NodeKubeconfig(n.node, kubeconfig); err != nil {
		return err
	}
	if err := n.lab.StartNodeAgent(nodeComponent, "--node-name="+n.node, "--root-dir="+n.root, "--kubeconfig="+kubeconfig); err != nil {
		return err
	}
	return n.poll(ctx, "belay-node to register the driver", func() (bool, error) {
		csiNode, err := n.client.StorageV1().CSINodes().Get(ctx, n.node, metav1.GetOptions{})
		return err == nil && len(csiNode.Spec.Drivers) > 0, nil
	})
}

// poll looks until something is so, for what no watch tells.
func (r *rig) poll(ctx context.Context, what string, is func() (bool, error)) error {
	for {
		done, err := is()
		if err != nil || done {
			return err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
	}
}

// plainNode makes a Node that is Ready, as whoever runs the pods of such a node does.
func (o objects) plainNode(ctx context.Context, name string) error {
	now := metav1.Now()
	_, err := o.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now,
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("making node %s: %w", name, err)
	}
	return nil
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
	return o.make(ctx, pod)
}

// report does what the controller does for volumes that are attached: it lists them, and no others, as attached.
func (o objects) report(ctx context.Context, node string, volumes []string) error {
	list := make([]corev1.AttachedVolume, 0, len(volumes))
	for _, volume := range volumes {
		list = append(list, corev1.AttachedVolume{Name: corev1.UniqueVolumeName(unique(volume))})
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"volumesAttached": list}})
	if err != nil {
		return fmt.Errorf("encoding volumesAttached: %w", err)
	}
	if _, err := o.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, body, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("reporting volumes on node %s: %w", node, err)
	}
	return nil
}

// readyVolume makes a volume with its claim, attached to a node but not reported there.
func (o objects) readyVolume(ctx context.Context, volume, node string) error {
	if err := o.volume(ctx, volume); err != nil {
		return err
	}
	return o.attached(ctx, volume, node)
}
