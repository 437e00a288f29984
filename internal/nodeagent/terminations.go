package nodeagent

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"belay.dev/belay/internal/containers"
	"belay.dev/belay/internal/nodeagent/worker"
)

// podLocksDir is where a container runtime without CRI locks its pods.
const podLocksDir = "belay/pods"

// containers returns Config.Containers, or by default the pod locks below the root.
func (a *Agent) containers() (Containers, error) {
	if a.config.Containers != nil {
		return a.config.Containers, nil
	}
	return containers.NewLocks(a.root.Path(podLocksDir))
}

// The limits of the back-off between two queries of the runtime about a pod.
const (
	runtimeRetryMin = 100 * time.Millisecond
	runtimeRetryMax = 5 * time.Second
)

// podOwner is the part of Agent that podTerminations calls.
type podOwner interface {
	// PodEnding reports that a pod has terminated or was deleted, and why its containers may still run. It returns whether the agent knows
	// the pod.
	PodEnding(uid types.UID, why error) bool
	RemovePod(uid types.UID)
	WaitUnmounted(ctx context.Context, uid types.UID) error
}

// podTerminations tracks the pods that have terminated or were deleted in the API, until the runtime reports that their containers have
// ended.
type podTerminations struct {
	owner      podOwner
	containers Containers
	log        logr.Logger
	// names returns the log keys and values of a pod; nil for its UID.
	names func(types.UID) []any
	queue workqueue.TypedRateLimitingInterface[types.UID]

	mu sync.Mutex
	// pods is guarded by mu. The value is true once the wait has been logged.
	pods map[types.UID]bool
}

func newPodTerminations(owner podOwner, containers Containers, log logr.Logger) *podTerminations {
	return &podTerminations{
		owner: owner, containers: containers, log: log, pods: map[types.UID]bool{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](runtimeRetryMin, runtimeRetryMax)),
	}
}

// begin has the runtime queried about a pod that the agent knows.
func (t *podTerminations) begin(uid types.UID) {
	if !t.owner.PodEnding(uid, errRuntimeNotQueried) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, tracked := t.pods[uid]; tracked {
		return
	}
	t.pods[uid] = false
	t.queue.Add(uid)
}

// cancel stops tracking a pod whose object shows it running again.
func (t *podTerminations) cancel(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pods, uid)
}

// run queries the runtime until ctx ends.
func (t *podTerminations) run(ctx context.Context) {
	defer context.AfterFunc(ctx, t.queue.ShutDown)()
	worker.Serve(t.queue, func(uid types.UID) { t.check(ctx, uid) })
}

// check queries the runtime about a pod. It removes the pod if the containers have ended; otherwise it retries.
func (t *podTerminations) check(ctx context.Context, uid types.UID) {
	t.mu.Lock()
	logged, tracked := t.pods[uid]
	t.mu.Unlock()
	if !tracked {
		t.queue.Forget(uid)
		return
	}
	release, err := t.containers.Ended(ctx, string(uid))
	t.mu.Lock()
	if _, tracked = t.pods[uid]; tracked && err == nil {
		delete(t.pods, uid)
		t.owner.RemovePod(uid) // under the lock, so that cancel cannot come in between
	} else if tracked {
		t.pods[uid] = true
		t.owner.PodEnding(uid, err) // under the lock, so that it cannot follow cancel
	}
	t.mu.Unlock()
	switch {
	case err == nil && !tracked:
		t.queue.Forget(uid)
		release()
	case err == nil:
		t.queue.Forget(uid)
		_ = t.owner.WaitUnmounted(ctx, uid) // if ctx has ended, so has the lock
		release()
	case tracked && ctx.Err() == nil:
		if !logged {
			values := []any{"podUID", uid}
			if t.names != nil {
				values = t.names(uid)
			}
			t.log.Error(err, "Keeping volumes of deleted or terminated pod mounted because its containers may still run", values...)
		}
		t.queue.AddRateLimited(uid)
	}
}
