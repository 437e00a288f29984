package attacher

import (
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// declaredGone returns a person's word that the machine of an attachment is gone, nil if none counts. A node that has the machine's ID proves it
// wrong.
func (a *Attacher) declaredGone(va *storagev1.VolumeAttachment) *kube.Declaration {
	declared, err := kube.DeclaredGone(va, time.Now())
	if err != nil || declared == nil || a.hasNode(declared.NodeID) {
		return nil
	}
	return declared
}

// restored returns why an attachment is left alone: its node ID is no node's, and was written by a client that is no attacher, such as a restore
// tool. It may be another cluster's. Where an attacher wrote it, the node was deleted, and the volume is unpublished from it.
func (a *Attacher) restored(va *storagev1.VolumeAttachment) string {
	by, nodeID := va.Annotations[writtenBy], va.Annotations[kube.NodeIDAnnotation]
	if by == "" || nodeID == "" || a.hasNode(nodeID) {
		return ""
	}
	return explain.Restored(va.Name, nodeID, by)
}

// hasNode reports whether a node of the cluster has a CSI node ID.
func (a *Attacher) hasNode(nodeID string) bool {
	return len(a.objects.csiNodes.byIndex(indexNodeID, nodeID)) > 0
}
