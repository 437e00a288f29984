package kube

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// newInformer creates the informer of a cache. That of Pods never sees a pod without a volume that may be attached: that is most
// pods of most clusters, and an API object takes 1.6 KB even if nearly empty. The volumes of a pod never change, so a pod is seen
// with all its events or with none.
func newInformer(source cache.ListerWatcher, object runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
	if _, ok := object.(*corev1.Pod); ok {
		source = podsWithVolumes(cache.ToListerWatcherWithContext(source))
	}
	return cache.NewSharedIndexInformer(source, object, resync, indexers)
}

// podsWithVolumes filters out the pods that have no volume to attach. Their events do not count as progress of the watch; bookmarks
// do.
func podsWithVolumes(source cache.ListerWatcherWithContext) cache.ListerWatcher {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := source.ListWithContext(ctx, options)
			if pods, ok := list.(*corev1.PodList); ok {
				pods.Items = slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return !HasVolumes(&pod) })
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			events, err := source.WatchWithContext(ctx, options)
			if err != nil {
				return nil, err
			}
			return drained{watch.Filter(events, func(event watch.Event) (watch.Event, bool) {
				pod, ok := event.Object.(*corev1.Pod)
				return event, !ok || event.Type == watch.Bookmark || HasVolumes(pod)
			})}, nil
		},
	}
}

// HasVolumes reports whether the pod has a volume that may be attached.
func HasVolumes(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if mayBeAttached(&pod.Spec.Volumes[i]) {
			return true
		}
	}
	return false
}

// HasStorage reports whether the pod has a volume whose data is neither the node's own nor the API server's: one that may be attached, or that any node can
// mount. A path of the node, what the kubelet makes, and images stay behind with the machine.
func HasStorage(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		own := v.EmptyDir != nil || v.HostPath != nil || v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil ||
			v.GitRepo != nil || v.Image != nil
		return !own
	})
}

func mayBeAttached(volume *corev1.Volume) bool {
	return volume.PersistentVolumeClaim != nil || volume.Ephemeral != nil || hasInlineVolume(volume)
}

// A pod needs all of its volumes on one node, and its creator chooses how many there are: the API server limits only the object, to 1.5 MB
// (k/k v1.36.3 pkg/apis/core/validation/validation.go ValidateVolumes). The documentation of Kubernetes names at most 127 attached volumes on
// a node (https://kubernetes.io/docs/concepts/storage/storage-limits/).
const (
	// MaxVolumes is how many volumes of a pod may be attached.
	MaxVolumes = 256
	// maxInline is how large those among them are together that have no claim, in bytes as the API server stores them.
	maxInline = 64 << 10
)

// TooManyVolumes reports whether a pod has more volumes to attach than a node has room for. It gets none. What the kubelet of its node reports as
// mounted is never too much, because a client that creates pods cannot write that.
func TooManyVolumes(pod *corev1.Pod) bool {
	return tooMany(attachable(pod)) && !VolumesMounted(pod)
}

func tooMany(n, inline int) bool { return n > MaxVolumes || inline > maxInline }

// attachable counts the volumes of a pod that may be attached, and the bytes of those that have no claim.
func attachable(pod *corev1.Pod) (n, inline int) {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if !mayBeAttached(v) {
			continue
		}
		n++
		if hasInlineVolume(v) {
			inline += v.Size()
		}
	}
	return n, inline
}

// drained is a filtered watch whose goroutine ends when it is stopped: it would wait for a reader of its last event.
type drained struct{ watch.Interface }

// Stop ends the watch.
func (d drained) Stop() {
	d.Interface.Stop()
	for range d.ResultChan() { //nolint:revive // nothing is done with what comes
	}
}

// MirrorPod reports whether a kubelet made the pod for a static pod. NodeRestriction admits no claim in one, but volumes in its spec
// (k8s.io/kubernetes v1.36.3 plugin/pkg/admission/noderestriction/admission.go admitPodCreate).
func MirrorPod(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

// MayName reports whether a pod may have a volume with these PersistentVolumes because its spec names the volume, without a claim. Who creates
// pods in a namespace has a right to what the claims of that namespace are bound to, and to no PersistentVolume that another namespace's claim is
// bound to, or was. What a mirror pod names is a claim of the node on a volume that another client has made.
func MayName(pod *corev1.Pod, volumes []*corev1.PersistentVolume) bool {
	if len(volumes) > 0 && MirrorPod(pod) {
		return false
	}
	bound := false
	for _, pv := range volumes {
		if ref := pv.Spec.ClaimRef; ref != nil {
			if ref.Namespace == pod.Namespace {
				return true
			}
			bound = true
		}
	}
	return !bound
}
