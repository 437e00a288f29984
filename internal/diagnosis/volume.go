package diagnosis

import (
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

// usual is how long an operation may take until its wait counts as blocked.
const usual = 30 * time.Second

// describe returns the volume as far as the reader may see its claim.
func (x *state) describe(key attachment.VolumeKey, pv *corev1.PersistentVolume) *Volume {
	v := &Volume{Driver: key.Driver, Handle: key.Handle}
	if pv == nil {
		return v
	}
	v.PersistentVolume, v.InTree = pv.Name, pv.Spec.CSI == nil && key.Driver != "" && !kube.NoAttacher(key.Driver)
	for _, mode := range pv.Spec.AccessModes {
		v.AccessModes = append(v.AccessModes, string(mode))
	}
	if ref := pv.Spec.ClaimRef; ref != nil && x.mayName(ref.Namespace) {
		v.Namespace, v.Claim = ref.Namespace, ref.Name
	}
	return v
}

// volume returns a PersistentVolume of the key, nil if none is known.
func (x *state) volume(key attachment.VolumeKey) *corev1.PersistentVolume {
	if found := x.byKey[key]; len(found) > 0 {
		return found[0]
	}
	return nil
}

// shared reports whether the volume may be attached to several nodes; Unknown if its PersistentVolume is.
func (x *state) shared(key attachment.VolumeKey) decision.Knowledge {
	return kube.Sharing(x.byKey[key], slices.Values(x.attached[key]))
}

// decide asks the controller's own rules what they would do about the volume. They see what the objects show: what only the memory
// of a controller has, such as writes without an answer, is left out, so a detach may be further along than this says.
func (x *state) decide(key attachment.VolumeKey) attachment.Decision {
	want := attachment.Desired{Shared: x.shared(key)}
	seen := attachment.Observed{Nodes: map[attachment.NodeName]attachment.Node{}}
	unique := kube.UniqueVolumeName(key.Driver, key.Handle)
	for _, w := range x.wants(key) {
		want.Wants = append(want.Wants, w)
		seen.Nodes[w.Node] = x.facts(string(w.Node), unique)
	}
	for _, va := range x.attached[key] {
		seen.Attachments = append(seen.Attachments, x.attachmentOf(key, va))
		seen.Nodes[attachment.NodeName(va.Spec.NodeName)] = x.facts(va.Spec.NodeName, unique)
	}
	for _, name := range x.listed[unique] {
		n := x.facts(name, unique)
		seen.Nodes[n2(name)] = n
		if _, has := x.attachmentOn(key, name); !has && n.Reported {
			// Upstream's controller makes no object for what the node connects by itself.
			seen.Attachments = append(seen.Attachments, attachment.Attachment{
				Node: n2(name), Implied: !kube.NoAttacher(key.Driver), Computed: true, Confirmed: attachment.Yes,
			})
		}
	}
	for name, n := range seen.Nodes {
		n.NodeID = x.nodeID(string(name), key.Driver)
		seen.Nodes[name] = n
	}
	for i := range seen.Attachments {
		a := &seen.Attachments[i]
		if n := seen.Nodes[a.Node]; n.SameMachine(a) {
			a.SameMachineAs = n.NodeID // what the controller records next is no step that anybody waits for
		}
	}
	return attachment.Decide(x.Now, want, seen, attachment.Policy{OutOfService: true})
}

// wants are the nodes on which pods need the volume, each with its oldest pod.
func (x *state) wants(key attachment.VolumeKey) map[string]attachment.Want {
	required, wants := x.attachRequired(key.Driver), map[string]attachment.Want{}
	for _, u := range x.uses[key] {
		node := u.pod.Spec.NodeName
		if node == "" || ended(u) {
			continue
		}
		// A driver without attach keeps what it has until it is mounted.
		if _, has := x.attachmentOn(key, node); !required && (!has || mounted(u.pod)) {
			continue
		}
		created := u.pod.CreationTimestamp.Time
		if w, ok := wants[node]; !ok || created.Before(w.Since) {
			wants[node] = attachment.Want{Node: attachment.NodeName(node), PersistentVolume: u.pv, Since: created}
		}
	}
	return wants
}

func n2(name string) attachment.NodeName { return attachment.NodeName(name) }

// attachmentOn returns the VolumeAttachment of the volume for a node. If another client has created a second one, it is the one with
// the name that controllers and kubelet look for.
func (x *state) attachmentOn(key attachment.VolumeKey, node string) (found *storagev1.VolumeAttachment, has bool) {
	for _, va := range x.attached[key] {
		if va.Spec.NodeName == node && (found == nil || kube.IsAttachmentOf(va, key)) {
			found = va
		}
	}
	return found, found != nil
}

func (x *state) attachmentOf(key attachment.VolumeKey, va *storagev1.VolumeAttachment) attachment.Attachment {
	a := kube.AttachmentFacts(va, key)
	a.VolumeGone = a.PersistentVolume != "" && x.exists(Ref{Resource: Volumes, Name: a.PersistentVolume}) == decision.No
	return a
}

// facts returns what is known about a node with regard to a volume. A Node that is Ready, and older than twice the time that a kubelet needs,
// counts as one that has not listed the volume lately, if it does not list it now.
func (x *state) facts(name, unique string) attachment.Node {
	node := x.nodes[name]
	if node == nil {
		n := attachment.Node{Exists: x.exists(Ref{Resource: Nodes, Name: name})}
		if n.Exists == attachment.No {
			n.Healthy = attachment.No
		}
		return n
	}
	n := kube.NodeFacts(node, kube.ListingOf(node, unique))
	n.Shared, n.Checked = x.sharedIdentities(node), true
	if kube.Ready(node) && x.Now.Sub(n.Created) > 2*attachment.SyncWindow {
		n.QuietSince, n.QuietUntil = n.Created.Add(attachment.SyncWindow), x.Now
	}
	return n
}

// nodeID returns the CSI node ID that a driver has for a node now, empty if that is unknown.
func (x *state) nodeID(node, driver string) string {
	if n := x.csiNodes[node]; n != nil {
		for i := range n.Spec.Drivers {
			if n.Spec.Drivers[i].Name == driver {
				return n.Spec.Drivers[i].NodeID
			}
		}
	}
	return ""
}

// sharedIdentities says which identities of a machine other Nodes carry too.
func (x *state) sharedIdentities(node *corev1.Node) attachment.Shared {
	if x.carriers == nil {
		x.carriers = kube.Carriers(x.Nodes)
	}
	return kube.Shared(node, func(i kube.Identity) bool { return len(x.carriers[i]) > 1 })
}

// holders describes the nodes other than one that have the volume, or may have it.
func (x *state) holders(key attachment.VolumeKey, except string) []Holder {
	unique := kube.UniqueVolumeName(key.Driver, key.Handle)
	names := slices.Clone(x.listed[unique])
	for _, va := range x.attached[key] {
		names = append(names, va.Spec.NodeName)
	}
	slices.Sort(names)
	var found []Holder
	for _, name := range slices.Compact(names) {
		if name != except && x.mayHave(key, name) {
			found = append(found, x.holder(key, name))
		}
	}
	return found
}

func (x *state) holder(key attachment.VolumeKey, name string) Holder {
	unique := kube.UniqueVolumeName(key.Driver, key.Handle)
	h := Holder{Node: x.node(name), InUse: "unknown", Reported: "unknown", PodsUnknown: !x.podsKnown(key, name)}
	if node := x.nodes[name]; node != nil {
		h.InUse, h.Reported = yesNo(kube.InUse(node, unique)), yesNo(kube.Reported(node, unique))
	}
	if va, ok := x.attachmentOn(key, name); ok {
		h.Attachment, h.Attached, h.Since = va.Name, va.Status.Attached, timePointer(va.CreationTimestamp.Time)
		if va.DeletionTimestamp != nil {
			h.Deleting = timePointer(va.DeletionTimestamp.Time)
		}
	}
	for _, pod := range x.usersOn(key, name) {
		if !x.mayName(pod.Namespace) {
			h.HiddenPods++
			continue
		}
		h.Pods = append(h.Pods, podState(pod))
	}
	return h
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func podState(pod *corev1.Pod) PodState {
	p := PodState{Namespace: pod.Namespace, Name: pod.Name, State: string(pod.Status.Phase), Owner: owner(pod)}
	p.Since = timePointer(pod.CreationTimestamp.Time)
	if pod.DeletionTimestamp != nil {
		p.State, p.Since = "Terminating", timePointer(deletedAt(pod))
	}
	return p
}

// owner is "StatefulSet/db". A ReplicaSet of a Deployment, whose name ends with the hash of the template, is shown as the Deployment.
func owner(pod *corev1.Pod) string {
	o := metav1.GetControllerOfNoCopy(pod)
	if o == nil {
		return ""
	}
	if hash := pod.Labels["pod-template-hash"]; o.Kind == "ReplicaSet" && hash != "" {
		if name, ok := strings.CutSuffix(o.Name, "-"+hash); ok {
			return "Deployment/" + name
		}
	}
	return o.Kind + "/" + o.Name
}

// deletedAt is when the deletion was requested: the API server stores when the grace period ends.
func deletedAt(o metav1.Object) time.Time {
	at := o.GetDeletionTimestamp()
	if at.IsZero() {
		return time.Time{}
	}
	if grace := o.GetDeletionGracePeriodSeconds(); grace != nil {
		return at.Add(-time.Duration(*grace) * time.Second)
	}
	return at.Time
}

// madeBy is the annotation of a PersistentVolume that a provisioner has made (k8s.io/component-helpers v0.36.3 storage/volume/pv_helpers.go:62
// AnnDynamicallyProvisioned).
const madeBy = "pv.kubernetes.io/provisioned-by"

// situation fills in the names of a volume and its holder.
func (x *state) situation(v *Volume, h *Holder) explain.Situation {
	s := explain.Situation{}
	if v != nil {
		s.Namespace, s.Claim, s.Volume, s.Driver, s.Wanted = v.Namespace, v.Claim, v.PersistentVolume, v.Driver, v.WantedOn
		s.NotInstalled = v.Driver != "" && x.removed(v.Driver)
		if lease := x.attacherLease(v.Driver); lease != nil && x.mayName(lease.Namespace) {
			s.LeaseNamespace = lease.Namespace
			if x.podHolds(lease) { // it may also be a machine, whose network the pod has
				s.AttacherPod = leaseHolder(lease)
			}
		}
		if pv := x.volumes[v.PersistentVolume]; pv != nil {
			s.Policy, s.MadeBy = string(pv.Spec.PersistentVolumeReclaimPolicy), x.foreign(pv.Annotations[madeBy])
		}
	}
	if h != nil {
		s.Node, s.Attachment = h.Node.Name, h.Attachment
		if va := x.attachments[h.Attachment]; va != nil {
			s.NodeID = va.Annotations[kube.NodeIDAnnotation]
		}
		if len(h.Pods) > 0 {
			s.HolderNamespace, s.HolderName, s.HolderOwner = h.Pods[0].Namespace, h.Pods[0].Name, h.Pods[0].Owner
			s.HolderState = h.Pods[0].State
		}
	}
	return s
}

// keyOf returns the volume of a unique name.
func keyOf(unique string) (attachment.VolumeKey, bool) {
	driver, handle, ok := kube.ParseUniqueVolumeName(unique)
	return attachment.VolumeKey{Driver: driver, Handle: handle}, ok
}
