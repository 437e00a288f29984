package attachdetach

import (
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
)

// announcer tells pods what their volumes wait for, once per change of reason. What
// it remembers is lost with the process; then a pod is told once more.
type announcer struct {
	recorder record.EventRecorder

	mu sync.Mutex
	// said is what each waiting pod was told last of each volume.
	said map[attachment.VolumeKey]map[types.UID]string
}

func newAnnouncer(recorder record.EventRecorder) *announcer {
	return &announcer{recorder: recorder, said: map[attachment.VolumeKey]map[types.UID]string{}}
}

func (a *announcer) succeeded(pod *corev1.Pod, text string) {
	a.recorder.Event(pod, corev1.EventTypeNormal, explain.SuccessfulAttachVolume, text)
}

func (a *announcer) failed(pod *corev1.Pod, text string) {
	a.recorder.Event(pod, corev1.EventTypeWarning, explain.FailedAttachVolume, text)
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
		a.failed(pod, text)
	}
}

// holds tells the pods that wait for the volume why they do, if that is news.
func (a *announcer) holds(key attachment.VolumeKey, s snapshot, steps []attachment.Step, log logr.Logger) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before, now := a.said[key], map[types.UID]string{}
	for _, step := range steps {
		hold, ok := step.(attachment.Hold)
		if !ok || !hold.Wanted {
			continue
		}
		for _, pod := range s.pods[hold.Node] {
			news, text := words(hold, pod, s)
			if news == "" {
				// A wait that needs no words does not make an old reason new again.
				news = before[pod.UID]
			} else if news != before[pod.UID] {
				a.failed(pod, text)
				log.Info("Hold", "node", hold.Node, "pod", klog.KObj(pod), "reason", hold.Reason,
					"detail", hold.Detail, "blockers", explain.Blockers(hold.Blockers))
			}
			if news != "" {
				now[pod.UID] = news
			}
		}
	}
	if len(now) == 0 {
		delete(a.said, key)
	} else {
		a.said[key] = now
	}
}

// words puts a hold into an event for the pod. What is news decides whether it is
// told again: for a driver's error its text, else the reason alone.
func words(hold attachment.Hold, pod *corev1.Pod, s snapshot) (news, text string) {
	switch hold.Reason {
	default: // short, or nothing that the pod's owner can help
		return "", ""
	case attachment.AttachFailed:
		return string(hold.Reason) + hold.Detail, explain.AttachFailed(s.nameAt(hold.Node), hold.Detail)
	case attachment.DetachFailed:
		cause := explain.BeingDeleted(hold.Detail)
		return string(hold.Reason) + hold.Detail, explain.AttachFailed(s.nameAt(hold.Node), cause)
	case attachment.OtherWriterAttached:
		return string(hold.Reason), explain.MultiAttach(s.nameAt(hold.Node), pod.Namespace, holders(hold, s), hold.Blockers)
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
