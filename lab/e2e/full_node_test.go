package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

// TestPodOnFullNodeIsRejected (KEP-4876): the driver answers RESOURCE_EXHAUSTED, kubelet finds the code on the
// VolumeAttachment and rejects the pod, so that its controller can create another one. When the node has room again, a
// new pod gets the same volume there.
func TestPodOnFullNodeIsRejected(t *testing.T) {
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: kubelet waits two minutes for a volume before it looks for the cause, which belongs to the long tests")
	}
	if kind, because := cluster.DefaultNodeKind(); kind != cluster.NodeKindKubelet {
		t.Skip("NOT RUN: " + because)
	}
	ctx := t.Context()
	scene := labtest.Open(t, cluster.Options{
		Name: "e2e-full", Nodes: 1, NodeKind: cluster.NodeKindKubelet, Plane: cluster.PlaneBelay, Drivers: []string{labdisk.DriverDisk},
	})
	makeClaim(t, scene, "data")
	create := func(name string) {
		pod := labtest.Writer(name, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}})
		if _, err := scene.Client.CoreV1().Pods(scenario.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := scene.Cluster.Fabric().SetFault(ctx, labdisk.Fault{Effect: labdisk.EffectLimit, Limit: 0}); err != nil {
		t.Fatal(err)
	}
	create("first")
	pod := labtest.UntilPod(t, scene, "first", "is rejected", func(pod *corev1.Pod) bool { return pod != nil && pod.Status.Phase == corev1.PodFailed })
	if pod.Status.Reason != "VolumeAttachmentLimitExceeded" {
		t.Errorf("the pod failed with reason %s: %s", pod.Status.Reason, pod.Status.Message)
	}
	if err := scene.Cluster.Fabric().ClearFaults(ctx); err != nil {
		t.Fatal(err)
	}
	create("second")
	labtest.UntilPod(t, scene, "second", "runs", func(pod *corev1.Pod) bool { return pod != nil && pod.Status.Phase == corev1.PodRunning })
}
