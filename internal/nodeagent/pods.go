package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/nodevolume"
)

// pod is one pod of the node. All fields are under Agent.mu.
type pod struct {
	// object is nil if the pod is known from records alone.
	object  *corev1.Pod
	removed bool
	// ending is why the pod's containers may run though its object says that it is over; nil if it is not.
	ending error
	// resolved: it is known which CSI volumes the pod wants.
	resolved bool
	wants    []*want
	// others are those of its claims that this agent does not mount.
	others []*otherVolume
	// stale: an ephemeral container came since, and with it perhaps a volume that no other uses.
	stale bool
	// problem is why it is not known yet; refused, why it never will be mounted.
	problem error
	refused error
	// problemSince is when looking it up failed first, told the problem that was sent as an event.
	problemSince time.Time
	told         told
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

// podState is what has been said of a pod. The caller holds mu.
func (a *Agent) podState(uid types.UID) nodevolume.PodState {
	p := a.pods[uid]
	if p == nil {
		return nodevolume.PodState{Removed: true}
	}
	return nodevolume.PodState{
		Set: p.object != nil, Removed: p.removed, Ending: p.ending != nil, Resolved: p.resolved, AllSet: a.podsSynced,
		Deleting: p.object != nil && p.object.DeletionTimestamp != nil,
	}
}

// SetPod says that the pod's volumes shall be mounted.
func (a *Agent) SetPod(object *corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[object.UID]
	if p == nil {
		p = newPod()
		a.pods[object.UID] = p
	}
	if p.removed {
		return
	}
	a.setEnding(object.UID, nil)
	first := p.object == nil
	edited := !first && wasEdited(p.object, object)
	more := !first && !sameVolumes(p.object, object)
	leaves := !first && p.object.DeletionTimestamp == nil && object.DeletionTimestamp != nil
	p.object = object
	if leaves { // what is not mounted by now will not be
		a.wakeVolumes(p)
		p.notify()
	}
	// What a pod says of its volumes cannot change otherwise. Its status can, also because a
	// mount fails; were that to cut a back-off short, a failure would feed itself.
	if first || more {
		p.stale = more
		a.podQueue.Add(object.UID)
	}
	if edited {
		p.syncAt = time.Time{} // as kubelet, which syncs a pod that was changed
		a.podQueue.Add(object.UID)
	}
}

// RemovePod says that the pod's containers have ended.
func (a *Agent) RemovePod(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[uid]
	if p == nil || p.removed {
		return
	}
	p.removed = true
	a.release(uid, p)
}

// errNotAsked is why a pod may run while the runtime has not answered.
var errNotAsked = errors.New("the runtime has not been asked yet")

// PodEnding says that the pod is over by its object, and why its containers may run all the same. It reports whether
// the pod has anything here.
func (a *Agent) PodEnding(uid types.UID, why error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[uid]
	if p == nil || p.removed {
		return false
	}
	if p.ending == nil || !errors.Is(why, errNotAsked) {
		a.setEnding(uid, why)
	}
	return true
}

// setEnding notes whether the pod is over by its object. The caller holds mu.
func (a *Agent) setEnding(uid types.UID, why error) {
	p := a.pods[uid]
	news := (p.ending == nil) != (why == nil)
	p.ending = why
	if news {
		a.wakeVolumes(p)
	}
}

// wakeVolumes has the volumes of a pod looked at. The caller holds mu.
func (a *Agent) wakeVolumes(p *pod) {
	for name := range p.volumes {
		a.wake(name)
	}
}

// silentPods are those that are known from records alone.
func (a *Agent) silentPods() []types.UID {
	a.mu.Lock()
	defer a.mu.Unlock()
	var silent []types.UID
	for uid, p := range a.pods {
		if p.object == nil && !p.removed {
			silent = append(silent, uid)
		}
	}
	return silent
}

// release has the volumes of a pod that is not wanted any more looked at. The caller holds mu.
func (a *Agent) release(uid types.UID, p *pod) {
	p.notify()
	if len(p.volumes) == 0 {
		delete(a.pods, uid)
	}
	for name := range p.volumes {
		if v := a.volumes[name]; v != nil {
			for _, its := range v.pods {
				if its.Key.PodUID == string(uid) {
					its.Failure = nodevolume.Failure{} // that of the way in is none of the way back
				}
			}
		}
		a.wake(name)
	}
}

// PodsSynced says that every pod of the owner has been set. It counts once the records are known to
// be this node's: pods of another cluster say nothing about them.
func (a *Agent) PodsSynced() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.podsSaid = true
	a.endSilent()
}

// endSilent takes down what belongs to pods of which their owner has not spoken, if it has
// said all it knows. The caller holds mu.
func (a *Agent) endSilent() {
	if !a.podsSaid || !a.owner.isSure() {
		return
	}
	a.podsSynced = true
	for uid, p := range a.pods {
		if p.object == nil {
			a.log.Info("Pod is known from records alone; its volumes are taken down", "pod", uid)
			p.removed = true
			a.release(uid, p)
		}
	}
}

// Pods returns the UIDs of all known pods.
func (a *Agent) Pods() []types.UID {
	a.mu.Lock()
	defer a.mu.Unlock()
	uids := make([]types.UID, 0, len(a.pods))
	for uid := range a.pods {
		uids = append(uids, uid)
	}
	return uids
}

// leave notes that a volume has nothing for the pod any more. The caller holds mu.
func (a *Agent) leave(uid types.UID, volume string) {
	p := a.pods[uid]
	if p == nil {
		return
	}
	delete(p.volumes, volume)
	p.notify()
	if len(p.volumes) == 0 && p.removed {
		delete(a.pods, uid)
	}
}

// join notes that a volume has an entry for the pod. The caller holds mu.
func (a *Agent) join(uid types.UID, volume string) {
	p := a.pods[uid]
	if p == nil {
		p = newPod()
		a.pods[uid] = p
	}
	p.volumes[volume] = true
}

// lookUp learns which CSI volumes a pod wants, and gives them to the volumes.
func (a *Agent) lookUp(ctx context.Context, uid types.UID) error {
	a.mu.Lock()
	p := a.pods[uid]
	if p == nil || p.object == nil || p.removed || p.resolved && !p.stale {
		a.mu.Unlock()
		a.resync(ctx, uid)
		return nil
	}
	object, known := p.object, p.wants
	a.mu.Unlock()
	a.resync(ctx, uid) // those that are known may grow, whatever becomes of the others

	found, err := a.wantsOf(ctx, object, known)

	a.mu.Lock()
	defer a.mu.Unlock()
	if p.removed {
		return nil
	}
	p.problem = err
	if refusal, ok := errors.AsType[*RefusedError](err); ok {
		a.tellPod(object, refusal.Error())
		p.refused, err = refusal, nil
	}
	// A claim that cannot be read holds up no other volume of the pod, which may be running.
	a.addFound(uid, p, found)
	if err != nil {
		a.tellPodOnce(p, err)
		return err
	}
	p.resolved, p.stale, p.problemSince = true, !sameVolumes(object, p.object), time.Time{}
	a.wakeVolumes(p) // those that are known from records and turned out not to be wanted
	a.syncLater(uid, p)
	p.notify()
	return nil
}

// addFound gives what was found to the volumes. The caller holds mu.
func (a *Agent) addFound(uid types.UID, p *pod, found found) {
	p.wants = append(p.wants, found.wants...)
	a.tellOthers(p, found.others)
	for _, w := range found.wants {
		v := a.volumeNamed(w.name(), w.driver, w.handle)
		v.life.Inline = w.inline
		v.publication(w.key()).want = w
		a.wantSize(v, w)
		a.join(uid, v.name)
		a.wake(v.name)
	}
}

// WaitMounted blocks until the pod's volumes are published.
func (a *Agent) WaitMounted(ctx context.Context, uid types.UID) ([]Mount, error) {
	for {
		state := a.mounted(uid)
		if state.changed == nil {
			return state.mounts, state.err
		}
		select {
		case <-state.changed:
		case <-ctx.Done():
			// What it waits for says more than that time is up.
			if state = a.mounted(uid); state.changed == nil {
				return state.mounts, state.err
			}
			return nil, waitError(context.Cause(ctx), uid, state.waits)
		}
	}
}

// mountState is where the volumes of a pod are. While something is missing, changed is closed at the next change, and
// waits says what is missing.
type mountState struct {
	mounts  []Mount
	err     error
	changed <-chan struct{}
	waits   []*VolumeWait
}

func (a *Agent) mounted(uid types.UID) mountState {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[uid]
	switch {
	case p == nil, p.removed:
		return mountState{err: fmt.Errorf("wait for the volumes of pod %s: %w", uid, ErrPodNotWanted)}
	case p.refused != nil:
		return mountState{err: p.refused}
	case !p.resolved, p.stale:
		return mountState{changed: p.changed, waits: p.lookedUp()}
	}
	var mounts []Mount
	var waits []*VolumeWait
	for _, w := range p.wants {
		publication, v := a.publicationOf(w)
		if publication != nil && v.isReady(publication) {
			mounts = append(mounts, Mount{
				VolumeName: w.volume, Path: a.root.Path(publication.Record.Path), Block: w.block, ReadOnly: w.readOnly,
				SELinuxLabel: publication.Record.SELinuxLabel,
				Driver:       w.driver, VolumeHandle: w.handle, FSType: w.fsType, MountOptions: slices.Clone(w.mountOptions),
				VolumeContext: maps.Clone(w.attributes), PublishContext: maps.Clone(publication.publishContext),
				SupplementalGroup: w.group,
			})
			continue
		}
		waits = append(waits, a.volumeWait(w, v, publication, a.waitsFor(w, v, publication).Error()))
	}
	for _, o := range p.others {
		mounts = append(mounts, o.mount())
	}
	if len(waits) == 0 {
		return mountState{mounts: mounts}
	}
	if err := a.tooLate(p, waits); err != nil {
		return mountState{err: err}
	}
	return mountState{changed: p.changed, waits: waits}
}

// publicationOf finds the entry that a want led to. The caller holds mu.
func (a *Agent) publicationOf(w *want) (*publication, *volume) {
	v := a.volumes[w.name()]
	if v == nil {
		return nil, nil
	}
	i := slices.IndexFunc(v.pods, func(p *publication) bool { return p.Key == w.key() })
	if i < 0 {
		return nil, v
	}
	return v.pods[i], v
}

// waitsFor says in which hop a volume waits, since when, and what went wrong last.
func (a *Agent) waitsFor(w *want, v *volume, p *publication) error {
	state, now := "", time.Now()
	switch {
	case p != nil && p.groupChange != nil:
		state = explain.GroupChange(int64(p.groupChange.GID), p.groupChange.Seen.Load())
	case v != nil && v.asked != nil:
		state = a.call(v).AsOf(now)
	case v != nil:
		state = explain.NodeReason("")
		if hold, ok := v.holds[w.key()]; ok {
			why := cmp.Or(a.labelWords(v, w.key(), hold.reason), explain.NodeReason(hold.reason))
			state = explain.NodeHold{Reason: hold.reason, Since: hold.since, Why: why}.AsOf(now)
		}
	}
	words := explain.NodeVolume(w.volume, w.specName, state)
	if p != nil && p.problem != nil {
		return fmt.Errorf("%s; last failure: %w", words, p.problem)
	}
	return errors.New(words)
}

// WaitUnmounted blocks until nothing of the pod is published.
func (a *Agent) WaitUnmounted(ctx context.Context, uid types.UID) error {
	for {
		changed, published := a.published(uid)
		if len(published) == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return stillPublished(ctx, uid, published)
		}
	}
}

// published lists what may be published for a pod.
func (a *Agent) published(uid types.UID) (<-chan struct{}, []*VolumeWait) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[uid]
	if p == nil {
		return nil, nil
	}
	var published []*VolumeWait
	for name := range p.volumes {
		v := a.volumes[name]
		if v == nil {
			continue
		}
		for _, entry := range v.pods {
			if entry.Key.PodUID == string(uid) && entry.Phase != nodevolume.Absent {
				hold := v.holds[entry.Key]
				why := a.whyOf(v, nodevolume.Hold{Key: entry.Key, Reason: hold.reason})
				if v.asked != nil {
					why = a.call(v).Unanswered()
				}
				published = append(published, &VolumeWait{
					Volume: entry.Record.Pod.Volume, Reason: hold.reason, Since: hold.since, Err: entry.problem,
					text: v.specName() + " (" + why + ")",
				})
			}
		}
	}
	return p.changed, published
}
