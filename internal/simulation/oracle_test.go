package simulation

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// What must always hold, told by what happens at the API server, the driver, the
// storage and the machines; the oracle knows nothing of why it was done.

// breaks notes the first invariant that did not hold.
func (s *sim) breaks(invariant, format string, args ...any) {
	if s.broken == "" {
		s.broken = invariant + ": " + fmt.Sprintf(format, args...)
		s.say("BROKEN %s", s.broken)
	}
}

// judge looks at one write before it takes effect.
func (s *sim) judge(w write) {
	if w.by == nil {
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
	case *corev1.Node:
		before := w.before.(*corev1.Node)
		for _, d := range s.disks {
			was, is := reports(before, d.handle), reports(after, d.handle)
			switch {
			case !was && is:
				s.judgeReport(d, after)
				s.judgeFibreReport(d, after)
			case was && !is:
				s.judgeWithdraw(d, before)
			}
		}
	}
}

func hasFinalizer(obj client.Object) bool {
	return slices.Contains(obj.GetFinalizers(), kube.AttacherFinalizer(driverName))
}

// judgeAttach: S1, the controller's part. A late request of a leader before may come
// when others exist; then the attacher has to keep them apart.
func (s *sim) judgeAttach(w write, made *storagev1.VolumeAttachment) {
	d := s.diskOf(made)
	if w.request.late.Load() {
		s.latecomers[made.Name] = true
		return
	}
	delete(s.latecomers, made.Name)
	for _, other := range list[*storagev1.VolumeAttachment](s.api) {
		if d.exclusive && !d.meddled && s.diskOf(other) == d && !s.latecomers[other.Name] {
			s.breaks("S1", "%s attached to %s while an attachment to %s exists", d.handle, made.Spec.NodeName, other.Spec.NodeName)
		}
	}
}

// judgeDetach: S2 and S3.
func (s *sim) judgeDetach(w write, va *storagev1.VolumeAttachment) {
	d, m := s.diskOf(va), s.machines[va.Spec.NodeName]
	if d.meddled {
		return
	}
	node, exists := get[*corev1.Node](s.api, va.Spec.NodeName)
	if exists && reports(node, d.handle) {
		s.breaks("S3", "attachment of %s to %s deleted while the node reports it", d.handle, m.name)
	}
	v := m.of(d.handle)
	if !v.mounted && !v.verified {
		return
	}
	if s.authority(m.name, w.request.heard[m.name], requested(va)) {
		v.forced = true
		s.say("a policy forces %s off %s", d.handle, m.name)
		return
	}
	s.breaks("S2", "attachment of %s to %s deleted while it is mounted (%v) or about to be (%v)", d.handle, m.name, v.mounted, v.verified)
}

func requested(va *storagev1.VolumeAttachment) time.Time {
	t, err := time.Parse(time.RFC3339, va.Annotations[kube.DetachRequestedAnnotation])
	if err != nil {
		return time.Time{}
	}
	return t
}

// authority tells whether a named policy allowed a detach of what is in use at the node,
// at the version of which the API server last told the writer, or at any later one.
func (s *sim) authority(node string, since int, requested time.Time) bool {
	waited := s.policy.UnmountTimeout > 0 && !requested.IsZero() && time.Since(requested) >= s.policy.UnmountTimeout
	allows := func(obj client.Object) bool {
		n, ok := obj.(*corev1.Node)
		switch {
		case !ok:
			return waited || s.policy.DeletedNode == attachment.DeletedNodeDetach
		case s.policy.OutOfService && isOutOfService(n):
			return true
		}
		return waited && !isReady(n)
	}
	if allows(s.api.at(nodes, since)[node]) {
		return true
	}
	for _, e := range s.api.history[nodes] {
		if e.version <= since || e.object.GetName() != node {
			continue
		}
		if e.deleted && allows(nil) || !e.deleted && allows(e.object) {
			return true
		}
	}
	return false
}

// judgeWithdraw: S2, the first half of a detach. What a restarting kubelet does not find reported it
// takes for something that needs no attach.
func (s *sim) judgeWithdraw(d *disk, before *corev1.Node) {
	v := s.machines[before.Name].of(d.handle)
	used := listed(before, d.handle) || d.handle == fibre && (v.mounted || v.verified)
	if d.meddled || !used {
		return
	}
	if d.handle == fibre && s.authority(before.Name, s.api.version, requestedOnNode(before)) {
		v.forced = v.mounted || v.verified
		return
	}
	for _, va := range list[*storagev1.VolumeAttachment](s.api) {
		if s.diskOf(va) == d && va.Spec.NodeName == before.Name && s.authority(before.Name, s.api.version, requested(va)) {
			return
		}
	}
	s.breaks("S2", "%s withdrawn from %s, which lists it in use", d.handle, before.Name)
}

// judgeReport: S9.
func (s *sim) judgeReport(d *disk, node *corev1.Node) {
	if d.meddled || d.handle == fibre {
		return
	}
	va, ok := get[*storagev1.VolumeAttachment](s.api, kube.AttachmentName(d.handle, driverName, node.Name))
	switch {
	case !ok:
		s.breaks("S9", "%s reported to %s without an attachment", d.handle, node.Name)
	case !va.Status.Attached:
		s.breaks("S9", "%s reported to %s before it was confirmed", d.handle, node.Name)
	case va.DeletionTimestamp != nil:
		s.breaks("S9", "%s reported to %s while its attachment is being deleted", d.handle, node.Name)
	}
}

// judgeFibreReport: S1, where the report is all that there is.
func (s *sim) judgeFibreReport(d *disk, node *corev1.Node) {
	if d.handle != fibre {
		return
	}
	for _, other := range list[*corev1.Node](s.api) {
		if other.Name != node.Name && reports(other, d.handle) {
			s.breaks("S1", "%s reported to %s while %s reports it", d.handle, node.Name, other.Name)
		}
	}
	s.judgeMount(s.machines[node.Name], d.handle)
}

// requestedOnNode is since when the detach of a volume without VolumeAttachment waits.
func requestedOnNode(node *corev1.Node) time.Time {
	var stored map[string]string
	if err := json.Unmarshal([]byte(node.Annotations[kube.DetachesRequestedAnnotation]), &stored); err != nil {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, stored[unique(fibre)])
	if err != nil {
		return time.Time{}
	}
	return t
}

// judgeLetGo: S5.
func (s *sim) judgeLetGo(va *storagev1.VolumeAttachment) {
	d, id := s.diskOf(va), va.Annotations[kube.NodeIDAnnotation]
	if s.heldByAnother(va, id) {
		return
	}
	if s.storage.published[d.handle][id] {
		s.breaks("S5", "finalizer taken off while %s is published to %s", d.handle, id)
	}
	if !s.storage.withdrawn[[2]string{d.handle, id}] {
		s.breaks("S5", "finalizer taken off without a confirmed unpublish of %s from %s", d.handle, id)
	}
}

// heldByAnother: another attachment stands for the same publication.
func (s *sim) heldByAnother(va *storagev1.VolumeAttachment, id string) bool {
	return slices.ContainsFunc(list[*storagev1.VolumeAttachment](s.api), func(o *storagev1.VolumeAttachment) bool {
		return o.Name != va.Name && s.diskOf(o) == s.diskOf(va) && hasFinalizer(o) && o.Annotations[kube.NodeIDAnnotation] == id
	})
}

// judgePreconditions: S6, of a delete.
func (s *sim) judgePreconditions(r *request, p *metav1.Preconditions) {
	if p == nil || p.UID == nil || *p.UID == "" || p.ResourceVersion == nil || *p.ResourceVersion == "" {
		s.breaks("S6", "%s is not bound to UID and resourceVersion", r.what)
	}
}

// judgePatch: S6, of a patch. Those of the attacher touch single fields that nobody else
// writes, and carry the UID alone.
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
		if !r.gone.Load() && r.volume == c.volume && (d.exclusive || r.nodeID == c.nodeID) {
			s.breaks("S4", "%s sent while %s is in flight", c, r)
		}
	}
	if !c.publish {
		return
	}
	if !s.protected(d, c.nodeID) {
		s.breaks("S10", "%s sent without the finalizers", c)
	}
	if !d.exclusive {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(s.storage.published[c.volume])) {
		if id != c.nodeID {
			s.breaks("S1", "%s sent while it is published to %s", c, id)
		}
	}
	for _, r := range s.storage.running {
		if r.publish && r.volume == c.volume && r.nodeID != c.nodeID && r.fate.acts() {
			s.breaks("S1", "%s sent while %s may still land", c, r)
		}
	}
	s.judgeMount(s.machines[strings.TrimPrefix(c.nodeID, "id-")], c.volume)
}

// protected tells whether our finalizer and the node ID are stored on an attachment,
// and the finalizer on one of the volume's PersistentVolumes: another of the same handle
// stands in for one that the attacher has not heard of.
func (s *sim) protected(d *disk, id string) bool {
	volume := slices.ContainsFunc(list[*corev1.PersistentVolume](s.api), func(pv *corev1.PersistentVolume) bool {
		return pv.Spec.CSI != nil && pv.Spec.CSI.VolumeHandle == d.handle && hasFinalizer(pv)
	})
	return volume && slices.ContainsFunc(list[*storagev1.VolumeAttachment](s.api), func(va *storagev1.VolumeAttachment) bool {
		return s.diskOf(va) == d && hasFinalizer(va) && va.Annotations[kube.NodeIDAnnotation] == id
	})
}

// judgeMount: S1, as a machine is about to be let at a volume. Machines that a policy
// took for dead do not count: that is what the policy says.
func (s *sim) judgeMount(m *machine, handle string) {
	d := s.disk(handle)
	if !d.exclusive || d.meddled {
		return
	}
	for _, name := range machineNames {
		other := s.machines[name]
		// Without an attachment nothing outlives the Node object that could tell what
		// was in use there.
		if _, ok := get[*corev1.Node](s.api, name); handle == fibre && (!ok || other.returned) {
			continue
		}
		if v := other.of(handle); other != m && v.mounted && !v.forced {
			s.breaks("S1", "%s given to %s while %s has it mounted", handle, m.name, name)
		}
	}
}

// settled tells what is missing from the state that must be reached in the end.
func (s *sim) settled() string {
	for _, d := range s.disks {
		served, wanted := 0, 0
		for _, name := range machineNames {
			node, ok := get[*corev1.Node](s.api, name)
			if !ok {
				return name + " is not registered"
			}
			va, attached := get[*storagev1.VolumeAttachment](s.api, kube.AttachmentName(d.handle, driverName, name))
			if d.handle == fibre {
				attached = reports(node, d.handle)
			}
			good := attached && reports(node, d.handle) &&
				(d.handle == fibre || va.Status.Attached && va.DeletionTimestamp == nil)
			wants := s.wantedAt(name, d.handle)
			if wants {
				wanted++
			}
			switch {
			case good && wants:
				served++
			case attached && !wants:
				return fmt.Sprintf("%s is still attached to %s and nobody wants it", d.handle, name)
			case !attached && reports(node, d.handle):
				return fmt.Sprintf("%s is still reported to %s", d.handle, name)
			case !attached && s.storage.published[d.handle][nodeID(name)]:
				return fmt.Sprintf("%s is still published to %s", d.handle, name)
			}
		}
		if d.exclusive {
			wanted = min(wanted, 1)
		}
		if served != wanted {
			return fmt.Sprintf("%s: %d of %d nodes are served", d.handle, served, wanted)
		}
	}
	return ""
}
