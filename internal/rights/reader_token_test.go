package rights

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/testing/fixture"
)

// TestReadersWriteNothing: the tokens with which people, "kubectl belay" in the cluster, and Prometheus read, write nothing and read no Secret; logs are for those
// who have the role for them.
func TestReadersWriteNothing(t *testing.T) {
	fencingServed(t)
	_, reader := tokenOf(t, "belay-reader", readerFile)
	metrics := bound(t, "of-metrics-reader", "../../deploy/belay-metrics/reader.yaml", "belay-metrics-reader")
	logs := bound(t, "of-log-reader", "../../deploy/kubectl-belay/log-reader.yaml", "belay-log-reader")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "of-reader"}}
	pv := fixture.PersistentVolume("of-reader", "disk.test", "of-reader")
	pod := fixture.Pod("default", "of-reader", "of-reader")
	for _, o := range []client.Object{node, pv, pod, secret()} {
		create(t, o)
	}
	va := published(t, "of-reader", "disk.test", "of-reader", pv.Name)
	const touch = `{"metadata":{"annotations":{"a":"b"}}}`
	fence := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "of-reader"}}
	for _, c := range []client.Client{reader, metrics, logs} {
		for _, o := range []client.Object{
			node, pv, pod, va, fence, &fencingv1.FenceSource{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, lease("kube-system", "belay-controller"),
			lease("belay-system", "x"), secret(), &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"}},
		} {
			attempts(t, c,
				attempt{"creates", "create", o, "", byRBAC}, attempt{"patches", "patch", o, touch, byRBAC},
				attempt{"patches the status of", "status", o, touch, byRBAC}, attempt{"deletes", "delete", o, "", byRBAC},
			)
		}
		attempts(t, c,
			attempt{"reads a Secret", "get", secret(), "", byRBAC},
			attempt{"reads a ConfigMap", "get", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "x"}}, "", byRBAC},
			attempt{"becomes another account", "token", &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "belay-system", Name: "belay-reader"}}, "", byRBAC},
		)
	}
	attempts(t, reader, attempt{"reads a pod", "get", pod, "", byNone}, attempt{"reads a log", "log", pod, "", byRBAC})
	attempts(t, metrics, attempt{"reads a pod", "get", pod, "", byRBAC}, attempt{"reads a log", "log", pod, "", byRBAC})
	attempts(t, logs, attempt{"reads a pod", "get", pod, "", byRBAC})
}
