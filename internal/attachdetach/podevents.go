package attachdetach

import (
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// announcer emits the events: on pods, why their volumes wait, and on claims, how their
// volumes are detached; once for each change of the cause, and again before the event
// expires. What it remembers is lost with the process; then what still waits is emitted
// again.
type announcer struct {
	recorder record.EventRecorder

	mu sync.Mutex
	// said is the last event of each waiting pod about each volume.
	said map[attachment.VolumeKey]map[types.UID]saying
	// detaches are those under way.
	detaches map[attachment.VolumeKey]map[attachment.NodeName]detach
	// torn holds the nodes that a volume was detached from while in use, by another writer.
	torn map[attachment.VolumeKey]map[attachment.NodeName]bool
}

// saying is one event that was emitted.
type saying struct {
	news string // what would have to change for another one
	at   time.Time
}

// repeatAfter is when the event of a standing cause is emitted again: the API server
// forgets an event after an hour (--event-ttl).
const repeatAfter = 45 * time.Minute

// detachPatience is how long a detach may be under way before the pods that wait for it
// hear of it: most take a moment.
const detachPatience = 10 * time.Second

func newAnnouncer(recorder record.EventRecorder) *announcer {
	return &announcer{
		recorder: recorder,
		said:     map[attachment.VolumeKey]map[types.UID]saying{},
		detaches: map[attachment.VolumeKey]map[attachment.NodeName]detach{},
		torn:     map[attachment.VolumeKey]map[attachment.NodeName]bool{},
	}
}

func (a *announcer) succeeded(pod *corev1.Pod, text string) {
	a.recorder.Event(pod, corev1.EventTypeNormal, explain.SuccessfulAttachVolume, text)
}

func (a *announcer) failed(pod *corev1.Pod, why attachment.Reason, text string) {
	a.warn(pod, explain.FailedAttachVolume, why, text)
}

// warn sends a warning that carries the reason behind it.
func (a *announcer) warn(about runtime.Object, event string, why attachment.Reason, text string) {
	a.recorder.AnnotatedEventf(about, map[string]string{kube.ReasonAnnotation: string(why)}, corev1.EventTypeWarning, event, "%s", text)
}

// refused emits on a pod that the API server refused to attach its volume, if that is
// news.
func (a *announcer) refused(k key, pod *corev1.Pod, text string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.said[k] == nil {
		a.said[k] = map[types.UID]saying{}
	}
	if a.said[k][pod.UID].news != text {
		a.said[k][pod.UID] = saying{text, now}
		a.failed(pod, attachment.AttachFailed, text)
	}
}

// announce emits what is news in the decision, and returns when to do so again if
// nothing changes; zero for never. The API server may have refused a step of it.
func (w *work) announce(steps []attachment.Step, refusal error) (again time.Time) {
	w.announcer.mu.Lock()
	defer w.announcer.mu.Unlock()
	w.emitUnconfirmed()
	w.emitClaimEvents(steps)
	return w.emitPodEvents(steps, refusal)
}

// emitPodEvents emits on the pods that wait for the volume why they do.
func (w *work) emitPodEvents(steps []attachment.Step, refusal error) (again time.Time) {
	a, now := w.announcer, w.clock.Now()
	before, after := a.said[w.key], map[types.UID]saying{}
	if refusal != nil { // pods whose attach failed have an event and no Hold
		maps.Copy(after, before)
	}
	if !refused(refusal) {
		refusal = nil // it will pass
	}
	for _, step := range steps {
		hold, ok := step.(attachment.Wait)
		if !ok || !hold.Wanted {
			continue
		}
		for _, pod := range w.now.pods[hold.Node] {
			old, told := before[pod.UID]
			news, text := "", ""
			if ok, until := quiet(hold, now); ok && refusal == nil {
				again = sooner(again, until)
			} else {
				news, text = words(hold, pod, w.key, w.now, refusal)
			}
			switch {
			case news == "" && told: // a wait that needs no event does not make an old cause new
				after[pod.UID] = old
				continue
			case news == "":
				continue
			case news != old.news || now.Sub(old.at) >= repeatAfter:
				a.failed(pod, hold.Reason, text)
				w.logWait(hold, pod)
				old = saying{news, now}
			}
			after[pod.UID] = old
			again = sooner(again, old.at.Add(repeatAfter))
		}
	}
	if len(after) == 0 {
		delete(a.said, w.key)
	} else {
		a.said[w.key] = after
	}
	return again
}

// words puts a hold into an event for the pod. What is news decides whether it is
// emitted again.
func words(hold attachment.Wait, pod *corev1.Pod, k key, s snapshot, refusal error) (news, text string) {
	name := s.nameAt(hold.Node)
	cause := hold.Cause()
	switch hold.Reason {
	default: // short, or nothing that the pod's owner can help
		return "", ""
	case attachment.AttachFailed:
		return newsOf(cause), explain.AttachFailed(name, hold.Detail)
	case attachment.AttachUnanswered:
		return newsOf(cause), explain.AttachFailed(name, explain.Unanswered(k, explain.Attach, hold.Node, hold.Since))
	case attachment.DetachFailed:
		return newsOf(cause), explain.AttachFailed(name, explain.BeingDeleted(hold.Detail))
	case attachment.DetachUnanswered:
		return newsOf(cause), explain.AttachFailed(name, explain.BeingDeleted(explain.Unanswered(k, explain.Detach, hold.Node, hold.Since)))
	case attachment.NodeReplaced, attachment.ForeignAttachment, attachment.StillInUse, attachment.OutOfServiceNodeReady:
		return newsOf(cause), explain.AttachFailed(name, explain.Wait(k.Driver, hold.Node, cause, s.seen.Nodes[hold.Node].Healthy))
	case attachment.OtherWriterAttached, attachment.OtherWriterDetaching:
	}
	news = string(hold.Reason)
	for _, b := range hold.Blockers {
		news += fmt.Sprint("|", b.Node, b.Kind, b.Ready, newsOf(b.Cause))
	}
	text = explain.MultiAttach(name, k.Driver, pod.Namespace, holders(hold, s), hold.Blockers)
	if refusal != nil {
		return news + refusal.Error(), explain.Refused(text, refusal)
	}
	return news, text
}

// newsOf is what must change in a cause to be news. A time at which only the next look is
// due is not.
func newsOf(c attachment.Cause) string {
	at := ""
	if c.Forces != nil {
		at = c.At.String()
	}
	return fmt.Sprint(c.Reason, c.Detail, at)
}

// quiet reports whether the pods need not hear of a wait: while all that keeps the volume
// from them is being detached, and not for long yet. It also returns when that will be
// too long; zero if that is not known.
func quiet(hold attachment.Wait, now time.Time) (ok bool, until time.Time) {
	for _, b := range hold.Blockers {
		if b.Cause.Reason != attachment.Detaching {
			return false, time.Time{}
		}
		if b.Cause.Since.IsZero() {
			continue // requested just now: its time comes with the answer
		}
		due := b.Cause.Since.Add(detachPatience)
		if !now.Before(due) {
			return false, time.Time{}
		}
		until = sooner(until, due)
	}
	return len(hold.Blockers) > 0, until
}

// sooner is the first of two times, zero being none.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// holders are the pods that want the volume at the nodes that block it.
func holders(hold attachment.Wait, s snapshot) []explain.Pod {
	var pods []explain.Pod
	seen := map[attachment.NodeName]bool{hold.Node: true}
	for _, b := range hold.Blockers {
		if seen[b.Node] {
			continue
		}
		seen[b.Node] = true
		for _, pod := range s.pods[b.Node] {
			pods = append(pods, explain.Pod{Namespace: pod.Namespace, Name: pod.Name})
		}
	}
	return pods
}
