package nodeagent

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"belay.dev/belay/internal/containers"
)

// Containers is documented at belay.dev/belay/node.Containers.
type Containers interface {
	Ended(ctx context.Context, podUID string) (release func(), err error)
}

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
	queue      workqueue.TypedRateLimitingInterface[types.UID]

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
func (e *podTerminations) begin(uid types.UID) {
	if !e.owner.PodEnding(uid, errRuntimeNotQueried) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, waits := e.pods[uid]; waits {
		return
	}
	e.pods[uid] = false
	e.queue.Add(uid)
}

// cancel stops tracking a pod whose object shows it running again.
func (e *podTerminations) cancel(uid types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.pods, uid)
}

// run queries the runtime until ctx ends.
func (e *podTerminations) run(ctx context.Context) {
	defer context.AfterFunc(ctx, e.queue.ShutDown)()
	serve(e.queue, func(uid types.UID) { e.check(ctx, uid) })
}

func (e *podTerminations) check(ctx context.Context, uid types.UID) {
	e.mu.Lock()
	logged, waits := e.pods[uid]
	e.mu.Unlock()
	if !waits {
		e.queue.Forget(uid)
		return
	}
	release, err := e.containers.Ended(ctx, string(uid))
	e.mu.Lock()
	if _, waits = e.pods[uid]; waits && err == nil {
		delete(e.pods, uid)
		e.owner.RemovePod(uid) // under the lock, so that cancel cannot come in between
	} else if waits {
		e.pods[uid] = true
		e.owner.PodEnding(uid, err) // under the lock, so that it cannot follow cancel
	}
	e.mu.Unlock()
	switch {
	case err == nil && !waits:
		e.queue.Forget(uid)
		release()
	case err == nil:
		e.queue.Forget(uid)
		_ = e.owner.WaitUnmounted(ctx, uid) // if ctx has ended, so has the lock
		release()
	case waits && ctx.Err() == nil:
		if !logged {
			e.log.Error(err, "Keeping volumes of pod mounted, the pod was deleted or has terminated but its containers may still run", "pod", uid)
		}
		e.queue.AddRateLimited(uid)
	}
}
