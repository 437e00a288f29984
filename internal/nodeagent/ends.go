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

// Containers is what belay.dev/belay/node.Containers documents.
type Containers interface {
	Ended(ctx context.Context, podUID string) (release func(), err error)
}

// podLocksDir is where a runtime without CRI locks its pods.
const podLocksDir = "belay/pods"

// containers are those of the configuration, or the pods' locks below the root.
func (a *Agent) containers() (Containers, error) {
	if a.config.Containers != nil {
		return a.config.Containers, nil
	}
	return containers.NewLocks(a.root.Path(podLocksDir))
}

// The pauses before a runtime is asked again about a pod.
const (
	askFirst = 100 * time.Millisecond
	askMax   = 5 * time.Second
)

// podOwner is what podEnds does to pods.
type podOwner interface {
	// PodEnding says that a pod is over by its object and may run all the same, and why. It reports whether the pod has
	// anything here.
	PodEnding(uid types.UID, why error) bool
	RemovePod(uid types.UID)
	WaitUnmounted(ctx context.Context, uid types.UID) error
}

// podEnds holds the pods that are over by their objects, until the runtime says that their containers
// have ended.
type podEnds struct {
	owner      podOwner
	containers Containers
	log        logr.Logger
	queue      workqueue.TypedRateLimitingInterface[types.UID]

	mu sync.Mutex
	// pods are those that are waited for; true once the wait has been told. Guarded by mu.
	pods map[types.UID]bool
}

func newPodEnds(owner podOwner, containers Containers, log logr.Logger) *podEnds {
	return &podEnds{
		owner: owner, containers: containers, log: log, pods: map[types.UID]bool{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](askFirst, askMax)),
	}
}

// begin has the runtime asked about a pod that has volumes here.
func (e *podEnds) begin(uid types.UID) {
	if !e.owner.PodEnding(uid, errNotAsked) {
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

// callOff forgets a pod whose object says after all that it is not over.
func (e *podEnds) callOff(uid types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.pods, uid)
}

// run asks until ctx ends.
func (e *podEnds) run(ctx context.Context) {
	defer context.AfterFunc(ctx, e.queue.ShutDown)()
	serve(e.queue, func(uid types.UID) { e.ask(ctx, uid) })
}

func (e *podEnds) ask(ctx context.Context, uid types.UID) {
	e.mu.Lock()
	told, waits := e.pods[uid]
	e.mu.Unlock()
	if !waits {
		e.queue.Forget(uid)
		return
	}
	release, err := e.containers.Ended(ctx, string(uid))
	e.mu.Lock()
	if _, waits = e.pods[uid]; waits && err == nil {
		delete(e.pods, uid)
		e.owner.RemovePod(uid) // under the lock: it cannot be called off any more
	} else if waits {
		e.pods[uid] = true
		e.owner.PodEnding(uid, err) // and neither can this come after it was
	}
	e.mu.Unlock()
	switch {
	case err == nil && !waits:
		e.queue.Forget(uid)
		release()
	case err == nil:
		e.queue.Forget(uid)
		_ = e.owner.WaitUnmounted(ctx, uid) // or ctx has ended, and with it the lock
		release()
	case waits && ctx.Err() == nil:
		if !told {
			e.log.Error(err, "Keeping volumes of pod mounted, the pod was deleted or has terminated but its containers may still run", "pod", uid)
		}
		e.queue.AddRateLimited(uid)
	}
}
