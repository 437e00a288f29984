package e2e

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

// testInlineVolumes gives one pod two inline volumes: the driver is asked for both and no other, and the pod can write.
func testInlineVolumes(t *testing.T, scene *scenario.Scene) {
	t.Helper()
	pods := scene.Client.CoreV1().Pods(scenario.Namespace)
	pod, err := pods.Create(t.Context(), inlinePod("data", "scratch"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node := labtest.UntilPod(t, scene, pod.Name, "runs and is ready", func(pod *corev1.Pod) bool {
		return pod != nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.ContainersReady && c.Status == corev1.ConditionTrue
		})
	}).Spec.NodeName
	status, err := scene.Client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(status.Status.VolumesInUse)+len(status.Status.VolumesAttached) > 0 {
		t.Errorf("in use %v, attached %v", status.Status.VolumesInUse, status.Status.VolumesAttached)
	}
	if err := pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	labtest.UntilPod(t, scene, pod.Name, "is gone", func(pod *corev1.Pod) bool { return pod == nil })
	if diff := cmp.Diff(inlineCalls(pod, "data", "scratch"), madeCalls(t, scene)); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// inlinePod writes records to the first of its inline volumes.
func inlinePod(volumes ...string) *corev1.Pod {
	sources := make([]corev1.Volume, 0, len(volumes))
	for _, name := range volumes {
		sources = append(sources, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			CSI: &corev1.CSIVolumeSource{Driver: labdisk.DriverLocal},
		}})
	}
	return labtest.Writer("inline", sources...)
}

// inlineCalls are all calls to a driver for a pod's inline volumes, sorted.
func inlineCalls(pod *corev1.Pod, volumes ...string) []string {
	var calls []string
	for _, volume := range volumes {
		handle := fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(pod.UID)+volume)))
		target := filepath.Join("pods", string(pod.UID), "volumes/kubernetes.io~csi", volume, "mount")
		for _, method := range []string{"NodePublishVolume", "NodeUnpublishVolume"} {
			calls = append(calls, method+" "+handle+" "+target+" OK")
		}
	}
	return sorted(calls)
}

// madeCalls are those about volumes that change something, sorted.
func madeCalls(t *testing.T, scene *scenario.Scene) []string {
	t.Helper()
	var calls []string
	for _, c := range labtest.EndedCalls(t, scene) {
		if c.Volume == "" || c.Method == "NodeGetVolumeStats" {
			continue
		}
		_, target, _ := strings.Cut(c.Target, "/pods/") // each node has a root of its own
		calls = append(calls, c.Method+" "+c.Volume+" pods/"+target+" "+c.Code)
	}
	return sorted(calls)
}

func sorted(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}
