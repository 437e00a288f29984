package rights

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/inspect"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
)

// TestManyVolumesOfTenant: the API server accepts pods of about 1 MB from a tenant, with any number of volumes and any text in them. The caches of
// the controller and a snapshot of "kubectl belay" keep almost nothing of them.
func TestManyVolumesOfTenant(t *testing.T) {
	const namespace, node, each, bound = "many-volumes", "many-volumes", 5, 4 << 10
	edit, err := client.New(tenant(t, namespace), client.Options{})
	must(t, err)
	create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Annotations: map[string]string{kube.ManagedAttachAnnotation: "true"}}})
	text := strings.Repeat("x", 1<<20)
	kinds := map[string]func(i int) (int, corev1.VolumeSource){
		"claims": func(i int) (int, corev1.VolumeSource) {
			return 20_000, corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint(i)}}
		},
		"fc": func(i int) (int, corev1.VolumeSource) {
			return 15_000, corev1.VolumeSource{FC: &corev1.FCVolumeSource{WWIDs: []string{fmt.Sprint(i)}}}
		},
		"ebs": func(int) (int, corev1.VolumeSource) {
			return 1, corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-0123456789", FSType: text}}
		},
		"csi": func(int) (int, corev1.VolumeSource) {
			return 1, corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "many.example.com", VolumeAttributes: map[string]string{"a": text}}}
		},
	}
	for kind, source := range kinds {
		for i := range each {
			pod := fixture.Pod(namespace, fmt.Sprint(kind, "-", i), node, "of-"+kind)
			for n, of := 0, 1; n < of; n++ {
				volume := corev1.Volume{Name: fmt.Sprint("v", n)}
				of, volume.VolumeSource = source(n)
				pod.Spec.Volumes = append(pod.Spec.Volumes, volume)
			}
			must(t, edit.Create(t.Context(), pod))
			t.Cleanup(func() {
				_ = server.Client.Delete(context.WithoutCancel(t.Context()), pod, client.GracePeriodSeconds(0))
			})
		}
	}

	caches := controller(t).GetCache()
	if !caches.WaitForCacheSync(t.Context()) {
		t.Fatal("the caches were not filled")
	}
	var cached corev1.PodList
	must(t, caches.List(t.Context(), &cached, client.InNamespace(namespace)))
	if len(cached.Items) != len(kinds)*each {
		t.Fatalf("the cache has %d pods", len(cached.Items))
	}
	for i := range cached.Items {
		if pod := &cached.Items[i]; pod.Size() > bound {
			t.Errorf("the cache keeps %d bytes of pod %s", pod.Size(), pod.Name)
		}
	}
	reader, err := inspect.New(server.Config())
	must(t, err)
	for kind := range kinds {
		s := reader.About(t.Context(), diagnosis.Ref{Resource: diagnosis.Pods, Namespace: namespace, Name: kind + "-0"})
		for _, pod := range s.Pods {
			if pod.Size() > bound {
				t.Errorf("a snapshot keeps %d bytes of pod %s", pod.Size(), pod.Name)
			}
		}
	}
}
