package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/drivers"
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
	again := x.mountsAgain(pod)
	if mounted(pod) && again == nil {
		if found := x.ofMounted(pod); len(found) > 0 {
			return found
		}
		return x.ofStarted(pod)
	}
	if found := x.claimsOf(pod); len(found) > 0 {
		return found
	}
	if pod.Spec.NodeName == "" {
		return []Finding{x.unscheduled(pod)}
	}
	if f, ok := x.waitsElsewhere(pod); ok {
		return []Finding{f}
	}
	found := x.volumesOfPod(pod)
	if len(found) == 0 {
		found = []Finding{x.notStarted(pod)}
	}
	for i := range found {
		if again != nil {
			found[i].Since = again
		}
	}
	return found
}

// mounted reports whether kubelet has set up the pod's volumes: it starts no container before.
func mounted(pod *corev1.Pod) bool {
	started := func(s corev1.ContainerStatus) bool {
		w := s.State.Waiting
		return s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil || s.RestartCount > 0 ||
			w != nil && !slices.Contains(starting, w.Reason)
	}
	return slices.ContainsFunc(pod.Status.InitContainerStatuses, started) || slices.ContainsFunc(pod.Status.ContainerStatuses, started)
}

// mountsAgain is since when kubelet mounts the volumes of a pod again whose containers ran before, as after a reboot of its node; nil if it does not. The pod has
// no sandbox then, which kubelet makes after the mounts, and the failure of a mount is news of that time.
func (x *state) mountsAgain(pod *corev1.Pod) *time.Time {
	if slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Running != nil }) || !mounted(pod) {
		return nil
	}
	for _, c := range pod.Status.Conditions {
		if c.Type != corev1.PodReadyToStartContainers || c.Status == corev1.ConditionTrue {
			continue
		}
		if reports := x.reports(pod); len(reports) > 0 && !eventTime(reports[0].event).Before(c.LastTransitionTime.Time) {
			return &c.LastTransitionTime.Time
		}
	}
	return nil
}

func podRef(pod *corev1.Pod) Ref {
	return Ref{Resource: Pods, Namespace: pod.Namespace, Name: pod.Name}
}

// finding makes a finding about a pod.
func (x *state) finding(pod *corev1.Pod, w wait, v *Volume, h *Holder) Finding {
	s := x.situation(v, h)
	s.Detail, s.Own, s.Mount, s.Waits, s.Container, s.PullSecrets = w.detail, w.own, w.mount, w.waits, w.container, w.secrets
	if w.mount != nil && s.Driver == "" {
		s.Driver = w.mount.Driver()
	}
	if w.fill != nil {
		w.fill(&s)
	}
	var subject Ref
	if pod != nil {
		s.Pod, s.Namespace, subject = pod.Name, pod.Namespace, podRef(pod)
		if s.Bare = owner(pod) == ""; s.Wanted == "" {
			s.Wanted = pod.Spec.NodeName
		}
	}
	switch w.reason {
	case explain.VolumeSourceMissing:
		s.UpstreamRuns = x.upstreamRuns()
	case explain.DriverNotOnNode:
		s.Rebooted = x.rebooted(cmp.Or(s.Wanted, s.Node))
	case explain.PodNodeNotReady:
		s.Detail, s.Silent = x.notReady(s.Wanted), x.node(s.Wanted).State == NodeUnreachable
	}
	f := x.findingOf(w, s)
	f.Next = append(f.Next, replaced(pod, f.Next)...)
	f.Subject, f.Volume = subject, v
	if f.Quote = w.quote; w.mount != nil {
		f.Quote = w.mount.Longest()
	}
	if w.said {
		f.Summary += " (as the pod's events say)"
	}
	return f
}

// notReady says since when a node has not been Ready, and what its kubelet says of it, in words that follow "has not been Ready"; empty if neither is known.
func (x *state) notReady(name string) (text string) {
	node := x.nodes[name]
	if node == nil {
		return ""
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && !c.LastTransitionTime.IsZero() {
			text = "for " + x.ago(c.LastTransitionTime.Time)
			if c.Status == corev1.ConditionFalse && c.Message != "" {
				text += " (" + drivers.Shorten(x.foreign(c.Message), shown) + ")"
			}
		}
	}
	return text
}

func (x *state) findingOf(w wait, s explain.Situation) Finding {
	node := fencedNode(w, s)
	if f := x.fenceOfWait(node, w.reason == attachment.NodeReplaced); f != nil {
		return x.ofFence(f, w, s)
	}
	s.Answer = w.answer
	g := explain.GuideTo(w.reason)
	found := Finding{
		Verdict: x.verdict(w), Reason: w.reason, Why: s.Why(), Since: timePointer(w.since), Summary: g.Summary(s), Next: g.Steps(s), Runbook: explain.Runbook(w.reason),
	}
	x.sayHeld(&found, w.reason, node)
	if x.recoveryKnows(node) {
		found.Facts = x.recoveryFacts(node)
		if evidence := explain.EvidenceOf(node); !slices.Contains(found.Next, evidence) {
			found.Next = append(found.Next, evidence)
		}
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
	case x.shutDown(h.Node):
		w.reason, w.since = explain.NodeOutOfService, x.outOfServiceSince(pod.Spec.NodeName)
	case x.beingFenced(pod.Spec.NodeName):
		w.reason = explain.NodeSilent
	case x.silentNode(h.Node):
		w.reason, w.detail = explain.NodeSilent, "it last renewed its lease at "+stamp(*h.Node.LastHeartbeat)
	case h.Node.State == NodeNotReady || h.Node.State == NodeUnreachable || h.Node.State == NodeDeleted:
		w.reason = explain.PodOnLostNode
	default:
		w.detail = x.grace(pod)
		w.fill = func(s *explain.Situation) {
			switch {
			case len(pod.Finalizers) > 0:
				s.Cause = explain.HasFinalizers
			case kube.PodEnded(pod):
				s.Cause, s.UID = explain.VolumesStay, string(pod.UID)
			}
		}
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
		return "none of its containers runs, and the node has not cleaned up after it: an unmount may fail or hang" + ofVolumes(pod)
	case seconds == nil || pod.DeletionTimestamp == nil:
		return ""
	case x.Now.After(pod.DeletionTimestamp.Time):
		return fmt.Sprintf("its grace period of %d s ended at %s", *seconds, stamp(pod.DeletionTimestamp.Time))
	}
	return fmt.Sprintf("its grace period of %d s ends at %s", *seconds, stamp(pod.DeletionTimestamp.Time))
}

// ofVolumes names the volumes of a pod in parentheses, without the one that every pod has for its ServiceAccount.
func ofVolumes(pod *corev1.Pod) string {
	var names []string
	for i := range pod.Spec.Volumes {
		if name := pod.Spec.Volumes[i].Name; !strings.HasPrefix(name, "kube-api-access-") {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return " (its volumes: " + few(names) + ")"
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

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// lostHolder replaces the scheduler's reason if the node of the pod that has the volume is lost: that pod cannot end there, and it is
// not safe to end it by force.
func (x *state) lostHolder(w *wait, h *Holder) {
	switch {
	case h.Node.State == NodeDeleted:
		w.reason = attachment.NodeGone
	case x.silentNode(h.Node):
		w.reason, w.detail = explain.NodeSilent, "it last renewed its lease at "+stamp(*h.Node.LastHeartbeat)
	case h.Node.State != NodeNotReady && h.Node.State != NodeUnreachable:
	case x.shutDown(h.Node):
		w.reason, w.since = explain.NodeOutOfService, x.outOfServiceSince(h.Node.Name)
	default:
		w.reason = explain.NodeNotReady
	}
}

// filled is how far the slots of a driver are taken.
type filled struct {
	limited, full bool // a node has a limit, and one has no free slot left
	// byOrphans are the nodes without a free slot on which VolumeAttachments take one that no pod needs there, if all pods could be read.
	byOrphans []string
}

// filledOf is how far the slots of a driver are taken, looked for once for each driver.
func (x *state) filledOf(driver string) filled {
	if found, ok := x.slotsOf[driver]; ok {
		return found
	}
	var found filled
	allPods := x.AllNamespaces && slices.Contains(x.Whole, Pods)
	for _, at := range x.atNodes(driver) {
		orphans := 0
		for _, p := range at.volumes {
			if p.va != nil && !p.pod && x.counted(p.va) {
				orphans++
			}
		}
		for _, d := range at.describe(x).Drivers {
			if d.Driver != driver || d.Limit == nil {
				continue
			}
			full := d.Used >= int(*d.Limit)
			found.limited, found.full = true, found.full || full
			if full && orphans > 0 && allPods {
				found.byOrphans = append(found.byOrphans, fmt.Sprintf("%s (%d of %d)", at.name, orphans, *d.Limit))
			}
		}
	}
	x.slotsOf[driver] = found
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

// waitFor returns what a volume waits for at the pod's node: the VolumeAttachment for the node, or the holder elsewhere.
func (x *state) waitFor(pod *corev1.Pod, v *podVolume) (wait, *Holder, *storagev1.VolumeAttachment) {
	since, key := scheduled(pod), v.key
	va, has := x.attachmentOn(key, pod.Spec.NodeName)
	switch {
	case x.needsNoAttachment(key, pod.Spec.NodeName):
		return x.mountWait(pod, v, since), nil, nil
	case has:
		if h, w := x.blockedBeside(pod, key, va, since); h != nil {
			return w, h, nil
		}
		return x.ownWait(pod, v, va, since), nil, va
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
func (x *state) ownWait(pod *corev1.Pod, v *podVolume, va *storagev1.VolumeAttachment, since time.Time) wait {
	node, key := x.nodes[pod.Spec.NodeName], v.key
	switch {
	case va.DeletionTimestamp != nil:
		return x.detachWait(va)
	case !va.Status.Attached:
		return x.attachWait(va)
	case node != nil && !kube.Reported(node, kube.UniqueVolumeName(key.Driver, key.Handle)):
		return wait{reason: explain.NotReported, since: va.CreationTimestamp.Time}
	}
	w := x.mountWait(pod, v, since)
	if was, is, renamed := x.renamed(va, key); renamed && (w.reason == explain.MountFailing || x.Now.Sub(since) > usual) {
		w.reason = attachment.NodeReplaced
		w.detail = fmt.Sprintf("VolumeAttachment %s is for node ID %s, and CSI driver %s has now registered %s", va.Name, x.foreign(was), key.Driver, x.foreign(is))
	}
	if w.reason == explain.Mounting && node != nil && x.unlisted(node, key) {
		w.detail = explain.NotListedYet
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
		if component == "" || seen[component] || onlyRepeats(e.Message) {
			continue
		}
		if e.Reason == "FailedAttachVolume" && x.attachedSince(pod, eventTime(e)) {
			continue
		}
		seen[component] = true
		if repeats(e) {
			continue // and what the component said before is over
		}
		facts = append(facts, Fact{Component: component, Message: e.Reason + ": " + x.quoted(e.Message), At: timePointer(eventTime(e))})
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
