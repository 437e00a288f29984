package diagnosis

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// volumesOfPod returns what the volumes of a scheduled pod wait for. What is unknown of one is left out where the cause of another is known.
func (x *state) volumesOfPod(pod *corev1.Pod) (found []Finding) {
	for _, v := range x.volumesOf(pod) {
		if f, waits := x.ofVolume(pod, &v); waits {
			found = append(found, f)
		}
	}
	if slices.ContainsFunc(found, func(f Finding) bool { return f.Verdict.Severity() > Unknown.Severity() }) {
		found = slices.DeleteFunc(found, func(f Finding) bool { return f.Verdict == Unknown })
	}
	return found
}

// ofKeyOn returns what the volumes of a pod with a key wait for, or that the pod waits for something else.
func (x *state) ofKeyOn(pod *corev1.Pod, key attachment.VolumeKey) (found []Finding) {
	if f, ok := x.waitsElsewhere(pod); ok {
		return []Finding{f}
	}
	for _, v := range x.volumesOf(pod) {
		if v.hasKey && v.key == key {
			if f, waits := x.ofVolume(pod, &v); waits {
				found = append(found, f)
			}
		}
	}
	return found
}

// ofVolume explains what a volume waits for that a pod needs on its node, and reports whether it waits.
func (x *state) ofVolume(pod *corev1.Pod, own *podVolume) (f Finding, waits bool) {
	v, key := x.describeOwn(pod, own), own.key
	w, h, va := x.waitOf(pod, own)
	if w.reason == attachment.Settled {
		return f, false
	}
	if far := x.outOfReach(pod, key); own.hasKey && far.reason != "" && x.verdict(w) != Unsafe {
		w, h = far, nil // it is never mounted there
	}
	w.own = own.PodVolume
	if !own.hasKey {
		f = x.finding(pod, w, v, h)
		if f.Facts = x.eventFacts(pod); h != nil {
			f.Holders = []Holder{*h}
		}
		return f, true
	}
	if h == nil && va != nil { // the operation is at the pod's own node
		at := x.holder(key, pod.Spec.NodeName)
		f := x.finding(pod, w, v, &at)
		f.Facts = slices.Concat(x.attacherFacts(va), x.identityFacts(pod.Spec.NodeName), x.eventFacts(pod), f.Facts)
		f.Holders, f.Clock = []Holder{at}, mountTick(pod.Spec.NodeName, w)
		return f, true
	}
	f = x.finding(pod, w, v, h)
	f.Holders = x.holders(key, pod.Spec.NodeName)
	said := f.Facts
	f.Facts = nil
	if h != nil {
		if held, ok := x.attachmentOn(key, h.Node.Name); ok {
			f.Facts = x.attacherFacts(held)
		}
		f.Facts = append(f.Facts, x.unmountFacts(key, h)...)
		f.Clock = x.clock(key, h, w)
	}
	f.Facts = slices.Concat(f.Facts, x.eventFacts(pod), said)
	return f, true
}

// waitOf returns what a volume of a pod waits for. What the objects do not show because they could not be read, the pod's events may.
func (x *state) waitOf(pod *corev1.Pod, v *podVolume) (wait, *Holder, *storagev1.VolumeAttachment) {
	since := scheduled(pod)
	unread := v.claim != "" && v.pv == nil
	if !unread && !v.hasKey {
		return x.mountWait(pod, v, since), nil, nil
	}
	w := wait{reason: explain.Incomplete, detail: "PersistentVolume " + v.names[0] + " could not be read", since: since}
	if !unread {
		var h *Holder
		var va *storagev1.VolumeAttachment
		if w, h, va = x.waitFor(pod, v); w.reason != explain.Incomplete {
			x.unsuitable(&w, pod, v)
			return w, h, va
		}
	}
	if r, cause, over := x.failing(pod, v); cause != "" {
		x.readMount(&w, pod, v, r, cause)
		w.said = true
	} else if said, ok := x.attachReport(pod, v); ok {
		said.said = true
		w = said
		if h := x.oldPod(pod, v); h != nil && w.reason == attachment.OtherWriterAttached {
			w.reason = explain.RollingUpdateDeadlock
			return w, h, nil
		}
	} else if over {
		w.reason = attachment.Settled
	}
	return w, nil, nil
}

// oldPod is the node of a pod of the same Deployment, from an earlier template, that uses the claim of a volume; nil for none that was read.
func (x *state) oldPod(pod *corev1.Pod, v *podVolume) *Holder {
	for _, other := range x.byClaim[join(pod.Namespace, v.claim)] {
		if other.Spec.NodeName != "" && other.Spec.NodeName != pod.Spec.NodeName && other.DeletionTimestamp == nil && !kube.PodEnded(other) && rollsOver(other, pod) {
			return &Holder{Node: x.node(other.Spec.NodeName), InUse: "unknown", Reported: "unknown", Pods: []PodState{podState(other)}}
		}
	}
	return nil
}

// unsuitable replaces what a volume waits for by the cause that kubelet reports, if no attach can help: the volume does not fit the pod or the node.
func (x *state) unsuitable(w *wait, pod *corev1.Pod, v *podVolume) {
	if x.verdict(*w) == Unsafe {
		return
	}
	if r, cause, _ := x.failing(pod, v); cause != "" {
		said := wait{since: w.since}
		if x.readMount(&said, pod, v, r, cause); said.reason == explain.VolumeUnsupported {
			*w = said
		}
	}
}

// needsNoAttachment reports whether a node may mount a volume without a VolumeAttachment: its driver needs no attach, or the node connects it by itself and
// the controller of Kubernetes, which creates none for it, lists it in the Node's status (k/k v1.36.3 pkg/volume/iscsi/attacher.go, pkg/volume/fc/attacher.go:
// Attach does nothing).
func (x *state) needsNoAttachment(key attachment.VolumeKey, name string) bool {
	node := x.nodes[name]
	_, has := x.attachmentOn(key, name)
	return !x.attachRequired(key.Driver) || kube.NoAttacher(key.Driver) && !has && node != nil && kube.Reported(node, kube.UniqueVolumeName(key.Driver, key.Handle))
}

// given reports whether a volume is attached to a node, needs no VolumeAttachment, or may be attached as far as that could be read.
func (x *state) given(key attachment.VolumeKey, node string) bool {
	va, has := x.attachmentOn(key, node)
	return x.needsNoAttachment(key, node) || has && va.Status.Attached || !has && !slices.Contains(x.Whole, Attachments)
}
