package inspect

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
)

// torn reads the pods of which an event says that a volume was detached under them again, with the times of their containers: who may write Events may
// say so, and whether it may be so shows in what is older, the mount or the VolumeAttachment.
func (r *run) torn(ctx context.Context) {
	if r.history {
		return
	}
	said, kept := map[types.UID]bool{}, map[types.UID]int{}
	for _, e := range r.into.Events {
		said[e.InvolvedObject.UID] = said[e.InvolvedObject.UID] || e.Reason == explain.VolumeDetachedInUse
	}
	var pods []diagnosis.Ref
	var namespaces []string
	for i, pod := range r.into.Pods {
		if said[pod.UID] && pod.UID != "" {
			kept[pod.UID], namespaces = i, append(namespaces, pod.Namespace)
			pods = append(pods, diagnosis.Ref{Resource: diagnosis.Pods, Namespace: pod.Namespace, Name: pod.Name})
		}
	}
	again := func(s *diagnosis.Snapshot, pod *corev1.Pod) {
		if i, ok := kept[pod.UID]; ok {
			s.Pods[i] = keepPod(pod, s.Pods[i].Spec.Volumes, true)
		}
	}
	if len(pods) <= few {
		var calls []func()
		for _, ref := range pods {
			calls = append(calls, func() { r.podAgain(ctx, ref, again) })
		}
		parallel(calls...)
		return
	}
	store := func(_ *diagnosis.Snapshot, pod *corev1.Pod) { r.add(func(s *diagnosis.Snapshot) { again(s, pod) }) }
	slices.Sort(namespaces)
	if namespaces = slices.Compact(namespaces); len(namespaces) > few && r.into.AllNamespaces {
		namespaces = []string{""}
	}
	for _, namespace := range namespaces {
		r.podsThat(ctx, namespace, store)
	}
}

// podAgain reads a pod that was read before.
func (r *run) podAgain(ctx context.Context, ref diagnosis.Ref, store func(*diagnosis.Snapshot, *corev1.Pod)) {
	pod, err := r.clients.CoreV1().Pods(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		r.failed(ref, "get", err)
		return
	}
	cut(pod)
	r.add(func(s *diagnosis.Snapshot) { store(s, pod) })
}
