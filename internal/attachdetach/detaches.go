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

// detach is a detach in progress.
type detach struct {
	// attachment and uid identify the object that is being deleted.
	attachment string
	uid        types.UID
	// about is the object of the events: the claim, or else the PersistentVolume. It is nil if there is neither.
	about       *corev1.ObjectReference
	name        string // name of the volume in events
	lastFailure string // last failure in an event
	// deletionSeen: the watch has delivered the deletion. unconfirmed: the driver did not confirm the detach.
	deletionSeen, unconfirmed bool
	// requesting: the delete has no response yet. The end is emitted after it, and thus after the start.
	requesting bool
}

// unconfirmedAfter is how long after its deletion request a VolumeAttachment that ends with attached=true counts as not
// detached. belay-attacher sets attached=false before it removes its finalizer if the detach takes longer than 5 s; the
// rest allows for clock skew.
const unconfirmedAfter = 30 * time.Second

// isUnconfirmed reports whether another client removed the finalizer of a VolumeAttachment before
// the driver confirmed the detach: the detach took long or failed, and status.attached is still true.
func isUnconfirmed(last *storagev1.VolumeAttachment, now time.Time) bool {
	return kube.CalledByBelay(last) && last.Status.Attached && last.DeletionTimestamp != nil &&
		(last.Status.DetachError != nil || now.Sub(last.DeletionTimestamp.Time) > unconfirmedAfter)
}

// attachmentDeleted records the deletion of an attachment of the volumes.
func (c *Controller) attachmentDeleted(keys []key, last *storagev1.VolumeAttachment) {
	for _, k := range keys {
		c.eventEmitter.of(k).attachmentDeleted(k, last, c.clock.Now())
	}
	c.traceDeleted(last)
}

// attachmentDeleted records the deletion of an attachment.
func (a *eventShard) attachmentDeleted(k key, last *storagev1.VolumeAttachment, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	node := attachment.NodeName(last.Spec.NodeName)
	if d, ok := a.detaches[k][node]; ok && d.uid == last.UID {
		d.deletionSeen, d.unconfirmed = true, isUnconfirmed(last, now)
		a.detaches[k][node] = d
	}
}

// requestDetach tracks a detach from before its request is sent, because the watch may deliver the deletion long before
// the response. responded takes the response.
func (w *work) requestDetach(s attachment.ForceDetach) (responded func(error)) {
	a, d := w.events(), w.detachOf(s.Attachment)
	a.mu.Lock()
	defer a.mu.Unlock()
	before, tracked := a.detaches[w.key][s.Node]
	if tracked = tracked && before.uid == d.uid; tracked { // an earlier request had no response
		d = before
	}
	d.requesting = true
	a.follow(w.key, s.Node, d)
	return func(err error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		now, ok := a.detaches[w.key][s.Node]
		switch ok = ok && now.uid == d.uid; {
		case ok && err != nil && !kube.MayBeCommitted(err) && !tracked:
			a.unfollow(w.key, s.Node)
		case ok:
			now.requesting = false
			a.follow(w.key, s.Node, now)
		}
		if err == nil {
			a.emitDetaching(d, s)
		}
	}
}

// emitDetaching emits that the delete of the attachment was accepted, with the authority for it if the volume may be in
// use; hold a.mu.
func (a *eventShard) emitDetaching(d detach, s attachment.ForceDetach) {
	if d.about == nil {
		return
	}
	kind := corev1.EventTypeNormal
	if s.Authority != nil {
		kind = corev1.EventTypeWarning
	}
	a.recorder.Event(d.about, kind, explain.DetachingVolume, detachStarted(d.name, s))
}

// detachStarted is the text of the event, with a warning if the boot is known to run.
func detachStarted(name string, s attachment.ForceDetach) string {
	text := explain.DetachStarted(name, s.Node, s.Authority, s.Reason)
	if s.Runs {
		text += explain.DetachedWhileRunning
	}
	return text
}

// follow tracks a detach to emit its end; hold a.mu.
func (a *eventShard) follow(k key, node attachment.NodeName, d detach) {
	if a.detaches[k] == nil {
		a.detaches[k] = map[attachment.NodeName]detach{}
	}
	a.detaches[k][node] = d
}

// unfollow ends that; hold a.mu.
func (a *eventShard) unfollow(k key, node attachment.NodeName) {
	if delete(a.detaches[k], node); len(a.detaches[k]) == 0 {
		delete(a.detaches, k)
	}
}

// emitClaimEvents emits the progress and the end of detaches on the claim; hold the lock of its events.
func (w *work) emitClaimEvents(steps []attachment.Step) {
	a := w.events()
	for i := range w.now.seen.Attachments {
		one := &w.now.seen.Attachments[i]
		if !one.Deleting || !one.Computed {
			continue
		}
		if known, ok := a.detaches[w.key][one.Node]; !ok || known.uid != types.UID(one.UID) {
			a.follow(w.key, one.Node, w.detachOf(one.Ref)) // started by another client or a previous leader
		}
	}
	running := map[attachment.NodeName]bool{}
	for _, step := range steps {
		if hold, ok := step.(attachment.Wait); ok {
			w.emitDetachFailed(hold)
			if hold.Reason == attachment.NodeStillRuns {
				running[hold.Node] = true
				w.emitStillRuns(hold)
			}
		}
	}
	if len(running) > 0 {
		a.stillRuns[w.key] = running
	} else {
		delete(a.stillRuns, w.key)
	}
	for node, d := range a.detaches[w.key] {
		if d.requesting || w.state.stillThere(d) {
			continue // the response enqueues the volume, or ends this Reconcile
		}
		if !d.deletionSeen {
			// The cache is ahead of the event, which will enqueue the volume again.
			d.deletionSeen = true
			a.detaches[w.key][node] = d
			continue
		}
		a.unfollow(w.key, node)
		w.emitDetached(node, d)
	}
}

// emitDetached emits that a detach ended, and whether the driver confirmed it.
func (w *work) emitDetached(node attachment.NodeName, d detach) {
	logger := w.named(d.name).WithValues("node", node, "attachment", d.attachment)
	if d.unconfirmed {
		logger.Error(nil, "VolumeAttachment was removed without a confirmed detach", "remedy", explain.DetachAtStorage)
		if d.about != nil {
			w.events().warn(d.about, explain.VolumeDetachUnconfirmed, attachment.DetachUnanswered, explain.DetachUnconfirmed(d.name, node, d.attachment))
		}
		return
	}
	logger.Info("Volume detached")
	if d.about != nil {
		w.events().recorder.Event(d.about, corev1.EventTypeNormal, explain.SuccessfulDetachVolume, explain.DetachSucceeded(d.name, node))
	}
}

// emitUnconfirmed warns if another client deleted the VolumeAttachment while the node uses the volume. The mounts of
// the pods there no longer work. The controller itself withdraws its report first.
func (w *work) emitUnconfirmed() {
	a := w.events()
	detachedInUse := a.detachedInUse[w.key]
	for i := range w.now.seen.Attachments {
		one := &w.now.seen.Attachments[i]
		removed := one.Deleting || one.Implied
		switch {
		case !one.Computed:
		case !removed:
			if one.Confirmed == attachment.Yes {
				delete(detachedInUse, one.Node)
			}
		case !detachedInUse[one.Node] && w.now.seen.Nodes[one.Node].Reported && w.now.seen.Nodes[one.Node].InUse == attachment.Yes:
			if detachedInUse == nil {
				detachedInUse = map[attachment.NodeName]bool{}
				a.detachedInUse[w.key] = detachedInUse
			}
			detachedInUse[one.Node] = true
			w.warnTorn(one)
		}
	}
	if len(detachedInUse) == 0 || len(w.now.seen.Attachments) == 0 {
		delete(a.detachedInUse, w.key)
	}
}

func (w *work) warnTorn(one *attachment.Attachment) {
	text := explain.DetachedInUse(w.now.volumeNameAt(one.Node), one.Node)
	w.loggerAt(one.Node).Error(nil, "VolumeAttachment was deleted by another client while the volume is in use", "attachment", one.Name, "remedy", explain.RecreatePods)
	w.warnUsers(one.Node, explain.VolumeDetachedInUse, attachment.StillInUse, text)
}

// emitDetachFailed emits a new cause of a failing detach on the claim.
func (w *work) emitDetachFailed(hold attachment.Wait) {
	a := w.events()
	d, ok := a.detaches[w.key][hold.Node]
	if !ok {
		return
	}
	cause, why := hold.Detail, explain.DetachReason(hold.Reason, hold.Detail)
	var text string
	switch hold.Reason {
	default:
		return
	case attachment.DetachFailed:
		text = explain.DetachFailed(d.name, hold.Node, cause)
	case attachment.DetachUnanswered:
		cause = explain.Unanswered(w.key, explain.Detach, hold.Node, hold.Since, hold.Detail)
		text = explain.DetachUnanswered(d.name, hold.Node, cause)
	}
	if d.lastFailure == cause {
		return
	}
	d.lastFailure = cause
	a.detaches[w.key][hold.Node] = d
	w.named(d.name).Error(errors.New(cause), "Failed to detach volume", "node", hold.Node, "attachment", d.attachment, "reason", why)
	if d.about != nil {
		a.warn(d.about, explain.FailedDetachVolume, why, text)
	}
}

// emitStillRuns emits on the claim that a detach by force is held, once; hold the lock of its events.
func (w *work) emitStillRuns(hold attachment.Wait) {
	a := w.events()
	if a.stillRuns[w.key][hold.Node] {
		return
	}
	d := w.detachOf(attachment.Ref{Name: hold.Attachment})
	w.named(d.name).Info("Not detaching by force, because the node still runs", "node", hold.Node, "attachment", hold.Attachment, "reason", hold.Reason, "detail", hold.Detail)
	if d.about != nil {
		text := explain.DetachUnanswered(d.name, hold.Node, explain.Wait(w.key.Driver, hold.Node, hold.Cause(), attachment.No))
		a.warn(d.about, explain.FailedDetachVolume, hold.Reason, text)
	}
}

// detachOf returns the detach of an attachment of the volume.
func (w *work) detachOf(ref attachment.Ref) detach {
	d := detach{attachment: ref.Name, uid: types.UID(ref.UID), name: w.now.volumeName}
	for _, a := range w.now.seen.Attachments {
		if a.Name == ref.Name && a.PersistentVolume != "" {
			d.name = a.PersistentVolume
		}
	}
	d.about = w.state.ownerOf(d.name)
	return d
}

// emitReleased emits that a volume without a VolumeAttachment was detached, which only takes a withdrawal of its
// report.
func (w *work) emitReleased(s attachment.ForceDetach) {
	name := w.now.volumeName
	w.loggerAt(s.Node).Info("Volume detached")
	about := w.state.ownerOf(name)
	if about == nil {
		return
	}
	if s.Authority != nil {
		w.events().recorder.Event(about, corev1.EventTypeWarning, explain.DetachingVolume, detachStarted(name, s))
	}
	w.events().recorder.Event(about, corev1.EventTypeNormal, explain.SuccessfulDetachVolume, explain.DetachSucceeded(name, s.Node))
}

// ownerOf returns the object for events about a PersistentVolume: the claim that it is bound to, or itself.
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

// stillThere reports whether the object that is being deleted exists.
func (w *clusterState) stillThere(d detach) bool {
	va, ok := w.attachments.Get(d.attachment)
	return ok && va.UID == d.uid
}

// emitElsewhere warns if the driver lists the volume at another node too, each time that its attacher says so.
func (w *work) emitElsewhere() {
	a := w.events()
	said := a.elsewhere[w.key]
	delete(a.elsewhere, w.key)
	for i := range w.now.seen.Attachments {
		one := &w.now.seen.Attachments[i]
		if one.Elsewhere == "" || !kube.SeenLately(one.ElsewhereSeen, w.clock.Now()) {
			continue
		}
		if a.elsewhere[w.key] == nil {
			a.elsewhere[w.key] = map[attachment.NodeName]time.Time{}
		}
		if a.elsewhere[w.key][one.Node] = one.ElsewhereSeen; said[one.Node].Equal(one.ElsewhereSeen) {
			continue
		}
		name := w.now.volumeNameAt(one.Node)
		w.loggerAt(one.Node).Error(nil, "The driver lists the volume at another node too", "attachment", one.Name, "publishedAt", one.Elsewhere)
		w.warnUsers(one.Node, explain.VolumePublishedElsewhere, explain.PublishedElsewhere, explain.ListedElsewhere(name, one.Node, one.Elsewhere))
	}
}

// warnUsers emits a warning on the pods that use the volume on a node, and on the claim.
func (w *work) warnUsers(node attachment.NodeName, event string, why attachment.Reason, text string) {
	for _, pod := range w.now.pods[node] {
		w.events().warn(pod, event, why, text)
	}
	if about := w.state.ownerOf(w.now.volumeNameAt(node)); about != nil {
		w.events().warn(about, event, why, text)
	}
}
