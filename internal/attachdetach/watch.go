package attachdetach

import (
	"cmp"
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/planted"
)

type (
	key   = attachment.VolumeKey
	queue = workqueue.TypedRateLimitingInterface[key]
)

// sources maps every event to the volumes that it may change something for. Objects
// may arrive in any order: each finds its volumes through those that are there, and
// the last one to arrive finds them all.
func (w *clusterState) sources(caches cache.Cache, d doubts) []source.TypedSource[key] {
	attachmentChanged := func(before, after *storagev1.VolumeAttachment) []key { return w.attachmentChanged(before, after, d) }
	return []source.TypedSource[key]{
		source.TypedKind(caches, &corev1.Pod{}, on(w, w.podChanged)),
		source.TypedKind(caches, &corev1.Node{}, on(w, w.nodeChanged)),
		source.TypedKind(caches, &corev1.PersistentVolumeClaim{}, on(w, w.claimChanged)),
		source.TypedKind(caches, &corev1.PersistentVolume{}, on(w, w.volumeChanged)),
		source.TypedKind(caches, &storagev1.VolumeAttachment{}, on(w, attachmentChanged)),
		source.TypedKind(caches, &storagev1.CSIDriver{}, on(w, w.driverChanged)),
	}
}

// on makes a handler of a function that is given the versions before and after, nil
// where there is none, and returns the volumes concerned. Those that pods wait for go
// before the rest, and that goes before what is merely looked through at the start
// and at each resync (which handler.TypedFuncs sees to).
func on[T client.Object](w *clusterState, changed func(before, after T) []key) handler.TypedEventHandler[T, key] {
	var none T
	add := func(q queue, about T, keys []key) {
		for _, k := range distinct(keys) {
			if p, ok := q.(priorityqueue.PriorityQueue[key]); ok && w.waitedFor(k, placeOf(about)) {
				p.AddWithOpts(priorityqueue.AddOpts{Priority: new(podsWait)}, k)
			} else {
				q.Add(k)
			}
		}
	}
	return handler.TypedFuncs[T, key]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[T], q queue) {
			add(q, e.Object, changed(none, e.Object))
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[T], q queue) {
			before := e.ObjectOld
			if before.GetResourceVersion() == e.ObjectNew.GetResourceVersion() {
				before = none // a resync: look at it as if it were new
			}
			add(q, e.ObjectNew, changed(before, e.ObjectNew))
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[T], q queue) {
			add(q, e.Object, changed(e.Object, none))
		},
	}
}

// placeOf is the node that an object belongs to, empty if it belongs to none.
func placeOf(obj client.Object) string {
	switch o := obj.(type) {
	case *corev1.Pod:
		return o.Spec.NodeName
	case *corev1.Node:
		return o.Name
	case *storagev1.VolumeAttachment:
		return o.Spec.NodeName
	}
	return ""
}

// podsWait is the priority of volumes that pods wait for. Others have 0, or
// handler.LowPriority.
const podsWait = 100

// podChanged looks up only when a pod came to its node, went, or ended: most updates
// of a pod are of no interest. One that was deleted and made anew in the meantime
// counts as both (k/k#111327).
func (w *clusterState) podChanged(before, after *corev1.Pod) []key {
	if before != nil && after != nil && before.UID == after.UID &&
		before.Spec.NodeName == after.Spec.NodeName && kube.PodEnded(before) == kube.PodEnded(after) {
		return nil
	}
	var keys []key
	for _, pod := range []*corev1.Pod{before, after} {
		if pod != nil {
			keys = append(keys, w.keysOfPod(pod)...)
		}
	}
	return keys
}

func (w *clusterState) keysOfPod(pod *corev1.Pod) []key {
	if pod.Spec.NodeName == "" {
		return nil
	}
	claims, _ := podClaims(pod)
	var keys []key
	for _, name := range claims {
		if claim, ok := get[*corev1.PersistentVolumeClaim](w.claims, name); ok {
			keys = append(keys, w.keysOfClaim(claim)...)
		}
	}
	for _, v := range kube.InlineVolumes(pod) {
		keys = append(keys, v.Key)
	}
	return keys
}

func (w *clusterState) claimChanged(before, after *corev1.PersistentVolumeClaim) []key {
	if before != nil && after != nil && before.UID == after.UID &&
		before.Spec.VolumeName == after.Spec.VolumeName && before.Status.Phase == after.Status.Phase &&
		owner(before) == owner(after) {
		return nil
	}
	var keys []key
	for _, claim := range []*corev1.PersistentVolumeClaim{before, after} {
		if claim != nil {
			keys = append(keys, w.keysOfClaim(claim)...)
		}
	}
	return keys
}

// owner is the pod that a claim of a generic ephemeral volume was made for.
func owner(claim *corev1.PersistentVolumeClaim) types.UID {
	if ref := metav1.GetControllerOfNoCopy(claim); ref != nil {
		return ref.UID
	}
	return ""
}

func (w *clusterState) keysOfClaim(claim *corev1.PersistentVolumeClaim) []key {
	pv, ok := get[*corev1.PersistentVolume](w.volumes, claim.Spec.VolumeName)
	if !ok {
		return nil
	}
	return keysOf(pv)
}

func keysOf(pv *corev1.PersistentVolume) []key {
	if k, ok := kube.KeyOfVolume(pv); ok {
		return []key{k}
	}
	return nil
}

func (w *clusterState) volumeChanged(before, after *corev1.PersistentVolume) []key {
	if before != nil && after != nil && sameVolume(before, after) {
		return nil
	}
	var keys []key
	for _, pv := range []*corev1.PersistentVolume{before, after} {
		if pv != nil {
			keys = append(keys, keysOf(pv)...)
		}
	}
	// An attachment may have lost, or found again, what tells its volume.
	for _, va := range w.attachments.ByIndex(byPersistentVolume, cmp.Or(after, before).Name) {
		w.sort(va, false)
		keys = append(keys, w.keysOfAttachment(va)...)
	}
	return keys
}

func sameVolume(a, b *corev1.PersistentVolume) bool {
	keyA, _ := kube.KeyOfVolume(a)
	keyB, _ := kube.KeyOfVolume(b)
	refA, refB := a.Spec.ClaimRef, b.Spec.ClaimRef
	sameClaim := refA == nil && refB == nil || refA != nil && refB != nil && *refA == *refB
	return a.UID == b.UID && keyA == keyB && sameClaim && slices.Equal(a.Spec.AccessModes, b.Spec.AccessModes)
}

// attachmentChanged looks up what an attachment says of its volume. Where nothing but the
// version is new, as when the attacher adds its finalizer, nothing is: unless a delete
// of the version before may have been under way, which now cannot be carried out.
func (w *clusterState) attachmentChanged(before, after *storagev1.VolumeAttachment, d doubts) []key {
	if before != nil && after != nil && sameAttachment(before, after) && !d.deleteMayBeUnderway(before) {
		return nil
	}
	var keys []key
	if before != nil && (after == nil || after.UID != before.UID) {
		keys = append(keys, w.keysOfAttachment(before)...)
		d.ended(keys, before)
		if after == nil {
			w.lost(before)
		}
		w.sort(before, true)
		w.deletes.forget(before.UID)
		w.forget(before.Spec.NodeName)
	}
	if after != nil {
		w.sort(after, false)
		keys = append(keys, w.keysOfAttachment(after)...)
	}
	return keys
}

// sameAttachment compares all that the caches keep (kube.StripAttachment) and that can
// change in an attachment, but for its version.
func sameAttachment(a, b *storagev1.VolumeAttachment) bool {
	return a.UID == b.UID && a.DeletionTimestamp.Equal(b.DeletionTimestamp) && maps.Equal(a.Annotations, b.Annotations) &&
		equality.Semantic.DeepEqual(a.Status, b.Status)
}

// driverChanged concerns all volumes of a driver, which it rarely does: when the
// driver is installed, removed, or changes whether it attaches.
func (w *clusterState) driverChanged(before, after *storagev1.CSIDriver) []key {
	required := func(d *storagev1.CSIDriver) bool {
		return d == nil || d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
	}
	if required(before) == required(after) {
		return nil
	}
	name := cmp.Or(after, before).Name
	var keys []key
	for _, pv := range list[*corev1.PersistentVolume](w.volumes, byDriver, name) {
		keys = append(keys, keysOf(pv)...)
	}
	for _, va := range w.attachments.ByIndex(byDriver, name) {
		keys = append(keys, w.keysOfAttachment(va)...)
	}
	for _, pod := range list[*corev1.Pod](w.pods, byDriver, name) {
		for _, v := range kube.InlineVolumes(pod) {
			keys = append(keys, v.Key)
		}
	}
	return keys
}

// nodeChanged concerns the volumes that entered or left one of the node's lists, or,
// if the node itself changed, all that have to do with it.
func (w *clusterState) nodeChanged(before, after *corev1.Node) []key {
	w.long.forget(cmp.Or(after, before).Name) // an earlier version
	switch {
	case after == nil:
		keys := w.keysOfNode(before)
		w.kubelets.forget(before.Name)
		w.reports.forget(before.Name)
		w.depart(before)
		w.forget(before.Name)
		return keys
	case before == nil:
		w.heedReports(after.Name)
		w.arrive(after.Name)
		return w.keysOfNode(after)
	case before.UID != after.UID: // deleted and recreated, and both events came as one
		return slices.Concat(w.nodeChanged(before, nil), w.nodeChanged(nil, after))
	}
	was, is := bothStandings(before, after)
	w.heedLettingGo(after, was, is)
	w.heedWithdrawals(after.Name, was, is)
	w.heedReports(after.Name)
	if !ready(after) {
		w.kubelets.interrupt(after.Name)
	}
	if !sameNode(before, after) {
		return slices.Concat(w.keysOfNode(before), w.keysOfNode(after))
	}
	var keys []key
	if ready(before) != ready(after) && !planted.Wake {
		keys = w.waitingOn(after)
	}
	names := changedNames(was, is)
	for _, name := range names {
		if k, ok := keyOfName(name); ok {
			keys = append(keys, k)
		}
	}
	if len(names) > 0 { // an orphan waits for what its PersistentVolume is now
		keys = append(keys, w.orphansAt(after.Name)...)
	}
	return keys
}

func sameNode(a, b *corev1.Node) bool {
	_, managedA := a.Annotations[kube.ManagedAttachAnnotation]
	_, managedB := b.Annotations[kube.ManagedAttachAnnotation]
	return machineOf(a) == machineOf(b) && managedA == managedB && outOfService(a) == outOfService(b)
}

// waitingOn are the volumes that the node's health matters to: those whose detach from it
// waits, and those that pods elsewhere wait for. Its own pods cannot terminate while it is
// not Ready, which those pods are to know.
func (w *clusterState) waitingOn(node *corev1.Node) []key {
	var keys []key
	for _, va := range w.attachments.ByIndex(byNode, node.Name) {
		requested := va.Annotations[kube.DetachRequestedAnnotation] != "" || outOfService(node)
		for _, k := range w.keysOfAttachment(va) {
			if requested || w.waitedFor(k, node.Name) {
				keys = append(keys, k)
			}
		}
	}
	return append(keys, w.ledger.on(node.Name)...)
}

// keysOfNode are all volumes that a node lists, holds, or has pods for.
func (w *clusterState) keysOfNode(node *corev1.Node) []key {
	keys := w.ledger.on(node.Name)
	names, _ := nodeVolumes(node)
	for _, name := range names {
		if k, ok := keyOfName(name); ok {
			keys = append(keys, k)
		}
	}
	for _, va := range w.attachments.ByIndex(byNode, node.Name) {
		keys = append(keys, w.keysOfAttachment(va)...)
	}
	for _, pod := range list[*corev1.Pod](w.pods, byNode, node.Name) {
		keys = append(keys, w.keysOfPod(pod)...)
	}
	return keys
}
