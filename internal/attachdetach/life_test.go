package attachdetach

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

func storage() corev1.VolumeResourceRequirements {
	return corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceStorage: resource.MustParse("1Gi"),
	}}
}

func TestAttachReportAndDetach(t *testing.T) {
	l := newLab(t)
	l.node("a")
	l.volume("v")
	l.run()

	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	l.awaitTold("p", explain.SuccessfulAttachVolume, explain.AttachSucceeded(l.name("v")))
	va := l.read("v", "a")
	want := map[string]string{
		kube.VolumeHandleAnnotation: l.name("v"),
		kube.NodeUIDAnnotation:      string(l.nodes[l.name("a")].UID),
		kube.BootIDAnnotation:       "boot-a",
		kube.SystemUUIDAnnotation:   "hw-a",
	}
	if diff := cmp.Diff(want, va.Annotations); diff != "" {
		t.Errorf("annotations of the attachment (-want +got):\n%s", diff)
	}

	l.use("a", "v")
	l.gone("p")
	l.awaitWaiting("v", "a")
	if va := l.read("v", "a"); va.DeletionTimestamp != nil {
		t.Error("S2: detached while in use")
	}
	l.await("still reported", func() bool { return l.isReported("v", "a") })
	l.use("a")
	l.awaitDetached("v", "a")
}
