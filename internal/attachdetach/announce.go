package attachdetach

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// announcer tells pods what their volumes wait for, and claims when their volumes are
// detached, once per change of reason. What it remembers is lost with the process; then
// what still waits is told once more.
type announcer struct {
	recorder record.EventRecorder

	mu sync.Mutex
	// said is what each waiting pod was told last of each volume.
	said map[attachment.VolumeKey]map[types.UID]string
	// detaches are those under way.
	detaches map[attachment.VolumeKey]map[attachment.NodeName]detach
}

func newAnnouncer(recorder record.EventRecorder) *announcer {
	return &announcer{
		recorder: recorder,
		said:     map[attachment.VolumeKey]map[types.UID]string{},
		detaches: map[attachment.VolumeKey]map[attachment.NodeName]detach{},
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

// refused tells a pod that the API server refused to attach its volume, if that is
// news.
func (a *announcer) refused(k key, pod *corev1.Pod, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.said[k] == nil {
		a.said[k] = map[types.UID]string{}
	}
	if a.said[k][pod.UID] != text {
		a.said[k][pod.UID] = text
		a.failed(pod, attachment.AttachFailed, text)
	}
}

// announce tells whom it concerns what the decision was, if that is news.
func (w *work) announce(steps []attachment.Step) {
	w.announcer.mu.Lock()
	defer w.announcer.mu.Unlock()
	w.tellPods(steps)
	w.tellClaims(steps)
}

// tellPods tells the pods that wait for the volume why they do.
func (w *work) tellPods(steps []attachment.Step) {
	a := w.announcer
	before, now := a.said[w.key], map[types.UID]string{}
	for _, step := range steps {
		hold, ok := step.(attachment.Hold)
		if !ok || !hold.Wanted {
			continue
		}
		for _, pod := range w.now.pods[hold.Node] {
			news, text := words(hold, pod, w.key, w.now)
			if news == "" {
				// A wait that needs no words does not make an old reason new again.
				news = before[pod.UID]
			} else if news != before[pod.UID] {
				a.failed(pod, hold.Reason, text)
				w.logger().Info("Hold", "node", hold.Node, "pod", klog.KObj(pod), "reason", hold.Reason,
					"detail", hold.Detail, "blockers", explain.Blockers(hold.Blockers))
			}
			if news != "" {
				now[pod.UID] = news
			}
		}
	}
	if len(now) == 0 {
		delete(a.said, w.key)
	} else {
		a.said[w.key] = now
	}
}

// words puts a hold into an event for the pod. What is news decides whether it is
// told again: for a driver's error its text, else the reason alone.
func words(hold attachment.Hold, pod *corev1.Pod, k key, s snapshot) (news, text string) {
	name := s.nameAt(hold.Node)
	switch hold.Reason {
	default: // short, or nothing that the pod's owner can help
		return "", ""
	case attachment.AttachFailed:
		return string(hold.Reason) + hold.Detail, explain.AttachFailed(name, hold.Detail)
	case attachment.AttachUnanswered:
		return string(hold.Reason), explain.AttachFailed(name, explain.Unanswered(k, explain.Attach))
	case attachment.DetachFailed:
		cause := explain.BeingDeleted(hold.Detail)
		return string(hold.Reason) + hold.Detail, explain.AttachFailed(name, cause)
	case attachment.DetachUnanswered:
		cause := explain.BeingDeleted(explain.Unanswered(k, explain.Detach))
		return string(hold.Reason), explain.AttachFailed(name, cause)
	case attachment.OtherWriterAttached:
		return string(hold.Reason), explain.MultiAttach(name, pod.Namespace, holders(hold, s), hold.Blockers)
	}
}

// holders are the pods that want the volume at the nodes that block it.
func holders(hold attachment.Hold, s snapshot) []explain.Pod {
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
