package attachdetach

import (
	"fmt"
	"hash/maphash"
	"maps"
	"strings"
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
	shards [eventShards]eventShard
	seed   maphash.Seed
}

// eventShards bounds how many volumes wait for the events of one: a volume that many pods wait for takes long.
const eventShards = 256

// eventShard is the events of some volumes.
type eventShard struct {
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
	// elsewhere holds, for volumes that the driver lists at another node too, when the attacher said what an event has said.
	elsewhere map[attachment.VolumeKey]map[attachment.NodeName]time.Time
}

// emittedEvent is an event that was emitted.
type emittedEvent struct {
	cause string // a new event needs another one
	at    time.Time
}

// repeatInterval is when the event of an unchanged cause is emitted again: the API server deletes events after an hour
// (--event-ttl).
const repeatInterval = 45 * time.Minute

// detachEventDelay is how long a detach may take before the pods that wait for it get an event. Most detaches are
// shorter.
const detachEventDelay = 10 * time.Second

func newEventEmitter(recorder record.EventRecorder) *eventEmitter {
	e := &eventEmitter{seed: maphash.MakeSeed()}
	for i := range e.shards {
		a := &e.shards[i]
		a.recorder = kube.LimitEvents(recorder)
		a.emitted = map[attachment.VolumeKey]map[types.UID]emittedEvent{}
		a.detaches = map[attachment.VolumeKey]map[attachment.NodeName]detach{}
		a.detachedInUse = map[attachment.VolumeKey]map[attachment.NodeName]bool{}
		a.stillRuns = map[attachment.VolumeKey]map[attachment.NodeName]bool{}
		a.elsewhere = map[attachment.VolumeKey]map[attachment.NodeName]time.Time{}
	}
	return e
}

// of returns the shard of a volume.
func (e *eventEmitter) of(k key) *eventShard {
	return &e.shards[maphash.Comparable(e.seed, k)%eventShards]
}

// events returns the events of the volume.
func (w *work) events() *eventShard { return w.eventEmitter.of(w.key) }

func (a *eventShard) succeeded(pod *corev1.Pod, text string) {
	a.recorder.Event(pod, corev1.EventTypeNormal, explain.SuccessfulAttachVolume, text)
}

func (a *eventShard) failed(pod *corev1.Pod, why attachment.Reason, text string) {
	a.warn(pod, explain.FailedAttachVolume, why, text)
}

// warn emits a warning with a reason annotation.
func (a *eventShard) warn(about runtime.Object, event string, why attachment.Reason, text string) {
	a.recorder.AnnotatedEventf(about, map[string]string{kube.ReasonAnnotation: string(why)}, corev1.EventTypeWarning, event, "%s", text)
}

// refused emits on a pod that the API server rejected its VolumeAttachment, unless it is the same cause.
func (a *eventShard) refused(k key, pod *corev1.Pod, text string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.emitted[k] == nil {
		a.emitted[k] = map[types.UID]emittedEvent{}
	}
	if a.emitted[k][pod.UID].cause != text {
		a.emitted[k][pod.UID] = emittedEvent{text, now}
		a.failed(pod, attachment.AttachFailed, text)
	}
}

// emitEvents emits events for a decision and returns when to do so again if nothing changes; zero for never. refusal is
// the error of its steps.
func (w *work) emitEvents(steps []attachment.Step, refusal error) (again time.Time) {
	a := w.events()
	a.mu.Lock()
	defer a.mu.Unlock()
	w.emitUnconfirmed()
	w.emitElsewhere()
	w.emitClaimEvents(steps)
	return w.emitPodEvents(steps, refusal)
}

// emitPodEvents emits on the waiting pods why they wait.
func (w *work) emitPodEvents(steps []attachment.Step, refusal error) (again time.Time) {
	a, now := w.events(), w.clock.Now()
	before := a.emitted[w.key]
	after := make(map[types.UID]emittedEvent, len(before))
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
		cause := "" // of all pods of the node: there may be many
		if quiet, until := isQuiet(hold, now); quiet && refusal == nil {
			again = sooner(again, until)
		} else {
			cause = eventCause(hold, refusal)
		}
		text, logged := w.eventText(hold, refusal), false
		for _, pod := range w.now.pods[hold.Node] {
			old, emitted := before[pod.UID]
			switch {
			case cause == "" && emitted: // keep the last cause during a wait without an event
				after[pod.UID] = old
				continue
			case cause == "":
				continue
			case cause != old.cause || now.Sub(old.at) >= repeatInterval:
				a.failed(pod, explain.DetachReason(hold.Reason, hold.Detail), text(pod.Namespace))
				if !logged { // one line for the node: its pods wait for the same
					w.logWait(hold, pod)
					logged = true
				}
				old = emittedEvent{cause, now}
			}
			after[pod.UID] = old
			again = sooner(again, old.at.Add(repeatInterval))
		}
	}
	again = sooner(again, w.emitRefused(before, after, now))
	a.remember(w.key, after)
	return again
}

// emitRefused emits on the pods that name the volume of another namespace in their spec that they do not get it.
func (w *work) emitRefused(before, after map[types.UID]emittedEvent, now time.Time) (again time.Time) {
	for _, pod := range w.now.refused {
		old := before[pod.UID]
		if old.cause != string(explain.VolumeOfAnotherNamespace) || now.Sub(old.at) >= repeatInterval {
			for _, v := range kube.InlineVolumes(pod) {
				if v.Key == w.key {
					w.events().failed(pod, explain.VolumeOfAnotherNamespace, explain.AttachFailed(v.Name, explain.OfAnotherNamespace))
					break
				}
			}
			old = emittedEvent{string(explain.VolumeOfAnotherNamespace), now}
		}
		after[pod.UID] = old
		again = sooner(again, old.at.Add(repeatInterval))
	}
	return again
}

// remember keeps what was emitted for the pods of a volume that still wait; hold the lock.
func (a *eventShard) remember(k key, emitted map[types.UID]emittedEvent) {
	if len(emitted) == 0 {
		delete(a.emitted, k)
		return
	}
	a.emitted[k] = emitted
}

// eventCause identifies the cause of a wait for deduplication; empty if it is short, or not actionable for the pod's
// owner.
func eventCause(hold attachment.Wait, refusal error) string {
	switch hold.Reason {
	default:
		return ""
	case attachment.AttachFailed, attachment.AttachUnanswered, attachment.DetachFailed, attachment.DetachUnanswered,
		attachment.NodeReplaced, attachment.ForeignAttachment, attachment.StillInUse, attachment.OutOfServiceNodeReady, attachment.NodeStillRuns,
		attachment.NodeIsolated:
		return causeKey(hold.Cause())
	case attachment.OtherWriterAttached, attachment.OtherWriterDetaching:
	}
	var cause strings.Builder
	cause.WriteString(string(hold.Reason))
	for _, b := range hold.Blockers {
		fmt.Fprint(&cause, "|", b.Node, b.Kind, b.Ready, causeKey(b.Cause))
	}
	if refusal != nil {
		cause.WriteString(refusal.Error())
	}
	return cause.String()
}

// eventText returns the event for the waiting pods of a node, by namespace. It is made when one is emitted.
func (w *work) eventText(hold attachment.Wait, refusal error) func(namespace string) string {
	texts := map[string]string{}
	return func(namespace string) string {
		if _, ok := texts[namespace]; !ok {
			texts[namespace] = w.newEventText(hold, namespace, refusal)
		}
		return texts[namespace]
	}
}

func (w *work) newEventText(hold attachment.Wait, namespace string, refusal error) string {
	name, driver := w.now.volumeNameAt(hold.Node), w.key.Driver
	switch hold.Reason {
	case attachment.AttachFailed:
		return explain.AttachFailed(name, hold.Detail)
	case attachment.AttachUnanswered:
		return explain.AttachFailed(name, explain.Unanswered(w.key, explain.Attach, hold.Node, hold.Since, hold.Detail))
	case attachment.DetachFailed:
		return explain.AttachFailed(name, explain.BeingDeleted(hold.Detail))
	case attachment.DetachUnanswered:
		return explain.AttachFailed(name, explain.BeingDeleted(explain.Unanswered(w.key, explain.Detach, hold.Node, hold.Since, hold.Detail)))
	case attachment.OtherWriterAttached, attachment.OtherWriterDetaching:
	default:
		return explain.AttachFailed(name, explain.Wait(driver, hold.Node, hold.Cause(), w.now.seen.Nodes[hold.Node].Healthy))
	}
	text := explain.MultiAttach(name, driver, namespace, holders(hold, w.now), hold.Blockers)
	if refusal != nil {
		return explain.Refused(text, refusal)
	}
	return text
}

// causeKey identifies a cause for deduplication. A time at which only a recheck is due is not part of it.
func causeKey(c attachment.Cause) string {
	at := ""
	if c.Forces != nil {
		at = c.At.String()
	}
	return fmt.Sprint(c.Reason, c.Detail, at, c.Recovery)
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
