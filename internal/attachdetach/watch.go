package attachdetach

import (
	"cmp"
	"context"
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

// sources maps each event to the volumes that it may affect. Objects may arrive in any order: each finds its volumes
// through the existing objects, so the last to arrive finds them all.
func (w *clusterState) sources(caches cache.Cache, d writeTracker) []source.TypedSource[key] {
	attachmentChanged := func(before, after *storagev1.VolumeAttachment) []key { return w.attachmentChanged(before, after, d) }
	return []source.TypedSource[key]{
		source.TypedKind(caches, &corev1.Pod{}, on(w, w.podChanged)),
		source.TypedKind(caches, &corev1.Node{}, on(w, w.nodeChanged)),
		source.TypedKind(caches, &corev1.PersistentVolumeClaim{}, on(w, w.claimChanged)),
		source.TypedKind(caches, &corev1.PersistentVolume{}, on(w, w.volumeChanged)),
		source.TypedKind(caches, &storagev1.VolumeAttachment{}, on(w, attachmentChanged)),
		source.TypedKind(caches, &storagev1.CSIDriver{}, on(w, w.driverChanged)),
		source.TypedKind(caches, &storagev1.CSINode{}, on(w, w.csiNodeChanged)),
	}
}

// on returns an event handler for a function that gets the versions before and after (nil if there is none) and returns
// the affected volumes. Volumes that pods wait for have priority, and both precede those of the initial list and of
// resyncs (handler.TypedFuncs).
func on[T client.Object](w *clusterState, changed func(before, after T) []key) handler.TypedEventHandler[T, key] {
	var none T
	add := func(q queue, about T, keys []key) {
		for _, k := range distinct(keys) {
			if p, ok := q.(priorityqueue.PriorityQueue[key]); ok && w.podsWaitFor(k, objectNode(about)) {
				p.AddWithOpts(priorityqueue.AddOpts{Priority: new(podsWaitPriority)}, k)
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
				before = none // a resync: handle it like a new object
			}
			add(q, e.ObjectNew, changed(before, e.ObjectNew))
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[T], q queue) {
			add(q, e.Object, changed(e.Object, none))
		},
	}
}

// objectNode returns the node that an object belongs to, or "".
func objectNode(obj client.Object) string {
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

// podsWaitPriority is the priority of volumes that pods wait for. Others have 0, or handler.LowPriority.
const podsWaitPriority = 100

// podChanged ignores updates unless a pod was scheduled, deleted, or ended, or mounted a volume that needs no attach
// (attachNeeded). A pod that was deleted and recreated under its name counts as both (k/k#111327).
func (w *clusterState) podChanged(before, after *corev1.Pod) []key {
	if before != nil && after != nil && before.UID == after.UID &&
		before.Spec.NodeName == after.Spec.NodeName && kube.PodEnded(before) == kube.PodEnded(after) {
		if kube.VolumesMounted(before) == kube.VolumesMounted(after) {
			return nil
		}
		return slices.DeleteFunc(w.keysOfPod(after), func(k key) bool { return w.attachRequired(k.Driver) })
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

// owner returns the pod that owns the claim of a generic ephemeral volume.
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
	// The PersistentVolume may determine the volume of these attachments.
	for _, va := range w.attachments.ByIndex(byPersistentVolume, cmp.Or(after, before).Name) {
		w.trackUnidentified(va, false)
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

// attachmentChanged ignores updates of irrelevant fields, such as a new finalizer, unless a delete of the earlier
// version may have been in flight, which can no longer be carried out.
func (w *clusterState) attachmentChanged(before, after *storagev1.VolumeAttachment, d writeTracker) []key {
	if after != nil {
		w.handled.set(after)
	}
	if before != nil && after != nil && sameAttachment(before, after) && !w.renamed(before, after) && !d.deleteMayBeUnderway(before) {
		return nil
	}
	var keys []key
	if before != nil && (after == nil || after.UID != before.UID) {
		keys = append(keys, w.keysOfAttachment(before)...)
		d.attachmentDeleted(keys, before)
		if after == nil {
			w.recordLost(before)
			w.handled.remove(before.Name)
		}
		w.trackUnidentified(before, true)
		w.deletes.forget(before.UID)
		w.forget(before.Spec.NodeName)
	}
	if after != nil {
		w.trackUnidentified(after, false)
		keys = append(keys, w.keysOfAttachment(after)...)
	}
	return keys
}

// sameAttachment compares the cached fields of an attachment (kube.StripAttachment) except the resource version, and the CSI node ID.
func sameAttachment(a, b *storagev1.VolumeAttachment) bool {
	return a.UID == b.UID && a.DeletionTimestamp.Equal(b.DeletionTimestamp) && kube.SameAnnotations(a, b) &&
		equality.Semantic.DeepEqual(a.Status, b.Status)
}

// nodeChanged returns the volumes that were added to or removed from a list of the node, or all volumes of a node that
// itself changed.
func (w *clusterState) nodeChanged(before, after *corev1.Node) []key {
	w.largeNodes.forget(cmp.Or(after, before).Name) // drop the earlier version
	switch {
	case after == nil:
		keys := w.keysOfNode(before)
		w.kubelets.forget(before.Name)
		w.doubts.forget(before.Name)
		w.reports.forget(before.Name)
		w.nodeDeleted(before)
		w.forget(before.Name)
		return append(keys, w.keysOfTwins(before)...)
	case before == nil:
		w.nodeCreated(after.Name)
		return append(w.keysOfNode(after), w.keysOfTwins(after)...)
	case before.UID != after.UID: // deleted and recreated, and both events came as one
		return slices.Concat(w.nodeChanged(before, nil), w.nodeChanged(nil, after))
	}
	was, is := changedStatuses(before, after)
	names := changedVolumes(was, is)
	for _, name := range names {
		if was[name].InUse != is[name].InUse {
			w.kubelets.listed(after.Name, name)
		}
	}
	w.forgetWithdrawn(after.Name, was, is)
	if !kube.Ready(after) {
		w.kubelets.forget(after.Name)
	}
	if !sameNode(before, after) {
		return slices.Concat(w.keysOfNode(before), w.keysOfNode(after), w.keysOfTwins(before), w.keysOfTwins(after))
	}
	var keys []key
	if kube.Ready(before) != kube.Ready(after) && !planted.Wake {
		keys = w.waitingOn(after)
	}
	for _, name := range names {
		if k, ok := keyOfName(name); ok {
			keys = append(keys, k)
		}
	}
	if len(names) > 0 { // an orphan may wait for the volume of its PersistentVolume
		keys = append(keys, w.orphansAt(after.Name)...)
	}
	return keys
}

func sameNode(a, b *corev1.Node) bool {
	return kube.MachineOf(a) == kube.MachineOf(b) && kube.Managed(a) == kube.Managed(b) && kube.OutOfService(a) == kube.OutOfService(b) && kube.OutOfServiceByFence(a) == kube.OutOfServiceByFence(b) &&
		kube.Isolated(a) == kube.Isolated(b)
}

// maxTwins bounds the Nodes that are woken because another one has, or had, an identity of theirs: of many, none is alone when one comes or
// goes.
const maxTwins = 8

// keysOfTwins returns the volumes of the Nodes that carry an identity of a Node that comes, changes or goes: it counts while they are alone.
func (w *clusterState) keysOfTwins(node *corev1.Node) []key {
	var keys []key
	for _, twins := range kube.SharedWith(w.nodes, node) {
		if len(twins) > maxTwins {
			continue
		}
		for _, twin := range twins {
			keys = append(keys, w.keysOfNode(twin)...)
		}
	}
	return keys
}

// waitingOn returns the volumes that are affected by the node's health: those whose detach from it waits, and those
// that pods on other nodes wait for.
func (w *clusterState) waitingOn(node *corev1.Node) []key {
	var keys []key
	for _, va := range w.attachments.ByIndex(byNode, node.Name) {
		requested := va.Annotations[kube.DetachRequestedAnnotation] != "" || kube.OutOfService(node)
		// Only a ready kubelet is asked whether it still uses what was attached under an earlier Node.
		returned := va.CreationTimestamp.Before(&node.CreationTimestamp) && va.Annotations[kube.NodeUIDAnnotation] != string(node.UID)
		for _, k := range w.keysOfAttachment(va) {
			if requested || returned || w.podsWaitFor(k, node.Name) {
				keys = append(keys, k)
			}
		}
	}
	return append(keys, w.ledger.on(node.Name)...)
}

// keysOfNode returns all volumes that a node lists, that are attached to it, or that its pods use.
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
