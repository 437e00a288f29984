package attachdetach

import (
	"cmp"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/kube"
)

// csiNodeChanged returns the volumes that are attached to a node for which their driver has, or had, another ID than the recorded one.
func (w *clusterState) csiNodeChanged(before, after *storagev1.CSINode) []key {
	var keys []key
	for _, va := range w.attachments.ByIndex(byNode, cmp.Or(after, before).Name) {
		recorded := va.Annotations[kube.NodeIDAnnotation]
		was, is := nodeIDIn(before, va.Spec.Attacher), nodeIDIn(after, va.Spec.Attacher)
		if recorded != "" && was != is && (was != "" && was != recorded || is != "" && is != recorded) {
			keys = append(keys, w.keysOfAttachment(va)...)
		}
	}
	return keys
}

// renamed reports whether the recorded node ID of an attachment has become another than the driver has for the node now, or was one: all others
// that attachers record with their finalizers change no decision.
func (w *clusterState) renamed(before, after *storagev1.VolumeAttachment) bool {
	was, recorded := before.Annotations[kube.NodeIDAnnotation], after.Annotations[kube.NodeIDAnnotation]
	is := w.nodeID(after.Spec.NodeName, after.Spec.Attacher)
	return was != recorded && is != "" && (was != "" && was != is || recorded != "" && recorded != is)
}

// nodeID returns the ID that a driver has for a node, empty if that is unknown.
func (w *clusterState) nodeID(node, driver string) string {
	csiNode, _ := get[*storagev1.CSINode](w.csiNodes, node)
	return nodeIDIn(csiNode, driver)
}

func nodeIDIn(node *storagev1.CSINode, driver string) string {
	if node == nil {
		return ""
	}
	for i := range node.Spec.Drivers {
		if node.Spec.Drivers[i].Name == driver {
			return node.Spec.Drivers[i].NodeID
		}
	}
	return ""
}
