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
	"belay.dev/belay/internal/nodevolume"
)

// podManager owns what has been said of the pods of the node, and what they want. It calls its handlers without its lock.
type podManager struct {
	config Config
	client kubernetes.Interface
	log    logr.Logger
	events record.EventRecorder
	// sure says that the records are known to be this node's: see recordOwner.
	sure func() bool
	on   podHandlers
	// queue holds the pods to look up.
	queue workqueue.TypedRateLimitingInterface[types.UID]
	beat  schedule

	mu sync.Mutex
	// Under mu:
	known map[types.UID]*pod
	// allSaid: the pods' owner has said all it knows. synced: and that is believed.
	allSaid, synced bool
	// followed: the pods of the API are known, and of all others the runtime is asked.
	followed bool
}

// podHandlers are told what comes of pods.
type podHandlers struct {
	// wanted: the pod wants these volumes.
	wanted func(types.UID, []*wantedVolume)
	// released: the pod is not wanted any more, and has something of these volumes.
	released func(types.UID, []string)
	// changed: something else is known of the pods of these volumes.
	changed func([]string)
	// grows says whether a wanted volume may grow, and readSize looks whether it has, in objects of this resource version at least.
	grows    func(*wantedVolume) bool
	readSize func(context.Context, *wantedVolume, string) error
}

func newPodManager(config Config, client kubernetes.Interface, events record.EventRecorder, beat schedule, sure func() bool, on podHandlers) *podManager {
	return &podManager{
		config: config, client: client, log: config.Logger, events: events, sure: sure, on: on, beat: beat,
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](lookUpFirst, lookUpMax)),
		known: map[types.UID]*pod{},
	}
}

// run looks pods up until the queue is shut down.
func (m *podManager) run(ctx context.Context) {
	serve(m.queue, func(uid types.UID) {
		switch err := m.lookUp(ctx, uid); {
		case err == nil:
			m.queue.Forget(uid)
		case ctx.Err() == nil:
			m.log.V(1).Info("Volumes of pod are not known yet", "pod", uid, "err", err)
			m.queue.AddRateLimited(uid)
		}
	})
}

// wakeAll has every pod looked up.
func (m *podManager) wakeAll() {
	for _, uid := range m.uids() {
		m.queue.Add(uid)
	}
}

// pod is one pod of the node. All fields are under podManager.mu.
type pod struct {
	// object is nil if the pod is known from records alone.
	object  *corev1.Pod
	removed bool
	// ending is why the pod's containers may run though its object says that it is over; nil if it is not.
	ending error
	// resolved: it is known which CSI volumes the pod wants.
	resolved bool
	wants    []*wantedVolume
	// others are those of its claims that this agent does not mount.
	others []*otherVolume
	// stale: an ephemeral container came since, and with it perhaps a volume that no other uses.
	stale bool
	// problem is why it is not known yet; refused, why it never will be mounted.
	problem error
	refused error
	// problemSince is when looking it up failed first, told the problem that was sent as an event.
	problemSince time.Time
	told         eventDedup
	// tokens are those that drivers were given for the pod. Has a lock of its own.
	tokens *tokenCache
	// syncAt is when its claims are read again.
	syncAt time.Time
	// volumes are the names of those that have an entry for the pod.
	volumes map[string]bool
	// changed is closed, and made anew, when something of the above has changed.
	changed chan struct{}
}

func newPod() *pod {
	return &pod{volumes: map[string]bool{}, changed: make(chan struct{})}
}

func (p *pod) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// names are the volumes that have an entry for the pod. The caller holds mu.
func (p *pod) names() []string { return slices.Collect(maps.Keys(p.volumes)) }

// state is what has been said of a pod.
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

// look is a pod as it is now. Its lists must not be changed; its channel is closed at the next change. It reports false
// for a pod that is not known.
func (m *podManager) look(uid types.UID) (pod, bool) {
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

// notify wakes who waits for a pod.
func (m *podManager) notify(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.known[uid]; p != nil {
		p.notify()
	}
}

// set says that the pod's volumes shall be mounted.
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
	more := !first && !sameVolumes(p.object, object)
	leaves := !first && p.object.DeletionTimestamp == nil && object.DeletionTimestamp != nil
	p.object = object
	if leaves { // what is not mounted by now will not be
		changed = true
		p.notify()
	}
	// What a pod says of its volumes cannot change otherwise. Its status can, also because a
	// mount fails; were that to cut a back-off short, a failure would feed itself.
	if first || more {
		p.stale = more
		m.queue.Add(object.UID)
	}
	if edited {
		p.syncAt = time.Time{} // as kubelet, which syncs a pod that was changed
		m.queue.Add(object.UID)
	}
	names := p.names()
	m.mu.Unlock()
	if changed {
		m.on.changed(names)
	}
}

// remove says that the pod's containers have ended.
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
		names := p.names()
		m.mu.Unlock()
		m.on.released(uid, names)
	}
}

// errNotAsked is why a pod may run while the runtime has not answered.
var errNotAsked = errors.New("the container runtime has not been queried yet")

// ending says that the pod is over by its object, and why its containers may run all the same. It reports whether
// the pod has anything here.
func (m *podManager) ending(uid types.UID, why error) bool {
	m.mu.Lock()
	p := m.known[uid]
	if p == nil || p.removed {
		m.mu.Unlock()
		return false
	}
	news := p.ending == nil
	if news || !errors.Is(why, errNotAsked) {
		p.ending = why
	}
	names := p.names()
	m.mu.Unlock()
	if news {
		m.on.changed(names)
	}
	return true
}

// silent are the pods that are known from records alone.
func (m *podManager) silent() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var silent []types.UID
	for uid, p := range m.known {
		if p.object == nil && !p.removed {
			silent = append(silent, uid)
		}
	}
	return silent
}

// allSet says that every pod of the owner has been set. It counts once the records are known to
// be this node's: pods of another cluster say nothing about them.
func (m *podManager) allSet() {
	m.mu.Lock()
	m.allSaid = true
	m.mu.Unlock()
	m.endSilent()
}

// endSilent takes down what belongs to pods of which their owner has not spoken, if it has
// said all it knows.
func (m *podManager) endSilent() {
	m.mu.Lock()
	m.synced = m.allSaid && m.sure()
	synced := m.synced
	m.mu.Unlock()
	if !synced {
		return
	}
	silent := m.silent()
	for _, uid := range silent {
		m.log.Info("Unmounting volumes of a pod that is only known from records", "pod", uid)
	}
	m.remove(silent...)
}

// uids are those of all known pods.
func (m *podManager) uids() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.known))
}

// recorded notes that there is a record of a volume for the pod.
func (m *podManager) recorded(uid types.UID, volume string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known[uid] == nil {
		m.known[uid] = newPod()
	}
	m.known[uid].volumes[volume] = true
}

// join notes that a volume has an entry for the pod. It reports false if the pod is not wanted any more.
func (m *podManager) join(uid types.UID, volume string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.known[uid]
	if p == nil || p.removed {
		return false
	}
	p.volumes[volume] = true
	return true
}

// leave notes that a volume has nothing for the pod any more.
func (m *podManager) leave(uid types.UID, volume string) {
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

// lookUp learns which CSI volumes a pod wants, and has them known.
func (m *podManager) lookUp(ctx context.Context, uid types.UID) error {
	p, known := m.look(uid)
	m.resync(ctx, uid) // those that are known may grow, whatever becomes of the others
	if !known || p.object == nil || p.removed || p.resolved && !p.stale {
		return nil
	}
	found, err := m.wantsOf(ctx, p.object, p.wants)
	if !m.found(uid, found, err) {
		return nil
	}
	// A claim that cannot be read holds up no other volume of the pod, which may be running.
	m.on.wanted(uid, found.wants)
	if err != nil {
		return err
	}
	m.resolved(uid, p.object)
	return nil
}

// found takes in what was read of a pod's volumes. It reports false if the pod is not wanted any more.
func (m *podManager) found(uid types.UID, found found, err error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.known[uid]
	if p == nil || p.removed {
		return false
	}
	p.problem = err
	p.wants = append(p.wants, found.wants...)
	m.emitOthers(p, found.others)
	if refusal, refused := errors.AsType[*RefusedError](found.refused); refused && p.refused == nil {
		m.tell(p.object, refusal.Error())
		p.refused = refusal
	}
	if err != nil && p.refused == nil {
		m.emitOnce(p, err)
	}
	return true
}

// resolved notes that all that the pod wanted, as it was then, is known.
func (m *podManager) resolved(uid types.UID, as *corev1.Pod) {
	m.mu.Lock()
	p := m.known[uid]
	if p == nil {
		m.mu.Unlock()
		return
	}
	p.resolved, p.stale, p.problemSince = true, !sameVolumes(as, p.object), time.Time{}
	m.syncLater(uid, p)
	p.notify()
	names := p.names()
	m.mu.Unlock()
	m.on.changed(names) // also those that are known from records and turned out not to be wanted
}

// tell sends an event about a pod as a whole.
func (m *podManager) tell(pod *corev1.Pod, cause string) {
	m.events.Event(pod, corev1.EventTypeWarning, explain.FailedMount, explain.MountsFailed(cause))
}

// defaultPatience is how long a claim may be unreadable before its pod is told. The
// Node authorizer learns of a new pod with a delay.
const defaultPatience = 5 * time.Second

// emitOnce tells a pod that its claims cannot be read, once it has lasted and
// when the problem is another one. The caller holds mu.
func (m *podManager) emitOnce(p *pod, err error) {
	now := time.Now()
	if p.problemSince.IsZero() {
		p.problemSince = now
	}
	if now.Sub(p.problemSince) < m.config.patience {
		return
	}
	text := explain.NodeWait{Reason: ClaimNotReady, Since: p.problemSince, Detail: m.config.withRemedy(err).Error()}.Waits()
	if p.told.isNew(text, now) {
		m.tell(p.object, text)
	}
}
