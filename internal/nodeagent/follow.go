package nodeagent

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/nodeagent/worker"
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
	terminations := newPodTerminations(a, containers, a.log)
	terminations.names = a.pods.logValues
	informer := worker.NewInformer(a.client.CoreV1().RESTClient(), "pods",
		fields.OneTermEqualSelector("spec.nodeName", a.config.NodeName), &corev1.Pod{})
	registered, err := informer.AddEventHandler(podEvents(a, terminations))
	if err != nil {
		return fmt.Errorf("follow the pods of node %s: %w", a.config.NodeName, err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		select {
		case <-registered.HasSyncedChecker().Done():
			for _, uid := range a.pods.orphans() {
				terminations.begin(uid)
			}
			a.pods.mu.Lock()
			a.pods.followed = true
			a.pods.mu.Unlock()
		case <-ctx.Done():
		}
	})
	running.Go(func() { terminations.run(ctx) })
	informer.RunWithContext(ctx)
	running.Wait()
	return nil
}

// podEvents sets pods as the API reports them, and starts the termination of those that have ended.
func podEvents(a *Agent, terminations *podTerminations) cache.ResourceEventHandlerFuncs {
	set := func(object any) {
		pod := object.(*corev1.Pod)
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			terminations.begin(pod.UID)
			return
		}
		terminations.cancel(pod.UID)
		a.SetPod(pod)
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: set,
		UpdateFunc: func(old, object any) {
			// One event may stand for a deleted pod and a new one of the same name.
			if was := old.(*corev1.Pod); was.UID != object.(*corev1.Pod).UID {
				terminations.begin(was.UID)
			}
			set(object)
		},
		DeleteFunc: func(object any) {
			if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			terminations.begin(object.(*corev1.Pod).UID)
		},
	}
}
