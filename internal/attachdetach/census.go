package attachdetach

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/telemetry"
)

// volume is what the metrics are told about the volume at hand.
func (w *work) volume() telemetry.Volume { return telemetry.Volume{Key: w.key} }

// census counts all volumes, by going once over the caches' pods and attachments: what
// upstream counts at each scrape too. Events pay nothing for it.
func (w *world) census() telemetry.Census {
	c := telemetry.Census{
		Desired: map[string]int{}, Actual: map[string]int{},
		InUse: map[attachment.NodeName]map[string]int{},
	}
	type place struct {
		key  attachment.VolumeKey
		node string
	}
	desired := map[place]bool{}
	required := map[string]bool{}
	for _, item := range w.pods.List() {
		pod := item.(*corev1.Pod)
		if pod.Spec.NodeName == "" || len(pod.Spec.Volumes) == 0 {
			continue
		}
		node := attachment.NodeName(pod.Spec.NodeName)
		for _, k := range w.keysOfPod(pod) {
			if c.InUse[node] == nil {
				c.InUse[node] = map[string]int{}
			}
			c.InUse[node][k.Driver]++
			if _, known := required[k.Driver]; !known {
				required[k.Driver] = w.attachRequired(k.Driver)
			}
			if required[k.Driver] && !kube.PodEnded(pod) && w.manages(pod.Spec.NodeName) {
				desired[place{k, pod.Spec.NodeName}] = true
			}
		}
	}
	for p := range desired {
		c.Desired[p.key.Driver]++
	}
	for _, item := range w.informers[storagev1.SchemeGroupVersion.WithKind("VolumeAttachment")].GetStore().List() {
		c.Actual[item.(*storagev1.VolumeAttachment).Spec.Attacher]++
	}
	return c
}

func (w *world) manages(node string) bool {
	n, ok := w.nodes.Get(node)
	if !ok {
		return false
	}
	_, managed := n.Annotations[kube.ManagedAttachAnnotation]
	return managed
}
