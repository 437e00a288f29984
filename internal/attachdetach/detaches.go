package attachdetach

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// detach is one that is under way.
type detach struct {
	// attachment and uid are those of the object that is being deleted.
	attachment string
	uid        types.UID
	// about is the claim, or the PersistentVolume where there is none; nil where there
	// is neither, and then nobody is told.
	about *corev1.ObjectReference
	name  string // what events call the volume
	told  string // the last failure that was told
	// heard: the watch has delivered the deletion. unconfirmed: the driver had not confirmed the detach.
	heard, unconfirmed bool
}

// unconfirmedAfter is the time since the deletion request after which an object that ends with
// attached=true was not detached. belay-attacher sets attached=false before it removes its
// finalizer if the detach takes longer than 5 s; the rest allows for clocks that differ.
const unconfirmedAfter = 30 * time.Second

// isUnconfirmed reports whether another client removed the finalizer of a VolumeAttachment before
// the driver confirmed the detach: the detach took long or failed, and status.attached is still true.
func isUnconfirmed(last *storagev1.VolumeAttachment, now time.Time) bool {
	return kube.CalledByBelay(last) && last.Status.Attached && last.DeletionTimestamp != nil &&
		(last.Status.DetachError != nil || now.Sub(last.DeletionTimestamp.Time) > unconfirmedAfter)
}

// ended takes the end of an attachment of the volumes.
func (c *Controller) ended(keys []key, last *storagev1.VolumeAttachment) {
	c.announcer.ended(keys, last, c.clock.Now())
}

// ended takes the end of an attachment, as the watch tells it.
func (a *announcer) ended(keys []key, last *storagev1.VolumeAttachment, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range keys {
		node := attachment.NodeName(last.Spec.NodeName)
		if d, ok := a.detaches[k][node]; ok && d.uid == last.UID {
			d.heard, d.unconfirmed = true, isUnconfirmed(last, now)
			a.detaches[k][node] = d
		}
	}
}

// detaching tells that the delete of the attachment was accepted, and by what right if
// the volume may be in use: nil if it is not.
func (w *work) detaching(node attachment.NodeName, ref attachment.Ref, by attachment.Authority, why attachment.Reason) {
	d := w.detachOf(ref)
	a := w.announcer
	a.mu.Lock()
	defer a.mu.Unlock()
	a.follow(w.key, node, d)
	if d.about == nil {
		return
	}
	kind := corev1.EventTypeNormal
	if by != nil {
		kind = corev1.EventTypeWarning
	}
	a.recorder.Event(d.about, kind, explain.DetachingVolume, explain.DetachStarted(d.name, node, by, why))
}

// follow remembers a detach, so that its end can be told; hold a.mu.
func (a *announcer) follow(k key, node attachment.NodeName, d detach) {
	if a.detaches[k] == nil {
		a.detaches[k] = map[attachment.NodeName]detach{}
	}
	a.detaches[k][node] = d
}

// emitClaimEvents tells the claim how the detaches of its volume go on and end; hold the
// announcer's lock.
func (w *work) emitClaimEvents(steps []attachment.Step) {
	a := w.announcer
	for i := range w.now.seen.Attachments {
		one := &w.now.seen.Attachments[i]
		if !one.Deleting || !one.Computed {
			continue
		}
		if known, ok := a.detaches[w.key][one.Node]; !ok || known.uid != uidOf(one.UID) {
			a.follow(w.key, one.Node, w.detachOf(one.Ref)) // somebody else's, or a leader's before us
		}
	}
	for _, step := range steps {
		if hold, ok := step.(attachment.Wait); ok {
			w.emitDetachFailed(hold)
		}
	}
	for node, d := range a.detaches[w.key] {
		if w.state.stillThere(d) {
			continue
		}
		if !d.heard {
			// The cache has changed, and what it tells of the change has not arrived yet: it
			// wakes the volume again.
			d.heard = true
			a.detaches[w.key][node] = d
			continue
		}
		delete(a.detaches[w.key], node)
		w.emitDetached(node, d)
	}
	if len(a.detaches[w.key]) == 0 {
		delete(a.detaches, w.key)
	}
}

// emitDetached tells the claim that a detach is over, and whether anybody confirmed it.
func (w *work) emitDetached(node attachment.NodeName, d detach) {
	logger := w.named(d.name).WithValues("node", node, "attachment", d.attachment)
	if d.unconfirmed {
		logger.Error(nil, "VolumeAttachment was removed without a confirmed detach")
		if d.about != nil {
			w.announcer.warn(d.about, explain.VolumeDetachUnconfirmed, attachment.DetachUnanswered, explain.DetachUnconfirmed(d.name, node, d.attachment))
		}
		return
	}
	logger.Info("Volume detached")
	if d.about != nil {
		w.announcer.recorder.Event(d.about, corev1.EventTypeNormal, explain.SuccessfulDetachVolume, explain.DetachSucceeded(d.name, node))
	}
}

// emitUnconfirmed warns where another writer deleted the VolumeAttachment under a node that uses
// the volume: the controller withdraws its report first. The pods there have dead mounts.
func (w *work) emitUnconfirmed() {
	a := w.announcer
	torn := a.torn[w.key]
	for i := range w.now.seen.Attachments {
		one := &w.now.seen.Attachments[i]
		removed := one.Deleting || one.Implied && !w.now.want.NoVolumeAttachment
		switch {
		case !one.Computed:
		case !removed:
			if one.Confirmed == attachment.Yes {
				delete(torn, one.Node)
			}
		case !torn[one.Node] && w.now.seen.Nodes[one.Node].Reported && w.now.seen.Nodes[one.Node].InUse == attachment.Yes:
			if torn == nil {
				torn = map[attachment.NodeName]bool{}
				a.torn[w.key] = torn
			}
			torn[one.Node] = true
			w.warnTorn(one)
		}
	}
	if len(torn) == 0 || len(w.now.seen.Attachments) == 0 {
		delete(a.torn, w.key)
	}
}

func (w *work) warnTorn(one *attachment.Attachment) {
	text := explain.DetachedInUse(w.now.nameAt(one.Node), one.Node)
	w.loggerAt(one.Node).Error(nil, "VolumeAttachment was deleted by another client while the volume is in use", "attachment", one.Name)
	for _, pod := range w.now.pods[one.Node] {
		w.announcer.warn(pod, explain.VolumeDetachedInUse, attachment.StillInUse, text)
	}
	if about := w.state.ownerOf(w.now.nameAt(one.Node)); about != nil {
		w.announcer.warn(about, explain.VolumeDetachedInUse, attachment.StillInUse, text)
	}
}

// emitDetachFailed tells the claim why a detach does not get on, if that is news.
func (w *work) emitDetachFailed(hold attachment.Wait) {
	a := w.announcer
	d, ok := a.detaches[w.key][hold.Node]
	if !ok {
		return
	}
	cause := hold.Detail
	switch hold.Reason {
	default:
		return
	case attachment.DetachFailed:
	case attachment.DetachUnanswered:
		cause = explain.Unanswered(w.key, explain.Detach, hold.Node, hold.Since)
	}
	if d.told == cause {
		return
	}
	d.told = cause
	a.detaches[w.key][hold.Node] = d
	w.named(d.name).Error(errors.New(cause), "Failed to detach volume", "node", hold.Node, "attachment", d.attachment, "reason", hold.Reason)
	if d.about != nil {
		a.warn(d.about, explain.FailedDetachVolume, hold.Reason, explain.DetachFailed(d.name, hold.Node, cause))
	}
}

// detachOf is the detach of an attachment of the volume.
func (w *work) detachOf(ref attachment.Ref) detach {
	d := detach{attachment: ref.Name, uid: uidOf(ref.UID), name: w.now.volumeName}
	for _, a := range w.now.seen.Attachments {
		if a.Name == ref.Name && a.PersistentVolume != "" {
			d.name = a.PersistentVolume
		}
	}
	d.about = w.state.ownerOf(d.name)
	return d
}

// released tells that the report of a volume without an attachment was taken back: the
// whole of its detach.
func (w *work) released(node attachment.NodeName, by attachment.Authority, why attachment.Reason) {
	name := w.now.volumeName
	w.loggerAt(node).Info("Volume detached")
	about := w.state.ownerOf(name)
	if about == nil {
		return
	}
	if by != nil {
		w.announcer.recorder.Event(about, corev1.EventTypeWarning, explain.DetachingVolume, explain.DetachStarted(name, node, by, why))
	}
	w.announcer.recorder.Event(about, corev1.EventTypeNormal, explain.SuccessfulDetachVolume, explain.DetachSucceeded(name, node))
}

// ownerOf is whom events on the PersistentVolume of that name are for: the claim that
// it is bound to, if there is one, or itself.
func (w *clusterState) ownerOf(name string) *corev1.ObjectReference {
	pv, ok := get[*corev1.PersistentVolume](w.volumes, name)
	if !ok {
		return nil
	}
	version := corev1.SchemeGroupVersion.String()
	if ref := pv.Spec.ClaimRef; ref != nil {
		claim, ok := get[*corev1.PersistentVolumeClaim](w.claims, ref.Namespace+"/"+ref.Name)
		if ok && claim.UID == ref.UID {
			return &corev1.ObjectReference{
				APIVersion: version, Kind: "PersistentVolumeClaim",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			}
		}
	}
	return &corev1.ObjectReference{APIVersion: version, Kind: "PersistentVolume", Name: pv.Name, UID: pv.UID}
}

// stillThere tells whether the object that is being deleted exists.
func (w *clusterState) stillThere(d detach) bool {
	va, ok := w.attachments.Get(d.attachment)
	return ok && va.UID == d.uid
}
