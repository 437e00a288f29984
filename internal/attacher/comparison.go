package attacher

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/go-logr/logr"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
)

// reconciler compares the attachments with ListVolumes to detect changes by other clients of the storage. It only
// records the difference: publication.Decide decides on the correction.
type reconciler struct {
	attacher   *Attacher
	list       lister
	comparison *publication.Comparison
	held       map[string]string // by UID, what was logged last
}

// bootShare is the share of the pause (a quarter) that follows a list before a new boot may ask for the next one.
const bootShare = 4

// compareWithDriver compares at the start, after each pause, and when a node has a new boot, until ctx is done: a machine that boots may have
// lost its volumes. It returns at once if the comparison is disabled or the driver does not list the published nodes.
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
	var soonest time.Time // many boots ask for few lists, and for fewer of those that take long
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.newBoot:
			timer.Reset(time.Until(soonest))
			continue
		case <-timer.C:
		}
		began := time.Now()
		r.pass(ctx)
		soonest = time.Now().Add(min(a.reconcileSync, max(a.reconcileSync/bootShare, time.Since(began))))
		timer.Reset(a.reconcileSync)
	}
}

// pass makes one comparison. An incomplete list is discarded.
func (r *reconciler) pass(ctx context.Context) {
	a, logger := r.attacher, log.FromContext(ctx) // has the key "driver"
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
	expected := r.expected(volumes)
	list := publication.Listing{Began: began, Volumes: volumes, Nodes: expected.nodes}
	asOf, nodes := time.Now(), a.newNodeReader()
	list.Ask(expected.attachments, func(of *publication.ExpectedAttachment, nodeID string) decision.Knowledge {
		return nodes.inUseAt(ctx, r.handleOf(of), nodeID).known
	})
	result := r.comparison.Compare(time.Now(), list, expected.attachments)
	a.reconcileMetrics.Compared(took, entries, result)
	logger.V(1).Info("Compared VolumeAttachments with the driver's list", "attachments", expected.all, "entries", entries, "took", took)
	r.act(logger, result, expected.attachments, asOf)
	r.noteElsewhere(ctx, list, result.Resolved, expected.attachments)
	r.hold(ctx, result.Held, expected.attachments, nodes)
	r.settleDoubts(logger, list, expected.attachments)
}

// handleOf returns the handle of a compared attachment as Kubernetes has it.
func (r *reconciler) handleOf(want *publication.ExpectedAttachment) string {
	if va, ok := r.attacher.objects.attachments.Get(want.Name); ok && string(va.UID) == want.UID {
		if from, err := r.attacher.objects.sourceOf(va); err == nil {
			return from.handle
		}
	}
	return want.Handle
}

// hold logs why volumes are not unpublished from nodes without an attachment, and has the next error of their publish say so.
func (r *reconciler) hold(ctx context.Context, held map[string]string, expected []publication.ExpectedAttachment, nodes *nodeReader) {
	logged := r.held
	r.held = make(map[string]string, len(held))
	for i := range expected { // they are large
		want, why := &expected[i], ""
		if nodeID, ok := held[want.UID]; ok {
			why = explain.NotFreed(nodeID, nodes.inUseAt(ctx, r.handleOf(want), nodeID).why)
			r.held[want.UID] = why
		}
		r.attacher.calls.change(types.UID(want.UID), func(of *record) {
			if why != of.finding().held {
				of.found = &finding{held: why}
			}
		})
		if why != "" && why != logged[want.UID] {
			log.FromContext(ctx).Info("The driver lists the volume as published to a node that no VolumeAttachment is for, not unpublishing it there",
				append(r.attacher.expectedLogValues(*want), "publishedAt", held[want.UID], "reason", why)...)
		}
	}
}

// act logs the differences and enqueues the attachments concerned.
func (r *reconciler) act(logger logr.Logger, result publication.Result, expected []publication.ExpectedAttachment, asOf time.Time) {
	for _, want := range expected {
		if drift, confirmed := result.Confirmed[want.UID]; confirmed {
			values := append(r.attacher.expectedLogValues(want), "drift", drift)
			if at := result.At[want.UID]; at != "" {
				values = append(values, "publishedAt", at)
			}
			logger.Info(disagreements[drift], values...)
			r.attacher.recordDrift(want, drift, result.At[want.UID], asOf)
		}
		if slices.Contains(result.Resolved, want.UID) {
			r.attacher.recordDrift(want, publication.NoDrift, "", asOf)
		}
	}
	if result.Distrusted != "" {
		logger.Info("VolumeAttachment and the driver's list disagree after a confirmed call, limiting repairs until one succeeds", "attachment", result.Distrusted)
	}
}

// recordDrift records a difference and enqueues the volume.
func (a *Attacher) recordDrift(want publication.ExpectedAttachment, drift publication.Drift, nodeID string, asOf time.Time) {
	va, ok := a.objects.attachments.Get(want.Name)
	if !ok || string(va.UID) != want.UID {
		return // it was recreated
	}
	from, err := a.objects.sourceOf(va)
	if err != nil {
		return
	}
	a.calls.recordDrift(attempt{uid: va.UID, attachment: va, volume: from.identity, node: want.Node}, drift, nodeID, asOf)
	a.queue.Add(a.objects.keyOf(va))
}

// recordDrift records how ListVolumes contradicts an attachment; NoDrift clears it.
func (l *ledger) recordDrift(a attempt, drift publication.Drift, nodeID string, asOf time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if drift == publication.NoDrift && l.byUID[a.uid] == nil {
		return
	}
	r := l.recordFor(a)
	r.drift, r.found = drift, &finding{nodeID: nodeID, asOf: asOf}
}

// unusedFor is how long it counts that no Node lists a volume in use. Then the next comparison has to ask again.
const unusedFor = 30 * time.Second

// currentDrift returns the drift, unless it rests on a Node that was read too long ago.
func (r record) currentDrift() publication.Drift {
	if r.drift == publication.Abandoned && time.Since(r.finding().asOf) > unusedFor {
		return publication.NoDrift
	}
	return r.drift
}

// forEachAttachment calls f for those of the attachments that are ours and have a known volume, with its handle as the driver lists it.
func (a *Attacher) forEachAttachment(all []*storagev1.VolumeAttachment, f func(va *storagev1.VolumeAttachment, from source, handle string)) {
	for _, va := range all {
		if va.Spec.Attacher != a.driver {
			continue
		}
		from, err := a.objects.sourceOf(va)
		if err != nil {
			continue // the status has the error
		}
		if handle, err := a.listedHandle(va, from); err == nil {
			f(va, from, handle)
		}
	}
}

// handles returns the volume handles to look for in the list.
func (a *Attacher) handles() []string {
	all := a.objects.attachments.All()
	found := make([]string, 0, len(all))
	a.forEachAttachment(all, func(_ *storagev1.VolumeAttachment, _ source, handle string) { found = append(found, handle) })
	return found
}

// listedHandle returns the volume handle as the driver lists it: for some migrated volumes (GCE PD) it depends on the
// node ID.
func (a *Attacher) listedHandle(va *storagev1.VolumeAttachment, from source) (string, error) {
	if !from.migrated {
		return from.handle, nil
	}
	return a.objects.translator.RepairVolumeHandle(a.driver, from.handle, a.boundNodeID(va))
}

// boundNodeID returns the node ID that the volume is, or may be, published to; empty if the node is not known.
func (a *Attacher) boundNodeID(va *storagev1.VolumeAttachment) string {
	if recorded := va.Annotations[kube.NodeIDAnnotation]; recorded != "" {
		return recorded
	}
	nodeID, _ := a.nodeID(va.Spec.NodeName)
	return nodeID
}

// expectation is what a list is compared with.
type expectation struct {
	// attachments are those that have to be compared, sorted by name.
	attachments []publication.ExpectedAttachment
	// all is how many attachments there are.
	all int
	// nodes are the IDs of present and earlier nodes of this cluster.
	nodes map[string]bool
}

// expected returns what a list is compared with. An attachment that the list plainly confirms, as it does nearly all, is left out: with
// 100,000, half of a comparison's CPU time was for their copies. Those of a volume with an attachment that needs its holders are compared.
func (r *reconciler) expected(volumes map[string]*publication.Entry) expectation {
	list := publication.Listing{Volumes: volumes}
	plain := func(va *storagev1.VolumeAttachment, handle string) bool {
		return r.comparison.Confirms(list, handle, publication.Attachment{
			UID: string(va.UID), Attached: va.Status.Attached, Deleting: va.DeletionTimestamp != nil,
			RecordedNodeID: r.attacher.boundNodeID(va), Drift: r.attacher.driftOf(va, r.attacher.calls.of(va.UID).drift),
		})
	}
	e := r.expectedBut(plain)
	if needed := publication.HoldersNeeded(e.attachments); len(needed) > 0 {
		e = r.expectedBut(func(va *storagev1.VolumeAttachment, handle string) bool { return !needed[handle] && plain(va, handle) })
	}
	return e
}

// expectedBut is expected without some attachments.
func (r *reconciler) expectedBut(without func(va *storagev1.VolumeAttachment, handle string) bool) expectation {
	a, e := r.attacher, expectation{nodes: map[string]bool{}}
	for _, item := range a.objects.csiNodeInformer.GetStore().List() {
		if node, ok := item.(*storagev1.CSINode); ok {
			for _, driver := range node.Spec.Drivers { // the cache keeps only ours
				e.nodes[driver.NodeID] = true
			}
		}
	}
	a.forEachAttachment(a.objects.attachments.All(), func(va *storagev1.VolumeAttachment, from source, handle string) {
		e.all++
		e.nodes[va.Annotations[kube.NodeIDAnnotation]] = true
		if !without(va, handle) {
			e.attachments = append(e.attachments, a.expectedAttachment(va, from, handle))
		}
	})
	delete(e.nodes, "")
	slices.SortFunc(e.attachments, func(a, b publication.ExpectedAttachment) int { return cmp.Compare(a.Name, b.Name) })
	return e
}

func (a *Attacher) expectedAttachment(va *storagev1.VolumeAttachment, from source, handle string) publication.ExpectedAttachment {
	record := a.calls.of(va.UID)
	nodeID, _ := a.nodeID(va.Spec.NodeName)
	finalizer := slices.Contains(va.Finalizers, a.finalizer)
	return publication.ExpectedAttachment{
		Attachment: publication.Attachment{
			UID: string(va.UID), Name: va.Name, Node: va.Spec.NodeName, Created: va.CreationTimestamp.Time,
			Deleting: va.DeletionTimestamp != nil, Attached: va.Status.Attached,
			Finalizer:      finalizer,
			RecordedNodeID: va.Annotations[kube.NodeIDAnnotation], NodeID: nodeID,
			AttachError: messageOf(va.Status.AttachError), DetachError: messageOf(va.Status.DetachError),
			Call: record.call, Drift: a.driftOf(va, record.currentDrift()),
		},
		Version: contentOf(va), Handle: handle, Exclusive: func() bool { return a.objects.exclusive(from.handle) },
		// The answers to an earlier process are not known, and it stored the finalizer.
		Unanswered: record.unanswered || finalizer && !record.untouched,
	}
}

// contentOf identifies the state of an attachment between two lists. What belay annotates, such as the boot of the machine, is no part of it: the
// controller writes that for all volumes of a node at about the time at which the storage may have lost them.
func contentOf(va *storagev1.VolumeAttachment) string {
	return digest(va.DeletionTimestamp, va.Finalizers, recordedHandle(va), va.Annotations[kube.NodeIDAnnotation], va.Annotations[foreignDigest], va.Status)
}
