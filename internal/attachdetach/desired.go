package attachdetach

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/kube"
)

// demand describes which pods need a volume, and through which sources.
type demand struct {
	// volumes are the PersistentVolumes of the volume, sorted by name; usually one.
	volumes []*corev1.PersistentVolume
	// wants holds, for each node with pods that need the volume, the input of Decide.
	wants map[attachment.NodeName]attachment.Want
	// pods are those pods, oldest first, at most podsOfNode of each node. They get events, and log lines name them; no decision reads them.
	pods map[attachment.NodeName][]*corev1.Pod
	// inline is the inline volume of the oldest pod of a node, if that pod uses no PersistentVolume.
	inline map[attachment.NodeName]kube.InlineVolume
	// refused are the pods that wait for the volume in vain: they name it in their spec, and may not have it so (kube.MayName). Oldest first, at most
	// podsOfNode: they get events.
	refused []*corev1.Pod
	// asked is set when pods use the volume without a PersistentVolume, exclusive when one of them asks for it at one node at a time.
	asked, exclusive bool
}

// podsOfNode limits the events and the log lines for the pods of one node that need one volume. A tenant may create any number of pods with a
// nodeName; a kubelet runs 110 by default.
const podsOfNode = 110

// demandFor returns the demand for a volume.
func (w *clusterState) demandFor(k key) demand {
	unique := kube.UniqueVolumeName(k.Driver, k.Handle)
	d := demand{
		volumes: list[*corev1.PersistentVolume](w.volumes, byVolume, unique),
		wants:   map[attachment.NodeName]attachment.Want{},
		pods:    map[attachment.NodeName][]*corev1.Pod{},
		inline:  map[attachment.NodeName]kube.InlineVolume{},
	}
	slices.SortFunc(d.volumes, func(a, b *corev1.PersistentVolume) int { return cmp.Compare(a.Name, b.Name) })
	for pod, by := range w.needs(k, d.volumes) {
		if by.pv == nil {
			d.exclusive, d.asked = d.exclusive || by.inline.Exclusive(), true
			d.add(pod, "", by.inline)
		} else {
			d.add(pod, by.pv.Name, kube.InlineVolume{})
		}
	}
	for node, pods := range d.pods {
		slices.SortFunc(pods, older)
		pods = slices.CompactFunc(pods, func(a, b *corev1.Pod) bool { return a.UID == b.UID }) // one may use several PersistentVolumes
		d.pods[node] = slices.Clip(pods[:min(len(pods), podsOfNode)])
	}
	d.refused = w.refused(k, d.volumes)
	return d
}

// refused returns demand.refused.
func (w *clusterState) refused(k key, volumes []*corev1.PersistentVolume) (pods []*corev1.Pod) {
	if len(volumes) == 0 {
		return nil
	}
	needed := w.attachNeeded(k)
	for _, pod := range w.naming(k) {
		if !kube.PodEnded(pod) && !kube.VolumesMounted(pod) && !kube.MirrorPod(pod) && !kube.MayName(pod, volumes) && needed(pod) {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, older)
	return pods[:min(len(pods), podsOfNode)]
}

// naming returns the pods whose spec names the volume.
func (w *clusterState) naming(k key) []*corev1.Pod {
	return list[*corev1.Pod](w.pods, byVolume, kube.UniqueVolumeName(k.Driver, k.Handle))
}

// volumeUse is how a pod uses a volume: through a PersistentVolume or as an inline volume.
type volumeUse struct {
	pv     *corev1.PersistentVolume
	inline kube.InlineVolume
}

// needs returns the pods that need the volume with these PersistentVolumes.
func (w *clusterState) needs(k key, volumes []*corev1.PersistentVolume) iter.Seq2[*corev1.Pod, volumeUse] {
	return func(yield func(*corev1.Pod, volumeUse) bool) {
		needed := w.attachNeeded(k)
		for _, pv := range volumes {
			for pod := range w.podsOf(pv) {
				if needed(pod) && !yield(pod, volumeUse{pv: pv}) {
					return
				}
			}
		}
		for _, pod := range w.naming(k) {
			if kube.PodEnded(pod) || !kube.MayName(pod, volumes) {
				continue
			}
			for _, v := range kube.InlineVolumes(pod) {
				if v.Key == k && needed(pod) && !yield(pod, volumeUse{inline: v}) {
					return
				}
			}
		}
	}
}

// add records a pod that needs the volume, through a PersistentVolume or as an inline volume.
func (d *demand) add(pod *corev1.Pod, pv string, inline kube.InlineVolume) {
	node := attachment.NodeName(pod.Spec.NodeName)
	// The oldest so far is in front. A tenant may put any number of pods on one node: compare with that one alone.
	pods := append(d.pods[node], pod)
	last := len(pods) - 1
	first := last == 0 || older(pod, pods[0]) < 0
	if first {
		pods[0], pods[last] = pods[last], pods[0]
	}
	d.pods[node] = pods
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

// name is the name of the volume in events, as upstream: its PersistentVolume, the name it was translated to, or the
// pod's name for it.
func (d *demand) name(k key) string {
	if len(d.volumes) > 0 {
		return d.volumes[0].Name
	}
	for _, node := range slices.Sorted(maps.Keys(d.inline)) {
		return d.inline[node].Name
	}
	return k.Handle
}

// claimOf returns the claim that a PersistentVolume refers to, and its key; nil without one.
func (w *clusterState) claimOf(pv *corev1.PersistentVolume) (claim *corev1.PersistentVolumeClaim, name string) {
	ref := pv.Spec.ClaimRef
	if ref == nil {
		return nil, ""
	}
	name = ref.Namespace + "/" + ref.Name
	claim, ok := get[*corev1.PersistentVolumeClaim](w.claims, name)
	if !ok || claim.UID != ref.UID {
		return nil, name
	}
	return claim, name
}

// podsOf returns the scheduled, running pods that use the PersistentVolume through the claim that it is bound to.
func (w *clusterState) podsOf(pv *corev1.PersistentVolume) iter.Seq[*corev1.Pod] {
	return func(yield func(*corev1.Pod) bool) {
		claim, name := w.claimOf(pv)
		if claim == nil || claim.Spec.VolumeName != pv.Name || claim.Status.Phase != corev1.ClaimBound {
			return
		}
		for _, pod := range list[*corev1.Pod](w.pods, byClaim, name) {
			if !kube.PodEnded(pod) && kube.UsesClaim(pod, claim) && !yield(pod) {
				return
			}
		}
	}
}

// sharing reports whether the volume may be attached to several nodes, and whether it may without what pods ask for
// now. Its PersistentVolumes decide, which no tenant can create; inline volumes do where there is none. It is exclusive
// if one source is, and unknown without a source or if the PersistentVolume of an attachment is gone. Upstream treats
// unknown as shared.
func (d *demand) sharing(attachments []*storagev1.VolumeAttachment, seen []attachment.Attachment) (shared, attached attachment.Knowledge) {
	unsure := slices.ContainsFunc(seen, func(a attachment.Attachment) bool { return a.VolumeGone })
	attached = kube.Sharing(d.volumes, slices.Values(attachments))
	shared = attached
	if len(d.volumes) == 0 && d.asked {
		shared = decision.Known(attached != attachment.No && !d.exclusive)
	}
	if unsure && shared == attachment.Yes {
		shared = attachment.Unknown
	}
	if unsure && attached == attachment.Yes {
		attached = attachment.Unknown
	}
	return shared, attached
}

// podsWaitFor reports whether pods wait for the volume: it is needed on a node and not reported there. For a shared
// volume, which may have many pods, only the pods on node at are checked; an empty at means all.
func (w *clusterState) podsWaitFor(k key, at string) bool {
	unique := kube.UniqueVolumeName(k.Driver, k.Handle)
	volumes := list[*corev1.PersistentVolume](w.volumes, byVolume, unique)
	waits := func(name string) bool {
		node, ok := w.nodes.Get(name)
		return ok && !w.largeNodes.of(node, unique).Reported
	}
	if at != "" && len(volumes) > 0 && !slices.ContainsFunc(volumes, kube.Exclusive) {
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
