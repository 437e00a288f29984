package attachdetach

import (
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/explain"
)

// The cases of upstream's metrics_test.go, and what it measures without one.

// metric reads a metric of the controller that leads; 0 where there is none.
func (l *lab) metric(name string, labels map[string]string) float64 {
	l.Helper()
	return l.scene.metric(name, labels)
}

func (l *lab) wantMetric(want float64, name string, labels map[string]string) {
	l.Helper()
	if got := l.metric(name, labels); got != want {
		l.Errorf("%s%v is %v, want %v", name, labels, got, want)
	}
}

// volumesInUseMetric counts by node and plugin, an in-tree volume as its CSI driver's,
// whether or not it can be attached.
func volumesInUseMetric(l *lab) {
	const name = "storage_count_attachable_volumes_in_use"
	l.readyNode("a")
	l.pvOf("v", pd("metric-"+l.prefix))
	l.pod("p", "a", "v")
	l.awaitAt(gcePD, pdHandle("metric-"+l.prefix), "a")
	labels := map[string]string{"node": l.name("a"), "volume_plugin": "kubernetes.io/csi:" + gcePD}
	l.wantMetric(1, name, labels)
	l.gone("p")
	l.awaitNotAt(gcePD, pdHandle("metric-"+l.prefix), "a")
	l.wantMetric(0, name, labels)
}

func totalVolumesMetric(l *lab) {
	const name = "attachdetach_controller_total_volumes"
	driverName := l.driverObject("m", nil)
	plugin := "kubernetes.io/csi:" + driverName
	desired := map[string]string{"plugin_name": plugin, "state": "desired_state_of_world"}
	actual := map[string]string{"plugin_name": plugin, "state": "actual_state_of_world"}
	l.readyNode("a")
	l.pvOf("v", csiPV(driverName, l.name("v")))
	l.pod("p", "a", "v")
	l.awaitAt(driverName, l.name("v"), "a")
	l.wantMetric(1, name, desired)
	l.wantMetric(1, name, actual)
	l.uses("a", "kubernetes.io/csi/"+driverName+"^"+l.name("v"))
	l.gone("p")
	l.await("the detach waits", func() bool {
		return l.at(driverName, l.name("v"), "a").Annotations["belay.dev/detach-requested-at"] != ""
	})
	l.wantMetric(0, name, desired)
	l.wantMetric(1, name, actual)
}

// operationsMetric counts each attach and each detach once, under upstream's labels.
func operationsMetric(l *lab) {
	const name = "storage_operation_duration_seconds"
	driverName := l.driverObject("m", nil)
	labels := func(operation string) map[string]string {
		return map[string]string{
			"volume_plugin": "kubernetes.io/csi:" + driverName, "operation_name": operation,
			"status": "success", "migrated": "false",
		}
	}
	// An attach that ends before the next decision is not measured. The driver refuses each until the controller has seen that.
	attached := func(pod, node string) {
		const refusal = "not yet"
		l.attacher.set(func() {
			l.attacher.mood = func(va *storagev1.VolumeAttachment) (bool, string) {
				return false, map[bool]string{va.Spec.NodeName == l.name(node): refusal}[true]
			}
		})
		l.pod(pod, node, "v")
		l.awaitPodEvent(pod, explain.FailedAttachVolume, explain.AttachFailed(l.name("v"), refusal))
		l.attacher.set(func() { l.attacher.mood = nil })
		l.awaitAt(driverName, l.name("v"), node)
	}
	l.readyNode("a", "b")
	l.pvOf("v", csiPV(driverName, l.name("v")))
	attached("p", "a")
	l.gone("p")
	attached("q", "b") // so the end of the detach was seen
	l.wantMetric(2, name, labels("volume_attach"))
	l.wantMetric(1, name, labels("volume_detach"))
}
