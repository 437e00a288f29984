package inspect

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// History reads what About reads and what it leaves out because only the past needs it: managed fields of VolumeAttachments, the
// conditions of pods, and the events of the claims, their volumes, and the pods that had them.
func (r *Reader) History(ctx context.Context, subject diagnosis.Ref) *diagnosis.Snapshot {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	x := r.start()
	x.history = true
	x.about(ctx, subject)
	x.hideForbidden(func() { x.past(ctx) })
	return x.finish()
}

// past reads events. Those of a pod that is gone are found by its name and UID, which the event of its attach has.
func (r *run) past(ctx context.Context) {
	var calls []func()
	namespaces := map[string]bool{}
	users := map[string]string{} // namespace by UID
	for _, claim := range r.into.Claims {
		namespaces[claim.Namespace] = true
		if len(calls) < 2*few {
			calls = append(calls, func() { r.eventsOf(ctx, claim.Namespace, string(claim.UID)) })
		}
		for _, pod := range r.into.Pods {
			if kube.UsesClaim(pod, claim) && len(users) < few {
				users[string(pod.UID)] = pod.Namespace
			}
		}
	}
	for i, pv := range r.into.Volumes {
		if i < few {
			calls = append(calls, func() { r.eventsOf(ctx, metav1.NamespaceDefault, string(pv.UID)) })
		}
	}
	for namespace := range namespaces {
		calls = append(calls, func() { r.attaches(ctx, namespace) })
	}
	parallel(calls...)
	calls = nil
	for ref := range r.earlierUsers() {
		calls = append(calls, func() { r.eventsOfPod(ctx, ref) })
	}
	for uid, namespace := range users {
		calls = append(calls, func() { r.eventsOf(ctx, namespace, uid) })
	}
	parallel(calls...)
}

// attaches reads the events of the attaches in a namespace.
func (r *run) attaches(ctx context.Context, namespace string) {
	r.events(ctx, namespace, fields.OneTermEqualSelector("reason", explain.SuccessfulAttachVolume))
}

// eventsOfPod reads the events of the pods of a name: some components leave the UID out.
func (r *run) eventsOfPod(ctx context.Context, pod diagnosis.Ref) {
	options := metav1.ListOptions{FieldSelector: fields.Set{"involvedObject.kind": "Pod", "involvedObject.name": pod.Name}.String()}
	list(ctx, r, diagnosis.Ref{Resource: diagnosis.Events, Namespace: pod.Namespace}, options, pagesOf[corev1.Event](r.clients.CoreV1().RESTClient(), diagnosis.Events, pod.Namespace), keepEvent)
}

// earlierUsers returns the last pods that one of the volumes was attached for.
func (r *run) earlierUsers() map[diagnosis.Ref]bool {
	events := slices.Clone(r.into.Events)
	slices.SortFunc(events, func(a, b *corev1.Event) int { return b.LastTimestamp.Compare(a.LastTimestamp.Time) })
	users := map[diagnosis.Ref]bool{}
	for _, e := range events {
		if e.Reason != explain.SuccessfulAttachVolume || len(users) == few {
			continue
		}
		if slices.ContainsFunc(r.into.Volumes, func(pv *corev1.PersistentVolume) bool { return strings.Contains(e.Message, `"`+pv.Name+`"`) }) {
			users[diagnosis.Ref{Resource: diagnosis.Pods, Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name}] = true
		}
	}
	return users
}
