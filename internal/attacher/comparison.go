package attacher

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/go-logr/logr"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
)

// reconciler compares the attachments with the driver's list of volumes, so that what
// others do to the storage is noticed. It only makes an observation: what is done
// about it, and when, publication.Decide says, under the volume's own key.
type reconciler struct {
	attacher   *Attacher
	list       lister
	comparison *publication.Comparison
}

// compareWithDriver compares once at the beginning, and again after each pause, until ctx
// ends. Without a pause, and with a driver that cannot list where its volumes are
// published, there is nothing to do.
func (a *Attacher) compareWithDriver(ctx context.Context) {
	if a.reconcileSync <= 0 || !a.controller.Capabilities().CanListPublished() {
		return
	}
	r := reconciler{
		attacher:   a,
		comparison: publication.NewComparison(a.reconcileSync),
		list: lister{
			driver: a.driver, page: a.controller.ListVolumes, timeout: a.timeout,
			maxEntries: int32(min(max(0, a.maxEntries), math.MaxInt32)),
		},
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		r.pass(ctx)
		timer.Reset(a.reconcileSync)
	}
}

// pass reads the list and compares. A list that could not be read whole says nothing.
func (r *reconciler) pass(ctx context.Context) {
	a, logger := r.attacher, log.FromContext(ctx) // it names the driver
	handles := a.handles()
	began := time.Now()
	volumes, entries, err := r.list.read(ctx, handles)
	took := time.Since(began)
	if ctx.Err() != nil {
		return // shutting down
	}
	if err != nil {
		logger.Error(err, "Failed to compare VolumeAttachments with the driver's list", "took", took, "nextAttempt", publication.FormatTime(time.Now().Add(a.reconcileSync)))
		a.reconcileMetrics.Failed(took)
		return
	}
	claims := a.claims(len(handles))
	list := publication.Listing{Began: began, Volumes: volumes, Nodes: a.knownNodes(claims)}
	result := r.comparison.Compare(time.Now(), list, claims)
	a.reconcileMetrics.Compared(took, entries, result)
	logger.V(1).Info("Compared VolumeAttachments with the driver's list", "attachments", len(claims), "entries", entries, "took", took)
	r.act(logger, result, claims)
}

// act hands what was found to the decisions.
func (r *reconciler) act(logger logr.Logger, result publication.Result, claims []publication.ExpectedAttachment) {
	for _, claim := range claims {
		if drift, confirmed := result.Confirmed[claim.UID]; confirmed {
			values := append(r.attacher.aboutClaim(claim), "drift", drift)
			if at := result.AbandonedAt[claim.UID]; at != "" {
				values = append(values, "publishedAt", at)
			}
			logger.Info(disagreements[drift], values...)
			r.attacher.mark(claim, drift, result.AbandonedAt[claim.UID])
		}
		if slices.Contains(result.Resolved, claim.UID) {
			r.attacher.mark(claim, publication.NoDrift, "")
		}
	}
	if result.Distrusted != "" {
		logger.Info("VolumeAttachment and the driver's list disagree after a confirmed call, limiting repairs until one succeeds", "attachment", result.Distrusted)
	}
}

// mark notes an observation and has the volume looked at.
func (a *Attacher) mark(claim publication.ExpectedAttachment, drift publication.Drift, nodeID string) {
	va, ok := a.objects.attachments.Get(claim.Name)
	if !ok || string(va.UID) != claim.UID {
		return // it is another one by now
	}
	from, err := a.objects.sourceOf(va)
	if err != nil {
		return
	}
	a.calls.mark(attempt{uid: va.UID, attachment: va, volume: from.identity, node: claim.Node}, drift, nodeID)
	a.queue.Add(a.objects.keyOfVolume(from.handle, claim.Node))
}

// mark notes what the driver's list says against an attachment; NoDrift takes it back.
func (l *ledger) mark(a attempt, drift publication.Drift, nodeID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if drift == publication.NoDrift && l.byUID[a.uid] == nil {
		return
	}
	r := l.recordFor(a)
	r.drift, r.driftNodeID = drift, nodeID
}

// each goes over our attachments whose volume is known, by name.
func (a *Attacher) each(f func(va *storagev1.VolumeAttachment, from source)) {
	names := a.objects.attachmentInformer.GetStore().ListKeys()
	slices.Sort(names)
	for _, name := range names {
		va, ok := a.objects.attachments.Get(name)
		if !ok || va.Spec.Attacher != a.driver {
			continue
		}
		if from, err := a.objects.sourceOf(va); err == nil { // else it is said in the status
			f(va, from)
		}
	}
}

// handles are those that are looked for in a list.
func (a *Attacher) handles() []string {
	var found []string
	a.each(func(va *storagev1.VolumeAttachment, from source) {
		nodeID, _ := a.nodeID(va.Spec.NodeName) // empty if the node is not known
		if handle, err := a.listedHandle(va, from, nodeID); err == nil {
			found = append(found, handle)
		}
	})
	return found
}

// listedHandle is a volume's handle as the driver lists it: those of some migrated
// volumes (GCE PD) leave out what the node ID tells.
func (a *Attacher) listedHandle(va *storagev1.VolumeAttachment, from source, nodeID string) (string, error) {
	if !from.migrated {
		return from.handle, nil
	}
	return a.objects.translator.RepairVolumeHandle(a.driver, from.handle, cmp.Or(va.Annotations[kube.NodeIDAnnotation], nodeID))
}

// claims are our attachments as they are now, by name; there are about so many.
func (a *Attacher) claims(about int) []publication.ExpectedAttachment {
	found := make([]publication.ExpectedAttachment, 0, about)
	a.each(func(va *storagev1.VolumeAttachment, from source) {
		nodeID, _ := a.nodeID(va.Spec.NodeName)
		handle, err := a.listedHandle(va, from, nodeID)
		if err != nil {
			return
		}
		record := a.calls.of(va.UID)
		found = append(found, publication.ExpectedAttachment{
			Attachment: publication.Attachment{
				UID: string(va.UID), Name: va.Name, Node: va.Spec.NodeName, Created: va.CreationTimestamp.Time,
				Deleting: va.DeletionTimestamp != nil, Attached: va.Status.Attached,
				Finalizer:      slices.Contains(va.Finalizers, a.finalizer),
				RecordedNodeID: va.Annotations[kube.NodeIDAnnotation], NodeID: nodeID,
				AttachError: messageOf(va.Status.AttachError), DetachError: messageOf(va.Status.DetachError),
				Call: record.call, Drift: record.drift,
			},
			Version: va.ResourceVersion, Handle: handle, Exclusive: a.objects.exclusive(from.handle),
		})
	})
	return found
}

// knownNodes are the node IDs that are, or were, nodes of this cluster.
func (a *Attacher) knownNodes(claims []publication.ExpectedAttachment) map[string]bool {
	known := map[string]bool{}
	for _, item := range a.objects.csiNodeInformer.GetStore().List() {
		if node, ok := item.(*storagev1.CSINode); ok {
			for _, driver := range node.Spec.Drivers { // ours alone is kept
				known[driver.NodeID] = true
			}
		}
	}
	for i := range claims {
		known[claims[i].RecordedNodeID] = true
	}
	delete(known, "")
	return known
}
