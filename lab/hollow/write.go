package hollow

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/kube"
)

// register makes the Node and its CSINode, or takes over what is there.
func (n *node) register(ctx context.Context) error {
	client := n.fleet.client
	made, err := client.CoreV1().Nodes().Create(ctx, n.object(), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		made, err = client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
	}
	if err != nil {
		return fmt.Errorf("register hollow node %s: %w", n.name, err)
	}
	n.saw(made)
	csiNode := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: n.name, OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Node", Name: n.name, UID: made.UID},
	}}}
	for _, driver := range n.fleet.options.Drivers {
		csiNode.Spec.Drivers = append(csiNode.Spec.Drivers, storagev1.CSINodeDriver{Name: driver, NodeID: n.name})
	}
	if _, err := client.StorageV1().CSINodes().Create(ctx, csiNode, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("register the drivers of hollow node %s: %w", n.name, err)
	}
	return nil
}

func (n *node) object() *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods: *resource.NewQuantity(n.fleet.options.MaxPods, resource.DecimalSI),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        n.name,
			Labels:      map[string]string{corev1.LabelHostname: n.name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: runtime.GOARCH},
			Annotations: map[string]string{kube.ManagedAttachAnnotation: "true"},
		},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity.DeepCopy(), Conditions: ready(time.Now()),
			NodeInfo: corev1.NodeSystemInfo{
				BootID: uuid.NewString(), SystemUUID: machineID(n.name), MachineID: machineID(n.name),
				OSImage: "hollow", OperatingSystem: "linux", Architecture: runtime.GOARCH, KubeletVersion: "v1.36.3-hollow",
				ContainerRuntimeVersion: "hollow://",
			},
		},
	}
}

func ready(now time.Time) []corev1.NodeCondition {
	return []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "HollowReady", Message: "the hollow node runs",
		LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
	}}
}

// stayReady takes back what the node life cycle controller said during a pause.
func (n *node) stayReady(ctx context.Context, fresh *corev1.Node) error {
	if slices.ContainsFunc(fresh.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}) {
		return nil
	}
	_, err := n.patch(ctx, fresh, map[string]any{"conditions": ready(time.Now())})
	return err
}

// markRunning writes the status that a kubelet writes when the containers run.
func (n *node) markRunning(ctx context.Context, pod *corev1.Pod) error {
	now := metav1.Now()
	status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now}
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	for _, c := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Ready: true, Started: new(true),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("encode status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	_, err = n.fleet.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("mark pod %s/%s running: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
