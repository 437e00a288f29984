package nodes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	podutil "k8s.io/kubernetes/pkg/util/pod"

	"belay.dev/belay/node"
)

// mountWait is how long a pod waits for its volumes before an event says what it
// waits for; then it waits on. kubelet waits for 2m3s at a time (podAttachAndMountTimeout of its
// volume manager) and has no event for a wait alone, only for errors (k/k
// pkg/kubelet/kubelet.go, SyncPod); the lab says it because a person watches. Not sooner,
// because a healthy move on a busy machine may take some seconds. A step that fails has an
// event of the node agent's own, at once.
const mountWait = 20 * time.Second

var errMountWait = fmt.Errorf("timed out after %v, and waiting again", mountWait)

// forcedGrace is what the containers of a pod get whose object is gone already.
const forcedGrace = time.Second

// writeTimeout bounds one write of a status.
const writeTimeout = 10 * time.Second

// Writes to the API server that fail are tried again with these pauses.
const (
	shortestRetry = 100 * time.Millisecond
	longestRetry  = 5 * time.Second
)

// volumes is what belay's node agent does for pods; *node.Agent.
type volumes interface {
	SetPod(pod *corev1.Pod)
	RemovePod(uid types.UID)
	WaitMounted(ctx context.Context, uid types.UID) ([]node.Mount, error)
	WaitUnmounted(ctx context.Context, uid types.UID) error
}

// runtimeDeps are what all pods of a node share.
type runtimeDeps struct {
	config  Config
	client  kubernetes.Interface
	volumes volumes
	events  record.EventRecorder
}

// podsDir holds a directory per pod, named by its UID: the node's memory of what it
// started.
func podsDir(config Config) string { return filepath.Join(config.Dir, "containers") }

// podWorker brings one pod up, keeps it running and takes it down. One goroutine
// (live) leads; each container has one of its own.
type podWorker struct {
	runtimeDeps
	uid types.UID
	dir string
	// changed wakes the status writer; capacity 1.
	changed chan struct{}
	// graceChanged wakes the stop of containers when the pod changed meanwhile; capacity 1.
	graceChanged chan struct{}
	// leaving is closed, by leave, when the pod is to be removed.
	leaving chan struct{}
	leave   func()
	// ended is closed when run has returned.
	ended chan struct{}

	mu sync.Mutex
	// The rest is guarded by mu.
	pod     *corev1.Pod
	gone    bool // the object is gone
	state   podState
	live    map[string]*container // containers that were started and have not ended
	ready   map[string]*prepared  // container-execs that wait for their spec
	written *corev1.Pod           // the pod as of our last write
}

// newPodWorker finds again what an earlier agent started of the pod, and asks for its
// volumes.
func newPodWorker(deps runtimeDeps, pod *corev1.Pod) *podWorker {
	k := &podWorker{
		runtimeDeps: deps, uid: pod.UID, pod: pod, dir: filepath.Join(podsDir(deps.config), string(pod.UID)),
		changed: make(chan struct{}, 1), graceChanged: make(chan struct{}, 1), leaving: make(chan struct{}), ended: make(chan struct{}),
		state: podState{began: time.Now(), containers: map[string]containerState{}},
		live:  map[string]*container{}, ready: map[string]*prepared{},
	}
	k.leave = sync.OnceFunc(func() { close(k.leaving) })
	k.recall()
	k.update(pod)
	// A pod whose containers have ended does not get its volumes again; one whose
	// containers run keeps them whatever else holds.
	if k.anyRunning() || !finishedPhase(pod) && pod.DeletionTimestamp == nil {
		k.volumes.SetPod(pod)
	}
	return k
}

func (k *podWorker) anyRunning() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.live {
		if c.running() {
			return true
		}
	}
	return false
}

// update takes a newer version of the object.
func (k *podWorker) update(pod *corev1.Pod) {
	k.mu.Lock()
	k.pod = pod
	k.mu.Unlock()
	if pod.DeletionTimestamp != nil {
		k.leave()
		wake(k.graceChanged)
	}
}

// removed says that the object is gone from the API server.
func (k *podWorker) removed() {
	k.mu.Lock()
	k.gone = true
	k.mu.Unlock()
	k.leave()
	wake(k.graceChanged)
}

func wake(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default: // it is awake
	}
}

func (k *podWorker) object() *corev1.Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pod
}

// run lives the whole life of the pod. It returns when the pod is gone, or when ctx
// ends: then the containers keep running and the next agent finds them.
func (k *podWorker) run(ctx context.Context) {
	leaving, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		defer stop()
		select {
		case <-k.leaving:
		case <-leaving.Done():
		}
	}()

	writing, stopWriting := context.WithCancel(ctx)
	var writer sync.WaitGroup
	writer.Go(func() { k.writeStatus(writing) })
	k.changedState()
	k.bringUp(leaving)
	if ctx.Err() == nil {
		// All containers have ended for good, or the pod is being deleted. A finished pod releases
		// its volumes at once and then waits for its deletion.
		k.stopContainers(ctx)
		if ctx.Err() == nil { // else containers may run, and the next agent finds them
			k.volumes.RemovePod(k.uid)
		}
		<-leaving.Done()
	}
	if ctx.Err() != nil {
		stopWriting()
		writer.Wait()
		k.discardPrepared()
		return
	}
	stopWriting()
	writer.Wait()
	k.finish(ctx)
}

// bringUp mounts, runs the init containers and then the containers until they have
// ended for good or ctx ends.
func (k *podWorker) bringUp(ctx context.Context) {
	pod := k.object()
	if finishedPhase(pod) || ctx.Err() != nil {
		return
	}
	if err := checkVolumes(pod); err != nil {
		k.events.Event(pod, corev1.EventTypeWarning, "FailedMount", err.Error())
		<-ctx.Done()
		return
	}
	k.prepareFirst(pod)
	mounted, ok := k.awaitVolumes(ctx, pod)
	if !ok {
		return
	}
	spec := podSpec{pod: pod, dir: k.dir, ledger: k.config.Programs.Ledger, address: k.config.Address, mounted: mounted}
	for _, c := range pod.Spec.InitContainers {
		k.keepContainer(ctx, spec, c, initPolicy(pod))
		if !k.containerState(c.Name).succeeded() {
			return
		}
	}
	var workers sync.WaitGroup
	for _, c := range pod.Spec.Containers {
		workers.Go(func() { k.keepContainer(ctx, spec, c, pod.Spec.RestartPolicy) })
	}
	workers.Wait()
}

// initPolicy: an init container that succeeded is never run again.
func initPolicy(pod *corev1.Pod) corev1.RestartPolicy {
	if pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
		return corev1.RestartPolicyNever
	}
	return corev1.RestartPolicyOnFailure
}

func finishedPhase(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// awaitVolumes waits until everything is mounted, and says in an event what a long
// wait is for.
func (k *podWorker) awaitVolumes(ctx context.Context, pod *corev1.Pod) (map[string]node.Mount, bool) {
	pause := shortestRetry
	for {
		waiting, cancel := context.WithTimeoutCause(ctx, mountWait, errMountWait)
		mounts, err := k.volumes.WaitMounted(waiting, k.uid)
		inTime := waiting.Err() == nil
		cancel()
		if err == nil {
			byName := map[string]node.Mount{}
			for _, mount := range mounts {
				byName[mount.VolumeName] = mount
			}
			k.mu.Lock()
			k.state.mounted = true
			k.mu.Unlock()
			k.changedState()
			return byName, true
		}
		if ctx.Err() != nil {
			return nil, false
		}
		k.events.Event(pod, corev1.EventTypeWarning, "FailedMount", mountFailure(err))
		if inTime && !patience(ctx, &pause) {
			return nil, false
		}
	}
}

// mountFailure is kubelet's message, in one line.
func mountFailure(err error) string {
	return "Unable to attach or mount volumes: " + strings.ReplaceAll(err.Error(), "\n", ": ")
}

// patience pauses before the next try, longer each time. It is false if ctx ended.
func patience(ctx context.Context, pause *time.Duration) bool {
	timer := time.NewTimer(*pause)
	defer timer.Stop()
	*pause = min(2**pause, longestRetry)
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// finish lets the pod go: its volumes are unmounted, its object is deleted, its
// directory removed.
func (k *podWorker) finish(ctx context.Context) {
	log := klog.FromContext(ctx).WithValues("pod", klog.KObj(k.object()))
	if err := k.volumes.WaitUnmounted(ctx, k.uid); err != nil {
		log.Error(err, "volumes stay mounted")
		return
	}
	pause := shortestRetry
	for !k.isGone() {
		err := k.client.CoreV1().Pods(k.object().Namespace).Delete(ctx, k.object().Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(k.uid)),
		})
		if err == nil {
			break
		}
		// "Not found" is not reliable: for a node, NodeRestriction returns it from a
		// cache of its own, also while that is empty because the API server has just
		// started. Only the watch says that the object, or this incarnation of it, is gone.
		if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			log.Error(err, "pod could not be deleted, trying again")
		}
		if !patience(ctx, &pause) {
			return
		}
	}
	if err := os.RemoveAll(k.dir); err != nil {
		log.Error(err, "directory of the pod stays")
	}
}

func (k *podWorker) isGone() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.gone
}

// changedState wakes the status writer.
func (k *podWorker) changedState() { wake(k.changed) }

func (k *podWorker) containerState(name string) containerState {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state.containers[name]
}

func (k *podWorker) setContainer(name string, change func(*containerState)) {
	k.mu.Lock()
	state := k.state.containers[name]
	change(&state)
	k.state.containers[name] = state
	k.mu.Unlock()
	k.changedState()
}

// writeStatus writes the newest status whenever it has changed; what changes while a
// write is in flight goes out together after it. A write that has begun is ended also
// when ctx ends, and then what is left is written once.
func (k *podWorker) writeStatus(ctx context.Context) {
	write := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
		defer cancel()
		return k.patchStatus(ctx)
	}
	pause := shortestRetry
	for {
		select {
		case <-ctx.Done():
			select {
			case <-k.changed:
				_ = write() // the pod is about to go, or the next agent writes it
			default:
			}
			return
		case <-k.changed:
		}
		err := write()
		if err == nil {
			pause = shortestRetry
			continue
		}
		klog.FromContext(ctx).Error(err, "status of pod could not be written, trying again")
		wake(k.changed)
		patience(ctx, &pause)
	}
}

func (k *podWorker) patchStatus(ctx context.Context) error {
	k.mu.Lock()
	pod, gone := k.pod, k.gone
	if k.written != nil {
		// Our own last write may not have come back by the watch yet.
		pod = pod.DeepCopy()
		pod.Status = k.written.Status
	}
	status := podStatus(pod, k.config.Address, k.state, time.Now())
	k.mu.Unlock()
	if gone || finishedPhase(k.object()) {
		return nil
	}
	updated, _, unchanged, err := podutil.PatchPodStatus(ctx, k.client, pod.Namespace, pod.Name, k.uid, pod.Status, status)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // gone, or another pod of this name
	case err != nil:
		return fmt.Errorf("write status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	case unchanged || updated == nil:
		return nil
	}
	k.mu.Lock()
	k.written = updated
	k.mu.Unlock()
	return nil
}
