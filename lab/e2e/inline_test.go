package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/nodes"
	"belay.dev/belay/lab/scenario"
)

// TestInlineVolumes gives one pod two inline volumes, on a real kubelet and on belay's
// node agent: both ask the driver for the same, and pods can write.
func TestInlineVolumes(t *testing.T) {
	labtest.Needs(t)
	for _, kind := range []string{cluster.NodeKindBelay, cluster.NodeKindKubelet} {
		t.Run(kind, func(t *testing.T) {
			if best, because := cluster.DefaultNodeKind(); kind == cluster.NodeKindKubelet && best != kind {
				t.Skip("NOT RUN: " + because)
			}
			scene := labtest.Open(t, cluster.Options{
				Name: "e2e-inline", Nodes: 1, NodeKind: kind, Plane: cluster.PlaneBelay, Drivers: []string{labdisk.DriverLocal},
			})
			pods := scene.Client.CoreV1().Pods(scenario.Namespace)
			pod, err := pods.Create(t.Context(), inlinePod("data", "scratch"), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			node := untilPod(t, scene, pod.Name, "runs and is ready", func(pod *corev1.Pod) bool {
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
			untilPod(t, scene, pod.Name, "is gone", func(pod *corev1.Pod) bool { return pod == nil })
			if diff := cmp.Diff(inlineCalls(pod, "data", "scratch"), madeCalls(t, scene)); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
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
	return writer("inline", sources...)
}

// writer is a pod that writes records to the first of its volumes.
func writer(name string, volumes ...corev1.Volume) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: scenario.Namespace},
		Spec: corev1.PodSpec{
			HostNetwork: true, TerminationGracePeriodSeconds: new(int64(5)), AutomountServiceAccountToken: new(false),
			Containers: []corev1.Container{{
				Name: "writer", Image: nodes.Image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"/ledger", "append", "--file", "/" + volumes[0].Name + "/records"},
				Env: []corev1.EnvVar{
					{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
					{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
				},
			}},
			Volumes: volumes,
		},
	}
	c := &pod.Spec.Containers[0]
	for _, volume := range volumes {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume.Name, MountPath: "/" + volume.Name})
	}
	return pod
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
	all, err := scene.Cluster.Fabric().Calls(t.Context(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	var calls []string
	for _, c := range all {
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

// untilPod waits for the pod; is gets nil when it is gone.
func untilPod(t *testing.T, scene *scenario.Scene, name, what string, is func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	pods := scene.Client.CoreV1().Pods(scenario.Namespace)
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	var last *corev1.Pod
	_, err := watchtools.UntilWithSync(ctx, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = only
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = only
			return pods.Watch(ctx, o)
		},
	}, &corev1.Pod{}, func(cache.Store) (bool, error) {
		_, err := pods.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err) && is(nil), nil
	}, func(event watch.Event) (bool, error) {
		last = event.Object.(*corev1.Pod)
		if event.Type == watch.Deleted {
			return is(nil), nil
		}
		return is(last), nil
	})
	if err != nil {
		t.Fatalf("pod %s never %s: %v; it is %+v", name, what, err, last)
	}
	return last
}
