package diagnosis

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// volumeOfPod is a volume that a pod uses.
type volumeOfPod struct {
	key attachment.VolumeKey
	pv  *corev1.PersistentVolume
}

// keysOf returns the volumes of a pod that have a PersistentVolume or are inline.
func (x *state) keysOf(pod *corev1.Pod) []volumeOfPod {
	var volumes []volumeOfPod
	for i := range pod.Spec.Volumes {
		if name := kube.ClaimName(pod, &pod.Spec.Volumes[i]); name != "" {
			if key, pv, ok := x.volumeOfClaim(pod.Namespace, name); ok {
				volumes = append(volumes, volumeOfPod{key, pv})
			}
		}
	}
	for _, inline := range kube.InlineVolumes(pod) {
		volumes = append(volumes, volumeOfPod{inline.Key, x.volume(inline.Key)})
	}
	return volumes
}

// ofMounted returns what is wrong with the volumes of a pod whose containers have started: its node is lost, or a volume was
// detached under its mount. The pod, its claim, its volumes and their VolumeAttachments all ask.
func (x *state) ofMounted(pod *corev1.Pod) []Finding {
	found, known := x.underPod[pod]
	if !known {
		found = x.findMounted(pod)
		x.underPod[pod] = found
	}
	return found
}

// findMounted does the work of ofMounted, which asks once for each pod.
func (x *state) findMounted(pod *corev1.Pod) (found []Finding) {
	for _, v := range x.keysOf(pod) {
		if !x.attachRequired(v.key.Driver) || kube.NoAttacher(v.key.Driver) {
			continue
		}
		h := x.holder(v.key, pod.Spec.NodeName)
		w := x.mountedWait(pod, v.key, &h)
		if w.reason == "" {
			continue
		}
		f := x.finding(pod, w, x.describe(v.key, v.pv), &h)
		f.Holders, f.Clock = []Holder{h}, x.clock(v.key, &h, w)
		if lost := h.Node.lostSince(); lostReasons[w.reason] && !lost.IsZero() {
			f.Since = &lost
		}
		if va, ok := x.attachmentOn(v.key, pod.Spec.NodeName); ok {
			f.Facts = x.attacherFacts(va)
		}
		f.Facts = append(f.Facts, x.eventFacts(pod)...)
		found = append(found, f)
	}
	return found
}

// mountedWait is what is wrong with a volume that a pod has mounted; without a reason if nothing is.
func (x *state) mountedWait(pod *corev1.Pod, key attachment.VolumeKey, h *Holder) (w wait) {
	switch {
	case h.Node.State == NodeNotReady || h.Node.State == NodeUnreachable:
		w.reason = explain.NodeNotReady
		if x.shutDown(h.Node) {
			w.reason, w.since = explain.NodeOutOfService, x.outOfServiceSince(h.Node.Name)
		}
	case h.Node.State == NodeDeleted:
		w.reason = attachment.NodeGone
	case x.silentNode(h.Node):
		w.reason, w.detail = explain.NodeSilent, "it last renewed its lease at "+stamp(*h.Node.LastHeartbeat)
	case x.takes(x.fenceOf(h.Node.Name), key.Driver):
		w.reason = explain.NodeOutOfService
	case x.detachedUnder(pod, key, h):
		w.reason = explain.UsedWithoutAttachment
		if h.Since != nil {
			w.since = *h.Since // the VolumeAttachment of now was created when the earlier one was gone
		}
	case x.beingFenced(h.Node.Name):
		w.reason = explain.NodeSilent
	}
	return w
}

// detachedUnder reports whether the VolumeAttachment of a mounted volume was deleted. One that was created again does not repair the
// mount, and only the event of belay-controller says that there was another before. Anybody who may write Events about the pod may say so: it counts
// if there is no VolumeAttachment, or one that is younger than the mount.
func (x *state) detachedUnder(pod *corev1.Pod, key attachment.VolumeKey, h *Holder) bool {
	all := slices.Contains(x.Whole, Attachments)
	if slices.ContainsFunc(x.events[string(pod.UID)], func(e *corev1.Event) bool { return e.Reason == explain.VolumeDetachedInUse }) {
		va, has := x.attachmentOn(key, pod.Spec.NodeName)
		since := mountedBy(pod)
		if !has && all || has && since != nil && va.CreationTimestamp.After(*since) {
			return true
		}
	}
	return h.InUse == "yes" && !h.Attached && all
}

// mountedBy is the first sign of a container in the status of a pod: the kubelet starts one once all volumes are mounted. It is nil without one.
func mountedBy(pod *corev1.Pod) (first *time.Time) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue {
			first = earlier(first, timePointer(c.LastTransitionTime.Time))
		}
	}
	if at, ok := firstStart(pod); ok {
		first = earlier(first, &at)
	}
	return first
}

// firstStart is when the first container of a pod started, as its status has it: the status keeps the last two starts.
func firstStart(pod *corev1.Pod) (time.Time, bool) {
	var first time.Time
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		state := c.State
		if c.RestartCount == 1 {
			state = c.LastTerminationState
		}
		var at time.Time
		switch {
		case c.RestartCount > 1:
			return time.Time{}, false
		case state.Running != nil:
			at = state.Running.StartedAt.Time
		case state.Terminated != nil:
			at = state.Terminated.StartedAt.Time
		}
		if !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first, !first.IsZero()
}
