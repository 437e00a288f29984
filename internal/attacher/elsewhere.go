package attacher

import (
	"context"
	"slices"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
)

// driftOf returns how lists contradict an attachment. That a volume is PublishedElsewhere is stored on it, and so known to the next process.
func (a *Attacher) driftOf(va *storagev1.VolumeAttachment, drift publication.Drift) publication.Drift {
	if !a.annotates {
		return drift
	}
	if _, noted := va.Annotations[kube.PublishedElsewhereAnnotation]; noted && drift == publication.NoDrift {
		return publication.PublishedElsewhere
	}
	return drift
}

// noteElsewhere writes on the VolumeAttachments which exclusive volumes the driver lists at another node too, and removes that where a list no longer
// has it. The next comparison reads it again (driftOf). What could not be written follows the next list.
func (r *reconciler) noteElsewhere(ctx context.Context, list publication.Listing, resolved []string, expected []publication.ExpectedAttachment) {
	if !r.attacher.annotates {
		return
	}
	for i := range expected { // they are large
		want := &expected[i]
		va, ok := r.attacher.objects.attachments.Get(want.Name)
		if !ok || string(va.UID) != want.UID {
			continue
		}
		value := r.elsewhereOf(va, want, list, slices.Contains(resolved, want.UID))
		if value == va.Annotations[kube.PublishedElsewhereAnnotation] {
			continue
		}
		if err := r.attacher.writeElsewhere(ctx, va, value); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "Failed to write on the VolumeAttachment where the driver lists the volume", r.attacher.expectedLogValues(*want)...)
		}
	}
}

// elsewhereOf is the value that the annotation has to have after a list; empty for none.
func (r *reconciler) elsewhereOf(va *storagev1.VolumeAttachment, want *publication.ExpectedAttachment, list publication.Listing, resolved bool) string {
	noted := va.Annotations[kube.PublishedElsewhereAnnotation]
	record, now := r.attacher.calls.of(va.UID), time.Now()
	if resolved || r.attacher.driftOf(va, record.currentDrift()) != publication.PublishedElsewhere {
		return ""
	}
	e, counts := kube.ElsewhereOf(va, now)
	if !counts && record.drift != publication.PublishedElsewhere {
		return "" // no attacher wrote it, or one did that did not run for hours: the next lists show it again
	}
	switch nodeID := want.Elsewhere(list, e.NodeID); {
	case nodeID == "" && !counts, len(nodeID) > kube.MaxNodeID:
		return ""
	case nodeID == "", nodeID == e.NodeID && now.Sub(e.Seen) < kube.ElsewhereAgain:
		return noted
	case nodeID != e.NodeID:
		e = kube.Elsewhere{NodeID: nodeID, Since: now}
		if found := record.finding(); found.nodeID == nodeID {
			e.Since = found.asOf
		}
		if nodes := r.attacher.objects.csiNodes.byIndex(indexNodeID, nodeID); len(nodes) > 0 {
			e.Node = nodes[0].Name
		}
	}
	e.Seen = now
	return e.Encode()
}

func (a *Attacher) writeElsewhere(ctx context.Context, va *storagev1.VolumeAttachment, value string) error {
	annotation := any(value)
	if value == "" {
		annotation = nil
	}
	patch := object{"metadata": object{"uid": va.UID, "annotations": object{kube.PublishedElsewhereAnnotation: annotation}}}
	stored, err := a.patchAttachment(ctx, va.Name, types.MergePatchType, patch)
	if err != nil {
		return err
	}
	a.objects.attachments.Wrote(a.objects.trimAttachment(stored))
	return nil
}
