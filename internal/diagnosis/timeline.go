package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/kube"
)

// Timeline is the last move of each volume of a pod, of a claim, or of one PersistentVolume.
type Timeline struct {
	metav1.TypeMeta `json:",inline"`

	// Subject is the object that was asked about.
	Subject Ref `json:"subject"`
	// Time is when the objects were read, by the clock of the API server.
	Time  time.Time `json:"time"`
	Moves []Move    `json:"moves"`
	// Unread lists what could not be read, so that times may be missing.
	Unread []Unread `json:"unread,omitempty"`
}

// Move is how a volume came from one node to the next, or to its first node.
type Move struct {
	Volume *Volume `json:"volume"`
	// From is the node that the volume left, To the one that it came to; empty if there is none, or none is recorded.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Pod is the pod that the volume came for, if there is one that may be named.
	Pod *Ref `json:"pod,omitempty"`
	// Start is when the pod that had the volume was deleted, or the node that had it was heard last if recovery fences it, or the limit of that;
	// without these, the first time of a hop. End is the last one; a move that is not over ends now.
	Start *time.Time `json:"start,omitempty"`
	End   *time.Time `json:"end,omitempty"`
	// StartedBefore is set if the move began at Start or before: when it did is not recorded.
	StartedBefore bool `json:"startedBefore,omitempty"`
	// Hops are in the order of a move.
	Hops []Hop `json:"hops"`
	// Timing is the same move in a few durations, those of the departure first.
	Timing []Interval `json:"timing"`
}

// HopState is what is known of a hop.
type HopState string

// The states of a hop.
const (
	// HopDone: it has happened, and the API records when.
	HopDone HopState = "Done"
	// HopUnknown: the API does not record when it happened.
	HopUnknown HopState = "Unknown"
	// HopWaiting: it is what the move waits for now.
	HopWaiting HopState = "Waiting"
	// HopPending: it comes after the one that the move waits for.
	HopPending HopState = "Pending"
	// HopNotNeeded: this move does without it.
	HopNotNeeded HopState = "NotNeeded"
)

// Hop is one step of a move.
type Hop struct {
	Name  HopName  `json:"name"`
	State HopState `json:"state"`
	// Component is what does it, as it is recorded, else as it usually is.
	Component string `json:"component"`
	// At is when it was done.
	At *time.Time `json:"at,omitempty"`
	// Exact is set if At has microseconds. Most times of the API have whole seconds.
	Exact bool `json:"exact,omitempty"`
	// NotAfter is the latest time at which it can have been done, if At is unknown.
	NotAfter *time.Time `json:"notAfter,omitempty"`
	// After is the last hop with a known time before this one, and Seconds how long after it this one was done, or has waited.
	After   HopName  `json:"after,omitempty"`
	Seconds *float64 `json:"seconds,omitempty"`
	// AtLeast is set if Seconds is the least that it took or has waited: when After was done has only a limit.
	AtLeast bool `json:"atLeast,omitempty"`
	// Source is the field or event that At is from.
	Source string `json:"source,omitempty"`
	// Why is why At is unknown, why the hop waits, or why it is not needed.
	Why string `json:"why,omitempty"`
}

// HopName names a hop.
type HopName string

// The hops of a move.
const (
	// HopSilent and HopProven are those of a node that recovery fences: the last renewal of its lease, and the proof about its machine.
	HopSilent          HopName = "node silent"
	HopProven          HopName = "fence proven"
	HopPodDeleted      HopName = "pod deleted"
	HopEnded           HopName = "containers ended"
	HopUnmounted       HopName = "unmounted"
	HopDetachRequested HopName = "detach requested"
	HopDetached        HopName = "detached"
	HopPodCreated      HopName = "pod created"
	HopScheduled       HopName = "scheduled"
	HopAttachRequested HopName = "attach requested"
	HopTaken           HopName = "attacher began"
	HopAttached        HopName = "attached"
	HopReported        HopName = "reported"
	HopMounted         HopName = "mounted"
	HopStarted         HopName = "container started"
	HopReady           HopName = "ready"
)

// Interval is the time between two hops.
type Interval struct {
	Name string `json:"name"`
	// Usual is what it usually takes with a volume of a cloud.
	Usual string `json:"usual"`
	// Seconds is what it took. Exact is set if that is no difference of whole seconds.
	Seconds *float64 `json:"seconds,omitempty"`
	Exact   bool     `json:"exact,omitempty"`
	// AtMost and AtLeast limit it if it is unknown.
	AtMost  *float64 `json:"atMost,omitempty"`
	AtLeast *float64 `json:"atLeast,omitempty"`
	// SoFar is how long it has lasted if it has not ended; with AtLeast it began before.
	SoFar *float64 `json:"soFar,omitempty"`
	// Unknown is why it is unknown.
	Unknown string `json:"unknown,omitempty"`
}

// Timelines finds the last move of each volume of a pod, a claim or a PersistentVolume. It is an error if the snapshot does not have
// the subject. The snapshot needs the managed fields of VolumeAttachments, the conditions of pods, and events.
func Timelines(s *Snapshot, subject Ref) (Timeline, error) {
	x := newState(s)
	t := Timeline{
		TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: "Timeline"},
		Subject:  subject, Time: s.Now, Moves: []Move{}, Unread: s.Unread,
	}
	name := join(subject.Namespace, subject.Name)
	switch subject.Resource {
	case Pods:
		pod := x.pods[name]
		if pod == nil {
			return t, x.missing(subject)
		}
		for i := range pod.Spec.Volumes {
			if claim := kube.ClaimName(pod, &pod.Spec.Volumes[i]); claim != "" {
				if key, pv, ok := x.volumeOfClaim(pod.Namespace, claim); ok {
					t.Moves = append(t.Moves, x.move(key, pv, pod, x.ends(key, pod)))
				}
			}
		}
	case Claims:
		if x.claims[name] == nil {
			return t, x.missing(subject)
		}
		if key, pv, ok := x.volumeOfClaim(subject.Namespace, subject.Name); ok {
			t.Moves = append(t.Moves, x.move(key, pv, x.arriving(key), x.leaving(key)))
		}
	case Volumes:
		pv := x.volumes[subject.Name]
		if pv == nil {
			return t, x.missing(subject)
		}
		if key, ok := kube.KeyOfVolume(pv); ok {
			t.Moves = append(t.Moves, x.move(key, pv, x.arriving(key), x.leaving(key)))
		}
	default:
		return t, fmt.Errorf("%s has no timeline: name a pod, a claim or a PersistentVolume", subject)
	}
	return t, nil
}

// arriving is the newest pod that uses the volume and is not being deleted.
func (x *state) arriving(key attachment.VolumeKey) *corev1.Pod {
	var newest *corev1.Pod
	for _, u := range x.uses[key] {
		if u.pod.DeletionTimestamp == nil && x.mayName(u.pod.Namespace) && (newest == nil || older(newest, u.pod) < 0) {
			newest = u.pod
		}
	}
	return newest
}

// leaving is the newest pod that has had the volume, or is to have it, if that is being deleted: the last move is then the one that its end begins.
func (x *state) leaving(key attachment.VolumeKey) *corev1.Pod {
	var newest *corev1.Pod
	for _, u := range x.uses[key] {
		if x.mayName(u.pod.Namespace) && (u.pod.DeletionTimestamp == nil || x.ends(key, u.pod) != nil) && (newest == nil || older(newest, u.pod) < 0) {
			newest = u.pod
		}
	}
	if newest == nil {
		return nil
	}
	return x.ends(key, newest)
}

// ends is the pod if it is being deleted and has had the volume, which then leaves its node: not one that others share.
func (x *state) ends(key attachment.VolumeKey, pod *corev1.Pod) *corev1.Pod {
	if pod.DeletionTimestamp == nil || pod.Spec.NodeName == "" || !mounted(pod) || x.shared(key) == decision.Yes {
		return nil
	}
	return pod
}

// mover collects the hops of one move.
type mover struct {
	*state
	key attachment.VolumeKey
	pv  *corev1.PersistentVolume
	// pod is the one that the volume came for, and va the VolumeAttachment to its node; nil if there is none.
	pod *corev1.Pod
	va  *storagev1.VolumeAttachment
	// stayed is set if the volume was attached to the node before the pod was created.
	stayed bool

	// from is the node that the volume left, old the pod there, and oldVA the VolumeAttachment; nil if they are gone.
	from  string
	old   *corev1.Pod
	oldVA *storagev1.VolumeAttachment
	// gone is the pod there if only its events are left.
	gone corev1.ObjectReference

	hops    []Hop
	blocked bool // a hop waits: those after it are pending
}

// move is how the volume came to the pod, or how it leaves the node of a pod that ends.
func (x *state) move(key attachment.VolumeKey, pv *corev1.PersistentVolume, pod, leaving *corev1.Pod) Move {
	m := &mover{state: x, key: key, pv: pv, pod: pod}
	move := Move{Volume: x.describe(key, pv)}
	if leaving != nil {
		pod, m.pod = nil, nil
		m.departs(leaving)
	} else {
		m.findArrival()
		if !m.stayed && x.shared(key) != decision.Yes {
			m.findDeparture()
		}
	}
	if pod != nil {
		ref := podRef(pod)
		move.Pod, move.To, move.Volume.WantedOn = &ref, pod.Spec.NodeName, pod.Spec.NodeName
	} else if m.va != nil {
		move.To = m.va.Spec.NodeName
	}
	move.From = m.from
	if m.from != "" {
		m.departure()
	}
	if pod != nil || m.va != nil {
		m.arrival()
	}
	move.Hops = m.hops
	move.measure(x.Now)
	move.Timing = timing(move.Hops, x.Now)
	return move
}

// departs makes the move that of a pod that is being deleted: nothing shows yet where the volume goes.
func (m *mover) departs(pod *corev1.Pod) {
	m.old, m.from = pod, pod.Spec.NodeName
	if va, has := m.attachmentOn(m.key, m.from); has {
		m.oldVA = va
	}
}

// findArrival finds the VolumeAttachment that the volume came with.
func (m *mover) findArrival() {
	for _, va := range m.attached[m.key] {
		if va.DeletionTimestamp != nil || m.pod != nil && va.Spec.NodeName != m.pod.Spec.NodeName {
			continue
		}
		if m.va == nil || m.va.CreationTimestamp.Before(&va.CreationTimestamp) {
			m.va = va
		}
	}
	m.stayed = m.pod != nil && m.va != nil && m.va.CreationTimestamp.Time.Before(m.pod.CreationTimestamp.Time)
}

// findDeparture finds where the volume was before: what objects are left of that, else events.
func (m *mover) findDeparture() {
	for _, va := range m.attached[m.key] {
		if va != m.va && (m.oldVA == nil || va.DeletionTimestamp != nil) {
			m.oldVA, m.from = va, va.Spec.NodeName
		}
	}
	m.findOld()
	if e := m.detachEvent("DetachingVolume", "SuccessfulDetachVolume"); m.from == "" && e != nil {
		m.from = quotedAfter(e.Message, " from node ")
	}
	if m.from == "" && m.old != nil && m.mayName(m.old.Namespace) {
		m.from = m.old.Spec.NodeName
	}
	m.findGone()
}

// findOld finds the pod that had the volume before, if its object still exists.
func (m *mover) findOld() {
	for _, u := range m.uses[m.key] {
		if m.left(u) && (m.old == nil || older(m.old, u.pod) < 0) {
			m.old = u.pod
		}
	}
}

// left reports whether a pod is one that has had the volume before the move: it ends or has ended, on the node that the volume left.
func (m *mover) left(u use) bool {
	if u.pod == m.pod || u.pod.Spec.NodeName == "" || u.pod.DeletionTimestamp == nil && !ended(u) {
		return false
	}
	if m.from != "" && u.pod.Spec.NodeName != m.from {
		return false
	}
	return m.pod == nil || older(u.pod, m.pod) < 0 // one that came later has nothing to do with this move
}

// findGone finds the pod that had the volume before by the event of its attach.
func (m *mover) findGone() {
	if m.old != nil || m.pv == nil {
		return
	}
	for _, e := range newestFirst(m.Events) {
		uid := string(e.InvolvedObject.UID)
		if e.Reason != "SuccessfulAttachVolume" || quotedAfter(e.Message, " for volume ") != m.pv.Name || m.pod != nil && uid == string(m.pod.UID) {
			continue
		}
		if m.pod != nil && eventTime(e).After(m.pod.CreationTimestamp.Time.Add(second)) && e.InvolvedObject.Name == m.pod.Name {
			continue // a later pod of the same name
		}
		node := nodeOf(m.lastEvent(uid, "Scheduled"))
		if node == "" || m.from != "" && node != m.from {
			continue
		}
		m.gone, m.from = e.InvolvedObject, node
		m.laterGone()
		return
	}
}

// laterGone finds the last pod of the name that was on the node: the volume stays attached there from one to the next, without an event of an attach.
func (m *mover) laterGone() {
	last := m.goneSince()
	for _, e := range m.events[eventKey("Pod", m.gone.Namespace, m.gone.Name)] {
		at, uid := eventTime(e), e.InvolvedObject.UID
		next := m.pod != nil && (uid == m.pod.UID || at.After(m.pod.CreationTimestamp.Time.Add(second)))
		if e.Reason == "Scheduled" && uid != "" && !next && nodeOf(e) == m.from && at.After(last) {
			m.gone, last = e.InvolvedObject, at
		}
	}
}

// goneSince is when the pod that is gone got its node.
func (m *mover) goneSince() time.Time {
	if e := m.lastEvent(string(m.gone.UID), "Scheduled"); e != nil {
		return eventTime(e)
	}
	return time.Time{}
}

// detachEvent is the newest event of a detach that the arrival may have waited for. The controller emits it about the claim, or about
// the PersistentVolume.
func (m *mover) detachEvent(reasons ...string) *corev1.Event {
	if m.pv == nil {
		return nil
	}
	about := []string{string(m.pv.UID)}
	if ref := m.pv.Spec.ClaimRef; ref != nil {
		about = append(about, string(ref.UID))
	}
	for _, e := range newestFirst(m.Events) {
		if !slices.Contains(reasons, e.Reason) || !slices.Contains(about, string(e.InvolvedObject.UID)) || quotedAfter(e.Message, " for volume ") != m.pv.Name {
			continue
		}
		node := quotedAfter(e.Message, " from node ")
		if node == "" || m.from != "" && node != m.from || m.va != nil && eventTime(e).After(m.va.CreationTimestamp.Time.Add(second)) {
			continue
		}
		return e
	}
	return nil
}

// second is the resolution of most times of the API.
const second = time.Second

// measure sets where each hop began, and where the move begins and ends.
func (v *Move) measure(now time.Time) {
	for i := range v.Hops {
		h := &v.Hops[i]
		at := h.At
		if h.State == HopWaiting {
			at = &now
		}
		if v.Start == nil || h.At != nil && h.At.Before(*v.Start) {
			v.Start = cmp.Or(h.At, v.Start)
		}
		if at != nil {
			v.ends(i, at)
		}
	}
	if began := beginning(v.Hops); began != nil && (began.At != nil || began.NotAfter != nil) {
		v.Start, v.StartedBefore = cmp.Or(began.At, began.NotAfter), began.At == nil
	}
}

// beginnings are the hops that a move may begin with.
var beginnings = []HopName{HopPodDeleted, HopSilent, HopEnded}

// beginning is the hop that a move begins with: the first one of the departure that it needs, because the next pod may have been created before; nil
// without a departure. A pod that has ended by itself was not deleted.
func beginning(hops []Hop) *Hop {
	for i := range hops {
		switch h := &hops[i]; {
		case !slices.Contains(beginnings, h.Name):
			return nil
		case h.State != HopNotNeeded:
			return h
		}
	}
	return nil
}

// ends sets how long a hop took, which ended or has lasted until a time.
func (v *Move) ends(i int, at *time.Time) {
	if v.End == nil || at.After(*v.End) {
		v.End = at
	}
	h := &v.Hops[i]
	if last := lastBefore(v.Hops[:i], *at); last != nil {
		h.After, h.Seconds = last.Name, gap(*last.At, *at, last.Exact && h.Exact)
		return
	}
	if last := lastLimited(v.Hops[:i], *at); last != nil {
		h.After, h.Seconds, h.AtLeast = last.Name, gap(*last.NotAfter, *at, false), true
	} else if next := lastBefore(v.Hops, *at); h.State == HopWaiting && next != nil { // the next pod has waited since then
		h.After, h.Seconds, h.AtLeast = next.Name, gap(*next.At, *at, false), true
	}
}

// lastLimited is the last of the hops whose limit is before a time: one with the same limit has it from the hop of that time.
func lastLimited(hops []Hop, at time.Time) *Hop {
	var last *Hop
	for i := range hops {
		if h := &hops[i]; h.NotAfter != nil && h.NotAfter.Before(at.Truncate(second)) && (last == nil || !h.NotAfter.Before(*last.NotAfter)) {
			last = h
		}
	}
	return last
}

// lastBefore is the last of the hops that was done by a time, as far as whole seconds tell.
func lastBefore(hops []Hop, at time.Time) *Hop {
	var last *Hop
	for i := range hops {
		if h := &hops[i]; h.At != nil && !truncated(h).After(at) && (last == nil || !h.At.Before(*last.At)) {
			last = h
		}
	}
	return last
}

// truncated is the time of a hop in the resolution of most others.
func truncated(h *Hop) time.Time { return h.At.Truncate(second) }

// gap is the time from one moment to another. Unless both are exact it is one of whole seconds, which is off by less than a second:
// nothing means less than a second.
func gap(from, to time.Time, exact bool) *float64 {
	if !exact {
		from, to = from.Truncate(second), to.Truncate(second)
	}
	s := max(to.Sub(from), 0).Seconds()
	return &s
}
