package attachdetach

import (
	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/telemetry"
)

// volume returns the volume for metrics.
func (w *work) volume() telemetry.Volume {
	return telemetry.Volume{Key: w.key, Migrated: w.now.migrated}
}

// census counts all volumes for metrics. It goes over the cached pods, attachments and nodes at each scrape, like
// upstream, so that events cost nothing. See BenchmarkCensus.
func (w *clusterState) census() telemetry.Census {
	c := telemetry.Census{
		Desired: map[string]int{}, Actual: map[string]int{},
		InUse: map[attachment.NodeName]map[string]int{},
	}
	required := map[string]bool{}
	attaches := func(driver string) bool {
		if _, known := required[driver]; !known {
			required[driver] = w.attachRequired(driver)
		}
		return required[driver]
	}
	nodes := w.nodes.Cached()
	managed := make(map[string]bool, len(nodes))
	for _, node := range nodes {
		managed[node.Name] = kube.Managed(node)
	}
	for _, va := range w.attachments.Cached() {
		c.Actual[kube.DriverOf(va.Spec.Attacher)]++
	}
	type place struct {
		attachment.VolumeKey
		node string
	}
	desired := map[place]bool{}
	for _, item := range w.pods.List() {
		pod := item.(*corev1.Pod)
		node := attachment.NodeName(pod.Spec.NodeName)
		for _, k := range w.keysOfPod(pod) {
			if c.InUse[node] == nil {
				c.InUse[node] = map[string]int{}
			}
			c.InUse[node][k.Driver]++
			at := place{k, pod.Spec.NodeName}
			if managed[at.node] && !desired[at] && !kube.PodEnded(pod) && attaches(k.Driver) {
				desired[at] = true
				c.Desired[k.Driver]++
			}
		}
	}
	return c
}
