package attacher

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/publication"
)

// What a line of the log is about stands under the keys volume (the PersistentVolume), handle, driver, node, attachment
// and claim, as in belay-controller's log; Run adds the driver. Finding them costs something: do it for lines that
// are written.

// about is what a log line about an attachment names.
func (s *subject) about() []any { return s.aboutCall(s.seen.Node) }

// aboutCall is what a log line about a call for an attachment names.
func (s *subject) aboutCall(node string) []any {
	values := []any{"attachment", s.seen.Name, "node", node}
	if va := s.attachment; va != nil && va.Spec.Source.PersistentVolumeName != nil {
		values = append(values, "volume", *va.Spec.Source.PersistentVolumeName)
	} else if s.source.pv != nil {
		values = append(values, "volume", s.source.pv.Name)
	}
	if s.sourceErr == nil {
		values = append(values, "handle", s.source.handle)
	} else if s.record.handle != "" {
		values = append(values, "handle", s.record.handle)
	}
	return appendClaim(values, s.source.pv)
}

// nodeOf is the name of the node that a call is for; empty if it is not known. That is another node than the attachment's where an
// abandoned volume is taken back.
func (a *Attacher) nodeOf(one *subject, nodeID string) string {
	if one.seen.Drift != publication.Abandoned || nodeID != one.seen.DriftNodeID {
		return one.seen.Node
	}
	for _, item := range a.objects.csiNodeInformer.GetStore().List() {
		node, ok := item.(*storagev1.CSINode)
		if ok && slices.ContainsFunc(node.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.NodeID == nodeID }) { // ours alone is kept
			return node.Name
		}
	}
	return ""
}

// about is what a log line about a key names.
func (a *Attacher) about(key publication.Key) []any {
	var values []any
	for _, named := range []struct{ key, value string }{
		{"attachment", key.Attachment}, {"node", key.Node}, {"handle", key.Volume},
	} {
		if named.value != "" {
			values = append(values, named.key, named.value)
		}
	}
	if volumes := a.objects.volumes.byIndex(indexHandle, key.Volume); len(volumes) > 0 {
		values = appendClaim(append(values, "volume", volumes[0].Name), volumes[0])
	}
	return values
}

// aboutClaim is what a log line about an attachment of a comparison names.
func (a *Attacher) aboutClaim(claim publication.ExpectedAttachment) []any {
	values := []any{"attachment", claim.Name, "node", claim.Node, "handle", claim.Handle}
	va, ok := a.objects.attachments.Get(claim.Name)
	if !ok || va.Spec.Source.PersistentVolumeName == nil {
		return values
	}
	name := *va.Spec.Source.PersistentVolumeName
	pv, _ := a.objects.volumes.Get(name)
	return appendClaim(append(values, "volume", name), pv)
}

// appendClaim adds the claim that a PersistentVolume of the cache is bound to.
func appendClaim(values []any, pv *corev1.PersistentVolume) []any {
	if namespace, name, ok := claimOf(pv); ok {
		return append(values, "claim", klog.KRef(namespace, name))
	}
	return values
}

// logWaits logs why the attachments of a key wait, where that has changed.
func (s snapshot) logWaits(ctx context.Context, waits []publication.Wait, changed map[string]bool) {
	logger := log.FromContext(ctx).V(1)
	if !logger.Enabled() || len(changed) == 0 {
		return
	}
	byName := make(map[string]*subject, len(s.subjects))
	for _, one := range s.subjects {
		byName[one.seen.Name] = one
	}
	for _, w := range waits {
		if !changed[w.Attachment] {
			continue
		}
		values := append(byName[w.Attachment].about(), "reason", w.Reason, "until", publication.Exit(w.Reason))
		if !w.Until.IsZero() {
			values = append(values, "recheckAt", publication.FormatTime(w.Until))
		}
		logger.Info("Waiting", values...)
	}
}

// disagreements are the lines of the log for what is mended because the driver's list disagrees with an attachment.
var disagreements = map[publication.Drift]string{
	publication.NotPublished:   "The driver does not list the volume as published to the node, publishing it again",
	publication.StillPublished: "The driver still lists the volume as published to the node after the detach, unpublishing it again",
	publication.Abandoned:      "The driver lists the volume as published to a node that no VolumeAttachment is for, unpublishing it there",
}

// verbs are the words for a call to the driver in the log.
var verbs = map[publication.Verb]struct{ begins, failed, done string }{
	publication.Publish:   {"Attaching volume", "Failed to attach volume", "Volume attached"},
	publication.Unpublish: {"Detaching volume", "Failed to detach volume", "Volume detached"},
}
