package nodeagent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/nodeagent/worker"
	"belay.dev/belay/internal/nodevolume"
)

// podManager tracks the pods of the node and the volumes that they use. It calls its handlers without its lock.
type podManager struct {
	config Config
	client kubernetes.Interface
	log    logr.Logger
	events record.EventRecorder
	// ownerVerified reports whether the records are known to be this node's: see recordOwner.
	ownerVerified func() bool
	on            podHandlers
	// queue has the pods to look up.
	queue    workqueue.TypedRateLimitingInterface[types.UID]
	schedule schedule

	mu sync.Mutex
	// Under mu:
	known map[types.UID]*pod
	// podsSynced is set by PodsSynced; synced once the records are verified as well.
	podsSynced, synced bool
	// followed is set once FollowPods has listed the pods, and queries the runtime about all others.
	followed bool
}

// podHandlers are called on changes of pods.
type podHandlers struct {
	// wanted is called with volumes that the pod uses.
	wanted func(types.UID, []*volumeToMount)
	// released is called with the names of a pod's volumes when it was removed.
	released func(types.UID, []string)
	// changed is called with the names of a pod's volumes when the pod has changed.
	changed func([]string)
	// mayExpand reports whether a volume may have to be expanded on this node. readSize reads its size, at this resource version or a
	// later one.
	mayExpand func(*volumeToMount) bool
	readSize  func(context.Context, *volumeToMount, string) error
}

func newPodManager(config Config, client kubernetes.Interface, events record.EventRecorder, schedule schedule, ownerVerified func() bool, on podHandlers) *podManager {
	return &podManager{
		config: config, client: client, log: config.Logger, events: events, ownerVerified: ownerVerified, on: on, schedule: schedule,
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](lookUpFirst, lookUpMax)),
		known: map[types.UID]*pod{},
	}
}

// run looks pods up until the queue is shut down.
func (m *podManager) run(ctx context.Context) {
	worker.Serve(m.queue, func(uid types.UID) {
		switch err := m.lookUp(ctx, uid); {
		case err == nil:
			m.queue.Forget(uid)
		case ctx.Err() == nil:
			m.log.V(1).Info("Volumes of pod are not known yet, retrying", append(m.logValues(uid), "err", err)...)
			m.queue.AddRateLimited(uid)
		}
	})
}

// wakeAll queues every pod.
func (m *podManager) wakeAll() {
	for _, uid := range m.uids() {
		m.queue.Add(uid)
	}
}

// pod is one pod of the node. All fields are guarded by podManager.mu.
type pod struct {
	// object is nil if the pod is only known from records.
	object  *corev1.Pod
	removed bool
	// ending is why the containers of a pod that was deleted or has terminated may still run; otherwise nil.
	ending error
	// resolved is set once all CSI volumes of the pod are known.
	resolved bool
	toMount  []*volumeToMount
	// nonCSI are its claims that the agent does not mount.
	nonCSI []*nonCSIVolume
	// stale is set if a new ephemeral container may use another volume.
	stale bool
	// problem is why the volumes are not known yet; refused why they can never be mounted.
	problem error
	refused error
	// problemSince is when looking up the volumes first failed.
	problemSince time.Time
	lastEvent    eventDedup
	// tokens has its own lock.
	tokens *tokenCache
	// syncAt is when the pod's claims are read again.
	syncAt time.Time
	// volumes are the names of the volumes that track the pod.
	volumes map[string]bool
	// changed is closed and replaced when the pod or one of its volumes changes.
	changed chan struct{}
}

func newPod() *pod {
	return &pod{volumes: map[string]bool{}, changed: make(chan struct{})}
}

func (p *pod) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// volumeNames returns the names of the volumes that track the pod. The caller holds mu.
func (p *pod) volumeNames() []string { return slices.Collect(maps.Keys(p.volumes)) }

// state returns what is known of a pod.
func (m *podManager) state(uid types.UID) nodevolume.PodState {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.known[uid]
	if p == nil {
		return nodevolume.PodState{Removed: true}
	}
	return nodevolume.PodState{
		Set: p.object != nil, Removed: p.removed, Ending: p.ending != nil, Resolved: p.resolved, PodsSynced: m.synced,
		Deleting: p.object != nil && p.object.DeletionTimestamp != nil,
	}
}

// snapshot returns a copy of a pod, or false for an unknown one. Its slices must not be changed; its channel is closed at the next change.
func (m *podManager) snapshot(uid types.UID) (pod, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.known[uid]
	if p == nil {
		return pod{}, false
	}
	now := *p
	now.volumes = maps.Clone(p.volumes)
	return now, true
}

// notify wakes the waiters for a pod.
func (m *podManager) notify(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.known[uid]; p != nil {
		p.notify()
	}
}

// set adds or updates a pod whose volumes are to be mounted.
func (m *podManager) set(object *corev1.Pod) {
	m.mu.Lock()
	p := m.known[object.UID]
	if p == nil {
		p = newPod()
		m.known[object.UID] = p
	}
	if p.removed {
		m.mu.Unlock()
		return
	}
	changed := p.ending != nil
	p.ending = nil
	first := p.object == nil
	edited := !first && wasEdited(p.object, object)
	newVolumes := !first && !sameVolumes(p.object, object)
	deleted := !first && p.object.DeletionTimestamp == nil && object.DeletionTimestamp != nil
	p.object = object
	if deleted { // checkDeleting may now fail its waiters
		changed = true
		p.notify()
	}
	// Of a pod's volumes nothing else can change. Its status is ignored: a failed mount changes it, and would cut short its own back-off.
	if first || newVolumes {
		p.stale = newVolumes
		m.queue.Add(object.UID)
	}
	if edited {
		p.syncAt = time.Time{} // like kubelet, which syncs a changed pod at once
		m.queue.Add(object.UID)
	}
	names := p.volumeNames()
	m.mu.Unlock()
	if changed {
		m.on.changed(names)
	}
}

// remove marks pods whose containers have ended.
func (m *podManager) remove(uids ...types.UID) {
	for _, uid := range uids {
		m.mu.Lock()
		p := m.known[uid]
		if p == nil || p.removed {
			m.mu.Unlock()
			continue
		}
		p.removed = true
		p.notify()
		if len(p.volumes) == 0 {
			delete(m.known, uid)
		}
		names := p.volumeNames()
		m.mu.Unlock()
		m.on.released(uid, names)
	}
}

// ending marks a pod that was deleted or has terminated, with why its containers may still run. It returns whether the pod is known.
func (m *podManager) ending(uid types.UID, why error) bool {
	m.mu.Lock()
	p := m.known[uid]
	if p == nil || p.removed {
		m.mu.Unlock()
		return false
	}
	news := p.ending == nil || errors.Is(p.ending, errRuntimeNotQueried) && !errors.Is(why, errRuntimeNotQueried)
	if news || !errors.Is(why, errRuntimeNotQueried) {
		p.ending = why
	}
	names := p.volumeNames()
	m.mu.Unlock()
	if news { // the first answer of the runtime, too: an event may have been sent before it
		m.on.changed(names)
	}
	return true
}

// orphans returns the pods that are only known from records.
func (m *podManager) orphans() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var orphans []types.UID
	for uid, p := range m.known {
		if p.object == nil && !p.removed {
			orphans = append(orphans, uid)
		}
	}
	return orphans
}

// setPodsSynced records that every pod of the owner was set. It takes effect once the records are verified: the pods of another cluster
// prove nothing.
func (m *podManager) setPodsSynced() {
	m.mu.Lock()
	m.podsSynced = true
	m.mu.Unlock()
	m.removeOrphans()
}

// removeOrphans removes the pods that are only known from records, if all pods of the owner were set.
func (m *podManager) removeOrphans() {
	m.mu.Lock()
	m.synced = m.podsSynced && m.ownerVerified()
	synced := m.synced
	m.mu.Unlock()
	if !synced {
		return
	}
	orphans := m.orphans()
	for _, uid := range orphans {
		m.log.Info("Unmounting volumes of a pod that is only known from records", m.logValues(uid)...)
	}
	m.remove(orphans...)
}

// uids returns the UIDs of all known pods.
func (m *podManager) uids() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.known))
}

// recorded adds a volume that is in a record for the pod.
func (m *podManager) recorded(uid types.UID, volume string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known[uid] == nil {
		m.known[uid] = newPod()
	}
	m.known[uid].volumes[volume] = true
}

// addVolume adds a volume that tracks the pod. It returns false if the pod was removed.
func (m *podManager) addVolume(uid types.UID, volume string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.known[uid]
	if p == nil || p.removed {
		return false
	}
	p.volumes[volume] = true
	return true
}

// removeVolume removes a volume that no longer tracks the pod.
func (m *podManager) removeVolume(uid types.UID, volume string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.known[uid]
	if p == nil {
		return
	}
	delete(p.volumes, volume)
	p.notify()
	if len(p.volumes) == 0 && p.removed {
		delete(m.known, uid)
	}
}

// lookUp reads which CSI volumes a pod uses.
func (m *podManager) lookUp(ctx context.Context, uid types.UID) error {
	p, known := m.snapshot(uid)
	m.resync(ctx, uid) // the known volumes may have to be expanded in any case
	if !known || p.object == nil || p.removed || p.resolved && !p.stale {
		return nil
	}
	found, err := m.volumesToMount(ctx, p.object, p.toMount)
	if !m.applyResolved(uid, found, err) {
		return nil
	}
	// An unreadable claim must not block the pod's other volumes, which may be in use.
	m.on.wanted(uid, found.toMount)
	if err != nil {
		return err
	}
	m.markResolved(uid, p.object)
	return nil
}

// applyResolved stores what was read of a pod's volumes. It returns false if the pod was removed.
func (m *podManager) applyResolved(uid types.UID, found resolvedVolumes, err error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.known[uid]
	if p == nil || p.removed {
		return false
	}
	p.problem = err
	p.toMount = append(p.toMount, found.toMount...)
	m.emitNonCSIVolumes(p, found.nonCSI)
	if refusal, refused := errors.AsType[*RefusedError](found.refused); refused && p.refused == nil {
		m.emitFailedMount(p.object, refusal.Error())
		p.refused = refusal
		p.notify() // although another claim cannot be read
	}
	if err != nil && p.refused == nil {
		m.emitClaimProblem(p, err)
	}
	return true
}

// markResolved records that all volumes of a version of the pod are known.
func (m *podManager) markResolved(uid types.UID, as *corev1.Pod) {
	m.mu.Lock()
	p := m.known[uid]
	if p == nil {
		m.mu.Unlock()
		return
	}
	p.resolved, p.stale, p.problemSince = true, !sameVolumes(as, p.object), time.Time{}
	m.syncLater(uid, p)
	p.notify()
	names := p.volumeNames()
	m.mu.Unlock()
	m.on.changed(names) // volumes known from records may turn out to be unused
}

// emitFailedMount emits an event about a pod as a whole.
func (m *podManager) emitFailedMount(pod *corev1.Pod, cause string) {
	m.events.Event(pod, corev1.EventTypeWarning, explain.FailedMount, explain.MountsFailed(cause))
}

// emitClaimProblem emits an event about unreadable claims, after a delay and unless it repeats the last one. The caller holds mu.
func (m *podManager) emitClaimProblem(p *pod, err error) {
	now := time.Now()
	if p.problemSince.IsZero() {
		p.problemSince = now
	}
	if now.Sub(p.problemSince) < m.config.claimEventDelay {
		return
	}
	text := explain.NodeWait{Reason: ClaimNotReady, Since: p.problemSince, Detail: m.config.withRemedy(err).Error()}.Waits()
	if p.lastEvent.isNew(text, now) {
		m.emitFailedMount(p.object, text)
	}
}

// logValues returns the log keys and values of a pod.
func (m *podManager) logValues(uid types.UID) []any {
	n := logNames{uid: string(uid)}
	if p, known := m.snapshot(uid); known && p.object != nil {
		n.podNamespace, n.pod = p.object.Namespace, p.object.Name
	}
	return n.values()
}
