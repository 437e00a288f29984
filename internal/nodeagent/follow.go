package nodeagent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
)

// FollowPods sets and removes the pods that are bound to this node in the API,
// until ctx ends. A pod wants its volumes until it has run to its end or its
// object is gone.
func (a *Agent) FollowPods(ctx context.Context) error {
	select {
	case <-a.owner.sure: // by the pods of another cluster all would be taken down
	case <-ctx.Done():
		return nil
	}
	informer := newInformer(a.client.CoreV1().RESTClient(), "pods",
		fields.OneTermEqualSelector("spec.nodeName", a.config.NodeName), &corev1.Pod{})
	registered, err := informer.AddEventHandler(a.podEvents())
	if err != nil {
		return fmt.Errorf("follow the pods of node %s: %w", a.config.NodeName, err)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-registered.HasSyncedChecker().Done():
			a.PodsSynced()
		case <-ctx.Done():
		}
	}()
	informer.RunWithContext(ctx)
	<-stopped
	return nil
}

// podEvents sets and removes pods as the API says.
func (a *Agent) podEvents() cache.ResourceEventHandlerFuncs {
	set := func(object any) {
		pod := object.(*corev1.Pod)
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			a.RemovePod(pod.UID)
			return
		}
		a.SetPod(pod)
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: set,
		UpdateFunc: func(old, object any) {
			// One event may stand for a pod that went and another of its name that came.
			if was := old.(*corev1.Pod); was.UID != object.(*corev1.Pod).UID {
				a.RemovePod(was.UID)
			}
			set(object)
		},
		DeleteFunc: func(object any) {
			if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			a.RemovePod(object.(*corev1.Pod).UID)
		},
	}
}
