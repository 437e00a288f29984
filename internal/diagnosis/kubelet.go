package diagnosis

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/drivers"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// What speaks in an event (k/k v1.36.3 cmd/kubelet/app/server.go makeEventRecorder, pkg/controller/volume/attachdetach/attach_detach_controller.go:153).
var (
	nodeAgents  = []string{"kubelet", "belay-node"}
	controllers = []string{"attachdetach-controller", kube.EventComponent}
)

// from reports whether one of the components emitted an event.
func from(e *corev1.Event, components []string) bool {
	return slices.Contains(components, componentOf(e))
}

// mountFailures are the events of a volume that a node agent cannot mount (k/k v1.36.3 pkg/kubelet/events/event.go:64, 70).
var mountFailures = []string{"FailedMount", "FailedMapVolume"}

var (
	// ofOne matches what kubelet reports of one volume: the step, its name for the volume, the cause (k/k v1.36.3
	// pkg/volume/util/operationexecutor/operation_executor.go generateVolumeMsg, GenerateError).
	ofOne = regexp.MustCompile(`(?s)^[^":]* for volume "([^"]+)" :?\s?(.*)$`)
	// ofPod matches what it reports of all volumes of a pod: those that are not mounted, those that it could not even begin with, the cause
	// (k/k v1.36.3 pkg/kubelet/kubelet.go:2204, pkg/kubelet/volumemanager/volume_manager.go:463).
	ofPod = regexp.MustCompile(`(?s)^Unable to attach or mount volumes: unmounted volumes=\[([^\]]*)\], \w+ volumes=\[[^\]]*\](?:, failed to process volumes=\[([^\]]*)\])?: (.*)$`)
	// timedOut is a cause that says no more than that volumes are not mounted (k8s.io/apimachinery v0.36.3 pkg/util/wait/error.go; Go context).
	timedOut = regexp.MustCompile(`^(?:timed out waiting for the condition|context deadline exceeded)\.?$`)
)

// onlyRepeats reports whether a text of kubelet says no more than which volumes are not mounted.
func onlyRepeats(message string) bool {
	m := ofPod.FindStringSubmatch(strings.TrimSpace(strings.TrimPrefix(message, combined)))
	return m != nil && timedOut.MatchString(m[3])
}

// report is what a node agent reports of a pod's volumes in one event.
type report struct {
	event *corev1.Event
	// about are kubelet's names of the volumes, empty for the pod as a whole.
	about []string
	cause string
	// unmounted are the pod's names of the volumes that are not mounted, if the event lists them.
	unmounted []string
	lists     bool
}

// isAbout reports whether a report names the volume. A list has the pod's own names.
func (r *report) isAbout(v *podVolume) bool {
	if r.lists {
		return slices.ContainsFunc(r.about, v.isCalled)
	}
	return slices.ContainsFunc(r.about, v.isNamed)
}

// reports returns what node agents report of a pod's volumes, newest first.
func (x *state) reports(pod *corev1.Pod) []report {
	if found, ok := x.reported[pod]; ok {
		return found
	}
	var found []report
	for _, e := range x.events[string(pod.UID)] {
		if !slices.Contains(mountFailures, e.Reason) || !from(e, nodeAgents) || repeats(e) {
			continue
		}
		r := report{event: e, cause: strings.TrimSpace(strings.TrimPrefix(e.Message, combined))}
		if m := ofPod.FindStringSubmatch(r.cause); m != nil {
			r.unmounted, r.about, r.cause, r.lists = strings.Fields(m[1]), strings.Fields(m[2]), m[3], true
		} else if m := ofOne.FindStringSubmatch(r.cause); m != nil {
			r.about, r.cause = []string{m[1]}, m[2]
		}
		if len(r.about) == 0 {
			r.about = x.namedIn(pod, r.cause)
		}
		if _, last, ok := strings.Cut(r.cause, "last failure: "); ok {
			r.cause = last // what comes before is that belay's node agent waits, and since when
		}
		found = append(found, r)
	}
	x.reported[pod] = found
	return found
}

// namedIn returns the volumes of a pod that a text names which is not about one volume by its form: as a volume or a claim, or by a name that no other
// thing has, that of a PersistentVolume or a handle.
func (x *state) namedIn(pod *corev1.Pod, text string) (named []string) {
	for _, v := range x.volumesOf(pod) {
		own := slices.Clone(v.names)
		if v.claim != "" {
			own = append(own, v.claim)
		}
		is := slices.ContainsFunc(own, func(name string) bool {
			return names(text, "volume "+name) || slices.ContainsFunc([]string{"volume ", "claim "}, func(kind string) bool { return strings.Contains(text, kind+`"`+name+`"`) })
		})
		if is || v.pv != nil && len(v.pv.Name) > 3 && names(text, v.pv.Name) || v.hasKey && len(v.key.Handle) > 3 && names(text, v.key.Handle) {
			named = append(named, v.names[0])
		}
	}
	return named
}

// causeFor returns what the report says of the cause for a volume: where it is about several, the part that names the volume, because kubelet joins
// the errors of all (k/k v1.36.3 pkg/kubelet/volumemanager/volume_manager.go:558).
func (r *report) causeFor(v *podVolume) string {
	about := r.isAbout(v) || len(r.about) == 0 && (v.hasKey || v.claim != "")
	if !about || timedOut.MatchString(r.cause) {
		return ""
	}
	if len(r.about) > 1 {
		for part := range strings.SplitSeq(r.cause, "; ") {
			if slices.ContainsFunc(append(slices.Clone(v.names), v.claim), func(name string) bool { return name != "" && names(part, name) }) {
				return part
			}
		}
	}
	return r.cause
}

// names reports whether a text has a name as a word. A dot joins words: volume a is not volume a.b.
func names(text, name string) bool { return indexJoined(text, name, "-_.") >= 0 }

// failing returns the newest cause that a node agent reports for a volume. One that names no volume counts for all. over is set if a later list of
// what is not mounted leaves the volume out, or if reports are about other volumes only: it waits for nothing then.
func (x *state) failing(pod *corev1.Pod, v *podVolume) (r report, cause string, over bool) {
	others, listed := false, false
	for _, r := range x.reports(pod) {
		if r.lists && !listed {
			if listed = true; !slices.Contains(r.unmounted, v.Name) {
				return report{}, "", true
			}
		}
		if cause := r.causeFor(v); cause != "" {
			return r, cause, false
		}
		others = others || !timedOut.MatchString(r.cause)
	}
	return report{}, "", others && !listed
}

// mountWait explains why the pod's node has not mounted a volume. It waits for nothing if the reason is Settled.
func (x *state) mountWait(pod *corev1.Pod, v *podVolume, since time.Time) wait {
	w := wait{reason: explain.Mounting, since: since}
	plain := !v.hasKey && v.claim == ""
	switch state := x.node(pod.Spec.NodeName).State; {
	case state != NodeReady && state != NodeUnknown && plain:
		w.reason = attachment.Settled // notStarted says it of the pod
		return w
	case state != NodeReady && state != NodeUnknown:
		w.reason = explain.PodNodeNotReady
		return w
	case v.driver != "" && v.hasKey && x.onNode(v.key.Driver, pod.Spec.NodeName) == decision.No:
		w.reason = explain.DriverNotOnNode
		return w
	}
	r, cause, over := x.failing(pod, v)
	switch {
	case x.changesOwner(&w, pod, v, r.event):
	case cause != "":
		x.readMount(&w, pod, v, r, cause)
	case over || plain:
		w.reason = attachment.Settled
	case x.Now.Sub(since) > attachment.AnswerTimeout:
		w.reason = explain.MountFailing
	}
	return w
}

// readMount adds what a cause means: what a driver answered, or a text of kubelet.
func (x *state) readMount(w *wait, pod *corev1.Pod, v *podVolume, r report, cause string) {
	heard := hear(cause)
	if heard.code == "" {
		if read, ok := explain.ReadMount(cause, v.PodVolume); ok {
			read.Clean(x.foreign)
			w.reason, w.detail, w.mount = read.Reason, w.says(x.foreign(cause)), &read
			return
		}
	}
	if !r.isAbout(v) && !strings.Contains(cause, "of volume "+v.key.Handle+": ") {
		w.reason, w.detail = explain.MountFailing, w.says(x.foreign(cause)) // it may be of another volume
		return
	}
	key := v.key
	if !v.hasKey {
		key.Driver = v.driver
	}
	begun := *w
	begun.since = x.failsSince(pod, v, w.since)
	answered := x.answered(begun, drivers.Mount, key, pod.Spec.NodeName, heard)
	answered.since, answered.answer.Affinity = w.since, affine(v.pv)
	if v.pv != nil && v.pv.Spec.CSI != nil {
		answered.answer.FSType = x.foreign(v.pv.Spec.CSI.FSType)
	}
	if heard.code == "" && answered.reason != explain.FSGroupRefused || answered.reason == explain.MountFailing && answered.answer.Said == "" {
		answered.detail = answered.says(x.quoted(cause))
	}
	*w = answered
}

// failsSince is when a node agent first reported a failed mount of the volume.
func (x *state) failsSince(pod *corev1.Pod, v *podVolume, since time.Time) time.Time {
	first := x.Now
	for _, r := range x.reports(pod) {
		at := r.event.FirstTimestamp.Time
		if at.IsZero() {
			at = eventTime(r.event)
		}
		if r.isAbout(v) && at.Before(first) && !at.Before(since) {
			first = at
		}
	}
	return first
}

// attachReport returns what the attach/detach controller reported last of a volume: that its attach failed, and why.
func (x *state) attachReport(pod *corev1.Pod, v *podVolume) (w wait, ok bool) {
	for _, e := range x.events[string(pod.UID)] {
		m := ofOne.FindStringSubmatch(strings.TrimPrefix(e.Message, combined))
		if m == nil || !from(e, controllers) || !v.isNamed(m[1]) {
			continue
		}
		switch e.Reason {
		case "SuccessfulAttachVolume":
			return w, false
		case "FailedAttachVolume":
			return x.attachFailure(pod, strings.TrimPrefix(e.Message, combined), m[2], v), true
		}
	}
	return w, false
}

// attachFailure is what the event of a failed attach means.
func (x *state) attachFailure(pod *corev1.Pod, message, cause string, v *podVolume) wait {
	w := wait{since: scheduled(pod)}
	heard := hear(cause)
	switch driver := cmp.Or(v.driver, driverOf(heard)); {
	case multiAttach.MatchString(message):
		w.reason = attachment.OtherWriterAttached
	case strings.HasPrefix(cause, unanswering):
		w.reason = attachment.AttachUnanswered
		driver, _, _ = strings.Cut(strings.TrimPrefix(cause, unanswering+" "), " ")
		w.fill = func(s *explain.Situation) { s.Driver = cmp.Or(s.Driver, x.foreign(driver)) }
	case heard.code != "":
		w.answer.Unread = v.pv == nil
		key := v.key
		key.Driver = driver
		return x.answered(w, drivers.Publish, key, pod.Spec.NodeName, heard)
	default:
		w.reason, _ = reasonOf(heard, driver, drivers.Publish)
	}
	w.detail = w.says(x.foreign(cause))
	return w
}

// driverOf is one of the drivers whose answer a text may be, if all of them mean the same by it; empty if they do not, or if it is all drivers'. The
// driver of a PersistentVolume that could not be read is unknown, unless its claim names it.
func driverOf(heard spoken) (driver string) {
	if reason, _ := reasonOf(heard, "", drivers.Publish); reason != attachment.AttachFailed {
		return ""
	}
	means := map[decision.Reason]bool{}
	for _, facts := range drivers.All() {
		if of, read := reasonOf(heard, facts.Driver, drivers.Publish); read.Situation != "" {
			means[of], driver = true, cmp.Or(driver, facts.Driver)
		}
	}
	if len(means) != 1 {
		return ""
	}
	return driver
}

// unanswering begins the error of an attach without an answer (k/k v1.36.3 pkg/volume/csi/csi_attacher.go:521).
const unanswering = "timed out waiting for external-attacher of"

// multiAttach matches upstream's event about a volume that another node has (k/k pkg/controller/volume/attachdetach/reconciler/reconciler.go: v1.36.3:396
// and 432; v1.37.2:396 and 432 have the second).
var multiAttach = regexp.MustCompile(`^(?:Multi-Attach error|Waiting for detach) for volume `)
