package nodeagent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
)

// FollowPods sets the pods that the API binds to this node, and removes those whose containers have ended, until ctx ends. A pod with a
// terminal phase or a deleted object is only queried at the runtime: PodGC and users do either while containers run.
func (a *Agent) FollowPods(ctx context.Context) error {
	select {
	case <-a.owner.verified: // otherwise the pods of another cluster would have every volume unmounted
	case <-ctx.Done():
		return nil
	}
	containers, err := a.containers()
	if err != nil {
		return err
	}
	ends := newPodTerminations(a, containers, a.log)
	informer := newInformer(a.client.CoreV1().RESTClient(), "pods",
		fields.OneTermEqualSelector("spec.nodeName", a.config.NodeName), &corev1.Pod{})
	registered, err := informer.AddEventHandler(podEvents(a, ends))
	if err != nil {
		return fmt.Errorf("follow the pods of node %s: %w", a.config.NodeName, err)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-registered.HasSyncedChecker().Done():
			for _, uid := range a.pods.orphans() {
				ends.begin(uid)
			}
			a.pods.mu.Lock()
			a.pods.followed = true
			a.pods.mu.Unlock()
		case <-ctx.Done():
		}
	}()
	queried := make(chan struct{})
	go func() {
		defer close(queried)
		ends.run(ctx)
	}()
	informer.RunWithContext(ctx)
	<-stopped
	<-queried
	return nil
}

// podEvents sets pods as the API reports them, and starts the termination of those that have ended.
func podEvents(a *Agent, ends *podTerminations) cache.ResourceEventHandlerFuncs {
	set := func(object any) {
		pod := object.(*corev1.Pod)
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			ends.begin(pod.UID)
			return
		}
		ends.cancel(pod.UID)
		a.SetPod(pod)
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: set,
		UpdateFunc: func(old, object any) {
			// One event may stand for a deleted pod and a new one of the same name.
			if was := old.(*corev1.Pod); was.UID != object.(*corev1.Pod).UID {
				ends.begin(was.UID)
			}
			set(object)
		},
		DeleteFunc: func(object any) {
			if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			ends.begin(object.(*corev1.Pod).UID)
		},
	}
}
