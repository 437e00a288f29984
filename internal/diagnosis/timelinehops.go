package diagnosis

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// components do the hops; managed fields and events may name others.
var components = map[HopName]string{
	HopSilent: "kubelet", HopProven: "recovery",
	HopPodDeleted: "client", HopEnded: "kubelet", HopUnmounted: "kubelet", HopDetachRequested: "attach/detach controller", HopDetached: "attacher",
	HopPodCreated: "client", HopScheduled: "scheduler", HopAttachRequested: "attach/detach controller", HopTaken: "attacher", HopAttached: "attacher",
	HopReported: "attach/detach controller", HopMounted: "kubelet", HopStarted: "kubelet", HopReady: "kubelet",
}

// add appends a hop, and returns it as it was added. What comes after a hop that waits has not happened, whatever older objects say, nor
// has what a component says whose clock is ahead.
func (m *mover) add(h Hop) Hop {
	if h.At != nil && h.At.After(m.Now.Add(second)) {
		h = Hop{Name: h.Name, Component: h.Component, State: HopUnknown, Why: h.Source + " is a time that has not come: a clock is ahead"}
	}
	if h.NotAfter != nil && h.NotAfter.After(m.Now) {
		h.NotAfter = nil
	}
	h.Component = cmp.Or(h.Component, components[h.Name])
	switch {
	case m.blocked && (h.State == HopWaiting || h.State == HopUnknown):
		h = Hop{Name: h.Name, Component: h.Component, State: HopPending}
	case h.State == HopWaiting:
		m.blocked = true
	}
	m.hops = append(m.hops, h)
	return h
}

func done(name HopName, at time.Time, source string) Hop {
	if at.IsZero() {
		return unknown(name, source+" is empty", nil)
	}
	return Hop{Name: name, State: HopDone, At: &at, Source: source, Exact: at.Nanosecond() != 0}
}

func unknown(name HopName, why string, notAfter *time.Time) Hop {
	return Hop{Name: name, State: HopUnknown, Why: why, NotAfter: notAfter}
}

func waiting(name HopName, why string) Hop { return Hop{Name: name, State: HopWaiting, Why: why} }

func notNeeded(name HopName, why string) Hop { return Hop{Name: name, State: HopNotNeeded, Why: why} }

// by is a hop that an event is the record of.
func by(name HopName, e *corev1.Event) Hop {
	h := done(name, eventTime(e), "event "+e.Reason)
	if h.Component = cmp.Or(e.ReportingController, e.Source.Component); h.Component == kube.EventComponent {
		h.Component = "" // belay-controller's events have upstream's name too
	}
	return h
}

// lost is why a hop that only events record is unknown.
func (m *mover) lost(events string) string {
	for _, u := range m.Unread {
		if u.Resource == Events {
			return "only " + events + " would record it, and events could not be read"
		}
	}
	return "only " + events + " would record it, and none is left (the API server deletes events after an hour)"
}

// departure adds the hops of the node that the volume left.
func (m *mover) departure() {
	requested, detached := m.detachRequested(), m.detached()
	bound := requested.At
	if bound == nil {
		bound = cmp.Or(detached.At, detached.NotAfter)
	}
	if forced := m.detachEvent("DetachingVolume"); forced != nil && forced.Type == corev1.EventTypeWarning {
		bound = nil // the volume was in use
	}
	if f := m.fenced(cmp.Or(requested.At, detached.At, detached.NotAfter)); f != nil {
		m.fencedDeparture(f, bound)
	} else {
		if m.silent() {
			bound = nil // the detach does not say that anything on the node had ended
		}
		m.add(m.podDeleted(bound))
		ended := m.add(m.containersEnded(bound))
		m.add(m.unmounted(bound, &ended))
	}
	m.add(requested)
	m.add(detached)
	// A detach that waits blocks the attach, but neither the creation nor the scheduling of the next pod.
	m.blocked = false
}

// attachmentsUnread is why the times of VolumeAttachments are unknown to those who may not read them.
const attachmentsUnread = "the VolumeAttachments could not be read"

// silent reports whether the node that the volume left does not report what it does.
func (m *mover) silent() bool {
	n := m.node(m.from)
	return n.State == NodeNotReady || n.State == NodeUnreachable || m.silentNode(n)
}

func (m *mover) podDeleted(bound *time.Time) Hop {
	if m.old != nil {
		if at := m.old.DeletionTimestamp; at != nil {
			var grace time.Duration
			if s := m.old.DeletionGracePeriodSeconds; s != nil {
				grace = time.Duration(*s) * second
			}
			return done(HopPodDeleted, at.Time.Add(-grace), "metadata.deletionTimestamp less the grace period")
		}
		return notNeeded(HopPodDeleted, "the pod has ended and was not deleted")
	}
	if e := m.goneEvent("TaintManagerEviction", "Preempted"); e != nil {
		return by(HopPodDeleted, e)
	}
	if at := m.killed(); at != nil {
		return unknown(HopPodDeleted, "the Pod object is gone; the kubelet began to stop it at the time of the limit (event Killing)", at)
	}
	if m.holds() {
		return waiting(HopPodDeleted, "a pod there may still use the volume")
	}
	return unknown(HopPodDeleted, "the Pod object is gone, and no event records its deletion", m.recreated(bound))
}

// holds reports whether the old node has the volume, no detach was requested, and a pod there uses it, or may: not all pods were read.
func (m *mover) holds() bool {
	return m.oldVA != nil && m.oldVA.DeletionTimestamp == nil && (len(m.usersOn(m.key, m.from)) > 0 || !m.podsKnown(m.key, m.from))
}

// recreated is the creation of a pod of the same name, as a StatefulSet's: its predecessor was gone by then.
func (m *mover) recreated(bound *time.Time) *time.Time {
	if m.pod == nil || m.gone.Name != m.pod.Name {
		return bound
	}
	return earlier(bound, timePointer(m.pod.CreationTimestamp.Time))
}

// goneEvent is the newest event about the pod that is gone. Some components leave its UID out.
func (m *mover) goneEvent(reasons ...string) *corev1.Event {
	since := m.goneSince()
	for _, e := range m.events[eventKey("Pod", m.gone.Namespace, m.gone.Name)] {
		other := e.InvolvedObject.UID != "" && e.InvolvedObject.UID != m.gone.UID
		if !other && !eventTime(e).Before(since.Truncate(second)) && slices.Contains(reasons, e.Reason) && !cancels(e) && (m.pod == nil || !eventTime(e).After(m.pod.CreationTimestamp.Time.Add(second))) {
			return e
		}
	}
	return nil
}

// stopping begins the kubelet's event about a container that it stops because its pod ends. Those that are to be restarted have another one
// (k/k v1.36.3 pkg/kubelet/kuberuntime/kuberuntime_container.go: killContainer).
const stopping = "Stopping container "

// killed is when the kubelet began to stop the pod that is gone: at its first container, because sidecars follow later. It stops containers with
// the same event when it makes a new sandbox, and starts them again (k/k v1.36.3 pkg/kubelet/kuberuntime/kuberuntime_manager.go: SyncPod): what
// was before that is not the end of the pod. The last time of an event counts, because the first one may be from then.
func (m *mover) killed() (first *time.Time) {
	var lived time.Time
	var kills []*corev1.Event
	for _, e := range m.events[eventKey("Pod", m.gone.Namespace, m.gone.Name)] {
		switch {
		case e.InvolvedObject.UID != m.gone.UID:
		case e.Reason == "Killing" && strings.HasPrefix(e.Message, stopping):
			kills = append(kills, e)
		case (e.Reason == "SandboxChanged" || e.Reason == "Started") && eventTime(e).After(lived):
			lived = eventTime(e)
		}
	}
	for _, e := range kills {
		if at := eventTime(e); at.After(lived) {
			first = earlier(first, &at)
		}
	}
	return first
}

// cancels reports whether an event says that the taint manager does not delete a pod after all: the reason is that of a deletion (k/k
// pkg/controller/tainteviction). It says so too when a person deleted the pod.
func cancels(e *corev1.Event) bool {
	return e.Reason == "TaintManagerEviction" && !strings.HasPrefix(strings.TrimPrefix(e.Message, combined), "Marking for deletion")
}

func earlier(a, b *time.Time) *time.Time {
	if a == nil || b != nil && b.Before(*a) {
		return b
	}
	return a
}

func (m *mover) containersEnded(bound *time.Time) Hop {
	if m.old == nil {
		if m.holds() {
			return waiting(HopEnded, "")
		}
		const why = "the status of the pod is gone with the Pod object"
		if bound == nil {
			return unknown(HopEnded, why+"; "+explain.DeletedByForce, nil)
		}
		return unknown(HopEnded, why, bound)
	}
	if kube.ContainersRun(m.old) {
		return waiting(HopEnded, "a container of the pod runs")
	}
	if last, field := containersEnd(m.old); !last.IsZero() {
		return done(HopEnded, last, field)
	}
	return unknown(HopEnded, "the pod has no status of a container that has ended", bound)
}

func (m *mover) unmounted(bound *time.Time, ended *Hop) Hop {
	if !m.attachRequired(m.key.Driver) { // a kubelet does not list it, and nothing waits for the unmount
		return notNeeded(HopUnmounted, m.neverAttached())
	}
	node := m.nodes[m.from]
	if node != nil && kube.InUse(node, kube.UniqueVolumeName(m.key.Driver, m.key.Handle)) && (m.va == nil || m.from != m.va.Spec.NodeName) {
		return waiting(HopUnmounted, "status.volumesInUse of node "+m.from+" lists the volume"+m.stillListed(node, ended))
	}
	why := "status.volumesInUse of a Node has no times"
	if node == nil || m.ticks(m.from) { // a node that the volume has left is not read
		why += "; " + explain.StatusTickRecorded
	}
	return unknown(HopUnmounted, why, bound)
}

// neverAttached is why a volume needs no hop of an attach or a detach; empty if it needs them.
func (m *mover) neverAttached() string {
	if !m.attachRequired(m.key.Driver) || kube.NoAttacher(m.key.Driver) {
		return "volumes of driver " + m.key.Driver + " are not attached"
	}
	return ""
}

func (m *mover) detachRequested() Hop {
	if m.oldVA != nil {
		if at := m.oldVA.DeletionTimestamp; at != nil {
			return done(HopDetachRequested, at.Time, "metadata.deletionTimestamp of the VolumeAttachment")
		}
		h := waiting(HopDetachRequested, "VolumeAttachment "+m.oldVA.Name+" is not being deleted")
		if since := kube.DetachRequested(m.oldVA); !since.IsZero() {
			h.Why += ", although belay-controller has wanted to since " + since.UTC().Format(time.RFC3339)
		}
		return h
	}
	if e := m.detachEvent("DetachingVolume"); e != nil {
		h := by(HopDetachRequested, e)
		if e.Type == corev1.EventTypeWarning {
			h.Component = "controller, by force"
		}
		return h
	}
	if why := m.neverAttached(); why != "" {
		return notNeeded(HopDetachRequested, why)
	}
	if !slices.Contains(m.Whole, Attachments) {
		return unknown(HopDetachRequested, attachmentsUnread, m.freed())
	}
	why := "the VolumeAttachment is gone; " + m.lost("the event DetachingVolume of belay-controller")
	return unknown(HopDetachRequested, why, m.freed())
}

// freed is when the volume was requested on another node: one that only one node may have was detached by then.
func (m *mover) freed() *time.Time {
	if m.va == nil || m.shared(m.key) != decision.No {
		return nil
	}
	return timePointer(m.va.CreationTimestamp.Time)
}

func (m *mover) detached() Hop {
	if m.oldVA != nil {
		h := waiting(HopDetached, "VolumeAttachment "+m.oldVA.Name+" exists")
		if e := m.oldVA.Status.DetachError; e != nil {
			h.Why += ": " + m.foreign(e.Message)
		}
		return h
	}
	if e := m.detachEvent("SuccessfulDetachVolume"); e != nil {
		return by(HopDetached, e)
	}
	if why := m.neverAttached(); why != "" {
		return notNeeded(HopDetached, why)
	}
	if !slices.Contains(m.Whole, Attachments) {
		return unknown(HopDetached, attachmentsUnread, m.freed())
	}
	return unknown(HopDetached, "the VolumeAttachment is gone; "+m.lost("the event SuccessfulDetachVolume of belay-controller"), m.freed())
}

// arrival adds the hops of the node that the volume came to.
func (m *mover) arrival() {
	m.podHops()
	m.attachHops()
	m.mountHops()
}

// noPod is why the times of a pod are unknown.
const noPod = "no pod that uses the volume exists, or none that you may read"

func (m *mover) podHops() {
	if m.pod == nil {
		m.add(unknown(HopPodCreated, noPod, nil))
		m.add(unknown(HopScheduled, noPod, nil))
		return
	}
	m.add(done(HopPodCreated, m.pod.CreationTimestamp.Time, "metadata.creationTimestamp"))
	e := m.lastEvent(string(m.pod.UID), "Scheduled")
	switch at := scheduled(m.pod); {
	case m.pod.Spec.NodeName == "":
		m.add(waiting(HopScheduled, "the pod has no node"))
	case e != nil:
		m.add(by(HopScheduled, e))
	case at.Equal(m.pod.CreationTimestamp.Time) && !hasCondition(m.pod, corev1.PodScheduled):
		m.add(notNeeded(HopScheduled, "the pod was created with a node"))
	default:
		m.add(done(HopScheduled, at, "condition PodScheduled"))
	}
}

func hasCondition(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue })
}

func (m *mover) attachHops() {
	names := []HopName{HopAttachRequested, HopTaken, HopAttached, HopReported}
	why := m.neverAttached()
	if why == "" && m.stayed {
		why = "the volume has been attached to the node since " + m.va.CreationTimestamp.UTC().Format(time.RFC3339)
	}
	if why != "" {
		for _, name := range names {
			m.add(notNeeded(name, why))
		}
		return
	}
	if m.va == nil {
		for _, name := range names {
			switch {
			case !slices.Contains(m.Whole, Attachments):
				m.add(unknown(name, attachmentsUnread, nil))
			case mounted(m.pod) || kube.PodEnded(m.pod):
				m.add(unknown(name, "the VolumeAttachment is gone", nil))
			default:
				m.add(waiting(name, m.notRequested()))
			}
		}
		return
	}
	h := done(HopAttachRequested, m.va.CreationTimestamp.Time, "metadata.creationTimestamp of the VolumeAttachment")
	creator, _ := kube.AttachmentCreator(m.va)
	h.Component = creator.Manager
	m.add(h)
	m.add(m.taken())
	m.add(m.attachedHop())
	m.add(m.reported(creator.Manager))
}

// notRequested is what the attach waits for, as far as the objects show it.
func (m *mover) notRequested() string {
	if m.oldVA != nil && m.shared(m.key) == decision.No {
		return "the volume is attached to node " + m.from
	}
	return "there is no VolumeAttachment for node " + m.pod.Spec.NodeName
}

func (m *mover) taken() Hop {
	began, ok := kube.AttachmentTaker(m.va)
	status, written := kube.AttachedWriter(m.va)
	var h Hop
	switch {
	case len(m.va.Finalizers) == 0:
		h = waiting(HopTaken, "the VolumeAttachment has no finalizer of an attacher")
	case !ok:
		h = unknown(HopTaken, "the VolumeAttachment has no managed fields about its finalizer", nil)
	case written && m.va.Status.Attached && began.Time.After(status.Time):
		h = unknown(HopTaken, "the attacher has written the VolumeAttachment again since, which hides its first write", timePointer(status.Time))
	default:
		h = done(HopTaken, began.Time, "managedFields of the finalizer of the VolumeAttachment")
	}
	h.Component = began.Manager
	return h
}

func (m *mover) attachedHop() Hop {
	status, ok := kube.AttachedWriter(m.va)
	if !m.va.Status.Attached {
		h := waiting(HopAttached, "status.attached of the VolumeAttachment is false")
		if e := m.va.Status.AttachError; e != nil {
			h.Why += ": " + m.foreign(e.Message)
		}
		return h
	}
	if ok {
		h := done(HopAttached, status.Time, "managedFields of status.attached of the VolumeAttachment")
		h.Component = status.Manager
		return h
	}
	if e := m.podEvent("SuccessfulAttachVolume"); e != nil {
		return by(HopAttached, e)
	}
	return unknown(HopAttached, "the VolumeAttachment has no managed fields about status.attached", nil)
}

// podEvent is the newest event of the pod about the volume.
func (m *mover) podEvent(reason string) *corev1.Event {
	if m.pod == nil || m.pv == nil {
		return nil
	}
	for _, e := range m.events[string(m.pod.UID)] {
		if e.Reason == reason && strings.Contains(e.Message, fmt.Sprintf("volume %q", m.pv.Name)) {
			return e
		}
	}
	return nil
}

func (m *mover) reported(controller string) Hop {
	node := m.nodes[m.va.Spec.NodeName]
	e := m.podEvent("SuccessfulAttachVolume")
	switch {
	case e != nil && controller == kube.FieldManager:
		h := by(HopReported, e)
		h.Component = controller
		return h
	case node != nil && !kube.Reported(node, kube.UniqueVolumeName(m.key.Driver, m.key.Handle)):
		return waiting(HopReported, "status.volumesAttached of node "+node.Name+" does not list the volume")
	case controller == kube.FieldManager:
		return unknown(HopReported, "status.volumesAttached of a Node has no times; "+m.lost("the event SuccessfulAttachVolume of belay-controller"), m.mountedBy())
	}
	return unknown(HopReported, "status.volumesAttached of a Node has no times; upstream's event SuccessfulAttachVolume is from before the report", m.mountedBy())
}

// mountedBy is the first sign of a container, which the kubelet starts once all volumes are mounted.
func (m *mover) mountedBy() *time.Time {
	if m.pod == nil {
		return nil
	}
	var first *time.Time
	for _, e := range m.events[string(m.pod.UID)] {
		if slices.Contains([]string{"Pulling", "Pulled", "Created", "Started"}, e.Reason) {
			first = earlier(first, timePointer(e.FirstTimestamp.Time))
		}
	}
	return earlier(first, mountedBy(m.pod))
}

func (m *mover) mountHops() {
	if m.pod == nil {
		for _, name := range []HopName{HopMounted, HopStarted, HopReady} {
			m.add(unknown(name, noPod, nil))
		}
		return
	}
	limit := m.mountedBy()
	switch e := m.podEvent("SuccessfulMountVolume"); {
	case e != nil:
		m.add(by(HopMounted, e))
	case limit == nil && !mounted(m.pod) && !kube.PodEnded(m.pod):
		m.add(waiting(HopMounted, m.notMounted()))
	default:
		why := "neither the kubelet nor belay-node records the mount of a file system; containers start after it"
		if m.attachRequired(m.key.Driver) && m.ticks(m.pod.Spec.NodeName) {
			why += "; " + explain.StatusTickBeforeMount
		}
		m.add(unknown(HopMounted, why, limit))
	}
	m.add(m.started())
	m.add(m.ready())
}

// notMounted is what the mount waits for, as far as the API shows it.
func (m *mover) notMounted() string {
	name, why := m.pod.Spec.NodeName, "no container of the pod has started"
	node := m.nodes[name]
	if node == nil || m.Now.Sub(scheduled(m.pod)) > attachment.AnswerTimeout {
		return why
	}
	if m.unlisted(node, m.key) {
		return "status.volumesInUse of node " + name + " does not list the volume yet: " + explain.AwaitsMountStatus(name)
	}
	return why
}

func (m *mover) started() Hop {
	if at, ok := firstStart(m.pod); ok {
		return done(HopStarted, at, "status.containerStatuses: the first startedAt")
	}
	for _, e := range slices.Backward(m.events[string(m.pod.UID)]) { // the oldest comes first
		if e.Reason == "Started" && !e.FirstTimestamp.IsZero() {
			return done(HopStarted, e.FirstTimestamp.Time, "event Started")
		}
	}
	if mounted(m.pod) || kube.PodEnded(m.pod) {
		return unknown(HopStarted, "the status keeps the last two starts of a container, and it has restarted since", nil)
	}
	return waiting(HopStarted, "no container of the pod has started")
}

func (m *mover) ready() Hop {
	restarted := slices.ContainsFunc(m.pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.RestartCount > 0 })
	for _, c := range m.pod.Status.Conditions {
		switch {
		case c.Type != corev1.PodReady:
		case c.Status == corev1.ConditionFalse && m.readyBefore(c.LastTransitionTime.Time):
			return unknown(HopReady, "the pod is not Ready any more, and the condition has the time of its last change", nil)
		case restarted:
			return unknown(HopReady, "a container has restarted, and the condition Ready has the time of its last change", nil)
		case c.Status == corev1.ConditionTrue:
			return done(HopReady, c.LastTransitionTime.Time, "condition Ready")
		case kube.PodEnded(m.pod):
			return unknown(HopReady, "the pod has ended", nil)
		}
	}
	return waiting(HopReady, "the condition Ready is not True")
}

// readyBefore reports whether the condition Ready became False at a time after the containers had started, so that it was True before.
func (m *mover) readyBefore(changed time.Time) bool {
	started, ok := firstStart(m.pod)
	return ok && changed.After(started)
}

// quoted matches what events put in quotation marks.
var quoted = regexp.MustCompile(`^"([^"]+)"`)

// quotedAfter returns the quoted name that follows a word in a message.
func quotedAfter(message, word string) string {
	if _, rest, ok := strings.Cut(message, word); ok {
		if found := quoted.FindStringSubmatch(rest); found != nil {
			return found[1]
		}
	}
	return ""
}

// nodeOf is the node in the scheduler's event: "Successfully assigned default/db-0 to node-1".
func nodeOf(e *corev1.Event) string {
	if e == nil {
		return ""
	}
	return e.Message[strings.LastIndex(e.Message, " ")+1:]
}

func newestFirst(events []*corev1.Event) []*corev1.Event {
	return slices.SortedStableFunc(slices.Values(events), func(a, b *corev1.Event) int { return eventTime(b).Compare(eventTime(a)) })
}
