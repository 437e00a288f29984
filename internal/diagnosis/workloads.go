package diagnosis

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
)

// singular are the names of the kinds of owners, as kubectl takes them.
var singular = map[Resource]string{StatefulSets: "statefulset", Deployments: "deployment", ReplicaSets: "replicaset", DaemonSets: "daemonset", Jobs: "job"}

// ofWorkload returns why an owner of pods cannot create one, and what those wait for that it has.
func (x *state) ofWorkload(w *Workload) (found []Finding, clear string) {
	name := singular[w.Resource] + "/" + w.Name
	owners := []types.UID{w.UID}
	for _, rs := range x.Workloads {
		if c := metav1.GetControllerOfNoCopy(rs); c != nil && c.UID == w.UID {
			owners = append(owners, rs.UID)
		}
	}
	var pods []*corev1.Pod
	for _, pod := range x.Pods {
		if c := metav1.GetControllerOfNoCopy(pod); c != nil && slices.Contains(owners, c.UID) && x.pods[join(pod.Namespace, pod.Name)] == pod {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, older)
	if f := x.notCreated(w, owners, name); f != nil {
		found = append(found, *f)
	}
	for _, pod := range pods {
		found = slices.Concat(found, x.ofPod(pod), x.usedElsewhere(pod))
	}
	clear = fmt.Sprintf("%s has %d of %d pods, and none waits for a volume", name, len(pods), w.Wanted)
	if w.Suspended {
		clear = fmt.Sprintf("%s is suspended (spec.suspend): it has %d pods, and creates none", name, len(pods))
	}
	return found, clear
}

// replaced returns the step that a correction of a pod's template needs if the pod belongs to a StatefulSet: that one replaces no pod before the pod is Running and
// Ready, which a pod that waits for the correction never is (k/k v1.36.3 pkg/controller/statefulset/stateful_set_control.go:473).
func replaced(pod *corev1.Pod, steps []explain.Step) []explain.Step {
	if pod == nil || pod.DeletionTimestamp != nil {
		return nil
	}
	o := metav1.GetControllerOfNoCopy(pod)
	if o == nil || o.Kind != "StatefulSet" || !explain.CorrectsTemplate(steps) {
		return nil
	}
	return []explain.Step{explain.ReplaceAfterCorrection(pod.Namespace, pod.Name, o.Name)}
}

// createRetried is how long an error of a create counts: a ReplicaSet tries again after 1000 s at most (client-go v0.36.3
// util/workqueue/default_rate_limiters.go DefaultTypedControllerRateLimiter).
const createRetried = 1000*time.Second + time.Minute

// notCreated returns why an owner cannot create its pods, nil if it has them. The texts are those of k/k v1.36.3
// pkg/controller/statefulset/stateful_pod_control.go:341,358 and pkg/controller/controller_utils.go:600.
func (x *state) notCreated(w *Workload, owners []types.UID, name string) *Finding {
	if w.Made >= w.Wanted {
		return nil
	}
	var last *corev1.Event
	for _, uid := range owners {
		if e := x.lastEvent(string(uid), explain.FailedCreate); e != nil && (last == nil || eventTime(e).After(eventTime(last))) {
			last = e
		}
	}
	if last == nil || x.Now.Sub(eventTime(last)) > createRetried {
		return nil
	}
	since := last.FirstTimestamp.Time
	if since.IsZero() {
		since = eventTime(last)
	}
	why := wait{reason: explain.PodNotCreated, since: since, fill: func(s *explain.Situation) { s.Workload, s.Namespace = name, w.Namespace }}
	why.detail = why.says(x.foreign(strings.TrimPrefix(last.Message, combined)))
	f := x.finding(nil, why, nil, nil)
	f.Subject = Ref{Resource: w.Resource, Namespace: w.Namespace, Name: w.Name}
	return &f
}

// claimNotCreated matches the event of a StatefulSet whose claim is refused (k/k v1.36.3 pkg/controller/statefulset/stateful_pod_control.go:358).
var claimNotCreated = regexp.MustCompile(`^create Claim (\S+) for Pod \S+ in StatefulSet \S+ failed error: `)

// stuckOwners returns the StatefulSets that cannot create a claim: their pods do not exist, so nothing else shows what waits for a volume.
func (x *state) stuckOwners(namespace string) (found []Finding) {
	for _, e := range x.Events {
		of := e.InvolvedObject
		message := strings.TrimPrefix(e.Message, combined)
		names := claimNotCreated.FindStringSubmatch(message)
		if e.Reason != explain.FailedCreate || of.Kind != "StatefulSet" || names == nil || !x.within(namespace, of.Namespace) || x.Now.Sub(eventTime(e)) > createRetried {
			continue
		}
		if x.claims[join(of.Namespace, names[1])] != nil || x.exists(Ref{Resource: Claims, Namespace: of.Namespace, Name: names[1]}) != decision.No {
			continue
		}
		w := wait{reason: explain.PodNotCreated, detail: x.foreign(message), quote: x.foreign(message), since: eventTime(e), fill: func(s *explain.Situation) {
			s.Workload, s.Namespace = singular[StatefulSets]+"/"+of.Name, of.Namespace
		}}
		f := x.finding(nil, w, nil, nil)
		f.Subject = Ref{Resource: StatefulSets, Namespace: of.Namespace, Name: of.Name}
		found = append(found, f)
	}
	return found
}
