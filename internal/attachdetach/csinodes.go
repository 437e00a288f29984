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

// renamed reports whether the driver has another ID for the node than the one that is recorded on the attachment.
func (w *clusterState) renamed(va *storagev1.VolumeAttachment) bool {
	recorded, is := va.Annotations[kube.NodeIDAnnotation], w.nodeID(va.Spec.NodeName, va.Spec.Attacher)
	return recorded != "" && is != "" && recorded != is
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
