package attacher

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/publication"
)

// The log keys are those of docs/logs.md, which all programs share. Run adds the driver. Looking them up is not free: do it only for messages that are written.

// logValues returns the log keys and values of an attachment.
func (s *subject) logValues() []any { return s.callLogValues(s.seen.Node) }

// callLogValues returns the log keys and values of a call for an attachment.
func (s *subject) callLogValues(node string) []any {
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

// nodeOf returns the name of the node that a call is for, or "" if it is unknown. For an abandoned volume, it is not
// the attachment's node.
func (a *Attacher) nodeOf(subj *subject, nodeID string) string {
	if subj.seen.Drift != publication.Abandoned || nodeID != subj.seen.DriftNodeID {
		return subj.seen.Node
	}
	for _, node := range a.objects.csiNodes.byIndex(indexNodeID, nodeID) {
		return node.Name
	}
	return ""
}

// logValues returns the log keys and values of a queue key.
func (a *Attacher) logValues(key publication.Key) []any {
	var values []any
	for _, named := range []struct{ key, value string }{
		{"attachment", key.Attachment}, {"node", key.Node}, {"nodeID", key.NodeID}, {"handle", key.Volume},
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

// expectedLogValues returns the log keys and values of a compared attachment.
func (a *Attacher) expectedLogValues(want publication.ExpectedAttachment) []any {
	values := []any{"attachment", want.Name, "node", want.Node, "handle", want.Handle}
	va, ok := a.objects.attachments.Get(want.Name)
	if !ok || va.Spec.Source.PersistentVolumeName == nil {
		return values
	}
	name := *va.Spec.Source.PersistentVolumeName
	pv, _ := a.objects.volumes.Get(name)
	return appendClaim(append(values, "volume", name), pv)
}

// appendClaim appends the claim that a cached PersistentVolume is bound to.
func appendClaim(values []any, pv *corev1.PersistentVolume) []any {
	if namespace, name, ok := claimOf(pv); ok {
		return append(values, "claim", klog.KRef(namespace, name))
	}
	return values
}

// logWaits logs new reasons for which the attachments of a key wait.
func (s snapshot) logWaits(ctx context.Context, waits []publication.Wait, changed map[string]bool) {
	logger := log.FromContext(ctx).V(1)
	if !logger.Enabled() || len(changed) == 0 {
		return
	}
	byName := make(map[string]*subject, len(s.subjects))
	for _, subj := range s.subjects {
		byName[subj.seen.Name] = subj
	}
	for _, w := range waits {
		if !changed[w.Attachment] {
			continue
		}
		subj := byName[w.Attachment]
		verb := publication.Publish
		if subj.seen.Deleting || subj.seen.Gone {
			verb = publication.Unpublish
		}
		values := append(subj.logValues(), "reason", w.Reason, "until", publication.Exit(w.Reason))
		if !w.Until.IsZero() {
			values = append(values, "recheckAt", publication.FormatTime(w.Until))
		}
		logger.Info(verbs[verb].wait, values...)
	}
}

// disagreements are the log messages for differences with ListVolumes.
var disagreements = map[publication.Drift]string{
	publication.NotPublished:       "The driver does not list the volume as published to the node, publishing it again",
	publication.StillPublished:     "The driver still lists the volume as published to the node after the detach, unpublishing it again",
	publication.PublishedElsewhere: "The driver lists the volume as published to another node too, which may write to it; nothing is changed",
	publication.HalfPublished:      "The driver lists the volume as published to the node and does not confirm it, unpublishing it before the next attempt",
	publication.Vanished:           "The driver does not know the volume or the node, and has listed the volume as published nowhere for ten minutes, releasing it without an unpublish",
	publication.Abandoned:          "The driver lists the volume as published to a node that no VolumeAttachment is for, unpublishing it there",
}

// verbs are the log messages for calls.
var verbs = map[publication.Verb]struct{ wait, start, failed, done string }{
	publication.Publish:   {"Waiting to attach volume", "Attaching volume", "Failed to attach volume", "Volume attached"},
	publication.Unpublish: {"Waiting to detach volume", "Detaching volume", "Failed to detach volume", "Volume detached"},
}
