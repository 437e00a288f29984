package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"belay.dev/belay/internal/testing/apiserver"
)

// TestWorkloadsHaveMemoryLimits: what other clients write must not take the memory of the node. A process that ends and starts again attaches
// volumes; a node without memory ends others first.
func TestWorkloadsHaveMemoryLimits(t *testing.T) {
	workloads := 0
	files, err := filepath.Glob("belay-*/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range apiserver.Manifests(t, files...) {
		var template corev1.PodTemplateSpec
		var err error
		convert := runtime.DefaultUnstructuredConverter.FromUnstructured
		switch object.GetKind() {
		case "Deployment", "DaemonSet", "StatefulSet":
			var d appsv1.Deployment // the field that is read is the same in all
			err = convert(object.Object, &d)
			template = d.Spec.Template
		case "Job":
			var j batchv1.Job
			err = convert(object.Object, &j)
			template = j.Spec.Template
		default:
			continue
		}
		if err != nil {
			t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
		workloads++
		for _, c := range append(template.Spec.InitContainers, template.Spec.Containers...) {
			if strings.HasPrefix(c.Image, "belay.dev/") && c.Resources.Limits.Memory().IsZero() {
				t.Errorf("%s %s: container %s has no memory limit", object.GetKind(), object.GetName(), c.Name)
			}
		}
	}
	if workloads < 5 {
		t.Errorf("found %d workloads, want those of the controller, the attacher and recovery", workloads)
	}
	unit, err := os.ReadFile("belay-node/belay-node.service")
	if err != nil || !strings.Contains(string(unit), "\nMemoryMax=") {
		t.Errorf("the unit of belay-node has no memory limit: %v", err)
	}
}
