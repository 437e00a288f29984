package attachdetach

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// demand is who needs one volume, and by which way.
type demand struct {
	// volumes are the PersistentVolumes of the volume by name: usually one.
	volumes []*corev1.PersistentVolume
	// wants holds, for each node with pods that need the volume, what Decide is told.
	wants map[attachment.NodeName]attachment.Want
	// pods are those pods, oldest first.
	pods map[attachment.NodeName][]*corev1.Pod
	// inline is what the oldest pod of a node says of its own volume, where that and no
	// PersistentVolume is what it wants.
	inline map[attachment.NodeName]kube.InlineVolume
	// shared says of each way by which pods come whether it allows several nodes.
	shared []bool
}

// demandFor finds the pods that need the volume.
func (w *clusterState) demandFor(k key) demand {
	unique := kube.UniqueVolumeName(k.Driver, k.Handle)
	d := demand{
		volumes: list[*corev1.PersistentVolume](w.volumes, byVolume, unique),
		wants:   map[attachment.NodeName]attachment.Want{},
		pods:    map[attachment.NodeName][]*corev1.Pod{},
		inline:  map[attachment.NodeName]kube.InlineVolume{},
	}
	slices.SortFunc(d.volumes, func(a, b *corev1.PersistentVolume) int { return cmp.Compare(a.Name, b.Name) })
	for _, pv := range d.volumes {
		d.shared = append(d.shared, attachment.AllowsSeveralNodes(pv.Spec.AccessModes))
	}
	for pod, by := range w.needs(k, d.volumes) {
		if by.pv == nil {
			d.shared = append(d.shared, by.inline.Spec == nil || attachment.AllowsSeveralNodes(by.inline.Spec.AccessModes))
			d.add(pod, "", by.inline)
		} else {
			d.add(pod, by.pv.Name, kube.InlineVolume{})
		}
	}
	for _, pods := range d.pods {
		slices.SortFunc(pods, older)
	}
	return d
}

// way is how a pod comes to a volume: by a PersistentVolume, or else by what it says itself.
type way struct {
	pv     *corev1.PersistentVolume
	inline kube.InlineVolume
}

// needs are the pods that need the volume whose PersistentVolumes these are.
func (w *clusterState) needs(k key, volumes []*corev1.PersistentVolume) iter.Seq2[*corev1.Pod, way] {
	return func(yield func(*corev1.Pod, way) bool) {
		if !w.attachRequired(k.Driver) {
			return
		}
		for _, pv := range volumes {
			for pod := range w.podsOf(pv) {
				if !yield(pod, way{pv: pv}) {
					return
				}
			}
		}
		for _, pod := range list[*corev1.Pod](w.pods, byVolume, kube.UniqueVolumeName(k.Driver, k.Handle)) {
			if kube.PodEnded(pod) {
				continue
			}
			for _, v := range kube.InlineVolumes(pod) {
				if v.Key == k && !yield(pod, way{inline: v}) {
					return
				}
			}
		}
	}
}

// add notes that a pod needs the volume, by way of a PersistentVolume or of itself.
func (d *demand) add(pod *corev1.Pod, pv string, inline kube.InlineVolume) {
	node := attachment.NodeName(pod.Spec.NodeName)
	first := !slices.ContainsFunc(d.pods[node], func(p *corev1.Pod) bool { return older(p, pod) <= 0 })
	if !slices.ContainsFunc(d.pods[node], func(p *corev1.Pod) bool { return p.UID == pod.UID }) {
		d.pods[node] = append(d.pods[node], pod)
	}
	if !first {
		return
	}
	d.wants[node] = attachment.Want{Node: node, PersistentVolume: pv, Since: pod.CreationTimestamp.Time}
	if pv == "" {
		d.inline[node] = inline
	} else {
		delete(d.inline, node)
	}
}

func older(a, b *corev1.Pod) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// name is what events call the volume: as upstream, its PersistentVolume, or what it
// was translated to, or the pod's own name for it.
func (d *demand) name(k key) string {
	if len(d.volumes) > 0 {
		return d.volumes[0].Name
	}
	for _, node := range slices.Sorted(maps.Keys(d.inline)) {
		return d.inline[node].Name
	}
	return k.Handle
}

// podsOf gives the pods that run somewhere and use the PersistentVolume through the
// claim that it is bound to.
func (w *clusterState) podsOf(pv *corev1.PersistentVolume) iter.Seq[*corev1.Pod] {
	return func(yield func(*corev1.Pod) bool) {
		ref := pv.Spec.ClaimRef
		if ref == nil {
			return
		}
		name := ref.Namespace + "/" + ref.Name
		claim, ok := get[*corev1.PersistentVolumeClaim](w.claims, name)
		if !ok || claim.UID != ref.UID || claim.Spec.VolumeName != pv.Name || claim.Status.Phase != corev1.ClaimBound {
			return
		}
		for _, pod := range list[*corev1.Pod](w.pods, byClaim, name) {
			if !kube.PodEnded(pod) && uses(pod, claim) && !yield(pod) {
				return
			}
		}
	}
}

// uses tells whether the pod uses the claim. A claim of a generic ephemeral volume
// has to be the pod's own, not one that merely has its name.
func uses(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		if claimName(pod, &v) != claim.Name {
			return false
		}
		return v.Ephemeral == nil || ephemeral.VolumeIsForPod(pod, claim) == nil
	})
}

// attachRequired tells whether the driver's volumes are attached at all. A driver
// that did not register, or has not yet, is attached, as upstream does.
func (w *clusterState) attachRequired(driver string) bool {
	d, ok := get[*storagev1.CSIDriver](w.drivers, driver)
	return !ok || d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
}

// sharing tells whether the volume may be attached to several nodes. It is exclusive
// if any of the ways to it is, and nobody knows if none is there or if the one that an
// attachment was made for is gone. Upstream takes what it does not know for shared.
func sharing(ways []bool, attachments []*storagev1.VolumeAttachment, seen []attachment.Attachment) attachment.Knowledge {
	for _, va := range attachments {
		if inline := va.Spec.Source.InlineVolumeSpec; inline != nil {
			ways = append(slices.Clip(ways), attachment.AllowsSeveralNodes(inline.AccessModes))
		}
	}
	switch {
	case slices.Contains(ways, false):
		return attachment.No
	case len(ways) == 0, slices.ContainsFunc(seen, func(a attachment.Attachment) bool { return a.VolumeGone }):
		return attachment.Unknown
	}
	return attachment.Yes
}

// waitedFor tells whether pods wait for the volume now: somewhere it is wanted and not
// yet reported. What happens at one node changes nothing for the pods of others if the
// volume is shared, and those may be many: then only the pods of that node are looked at.
// No node means all.
func (w *clusterState) waitedFor(k key, at string) bool {
	unique := kube.UniqueVolumeName(k.Driver, k.Handle)
	volumes := list[*corev1.PersistentVolume](w.volumes, byVolume, unique)
	waits := func(name string) bool {
		node, ok := w.nodes.Get(name)
		return ok && !w.long.of(node, unique).reported
	}
	if at != "" && len(volumes) > 0 && !slices.ContainsFunc(volumes, isExclusive) {
		return waits(at) && slices.ContainsFunc(list[*corev1.Pod](w.pods, byNode, at), func(pod *corev1.Pod) bool {
			return !kube.PodEnded(pod) && slices.Contains(w.keysOfPod(pod), k)
		})
	}
	for pod := range w.needs(k, volumes) {
		if waits(pod.Spec.NodeName) {
			return true
		}
	}
	return false
}

func isExclusive(pv *corev1.PersistentVolume) bool {
	return !attachment.AllowsSeveralNodes(pv.Spec.AccessModes)
}
