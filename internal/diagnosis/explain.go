package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// Explain answers what the subject waits for. It is an error if the snapshot does not have the subject.
func Explain(s *Snapshot, subject Ref) (Explanation, error) {
	x := newState(s)
	found, clear, err := x.about(subject)
	if err != nil {
		return Explanation{}, err
	}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(b.Verdict.Severity()-a.Verdict.Severity(), compareSince(a.Since, b.Since))
	})
	e := Explanation{
		TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: "Explanation"},
		Subject:  subject, Time: s.Now, Verdict: Clear, Reason: attachment.Settled, Summary: clear, Findings: found, Unread: s.Unread,
	}
	if lack := x.lacking(subject); len(found) == 0 && lack != "" {
		f := x.findingOf(wait{reason: explain.Incomplete, detail: lack}, explain.Situation{Volume: subject.Name, Detail: lack})
		f.Subject = subject
		found = []Finding{f}
		e.Findings = found
	}
	if len(found) > 0 {
		e.Verdict, e.Reason, e.Summary = found[0].Verdict, found[0].Reason, found[0].Summary
	}
	return e, nil
}

// lacking is what was not read without which nothing else than a pod can be said to be as it should be.
func (x *state) lacking(subject Ref) string {
	switch {
	case subject.Resource == Pods:
	case !slices.Contains(x.Whole, Attachments) && !x.withoutVolume(subject):
		return "the VolumeAttachments could not be read"
	case slices.ContainsFunc(x.Unread, func(u Unread) bool { return u.Resource == Pods && !x.AllNamespaces }):
		return "the pods that may use it could not all be read"
	}
	return ""
}

// withoutVolume reports whether the subject is a claim that has no volume, which nothing can be attached for.
func (x *state) withoutVolume(subject Ref) bool {
	claim := x.claims[join(subject.Namespace, subject.Name)]
	return subject.Resource == Claims && claim != nil && claim.Spec.VolumeName == ""
}

func compareSince(a, b *time.Time) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return a.Compare(*b)
}

// about returns the findings about a subject, and the sentence for when there are none.
func (x *state) about(r Ref) (found []Finding, clear string, err error) {
	name := join(r.Namespace, r.Name)
	switch r.Resource {
	case Pods:
		if pod := x.pods[name]; pod != nil {
			return slices.Concat(x.ofPod(pod), x.usedElsewhere(pod), x.growing(pod)), x.clearPod(pod), nil
		}
	case Claims:
		if claim := x.claims[name]; claim != nil {
			found, clear = x.ofClaim(claim)
			return found, clear, nil
		}
	case Volumes:
		if pv := x.volumes[r.Name]; pv != nil {
			found, clear = x.ofPersistentVolume(pv)
			return found, clear, nil
		}
	case Attachments:
		if va := x.attachments[r.Name]; va != nil {
			found, clear = x.ofAttachment(va)
			return found, clear, nil
		}
	case Nodes:
		found, clear, err = x.ofNode(r.Name)
		found, clear = x.withTakedown(r, found, clear)
		return found, clear, err
	case StatefulSets, Deployments, ReplicaSets, DaemonSets, Jobs:
		for _, w := range x.Workloads {
			if w.Resource == r.Resource && join(w.Namespace, w.Name) == name {
				found, clear = x.ofWorkload(w)
				return found, clear, nil
			}
		}
	case Leases, CSINodes, Drivers, Events, Namespaces, Fences, FenceSources, ClusterRoles, ClusterRoleBindings, StorageClasses, Capacities:
	}
	return nil, "", x.missing(r)
}

// missing is the error about an object that is not in the snapshot.
func (x *state) missing(r Ref) error {
	if x.exists(r) == decision.No {
		if r.Namespace != "" {
			return fmt.Errorf("%s does not exist in namespace %s", r, r.Namespace)
		}
		return fmt.Errorf("%s does not exist", r)
	}
	for _, u := range x.Unread {
		if u.Resource == r.Resource && (u.Name == r.Name || u.Name == "") {
			if u.Forbidden {
				return fmt.Errorf("%s could not be read: you lack the permission to %s", r, u.Rule())
			}
			return fmt.Errorf("%s could not be read: %s", r, u.Message)
		}
	}
	return fmt.Errorf("%s could not be read", r)
}

// TooManyVolumes is an annotation that a snapshot has on a pod of which kube.TooManyVolumes reports that. No such object is ever written.
const TooManyVolumes = "belay.dev/too-many-volumes"

func (x *state) clearPod(pod *corev1.Pod) string {
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return fmt.Sprintf("pod %s has ended (%s) and needs no volume any more%s", pod.Name, pod.Status.Phase, x.whyEnded(pod))
	case mounted(pod):
		return fmt.Sprintf("pod %s has its volumes on node %s", pod.Name, pod.Spec.NodeName)
	}
	return fmt.Sprintf("pod %s has no volume that is attached", pod.Name)
}

func (x *state) ofClaim(claim *corev1.PersistentVolumeClaim) ([]Finding, string) {
	clear := fmt.Sprintf("claim %s is bound to %s", claim.Name, cmp.Or(claim.Spec.VolumeName, "no volume"))
	found, others := x.ofClaimants(claim.Namespace, claim.Name)
	if others != "" {
		clear += others
	}
	if !slices.ContainsFunc(found, func(f Finding) bool { return f.Reason == explain.ClaimTerminating }) {
		found = append(found, x.endingOrGrowing(claim)...)
	}
	pv := x.volumes[claim.Spec.VolumeName]
	w := x.claimWait(claim, claim.CreationTimestamp.Time)
	switch {
	case len(found) > 0, others != "" && pv != nil:
		return found, clear
	case pv != nil && w.reason == "":
		return x.ofPersistentVolume(pv)
	case claim.Spec.VolumeName == "" && x.claimFailure(claim) == nil && x.waitsForConsumer(claim):
		return nil, fmt.Sprintf("claim %s has no volume yet: it is provisioned for the first pod that uses it, and none waits for it", claim.Name)
	case w.reason == "" || w.reason == explain.Incomplete:
		return nil, clear
	}
	return []Finding{x.claimFinding(claim, w)}, clear
}

// ofClaimants returns what the pods that use a claim wait for, as far as the claim has a part in it, and which of them wait for something else: another
// volume or, with a claim that has its volume, no volume.
func (x *state) ofClaimants(namespace, name string) (found []Finding, others string) {
	claim := x.claims[join(namespace, name)]
	bound := claim != nil && !Unbound(claim)
	for _, pod := range x.byClaim[join(namespace, name)] {
		for _, f := range x.ofPod(pod) {
			switch {
			case f.Verdict == NotVolume && bound:
				if others == "" {
					others = "; " + f.Summary
				}
			case f.Volume == nil || f.Volume.Claim == name:
				found = append(found, f)
			case others == "":
				others = fmt.Sprintf("; pod %s waits for its volume %s", pod.Name, cmp.Or(f.Volume.Name, f.Volume.PersistentVolume))
			}
		}
	}
	return found, others
}

func (x *state) ofPersistentVolume(pv *corev1.PersistentVolume) (found []Finding, clear string) {
	x.explained[pv] = true
	if key, ok := kube.KeyOfVolume(pv); ok {
		found, clear = x.ofKey(key, pv)
	} else {
		clear = fmt.Sprintf("volume %s is not attached by a controller", pv.Name)
		if ref := pv.Spec.ClaimRef; ref != nil && x.mayName(ref.Namespace) {
			var others string
			found, others = x.ofClaimants(ref.Namespace, ref.Name)
			clear += others
		}
	}
	if len(found) > 0 {
		return found, clear // what keeps it attached keeps it from being deleted
	}
	ending, said := x.volumeEnding(pv)
	return ending, cmp.Or(said, clear)
}

// ofKey returns what the pods that need a volume wait for, and what is wrong with its attachments.
func (x *state) ofKey(key attachment.VolumeKey, pv *corev1.PersistentVolume) ([]Finding, string) {
	var found []Finding
	for _, u := range x.uses[key] {
		if !x.mayName(u.pod.Namespace) {
			continue
		}
		switch {
		case ended(u), u.pod.Spec.NodeName != "" && u.pod.DeletionTimestamp == nil && mounted(u.pod) && x.mountsAgain(u.pod) == nil:
		case u.pod.Spec.NodeName == "" || u.pod.DeletionTimestamp != nil:
			found = append(found, x.ofPod(u.pod)...)
		default:
			found = append(found, x.ofKeyOn(u.pod, key)...)
		}
	}
	if len(found) == 0 {
		return x.unneededBy(key), x.clearVolume(key, pv)
	}
	for _, f := range x.irregular(key) {
		if f.Subject.Resource == Volumes { // where nothing waits unneededBy has it
			found = append(found, f)
		}
	}
	return found, x.clearVolume(key, pv)
}

// unneededBy returns what is wrong with a volume that no pod waits for.
func (x *state) unneededBy(key attachment.VolumeKey) (found []Finding) {
	for _, va := range x.attached[key] {
		found = append(found, x.unneeded(key, va)...)
	}
	var used []string // nodes with a pod that is worth more than the list of the node
	for _, u := range x.uses[key] {
		if ended(u) || u.pod.DeletionTimestamp != nil || !x.mayName(u.pod.Namespace) || !mounted(u.pod) {
			continue
		}
		for _, f := range x.ofMounted(u.pod) {
			if f.Volume.Handle == key.Handle && f.Volume.Driver == key.Driver {
				found, used = append(found, f), append(used, u.pod.Spec.NodeName)
			}
		}
	}
	for _, f := range x.irregular(key) {
		if f.Reason != explain.UsedWithoutAttachment || !slices.Contains(used, f.Subject.Name) {
			found = append(found, f)
		}
	}
	return found
}

// usedElsewhere returns which other nodes list an exclusive volume of a pod that runs, without an attachment: the pod waits for nothing, and
// another machine may write to its volume.
func (x *state) usedElsewhere(pod *corev1.Pod) (found []Finding) {
	if pod.DeletionTimestamp != nil || !mounted(pod) {
		return nil
	}
	for _, v := range x.keysOf(pod) {
		if x.shared(v.key) != decision.No {
			continue
		}
		for _, f := range x.irregular(v.key) {
			if f.Reason == explain.PublishedElsewhere || f.Subject.Resource == Nodes && f.Subject.Name != pod.Spec.NodeName && f.Verdict == Unsafe {
				found = append(found, f)
			}
		}
	}
	return found
}

func (x *state) clearVolume(key attachment.VolumeKey, pv *corev1.PersistentVolume) string {
	name := key.Handle
	if pv != nil {
		name = pv.Name
	}
	var nodes []string
	for _, h := range x.holders(key, "") {
		nodes = append(nodes, h.Node.Name)
	}
	switch {
	case len(nodes) == 0:
		return fmt.Sprintf("volume %s is attached to no node, and no pod waits for it", name)
	case len(nodes) > 1 && x.shared(key) == decision.Yes:
		return fmt.Sprintf("volume %s is attached to nodes %s, which its access mode allows, and no pod waits for it", name, strings.Join(nodes, ", "))
	}
	return fmt.Sprintf("volume %s is attached to node %s, and no pod waits for it", name, strings.Join(nodes, ", "))
}

func (x *state) ofAttachment(va *storagev1.VolumeAttachment) ([]Finding, string) {
	key, known := x.volumeOf(va)
	clear := fmt.Sprintf("VolumeAttachment %s is attached to node %s, and pods use it", va.Name, va.Spec.NodeName)
	if known {
		users := x.usersOn(key, va.Spec.NodeName)
		if len(users) > 0 && va.DeletionTimestamp == nil {
			if va.Status.Attached {
				return x.usedAttachment(key, va, users, clear)
			}
			return []Finding{x.attachmentFinding(key, va, x.attachWait(va))}, clear
		}
	} else {
		key = attachment.VolumeKey{Driver: va.Spec.Attacher}
	}
	return x.unneeded(key, va), clear
}

// usedAttachment explains the VolumeAttachment of a volume that pods use: it was removed under them meanwhile, or others wait for it, or
// the node is lost.
func (x *state) usedAttachment(key attachment.VolumeKey, va *storagev1.VolumeAttachment, users []*corev1.Pod, clear string) ([]Finding, string) {
	lost, elsewhere := x.ofUsers(key, users), x.listedElsewhere(key, x.describe(key, x.volume(key)))
	waiters := x.waitersElsewhere(key, va.Spec.NodeName)
	switch {
	case slices.ContainsFunc(lost, func(f Finding) bool { return f.Reason == explain.UsedWithoutAttachment }), len(waiters) == 0:
		return append(lost, elsewhere...), clear
	case x.alive(va.Spec.NodeName):
		return elsewhere, clear + "; pods on other nodes wait for the volume"
	}
	return append(waiters, elsewhere...), clear
}

// ofUsers returns what is wrong with a volume under the pods that have mounted it.
func (x *state) ofUsers(key attachment.VolumeKey, users []*corev1.Pod) (found []Finding) {
	for _, pod := range users {
		switch {
		case !x.mayName(pod.Namespace) || !mounted(pod):
			continue
		case pod.DeletionTimestamp != nil: // explain of the pod says why it is still there
			found = append(found, x.terminating(pod))
			continue
		}
		for _, f := range x.ofMounted(pod) {
			if f.Volume.Handle == key.Handle && f.Volume.Driver == key.Driver {
				found = append(found, f)
			}
		}
	}
	return found
}

// alive reports whether the node is Ready, or nothing else is known: its pods use its volumes as they should.
func (x *state) alive(node string) bool {
	n := x.node(node)
	return (n.State == NodeReady || n.State == NodeUnknown) && !x.silentNode(n)
}

// waitersElsewhere explains what the pods on other nodes wait for that need a volume which only one node may have.
func (x *state) waitersElsewhere(key attachment.VolumeKey, node string) []Finding {
	if x.shared(key) == decision.Yes {
		return nil
	}
	var found []Finding
	for _, u := range x.uses[key] {
		waits := u.pod.Spec.NodeName != "" && u.pod.Spec.NodeName != node && !ended(u) && u.pod.DeletionTimestamp == nil && !mounted(u.pod)
		if waits && x.mayName(u.pod.Namespace) {
			found = append(found, x.ofKeyOn(u.pod, key)...)
		}
	}
	return found
}

// unneeded explains why a VolumeAttachment still exists that no pod needs, or that is being deleted.
func (x *state) unneeded(key attachment.VolumeKey, va *storagev1.VolumeAttachment) []Finding {
	if va.DeletionTimestamp != nil {
		return []Finding{x.attachmentFinding(key, va, x.detachWait(va))}
	}
	if len(x.usersOn(key, va.Spec.NodeName)) > 0 || !x.podsKnown(key, va.Spec.NodeName) {
		return nil
	}
	h := x.holder(key, va.Spec.NodeName)
	since := va.CreationTimestamp.Time
	if at := kube.DetachRequested(va); !at.IsZero() || h.InUse == "yes" {
		since = at // the age of the attachment says nothing about how long it has not been needed
	}
	var causes decision.Reason
	for _, step := range x.decide(key).Steps {
		if w, ok := step.(attachment.Wait); ok && string(w.Node) == va.Spec.NodeName {
			causes = w.Reason
		}
	}
	w := x.heldBy(key, &h, causes, &corev1.Pod{}, since)
	if w.reason == explain.NoDetachController {
		w.reason = explain.OrphanAttachment
		if slices.ContainsFunc(x.byKey[key], unused) {
			w.detail = "the volume cannot be deleted before that"
		}
		if !kube.IsAttachmentName(va.Name) {
			w.reason = attachment.ForeignAttachment
		}
	}
	return []Finding{x.attachmentFinding(key, va, w)}
}

// unused reports whether no claim uses a volume any more.
func unused(pv *corev1.PersistentVolume) bool {
	return pv.Status.Phase == corev1.VolumeReleased || pv.Status.Phase == corev1.VolumeFailed
}

// podsKnown reports whether all pods that use the volume on the node were read: all pods, those of the node, or those of the
// namespaces of its claims, which alone can use them.
func (x *state) podsKnown(key attachment.VolumeKey, node string) bool {
	if slices.Contains(x.Whole, Pods) || slices.Contains(x.Absent, PodsOf(node)) {
		return true
	}
	for _, pv := range x.byKey[key] {
		if ref := pv.Spec.ClaimRef; ref != nil && !slices.Contains(x.Absent, PodsIn(ref.Namespace)) {
			return false
		}
	}
	return len(x.byKey[key]) > 0
}

// PodsOf is what a reader adds to Absent after it has read all pods of a node: there are no others.
func PodsOf(node string) Ref { return Ref{Resource: Pods, Name: "spec.nodeName=" + node} }

// PodsIn is what a reader adds to Absent after it has read all pods of a namespace.
func PodsIn(namespace string) Ref {
	return Ref{Resource: Pods, Name: "metadata.namespace=" + namespace}
}

// ClaimsIn is what a reader adds to Absent after it has read all claims of a namespace.
func ClaimsIn(namespace string) Ref {
	return Ref{Resource: Claims, Name: "metadata.namespace=" + namespace}
}

func (x *state) attachmentFinding(key attachment.VolumeKey, va *storagev1.VolumeAttachment, w wait) Finding {
	h := x.holder(key, va.Spec.NodeName)
	h.Attachment = va.Name
	pv := x.volumes[kube.SourceName(va)]
	v := x.describe(key, pv)
	if pv == nil {
		v.PersistentVolume = kube.SourceName(va)
	}
	if va.DeletionTimestamp == nil && !va.Status.Attached {
		v.WantedOn = va.Spec.NodeName
	}
	f := x.finding(nil, w, v, &h)
	f.Subject = Ref{Resource: Attachments, Name: va.Name}
	f.Holders, f.Clock = []Holder{h}, x.clock(key, &h, w)
	f.Facts = slices.Concat(x.attacherFacts(va), x.unmountFacts(key, &h), f.Facts)
	return f
}

// irregular finds two VolumeAttachments of an exclusive volume, and nodes that list the volume without one.
func (x *state) irregular(key attachment.VolumeKey) []Finding {
	var found []Finding
	if !x.attachRequired(key.Driver) || kube.NoAttacher(key.Driver) {
		return nil
	}
	v := x.describe(key, x.volume(key))
	attachments := x.attached[key]
	if len(attachments) > 1 && x.shared(key) == decision.No {
		var nodes []string
		for _, va := range attachments {
			nodes = append(nodes, va.Spec.NodeName)
		}
		slices.Sort(nodes)
		f := x.finding(nil, wait{reason: explain.TwoAttachments, detail: strings.Join(nodes, ", ")}, v, nil)
		f.Holders = x.holders(key, "")
		f.Subject = Ref{Resource: Volumes, Name: v.PersistentVolume}
		found = append(found, f)
	}
	found = append(found, x.listedElsewhere(key, v)...)
	for _, name := range x.listed[kube.UniqueVolumeName(key.Driver, key.Handle)] {
		var reason decision.Reason
		switch x.without(key, name) {
		case usedWithout:
			reason = explain.UsedWithoutAttachment
		case reportedOnly:
			reason = explain.ReportedWithoutAttachment
		case takenByFence, takenAlive:
			found = append(found, x.takenByFence(key, v, name))
			continue
		case notListed, awaited, switchedOff:
			continue
		}
		h := x.holder(key, name)
		f := x.finding(nil, wait{reason: reason}, v, &h)
		f.Subject, f.Holders = Ref{Resource: Nodes, Name: name}, []Holder{h}
		found = append(found, f)
	}
	return found
}
