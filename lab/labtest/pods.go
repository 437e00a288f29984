package labtest

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"belay.dev/belay/lab/nodes"
	"belay.dev/belay/lab/scenario"
)

// Writer is a pod that writes records to the first of its volumes.
func Writer(name string, volumes ...corev1.Volume) *corev1.Pod {
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

// UntilPod waits for the pod; is gets nil when it is gone.
func UntilPod(t *testing.T, scene *scenario.Scene, name, what string, is func(*corev1.Pod) bool) *corev1.Pod {
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
