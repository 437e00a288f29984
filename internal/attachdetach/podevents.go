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

// eventEmitter emits events: on pods, why their volumes wait, and on claims, the progress of detaches. An event is
// emitted once for each change of the cause, and again before it expires. After a restart, the events of current waits
// are emitted again.
type eventEmitter struct {
	recorder record.EventRecorder

	mu sync.Mutex
	// emitted holds the last event of each waiting pod for each volume.
	emitted map[attachment.VolumeKey]map[types.UID]emittedEvent
	// detaches holds the detaches in progress.
	detaches map[attachment.VolumeKey]map[attachment.NodeName]detach
	// detachedInUse holds the nodes whose VolumeAttachment another client deleted while the volume was in use.
	detachedInUse map[attachment.VolumeKey]map[attachment.NodeName]bool
	// stillRuns holds the nodes from which a detach by force is held, because their boot is known to run.
	stillRuns map[attachment.VolumeKey]map[attachment.NodeName]bool
}

// emittedEvent is an event that was emitted.
type emittedEvent struct {
	dedupKey string // a new event needs another key
	at       time.Time
}

// repeatInterval is when the event of an unchanged cause is emitted again: the API server deletes events after an hour
// (--event-ttl).
const repeatInterval = 45 * time.Minute

// detachEventDelay is how long a detach may take before the pods that wait for it get an event. Most detaches are
// shorter.
const detachEventDelay = 10 * time.Second

func newEventEmitter(recorder record.EventRecorder) *eventEmitter {
	return &eventEmitter{
		recorder:      recorder,
		emitted:       map[attachment.VolumeKey]map[types.UID]emittedEvent{},
		detaches:      map[attachment.VolumeKey]map[attachment.NodeName]detach{},
		detachedInUse: map[attachment.VolumeKey]map[attachment.NodeName]bool{},
		stillRuns:     map[attachment.VolumeKey]map[attachment.NodeName]bool{},
	}
}

func (a *eventEmitter) succeeded(pod *corev1.Pod, text string) {
	a.recorder.Event(pod, corev1.EventTypeNormal, explain.SuccessfulAttachVolume, text)
}

func (a *eventEmitter) failed(pod *corev1.Pod, why attachment.Reason, text string) {
	a.warn(pod, explain.FailedAttachVolume, why, text)
}

// warn emits a warning with a reason annotation.
func (a *eventEmitter) warn(about runtime.Object, event string, why attachment.Reason, text string) {
	a.recorder.AnnotatedEventf(about, map[string]string{kube.ReasonAnnotation: string(why)}, corev1.EventTypeWarning, event, "%s", text)
}

// refused emits on a pod that the API server rejected its VolumeAttachment, unless it is the same cause.
func (a *eventEmitter) refused(k key, pod *corev1.Pod, text string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.emitted[k] == nil {
		a.emitted[k] = map[types.UID]emittedEvent{}
	}
	if a.emitted[k][pod.UID].dedupKey != text {
		a.emitted[k][pod.UID] = emittedEvent{text, now}
		a.failed(pod, attachment.AttachFailed, text)
	}
}

// emitEvents emits events for a decision and returns when to do so again if nothing changes; zero for never. refusal is
// the error of its steps.
func (w *work) emitEvents(steps []attachment.Step, refusal error) (again time.Time) {
	w.eventEmitter.mu.Lock()
	defer w.eventEmitter.mu.Unlock()
	w.emitUnconfirmed()
	w.emitClaimEvents(steps)
	return w.emitPodEvents(steps, refusal)
}

// emitPodEvents emits on the waiting pods why they wait.
func (w *work) emitPodEvents(steps []attachment.Step, refusal error) (again time.Time) {
	a, now := w.eventEmitter, w.clock.Now()
	before, after := a.emitted[w.key], map[types.UID]emittedEvent{}
	if refusal != nil { // pods whose attach failed have an event but no Wait
		maps.Copy(after, before)
	}
	if !refused(refusal) {
		refusal = nil // transient
	}
	for _, step := range steps {
		hold, ok := step.(attachment.Wait)
		if !ok || !hold.Wanted {
			continue
		}
		for _, pod := range w.now.pods[hold.Node] {
			old, emitted := before[pod.UID]
			dedupKey, text := "", ""
			if ok, until := isQuiet(hold, now); ok && refusal == nil {
				again = sooner(again, until)
			} else {
				dedupKey, text = eventText(hold, pod, w.key, w.now, refusal)
			}
			switch {
			case dedupKey == "" && emitted: // keep the last cause during a wait without an event
				after[pod.UID] = old
				continue
			case dedupKey == "":
				continue
			case dedupKey != old.dedupKey || now.Sub(old.at) >= repeatInterval:
				a.failed(pod, hold.Reason, text)
				w.logWait(hold, pod)
				old = emittedEvent{dedupKey, now}
			}
			after[pod.UID] = old
			again = sooner(again, old.at.Add(repeatInterval))
		}
	}
	if len(after) == 0 {
		delete(a.emitted, w.key)
	} else {
		a.emitted[w.key] = after
	}
	return again
}

// eventText returns the event for a waiting pod. dedupKey identifies its cause.
func eventText(hold attachment.Wait, pod *corev1.Pod, k key, s snapshot, refusal error) (dedupKey, text string) {
	name := s.volumeNameAt(hold.Node)
	cause := hold.Cause()
	switch hold.Reason {
	default: // short, or not actionable for the pod's owner
		return "", ""
	case attachment.AttachFailed:
		return causeKey(cause), explain.AttachFailed(name, hold.Detail)
	case attachment.AttachUnanswered:
		return causeKey(cause), explain.AttachFailed(name, explain.Unanswered(k, explain.Attach, hold.Node, hold.Since))
	case attachment.DetachFailed:
		return causeKey(cause), explain.AttachFailed(name, explain.BeingDeleted(hold.Detail))
	case attachment.DetachUnanswered:
		return causeKey(cause), explain.AttachFailed(name, explain.BeingDeleted(explain.Unanswered(k, explain.Detach, hold.Node, hold.Since)))
	case attachment.NodeReplaced, attachment.ForeignAttachment, attachment.StillInUse, attachment.OutOfServiceNodeReady, attachment.NodeStillRuns:
		return causeKey(cause), explain.AttachFailed(name, explain.Wait(k.Driver, hold.Node, cause, s.seen.Nodes[hold.Node].Healthy))
	case attachment.OtherWriterAttached, attachment.OtherWriterDetaching:
	}
	dedupKey = string(hold.Reason)
	for _, b := range hold.Blockers {
		dedupKey += fmt.Sprint("|", b.Node, b.Kind, b.Ready, causeKey(b.Cause))
	}
	text = explain.MultiAttach(name, k.Driver, pod.Namespace, holders(hold, s), hold.Blockers)
	if refusal != nil {
		return dedupKey + refusal.Error(), explain.Refused(text, refusal)
	}
	return dedupKey, text
}

// causeKey identifies a cause for deduplication. A time at which only a recheck is due is not part of it.
func causeKey(c attachment.Cause) string {
	at := ""
	if c.Forces != nil {
		at = c.At.String()
	}
	return fmt.Sprint(c.Reason, c.Detail, at)
}

// isQuiet reports whether a wait needs no event yet: all blockers are being detached, and not for long. It also returns
// when the event will be due; zero if unknown.
func isQuiet(hold attachment.Wait, now time.Time) (ok bool, until time.Time) {
	for _, b := range hold.Blockers {
		if b.Cause.Reason != attachment.Detaching {
			return false, time.Time{}
		}
		if b.Cause.Since.IsZero() {
			continue // requested just now: the response has the time
		}
		due := b.Cause.Since.Add(detachEventDelay)
		if !now.Before(due) {
			return false, time.Time{}
		}
		until = sooner(until, due)
	}
	return len(hold.Blockers) > 0, until
}

// sooner returns the earlier of two times, ignoring zero.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// holders returns the pods that use the volume on the blocking nodes.
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
