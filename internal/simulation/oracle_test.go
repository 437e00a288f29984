package simulation

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/excuse"
)

// The invariants, checked by what happens at the API server, the driver, the storage and the machines; the oracle does not know the
// reasons.

// breaks notes the first invariant that did not hold.
func (s *sim) breaks(invariant, format string, args ...any) {
	if s.broken == "" {
		s.broken = invariant + ": " + fmt.Sprintf(format, args...)
		s.say("BROKEN %s", s.broken)
	}
}

// excuse notes that something is permitted that is listed as not guaranteed.
func (s *sim) excuse(name excuse.Name) bool {
	s.excused[name]++
	return true
}

// judge looks at one write before it takes effect.
func (s *sim) judge(w write) {
	if w.by == nil {
		s.noteDeletion(w)
		return
	}
	switch after := w.after.(type) {
	case *storagev1.VolumeAttachment:
		if w.before == nil {
			s.judgeAttach(w, after)
			return
		}
		before := w.before.(*storagev1.VolumeAttachment)
		if before.DeletionTimestamp == nil && after.DeletionTimestamp != nil {
			s.judgeDetach(w, before)
		}
		if hasFinalizer(before) && !hasFinalizer(after) {
			s.judgeLetGo(before)
		}
		if !before.Status.Attached && after.Status.Attached {
			s.judgeConfirmed(after)
		}
	case *corev1.Node:
		before := w.before.(*corev1.Node)
		s.judgeNames(after)
		for _, d := range s.disks {
			was, is := reports(before, d.handle), reports(after, d.handle)
			switch {
			case !was && is:
				s.machines[after.Name].of(d.handle).forced = false // it is given the volume again
				s.judgeReport(w, d, after)
				s.judgeFibreReport(w, d, after)
			case was && !is:
				s.judgeWithdraw(w, d, before)
			}
		}
	}
}

// noteDeletion records which client deletes what.
func (s *sim) noteDeletion(w write) {
	if va, ok := w.after.(*storagev1.VolumeAttachment); ok && va.DeletionTimestamp != nil {
		s.requests.ended[va.UID] = s.api.version + 1
		for _, m := range s.all(va.Spec.NodeName) {
			d := s.diskOf(va)
			v := m.of(d.handle)
			v.removed = v.mounted || v.verified
			if _, exists := get[*corev1.Node](s.api, m.name); !exists {
				s.bothRemoved(m, d.handle)
			}
		}
	}
}

// bothRemoved notes that a person has removed both the Node and the VolumeAttachment of what a machine uses. Nothing shows that until
// the machine is back, and is reported what it lists in use.
func (s *sim) bothRemoved(m *machine, handle string) {
	if v := m.of(handle); v.removed && (v.mounted || v.verified) && s.excuse(excuse.BothRemoved) {
		v.lost = true
		s.say("nothing tells any more that %s has %s, which a person took from it", m, handle)
	}
}

func hasFinalizer(obj client.Object) bool {
	driver := ""
	switch o := obj.(type) {
	case *storagev1.VolumeAttachment:
		driver = o.Spec.Attacher
	case *corev1.PersistentVolume:
		driver = o.Spec.CSI.Driver
	}
	return slices.Contains(obj.GetFinalizers(), kube.AttacherFinalizer(driver))
}

// judgeAttach: S1, the controller's part. A request of an earlier leader may be carried out when others exist, or just before a decision,
// and another client may create an attachment that the leader has not seen when it decides: then the attacher has to keep them apart. What
// a process requested itself it has to consider for as long as it may be carried out, and what was there when it began to lead it has seen.
func (s *sim) judgeAttach(w write, made *storagev1.VolumeAttachment) {
	d := s.diskOf(made)
	s.makers[made.UID] = w.by
	s.machines[made.Spec.NodeName].of(d.handle).removed = false // the removal was of an earlier attachment
	if !d.exclusive {
		return
	}
	for _, other := range list[*storagev1.VolumeAttachment](s.api) {
		maker, since := s.makers[other.UID], s.requests.known[other.UID]
		unseen := maker != w.by && since > w.request.looks[d.handle]
		switch {
		case s.diskOf(other) != d:
		case (w.by != s.controller.actor || unseen && maker != nil && since > w.by.began) && s.excuse(excuse.LateCreate):
		case unseen && maker == nil && s.excuse(excuse.UnseenAttachment):
		default:
			s.breaks("S1", "%s attached to %s while an attachment to %s exists", d.handle, made.Spec.NodeName, other.Spec.NodeName)
		}
	}
}

// judgeDetach: S2 and S3.
func (s *sim) judgeDetach(w write, va *storagev1.VolumeAttachment) {
	d, name := s.diskOf(va), va.Spec.NodeName
	node, exists := get[*corev1.Node](s.api, name)
	if exists && reports(node, d.handle) {
		s.breaks("S3", "attachment of %s to %s deleted while the node reports it", d.handle, name)
	}
	for _, m := range s.all(name) {
		switch v := m.of(d.handle); {
		case !s.counts(m, d.handle), s.staysBeside(va, d, m):
		case v.unrecorded == va.UID && s.excuse(excuse.UnrecordedBoot):
			v.forced = true
			s.say("nothing recorded that this boot of %s has %s", m, d.handle)
		case s.misled(m, va, min(w.request.heard[name], w.request.sawNodes[d.handle])) && s.excuse(excuse.UnknownMachine):
			v.forced = true
			s.say("nothing tells any more that %s has %s", m, d.handle)
		case v.forced && exists && v.node != "" && v.node != node.UID && !listsInUse(node, d.handle) && s.excuse(excuse.HiddenMount):
			s.say("%s has %s under an old mount, and its later Node does not list it", m, d.handle)
		case s.authority(d, m, w.request.heard[name]):
			v.forced = true
			s.say(forces+" %s off %s", d.handle, m)
		default:
			s.breaks("S2", "attachment of %s to %s deleted while it is mounted (%v) or about to be (%v)", d.handle, m, v.mounted, v.verified)
		}
	}
}

// authority reports whether a named policy permitted a detach of what is in use at the machine, at the version that the API server
// last returned to the writer, or at any later one. A machine whose name another one has counts as one whose Node is gone.
func (s *sim) authority(d *disk, m *machine, since int) bool {
	left := m.of(d.handle).left
	if !m.replaced {
		left = s.requests.since(d, m.name)
	}
	waited := s.policy.UnmountTimeout > 0 && time.Since(left) >= s.policy.UnmountTimeout-clockBound
	allows := func(obj client.Object) bool {
		n, ok := obj.(*corev1.Node)
		switch {
		case !ok:
			return waited || s.policy.DeletedNode == attachment.DeletedNodeDetach
		case s.policy.OutOfService && isOutOfService(n) && !isReady(n):
			return true
		}
		return waited && !isReady(n)
	}
	if m.replaced && allows(nil) || !m.replaced && allows(s.api.at(nodes, since)[m.name]) {
		return true
	}
	for _, e := range s.api.history[nodes] {
		if e.version <= since || e.object.GetName() != m.name || e.version > s.left[m] && m.replaced {
			continue
		}
		if e.deleted && allows(nil) || !e.deleted && allows(e.object) {
			return true
		}
	}
	return false
}

// judgeWithdraw: S2, the first half of a detach, and all of it where no attachment is left to
// delete. What a restarting kubelet does not find reported it takes for something that needs no attach.
func (s *sim) judgeWithdraw(w write, d *disk, before *corev1.Node) {
	m := s.machines[before.Name]
	v := m.of(d.handle)
	v.inherited = false
	va, attached := get[*storagev1.VolumeAttachment](s.api, attachmentName(d.handle, before.Name))
	switch {
	case !s.counts(m, d.handle):
	case s.authority(d, m, s.api.version):
		v.forced = !attached || va.DeletionTimestamp != nil
	case !attached && v.removed && v.node != before.UID && !listsInUse(before, d.handle) && s.excuse(excuse.RemovedByHand):
		v.forced = true
		s.say("nothing tells any more that %s has %s, which a person took from it", m, d.handle)
	case attached && s.stranger(m) && s.strangeTo(m, va) && s.excuse(excuse.UnknownMachine):
		v.forced = true
		s.say("nothing tells that %s is the machine that %s was attached to", m, d.handle)
	default:
		s.breaks("S2", "%s withdrawn from %s while it is mounted (%v) or about to be (%v)", d.handle, m, v.mounted, v.verified)
	}
}

func listsInUse(node *corev1.Node, handle string) bool {
	return slices.Contains(node.Status.VolumesInUse, corev1.UniqueVolumeName(unique(handle)))
}

// judgeReport: S9. The writer may not have seen a deletion by another client.
func (s *sim) judgeReport(w write, d *disk, node *corev1.Node) {
	va, ok := get[*storagev1.VolumeAttachment](s.api, attachmentName(d.handle, node.Name))
	switch {
	case !ok:
		s.breaks("S9", "%s reported to %s without an attachment", d.handle, node.Name)
	case d.handle == fibre:
	case !va.Status.Attached:
		s.breaks("S9", "%s reported to %s before it was confirmed", d.handle, node.Name)
	case va.DeletionTimestamp != nil && s.requests.ended[va.UID] > w.request.looks[d.handle] && s.excuse(excuse.UnseenDeletion):
	case va.DeletionTimestamp != nil:
		s.breaks("S9", "%s reported to %s while its attachment is being deleted", d.handle, node.Name)
	case !s.wasConfirmed(va.UID, w.request.sent):
		s.breaks("S9", "%s reported to %s on the strength of another attachment than the one with UID %s", d.handle, node.Name, va.UID)
	}
}

// wasConfirmed reports whether the attachment of that UID was confirmed at a version or before.
func (s *sim) wasConfirmed(uid types.UID, version int) bool {
	return slices.ContainsFunc(s.api.history[attachments], func(e event) bool {
		va, ok := e.object.(*storagev1.VolumeAttachment)
		return ok && e.version <= version && va.UID == uid && va.Status.Attached
	})
}

// judgeNames: S9, nothing but volumes is reported.
func (s *sim) judgeNames(node *corev1.Node) {
	for _, reported := range node.Status.VolumesAttached {
		known := func(d *disk) bool { return unique(d.handle) == string(reported.Name) }
		if !slices.ContainsFunc(s.disks, known) {
			s.breaks("S9", "%s reported to %s, which is the name of no volume", reported.Name, node.Name)
		}
	}
}

// judgeFibreReport: S1, where a node connects the volume because of the report.
func (s *sim) judgeFibreReport(w write, d *disk, node *corev1.Node) {
	if d.handle != fibre {
		return
	}
	// What is mounted, or about to be, was attached before: its report came back, and what was asked for before stands.
	if v := s.machines[node.Name].of(d.handle); !v.mounted && !v.verified {
		s.requests.attached(d, node.Name)
	}
	for _, other := range list[*corev1.Node](s.api) {
		if other.Name != node.Name && reports(other, d.handle) {
			s.breaks("S1", "%s reported to %s while %s reports it", d.handle, node.Name, other.Name)
		}
	}
	s.judgeMount(s.machines[node.Name], d.handle, sameMachine)
}

// listedNowhere is how long lists must have had a volume at no node for them to count as a confirmed unpublish of a place that the driver does not know.
// It is noted up to a tick late.
const listedNowhere = 10*time.Minute - 2*tick

// noteNowhere notes since when the storage has had volumes at no node.
func (s *sim) noteNowhere() {
	st := s.storage
	for _, d := range s.disks {
		may := func(c *call) bool { return c.publish && c.volume == d.handle }
		switch _, noted := st.nowhere[d.handle]; {
		case len(st.published[d.handle]) > 0, slices.ContainsFunc(st.running, may), slices.ContainsFunc(st.late, may):
			delete(st.nowhere, d.handle)
		case !noted:
			st.nowhere[d.handle] = time.Now()
		}
	}
}

// judgeLetGo: S5.
func (s *sim) judgeLetGo(va *storagev1.VolumeAttachment) {
	d, id := s.diskOf(va), recordedID(va)
	if s.heldByAnother(va, id) && s.excuse(excuse.SharedPublication) {
		return
	}
	if s.storage.published[d.handle][id] {
		s.breaks("S5", "finalizer taken off while %s is published to %s", d.handle, id)
	}
	for _, l := range s.storage.late {
		if l.volume == d.handle && l.nodeID == id {
			s.breaks("S5", "finalizer taken off while %s may still be carried out", l)
		}
	}
	since, nowhere := s.storage.nowhere[d.handle]
	if s.storage.asked[[2]string{d.handle, id}] && (!nowhere || time.Since(since) < listedNowhere) {
		s.breaks("S5", "finalizer taken off without a confirmed unpublish of %s from %s", d.handle, id)
	}
}

// heldByAnother: another attachment stands for the same publication.
func (s *sim) heldByAnother(va *storagev1.VolumeAttachment, id string) bool {
	return slices.ContainsFunc(list[*storagev1.VolumeAttachment](s.api), func(o *storagev1.VolumeAttachment) bool {
		return o.Name != va.Name && s.diskOf(o) == s.diskOf(va) && hasFinalizer(o) && recordedID(o) == id
	})
}

// staysBeside: another attachment of the volume for that machine stays, so that nothing is unpublished (ADR 28).
func (s *sim) staysBeside(va *storagev1.VolumeAttachment, d *disk, m *machine) bool {
	return slices.ContainsFunc(s.attachmentsOf(d), func(o *storagev1.VolumeAttachment) bool {
		return o.Name != va.Name && hasFinalizer(o) && o.DeletionTimestamp == nil && recordedID(o) == s.nodeID(m, d.handle)
	})
}

// judgePreconditions: S6, of a delete.
func (s *sim) judgePreconditions(r *request, p *metav1.Preconditions) {
	if p == nil || p.UID == nil || *p.UID == "" || p.ResourceVersion == nil || *p.ResourceVersion == "" {
		s.breaks("S6", "%s is not bound to UID and resourceVersion", r.what)
	}
}

// judgePatch: S6, for a patch. Those of the attacher change single fields that no other client writes, and carry only the UID.
func (s *sim) judgePatch(r *request, body []byte, bound bool) {
	var patch struct {
		Metadata struct{ UID, ResourceVersion string }
	}
	if err := json.Unmarshal(body, &patch); err != nil {
		s.breaks("S6", "%s cannot be read: %v", r.what, err)
	}
	if patch.Metadata.UID == "" || bound && patch.Metadata.ResourceVersion == "" {
		s.breaks("S6", "%s is not bound to what was decided on", r.what)
	}
}

// judgeCall: S1, S4 and S10, as a call arrives at the driver.
func (s *sim) judgeCall(c *call) {
	d := s.disk(c.volume)
	for _, r := range s.storage.running {
		switch {
		case r.volume != c.volume || !d.exclusive && r.nodeID != c.nodeID:
		case r.gone.Load() && s.excuse(excuse.AbandonedCall):
		default:
			s.breaks("S4", "%s sent while %s is in flight", c, r)
		}
	}
	if !c.publish {
		s.judgeUnpublish(c)
		return
	}
	if !s.protected(d, c.called) {
		s.breaks("S10", "%s sent without the finalizers", c)
	}
	if s.byID(c.nodeID, c.volume).replaced {
		s.storage.misdirected[[2]string{c.volume, c.nodeID}] = true
	}
	if !d.exclusive {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(s.storage.published[c.volume])) {
		if id != c.nodeID {
			s.breaks("S1", "%s sent while it is published to %s", c, id)
		}
	}
	for _, r := range s.storage.underway() {
		if r.publish && r.volume == c.volume && r.nodeID != c.nodeID && r.fate.acts() {
			s.breaks("S1", "%s sent while %s may still be carried out", c, r)
		}
	}
	s.judgeMount(s.byID(c.nodeID, c.volume), c.volume, s.sameID)
}

// sameID: the driver cannot tell the two machines apart, so a call for one may be for the other.
func (s *sim) sameID(m, other *machine) bool {
	return s.nodeIDAt(m, driverName) == s.nodeIDAt(other, driverName)
}

// judgeConfirmed: S10, of one attachment. What it says is confirmed has to rest on a call that was sent after its own finalizer was
// stored, and not that of an earlier attachment with its name.
func (s *sim) judgeConfirmed(va *storagev1.VolumeAttachment) {
	d, id := s.diskOf(va), va.Annotations[kube.NodeIDAnnotation]
	if !slices.Contains(s.storage.answered[[2]string{d.handle, id}], va.UID) {
		s.breaks("S10", "%s of %s at %s, UID %s, is confirmed by no call that was sent after its finalizer was stored", short(va.Name), d.handle, id, va.UID)
	}
}

// protecting are the attachments on which the finalizer and the node ID are stored.
func (s *sim) protecting(d *disk, id string) []types.UID {
	var found []types.UID
	for _, va := range list[*storagev1.VolumeAttachment](s.api) {
		if s.diskOf(va) == d && hasFinalizer(va) && va.Annotations[kube.NodeIDAnnotation] == id {
			found = append(found, va.UID)
		}
	}
	return found
}

// protected reports whether the finalizer and the node ID are stored on an attachment, and the finalizer on one of the volume's
// PersistentVolumes: another one with the same handle counts for one that the attacher has not seen, and what another client
// removed by force is not required.
func (s *sim) protected(d *disk, id string) bool {
	volume := slices.ContainsFunc(list[*corev1.PersistentVolume](s.api), func(pv *corev1.PersistentVolume) bool {
		key, ok := kube.KeyOfVolume(pv)
		return ok && key == d.key() && hasFinalizer(pv)
	})
	return (volume || s.remade[d] && s.excuse(excuse.ForcedVolume)) && len(s.protecting(d, id)) > 0
}

// judgeMount: S1, as a machine is about to be let at a volume. Machines that a policy
// took for dead do not count: that is what the policy says.
func (s *sim) judgeMount(m *machine, handle string, same func(m, other *machine) bool) {
	d := s.disk(handle)
	if !d.exclusive {
		return
	}
	for _, other := range s.everyMachine() {
		switch v := other.of(handle); {
		case other == m || same(m, other) || !v.mounted || !s.counts(other, handle):
		case other.alike && other.name == m.name && s.excuse(excuse.UnknownMachine):
		default:
			s.breaks("S1", "%s given to %s while %s has it mounted", handle, m, other)
		}
	}
}

// sameMachine is for where the Node, and not the driver, says which machine is meant.
func sameMachine(m, other *machine) bool { return m == other }

// settled returns what is missing from the state that must be reached in the end, but for the volumes of a driver that hangs.
func (s *sim) settled() string {
	for _, d := range s.disks {
		if !s.answers(d) {
			continue
		}
		served, wanted := 0, 0
		for _, name := range machineNames {
			wants := s.wantedAt(name, d.handle)
			good, wrong := s.settledAt(d, name, wants)
			switch {
			case wrong != "":
				return wrong
			case wants && good:
				served++
			}
			if wants {
				wanted++
			}
		}
		for _, m := range s.cutOffs {
			if id := s.nodeID(m, d.handle); !s.identity.idsByName && s.storage.published[d.handle][id] && !s.stays(d, m.name, id) {
				return fmt.Sprintf("%s is still published to %s", d.handle, m)
			}
		}
		if d.exclusive || served < wanted && s.namesDeleted(d) && s.excuse(excuse.ForcedVolume) {
			wanted = min(wanted, 1)
		}
		if served != wanted {
			return fmt.Sprintf("%s: %d of %d nodes are served", d.handle, served, wanted)
		}
	}
	return ""
}

// settledAt reports whether a volume can be used at a node, and what is wrong there in any case.
func (s *sim) settledAt(d *disk, name string, wants bool) (good bool, wrong string) {
	node, ok := get[*corev1.Node](s.api, name)
	if !ok {
		return false, name + " is not registered"
	}
	va, attached := get[*storagev1.VolumeAttachment](s.api, attachmentName(d.handle, name))
	confirmed := attached && (va.Status.Attached || d.handle == fibre)
	reported := reports(node, d.handle)
	good = reported && confirmed && va.DeletionTimestamp == nil
	id := s.nodeID(s.machines[name], d.handle)
	switch {
	case good && wants:
	case attached && !wants:
		return good, fmt.Sprintf("%s is still attached to %s and it is unwanted", d.handle, name)
	case !attached && reported:
		return good, fmt.Sprintf("%s is still reported to %s", d.handle, name)
	case !attached && s.storage.published[d.handle][id]:
		return good, fmt.Sprintf("%s is still published to %s", d.handle, name)
	case confirmed && recordedID(va) != id && !s.stays(d, name, recordedID(va)):
		return good, fmt.Sprintf("%s is published to a machine that was once called %s", d.handle, name)
	}
	return good, ""
}

// stays reports whether a volume may stay published to the ID of a machine that another one replaced.
func (s *sim) stays(d *disk, name, id string) bool {
	misdirected := s.storage.misdirected[[2]string{d.handle, id}]
	return s.machines[name].of(d.handle).inherited || misdirected && s.excuse(excuse.StaleNodeID)
}

// namesDeleted reports whether an attachment of the volume names a PersistentVolume that is gone: it may have allowed one node only.
func (s *sim) namesDeleted(d *disk) bool {
	return slices.ContainsFunc(list[*storagev1.VolumeAttachment](s.api), func(va *storagev1.VolumeAttachment) bool {
		name := va.Spec.Source.PersistentVolumeName
		return s.diskOf(va) == d && name != nil && s.stored(volumes)(*name) == nil
	})
}
