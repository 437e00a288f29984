package diagnosis

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodevolume"
)

// ofPod returns what a pod waits for: its own end, the scheduler, or each of its volumes.
func (x *state) ofPod(pod *corev1.Pod) []Finding {
	switch {
	case pod.DeletionTimestamp != nil && pod.Spec.NodeName != "": // also one whose containers have ended: its volumes may be mounted
		return []Finding{x.terminating(pod)}
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return nil
	}
	if mounted(pod) {
		return x.ofMounted(pod)
	}
	if found := x.claimsOf(pod); len(found) > 0 {
		return found
	}
	if pod.Spec.NodeName == "" {
		return []Finding{x.unscheduled(pod)}
	}
	return x.volumesOfPod(pod)
}

// mounted reports whether kubelet has set up the pod's volumes: it starts no container before.
func mounted(pod *corev1.Pod) bool {
	started := func(s corev1.ContainerStatus) bool {
		w := s.State.Waiting
		return s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil || s.RestartCount > 0 ||
			w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing"
	}
	return slices.ContainsFunc(pod.Status.InitContainerStatuses, started) || slices.ContainsFunc(pod.Status.ContainerStatuses, started)
}

func podRef(pod *corev1.Pod) Ref {
	return Ref{Resource: Pods, Namespace: pod.Namespace, Name: pod.Name}
}

// finding makes a finding about a pod.
func (x *state) finding(pod *corev1.Pod, w wait, v *Volume, h *Holder) Finding {
	s := x.situation(v, h)
	s.Detail = w.detail
	var subject Ref
	if pod != nil {
		s.Pod, s.Namespace, subject = pod.Name, pod.Namespace, podRef(pod)
		if s.Wanted == "" {
			s.Wanted = pod.Spec.NodeName
		}
	}
	f := x.findingOf(w, s)
	f.Subject, f.Volume = subject, v
	return f
}

func (x *state) findingOf(w wait, s explain.Situation) Finding {
	node := fencedNode(w, s)
	if f := x.fenceOf(node); f != nil {
		return x.ofFence(f, w, s)
	}
	g := explain.GuideTo(w.reason)
	found := Finding{
		Verdict: x.verdict(w), Reason: w.reason, Since: timePointer(w.since), Summary: g.Summary(s), Next: g.Steps(s), Runbook: explain.Runbook(w.reason),
	}
	if r := x.heldReason(w.reason, node); runs(r) { // who looks whether the machine is off would find that it runs
		g = explain.GuideTo(r)
		s.Node = node
		found.Reason, found.Summary, found.Next, found.Runbook = r, g.Summary(s), g.Steps(s), explain.Runbook(r)
		found.Facts = x.recoveryFacts(node)
		return found
	}
	if x.recoveryKnows(node) {
		found.Facts, found.Next = x.recoveryFacts(node), append(found.Next, explain.EvidenceOf(node))
	}
	return found
}

// terminating explains why a pod that is being deleted still exists.
func (x *state) terminating(pod *corev1.Pod) Finding {
	w := wait{reason: explain.PodTerminating, since: deletedAt(pod)}
	h := Holder{Node: x.node(pod.Spec.NodeName)}
	var v *Volume
	holders := x.holdersOfPod(pod)
	var unmount []string
	var said []Fact
	switch {
	case h.Node.OutOfService && (h.Node.State == NodeNotReady || h.Node.State == NodeUnreachable):
		w.reason, w.since = explain.NodeOutOfService, x.outOfServiceSince(pod.Spec.NodeName)
	case x.beingFenced(pod.Spec.NodeName):
		w.reason = explain.NodeSilent
	case x.silentNode(h.Node):
		w.reason, w.detail = explain.NodeSilent, "it last renewed its lease at "+stamp(*h.Node.LastHeartbeat)
	case h.Node.State == NodeNotReady || h.Node.State == NodeUnreachable || h.Node.State == NodeDeleted:
		w.reason = explain.PodOnLostNode
	default:
		w.detail = x.grace(pod)
		if key, own, since := x.mountedAfterEnd(pod); own != nil {
			w, h, v, holders = wait{since: since}, *own, x.describe(key, x.volume(key)), []Holder{*own}
			x.unmounting(&w, key, h.Node.Name)
			unmount, said = x.unmountTick(key, &h, w), x.unmountFacts(key, &h)
		}
	}
	f := x.finding(pod, w, v, &h)
	if w.reason == explain.PodTerminating {
		f.Verdict = x.endsLate(pod, f.Verdict)
	}
	f.Holders, f.Facts = holders, append(said, f.Facts...)
	if lostReasons[w.reason] {
		f.Clock = x.fenceClock(h.Node.Name)
	}
	f.Clock = append(f.Clock, append(unmount, x.clockOfNode(h.Node, pod)...)...)
	return f
}

// endsLate returns what it means that a pod whose node works is still there. It has its grace period: the API server stores when that ends.
// Volumes are not why one stays that has ended and has finalizers.
func (x *state) endsLate(pod *corev1.Pod, v Verdict) Verdict {
	switch {
	case x.Now.Sub(pod.DeletionTimestamp.Time) < usual:
		return InProgress
	case kube.PodEnded(pod) && len(pod.Finalizers) > 0:
		return NotVolume
	}
	return v
}

// mountedAfterEnd is the volume that the node of a pod still lists in use although the pod has ended and no other one needs it there, for the longest
// time, and the node with it; nil if the pod waits for something else.
func (x *state) mountedAfterEnd(pod *corev1.Pod) (key attachment.VolumeKey, holder *Holder, since time.Time) {
	if !kube.PodEnded(pod) || len(pod.Finalizers) > 0 {
		return key, nil, since
	}
	for _, v := range x.keysOf(pod) {
		h := x.holder(v.key, pod.Spec.NodeName)
		at := x.unneededSince(v.key, pod.Spec.NodeName, deletedAt(pod))
		if h.InUse == "yes" && len(h.Pods)+h.HiddenPods == 0 && !h.PodsUnknown && (holder == nil || at.Before(since)) {
			key, holder, since = v.key, &h, at
		}
	}
	return key, holder, since
}

// grace describes what a pod that is being deleted may still have to wait for.
func (x *state) grace(pod *corev1.Pod) string {
	seconds := pod.DeletionGracePeriodSeconds
	switch {
	case len(pod.Finalizers) > 0:
		return "it has the finalizers " + strings.Join(pod.Finalizers, ", ")
	case kube.PodEnded(pod):
		return "none of its containers runs, and the node has not cleaned up after it: an unmount may fail or hang"
	case seconds == nil || pod.DeletionTimestamp == nil:
		return ""
	case x.Now.After(pod.DeletionTimestamp.Time):
		return fmt.Sprintf("its grace period of %d s ended at %s", *seconds, stamp(pod.DeletionTimestamp.Time))
	}
	return fmt.Sprintf("its grace period of %d s ends at %s", *seconds, stamp(pod.DeletionTimestamp.Time))
}

// holdersOfPod describes the pod's own node once for each volume it has there.
func (x *state) holdersOfPod(pod *corev1.Pod) []Holder {
	var found []Holder
	for key, us := range x.uses {
		for _, u := range us {
			if u.pod == pod {
				found = append(found, x.holder(key, pod.Spec.NodeName))
			}
		}
	}
	slices.SortFunc(found, func(a, b Holder) int { return strings.Compare(a.Attachment, b.Attachment) })
	return found
}

// claimsOf returns the claims of a pod that are missing, not bound, or bound to nothing.
func (x *state) claimsOf(pod *corev1.Pod) []Finding {
	var found []Finding
	for i := range pod.Spec.Volumes {
		name := kube.ClaimName(pod, &pod.Spec.Volumes[i])
		if name == "" {
			continue
		}
		v := &Volume{Namespace: pod.Namespace, Claim: name, WantedOn: pod.Spec.NodeName}
		w := wait{since: pod.CreationTimestamp.Time}
		claim := x.claims[join(pod.Namespace, name)]
		switch {
		case claim == nil:
			w.reason = explain.ClaimMissing
			if x.exists(Ref{Resource: Claims, Namespace: pod.Namespace, Name: name}) != decision.No {
				w.reason, w.detail = explain.Incomplete, "claim "+name+" could not be read"
			}
		case claim.Spec.VolumeName == "" && pod.Spec.NodeName == "" && refused(pod) && x.waitsForConsumer(claim):
			continue // the scheduler chooses a node first, and has found none
		case claim.Spec.VolumeName == "":
			w.reason = explain.ClaimNotBound
			if e := x.lastEvent(string(claim.UID)); e != nil {
				w.detail = x.foreign(e.Message)
				w.failed = e.Type == corev1.EventTypeWarning
			}
		case x.volumes[claim.Spec.VolumeName] == nil:
			v.PersistentVolume, w.reason = claim.Spec.VolumeName, explain.PersistentVolumeMissing
			if x.exists(Ref{Resource: Volumes, Name: claim.Spec.VolumeName}) != decision.No {
				w.reason, w.detail = explain.Incomplete, "PersistentVolume "+claim.Spec.VolumeName+" could not be read"
			}
		default:
			continue
		}
		f := x.finding(pod, w, v, nil)
		f.Facts = x.eventFacts(pod)
		found = append(found, f)
	}
	return found
}

// waitsForConsumer reports whether a claim is provisioned only after a pod that uses it has a node (volumeBindingMode
// WaitForFirstConsumer), and no provisioning has failed: a failure is a warning.
func (x *state) waitsForConsumer(claim *corev1.PersistentVolumeClaim) bool {
	uid := string(claim.UID)
	failed := slices.ContainsFunc(x.events[uid], func(e *corev1.Event) bool { return e.Type == corev1.EventTypeWarning })
	return !failed && x.lastEvent(uid, "WaitForFirstConsumer", "WaitForPodScheduled") != nil
}

// refused reports whether the scheduler has found no node for the pod.
func refused(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" && !strings.Contains(c.Message, "unbound immediate PersistentVolumeClaims")
	})
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// unscheduled explains why a pod has no node.
func (x *state) unscheduled(pod *corev1.Pod) Finding {
	w := wait{reason: explain.Scheduling, since: pod.CreationTimestamp.Time}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
			w.detail, w.since = x.foreign(c.Message), c.LastTransitionTime.Time
			w.reason = unschedulable(c.Message)
		}
	}
	v, h := x.schedulingVolume(pod, &w)
	f := x.finding(pod, w, v, h)
	if h != nil {
		f.Holders = []Holder{*h}
		f.Clock = x.clock(attachment.VolumeKey{Driver: v.Driver, Handle: v.Handle}, h, w)
	}
	f.Facts = append(x.eventFacts(pod), f.Facts...)
	return f
}

// unschedulable reads the scheduler's message (k/k pkg/scheduler/framework/plugins nodevolumelimits, volumerestrictions,
// volumebinding, volumezone).
func unschedulable(message string) decision.Reason {
	switch {
	case strings.Contains(message, "ReadWriteOncePod access mode already in-use"):
		return explain.ReadWriteOncePodInUse
	case strings.Contains(message, "exceed max volume count"):
		return explain.AttachLimitReached
	case strings.Contains(message, "didn't match PersistentVolume's node affinity"), strings.Contains(message, "had no available volume zone"):
		return explain.VolumeTopologyConflict
	}
	return explain.PodUnschedulable
}

// schedulingVolume finds the volume, and the holder, that keep a pod from being scheduled.
func (x *state) schedulingVolume(pod *corev1.Pod, w *wait) (*Volume, *Holder) {
	for i := range pod.Spec.Volumes {
		name := kube.ClaimName(pod, &pod.Spec.Volumes[i])
		key, pv, ok := x.volumeOfClaim(pod.Namespace, name)
		if name == "" || !ok {
			continue
		}
		v := x.describe(key, pv)
		switch w.reason {
		case explain.ReadWriteOncePodInUse:
			for _, other := range x.byClaim[join(pod.Namespace, name)] {
				if other.UID != pod.UID && other.Spec.NodeName != "" && !kube.PodEnded(other) {
					h := x.holder(key, other.Spec.NodeName)
					x.lostHolder(w, &h)
					return v, &h
				}
			}
		case explain.AttachLimitReached:
			if nodes := x.filledByOrphans(key.Driver); len(nodes) > 0 {
				w.reason, w.detail = explain.OrphansFillNode, strings.Join(nodes, ", ")
			}
			return v, nil
		case explain.VolumeTopologyConflict:
			return v, nil
		}
	}
	return nil, nil
}

// lostHolder replaces the scheduler's reason if the node of the pod that has the volume is lost: that pod cannot end there, and it is
// not safe to end it by force.
func (x *state) lostHolder(w *wait, h *Holder) {
	switch {
	case h.Node.State == NodeDeleted:
		w.reason = attachment.NodeGone
	case x.silentNode(h.Node):
		w.reason, w.detail = explain.NodeSilent, "it last renewed its lease at "+stamp(*h.Node.LastHeartbeat)
	case h.Node.State != NodeNotReady && h.Node.State != NodeUnreachable:
	case h.Node.OutOfService:
		w.reason, w.since = explain.NodeOutOfService, x.outOfServiceSince(h.Node.Name)
	default:
		w.reason = explain.NodeNotReady
	}
}

// filledByOrphans returns the nodes without a free slot for the driver on which VolumeAttachments take one that no pod needs there, if
// all pods could be read.
func (x *state) filledByOrphans(driver string) []string {
	if !x.AllNamespaces || !slices.Contains(x.Whole, Pods) {
		return nil
	}
	var nodes []string
	for _, at := range x.atNodes(driver) {
		orphans := 0
		for _, p := range at.volumes {
			if p.va != nil && !p.pod && x.counted(p.va) {
				orphans++
			}
		}
		if orphans == 0 {
			continue
		}
		for _, d := range at.describe(x).Drivers {
			if d.Driver == driver && d.Limit != nil && d.Used >= int(*d.Limit) {
				nodes = append(nodes, fmt.Sprintf("%s (%d of %d)", at.name, orphans, *d.Limit))
			}
		}
	}
	return nodes
}

// volumesOfPod returns what each volume of a scheduled pod waits for.
func (x *state) volumesOfPod(pod *corev1.Pod) []Finding {
	var found []Finding
	for _, v := range x.keysOf(pod) {
		found = append(found, x.ofVolume(pod, v.key, v.pv))
	}
	return found
}

// scheduled is when the pod got its node.
func scheduled(pod *corev1.Pod) time.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}

// ofVolume explains what a volume waits for that a pod needs on its node.
func (x *state) ofVolume(pod *corev1.Pod, key attachment.VolumeKey, pv *corev1.PersistentVolume) Finding {
	v := x.describe(key, pv)
	v.WantedOn = pod.Spec.NodeName
	w, h, va := x.waitFor(pod, key)
	if h == nil && va != nil { // the operation is at the pod's own node
		own := x.holder(key, pod.Spec.NodeName)
		f := x.finding(pod, w, v, &own)
		f.Facts = slices.Concat(x.attacherFacts(va), x.eventFacts(pod), f.Facts)
		f.Holders, f.Clock = []Holder{own}, mountTick(pod.Spec.NodeName, w)
		return f
	}
	f := x.finding(pod, w, v, h)
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
	return f
}

// waitFor returns what a volume waits for at the pod's node: the VolumeAttachment for the node, or the holder elsewhere.
func (x *state) waitFor(pod *corev1.Pod, key attachment.VolumeKey) (wait, *Holder, *storagev1.VolumeAttachment) {
	since := scheduled(pod)
	va, has := x.attachmentOn(key, pod.Spec.NodeName)
	switch {
	case !x.attachRequired(key.Driver):
		return x.mountWait(pod, key, since), nil, nil
	case has:
		if h, w := x.blockedBeside(pod, key, va, since); h != nil {
			return w, h, nil
		}
		return x.ownWait(pod, key, va, since), nil, va
	case x.namesAnothers(pod, key):
		return wait{reason: explain.VolumeOfAnotherNamespace, since: since}, nil, nil
	case !slices.Contains(x.Whole, Attachments):
		return wait{reason: explain.Incomplete, detail: "the VolumeAttachments could not be read", since: since}, nil, nil
	}
	if node := x.nodes[pod.Spec.NodeName]; node != nil && !kube.Managed(node) {
		return wait{reason: attachment.NodeNotManaged, since: since}, nil, nil
	}
	if x.shared(key) != decision.Yes {
		if h, w := x.blockedBy(key, pod, since); h != nil {
			return w, h, nil
		}
	}
	w := wait{reason: attachment.Attaching, since: since}
	switch state, kept := x.node(pod.Spec.NodeName).State, x.keptFrom(key, pod.Spec.NodeName); {
	case state != NodeReady && state != NodeUnknown:
		w.reason = explain.PodNodeNotReady
	case kept != "":
		w.reason = kept
	case x.Now.Sub(since) > usual:
		w.reason = explain.NoAttachController
	}
	return w, nil, nil
}

// namesAnothers reports whether a pod names the volume in its spec, and may not have it so.
func (x *state) namesAnothers(pod *corev1.Pod, key attachment.VolumeKey) bool {
	return slices.ContainsFunc(kube.InlineVolumes(pod), func(v kube.InlineVolume) bool { return v.Key == key }) && !kube.MayName(pod, x.byKey[key])
}

// keptFrom returns what about a node keeps the controller's own rules from attaching the volume to it; empty for nothing. blockedBy has the
// other nodes.
func (x *state) keptFrom(key attachment.VolumeKey, node string) decision.Reason {
	if x.nodes[node] == nil {
		return ""
	}
	for _, step := range x.decide(key).Steps {
		if w, ok := step.(attachment.Wait); ok && w.Wanted && string(w.Node) == node && w.Reason != attachment.OtherWriterAttached {
			return w.Reason
		}
	}
	return ""
}

// blockedBeside returns the holder of an exclusive volume that keeps the VolumeAttachment for the pod's own node from being attached:
// upstream's controller creates it beside one that another client has created.
func (x *state) blockedBeside(pod *corev1.Pod, key attachment.VolumeKey, own *storagev1.VolumeAttachment, since time.Time) (*Holder, wait) {
	if own.Status.Attached || own.DeletionTimestamp != nil || len(x.attached[key]) < 2 || x.shared(key) != decision.No {
		return nil, wait{}
	}
	h, w := x.blockedBy(key, pod, since)
	if h != nil && w.reason == attachment.OtherWriterAttached {
		if other, ok := x.attachmentOn(key, h.Node.Name); ok && !other.CreationTimestamp.Before(&own.CreationTimestamp) {
			return nil, wait{} // neither is attached, and this one came first
		}
	}
	return h, w
}

// ownWait returns what the VolumeAttachment for the pod's own node waits for.
func (x *state) ownWait(pod *corev1.Pod, key attachment.VolumeKey, va *storagev1.VolumeAttachment, since time.Time) wait {
	node := x.nodes[pod.Spec.NodeName]
	switch {
	case va.DeletionTimestamp != nil:
		return x.detachWait(va)
	case !va.Status.Attached:
		return x.attachWait(va)
	case node != nil && !kube.Reported(node, kube.UniqueVolumeName(key.Driver, key.Handle)):
		return wait{reason: explain.NotReported, since: va.CreationTimestamp.Time}
	}
	w := x.mountWait(pod, key, since)
	if w.reason == explain.Mounting && node != nil && x.unlisted(node, key) {
		w.detail = explain.NotListedYet
	}
	return w
}

// mountFailures are kubelet's. The attach, whose failures are events of the controller, has succeeded before.
var mountFailures = []string{"FailedMount", "FailedMapVolume"}

// aboutVolume matches the volume in kubelet's events: a PersistentVolume, or the pod's own name for another volume.
var aboutVolume = regexp.MustCompile(`failed for volume "([^"]+)"`)

// concerns reports whether an event of kubelet may be why a volume of the pod is not mounted: it does not name another volume that has
// a finding of its own. own is set if it names this one.
func (x *state) concerns(e *corev1.Event, pod *corev1.Pod, key attachment.VolumeKey) (own, concerns bool) {
	found := aboutVolume.FindStringSubmatch(e.Message)
	if found == nil {
		return true, true
	}
	for _, v := range x.keysOf(pod) {
		if v.pv != nil && v.pv.Name == found[1] {
			return v.key == key, v.key == key
		}
	}
	return false, true
}

// timedOut matches kubelet's event that only repeats that something is not there yet.
var timedOut = regexp.MustCompile(`^(\(combined from similar events\): )?Unable to attach or mount volumes: unmounted volumes=`)

// mountWait explains why the pod's node has not mounted the volume.
func (x *state) mountWait(pod *corev1.Pod, key attachment.VolumeKey, since time.Time) wait {
	w := wait{reason: explain.Mounting, since: since}
	switch state := x.node(pod.Spec.NodeName).State; {
	case state != NodeReady && state != NodeUnknown:
		w.reason = explain.PodNodeNotReady
		return w
	case x.onNode(key.Driver, pod.Spec.NodeName) == decision.No:
		w.reason = explain.DriverNotOnNode
		return w
	}
	for _, e := range x.events[string(pod.UID)] {
		own, concerns := x.concerns(e, pod, key)
		if !slices.Contains(mountFailures, e.Reason) || !concerns || repeats(e) || timedOut.MatchString(e.Message) {
			continue
		}
		message := strings.TrimPrefix(e.Message, combined)
		if _, last, ok := strings.Cut(message, "last failure: "); ok {
			message = last // what comes before is that belay's node agent waits, and since when
		}
		w.detail, w.reason = x.foreign(message), explain.MountFailing
		if own {
			w.reason = cmp.Or(lacking(e.Message), w.reason)
		}
		return w
	}
	if x.Now.Sub(since) > attachment.AnswerTimeout {
		w.reason = explain.MountFailing
	}
	return w
}

// repeats reports whether an event of kubelet only says that the volume is not attached yet, which the explanation is about.
func repeats(e *corev1.Event) bool {
	return e.Reason == "FailedMount" && strings.Contains(e.Message, "("+string(nodevolume.NotAttached)+")")
}

// combined is what client-go puts before the text of the last of many events.
const combined = "(combined from similar events): "

// eventFacts are the last words of scheduler, controller and kubelet about a pod.
func (x *state) eventFacts(pod *corev1.Pod) []Fact {
	var facts []Fact
	seen := map[string]bool{}
	for _, e := range x.events[string(pod.UID)] {
		component := map[string]string{
			"FailedScheduling": "scheduler", "Scheduled": "scheduler", "FailedAttachVolume": "attach/detach controller",
			"SuccessfulAttachVolume": "attach/detach controller", "FailedMount": "kubelet", "FailedMapVolume": "kubelet", "FailedDetachVolume": "attach/detach controller",
		}[e.Reason]
		if component == "" || seen[component] || timedOut.MatchString(e.Message) {
			continue
		}
		if e.Reason == "FailedAttachVolume" && x.attachedSince(pod, eventTime(e)) {
			continue
		}
		seen[component] = true
		if repeats(e) {
			continue // and what the component said before is over
		}
		facts = append(facts, Fact{Component: component, Message: e.Reason + ": " + x.foreign(e.Message), At: timePointer(eventTime(e))})
	}
	slices.SortFunc(facts, func(a, b Fact) int { return slices.Index(inOrder, a.Component) - slices.Index(inOrder, b.Component) })
	return facts
}

// unmountFacts are the last words of the node agent about an unmount that fails on a node that no pod needs the volume on any more: the
// pod may be gone, so the events of the claim and of the node have them.
func (x *state) unmountFacts(key attachment.VolumeKey, h *Holder) []Fact {
	if h.InUse != "yes" || len(h.Pods)+h.HiddenPods > 0 {
		return nil
	}
	pv := x.volume(key)
	var about []*corev1.Event
	if pv != nil && pv.Spec.ClaimRef != nil {
		about = x.events[eventKey("PersistentVolumeClaim", pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)]
	}
	for _, e := range append(slices.Clone(about), x.events[eventKey("Node", "", h.Node.Name)]...) {
		named := pv != nil && strings.Contains(e.Message, pv.Name) || strings.Contains(e.Message, key.Handle)
		if e.Reason == explain.FailedUnmount && (named || e.InvolvedObject.Kind != "Node") {
			return []Fact{{Component: "kubelet", Message: e.Reason + ": " + x.foreign(e.Message), At: timePointer(eventTime(e))}}
		}
	}
	return nil
}

// attachedSince reports whether all volumes of a pod were given to its node after a time: what failed before is over.
func (x *state) attachedSince(pod *corev1.Pod, at time.Time) bool {
	volumes := x.keysOf(pod)
	for _, v := range volumes {
		va, has := x.attachmentOn(v.key, pod.Spec.NodeName)
		if !has || !va.Status.Attached || va.CreationTimestamp.Time.Before(at) {
			return false
		}
	}
	return len(volumes) > 0
}

// inOrder are the components in the order in which they work on a volume of a pod.
var inOrder = []string{"scheduler", "attach/detach controller", "kubelet"}
