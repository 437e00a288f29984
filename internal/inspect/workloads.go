package inspect

import (
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// workload reads an owner of pods, those pods, and what it could not create.
func (r *run) workload(ctx context.Context, ref diagnosis.Ref) {
	apps, batch := r.clients.AppsV1(), r.clients.BatchV1()
	var owner *metav1.ObjectMeta
	switch ref.Resource {
	case diagnosis.StatefulSets:
		owner = keepWorkload(get(ctx, r, ref, apps.StatefulSets(ref.Namespace).Get, func(s *diagnosis.Snapshot, o *appsv1.StatefulSet) {
			s.Workloads = append(s.Workloads, asWorkload(ref.Resource, o.ObjectMeta, ptr.Deref(o.Spec.Replicas, 1), o.Status.Replicas))
		}))
	case diagnosis.ReplicaSets:
		owner = keepWorkload(get(ctx, r, ref, apps.ReplicaSets(ref.Namespace).Get, storeReplicaSet))
	case diagnosis.DaemonSets:
		owner = keepWorkload(get(ctx, r, ref, apps.DaemonSets(ref.Namespace).Get, func(s *diagnosis.Snapshot, o *appsv1.DaemonSet) {
			s.Workloads = append(s.Workloads, asWorkload(ref.Resource, o.ObjectMeta, o.Status.DesiredNumberScheduled, o.Status.CurrentNumberScheduled))
		}))
	case diagnosis.Jobs:
		owner = keepWorkload(get(ctx, r, ref, batch.Jobs(ref.Namespace).Get, func(s *diagnosis.Snapshot, o *batchv1.Job) {
			w := asWorkload(ref.Resource, o.ObjectMeta, ptr.Deref(o.Spec.Parallelism, 1), o.Status.Active+o.Status.Succeeded)
			w.Suspended = ptr.Deref(o.Spec.Suspend, false)
			s.Workloads = append(s.Workloads, w)
		}))
	case diagnosis.Deployments:
		owner = keepWorkload(get(ctx, r, ref, apps.Deployments(ref.Namespace).Get, func(s *diagnosis.Snapshot, o *appsv1.Deployment) {
			s.Workloads = append(s.Workloads, asWorkload(ref.Resource, o.ObjectMeta, ptr.Deref(o.Spec.Replicas, 1), o.Status.Replicas))
		}))
		if owner != nil {
			uid := owner.UID
			list(ctx, r, diagnosis.Ref{Resource: diagnosis.ReplicaSets, Namespace: ref.Namespace}, metav1.ListOptions{}, pagesOf[appsv1.ReplicaSet](apps.RESTClient(), diagnosis.ReplicaSets, ref.Namespace),
				func(s *diagnosis.Snapshot, o *appsv1.ReplicaSet) {
					if c := metav1.GetControllerOfNoCopy(o); c != nil && c.UID == uid {
						storeReplicaSet(s, o)
					}
				})
		}
	default:
	}
	if owner == nil {
		return
	}
	r.mayName(ref.Namespace)
	var owners []types.UID
	r.add(func(s *diagnosis.Snapshot) {
		for _, w := range s.Workloads {
			owners = append(owners, w.UID)
		}
	})
	parallel(
		func() {
			r.podsThat(ctx, ref.Namespace, func(s *diagnosis.Snapshot, pod *corev1.Pod) {
				if c := metav1.GetControllerOfNoCopy(pod); c != nil && slices.Contains(owners, c.UID) {
					s.Pods = append(s.Pods, keepPod(pod, kube.StripVolumes(pod), r.history))
				}
			})
		},
		func() { r.eventsWith(ctx, ref.Namespace, explain.FailedCreate) },
	)
}

// object is an object that has metadata.
type object[T any] interface {
	*T
	metav1.Object
}

// keepWorkload returns the metadata of an object that was read, nil without one.
func keepWorkload[T any, P object[T]](o P) *metav1.ObjectMeta {
	if o == nil {
		return nil
	}
	return &metav1.ObjectMeta{Name: o.GetName(), Namespace: o.GetNamespace(), UID: o.GetUID()}
}

func storeReplicaSet(s *diagnosis.Snapshot, o *appsv1.ReplicaSet) {
	s.Workloads = append(s.Workloads, asWorkload(diagnosis.ReplicaSets, o.ObjectMeta, ptr.Deref(o.Spec.Replicas, 1), o.Status.Replicas))
}

func asWorkload(resource diagnosis.Resource, meta metav1.ObjectMeta, wanted, made int32) *diagnosis.Workload {
	return &diagnosis.Workload{ObjectMeta: keepMeta(meta), Resource: resource, Wanted: wanted, Made: made}
}
