package nodeagent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/nodevolume"
)

// waitMounted blocks until the pod's volumes are published.
func (m *volumeManager) waitMounted(ctx context.Context, uid types.UID) ([]Mount, error) {
	for {
		state := m.mounted(uid)
		if state.changed == nil {
			return state.mounts, state.err
		}
		select {
		case <-state.changed:
			continue
		case <-m.ended:
		case <-ctx.Done():
		}
		// Return what it waits for, not only that the time is up.
		if state = m.mounted(uid); state.changed == nil {
			return state.mounts, state.err
		}
		return nil, waitError(endOfWait(ctx), uid, state.waits)
	}
}

// endOfWait returns why a wait ends: with its context, or with the agent.
func endOfWait(ctx context.Context) error { return cmp.Or(context.Cause(ctx), ErrClosed) }

// mountState is the progress of a pod's mounts. While volumes are missing, waits lists them and changed is closed at the next change.
type mountState struct {
	mounts  []Mount
	err     error
	changed <-chan struct{}
	waits   []*VolumeWait
}

func (m *volumeManager) mounted(uid types.UID) mountState {
	pod, known := m.pods.snapshot(uid) // before reading the volumes, so that changed covers their changes
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !known, pod.removed:
		return mountState{err: fmt.Errorf("wait for the volumes of pod %s: %w", uid, ErrPodNotWanted)}
	case pod.refused != nil:
		return mountState{err: pod.refused}
	case !pod.resolved, pod.stale:
		return mountState{changed: pod.changed, waits: pod.unresolvedWait()}
	}
	var mounts []Mount
	var waits []*VolumeWait
	for _, w := range pod.toMount {
		p, v := m.findPodVolume(w)
		if p != nil && v.isReady(p) {
			mounts = append(mounts, Mount{
				VolumeName: w.volume, Path: m.root.Path(p.Record.Path), Block: w.block, ReadOnly: w.readOnly,
				SELinuxLabel: p.Record.SELinuxLabel,
				Driver:       w.driver, VolumeHandle: w.handle, FSType: w.fsType, MountOptions: slices.Clone(w.mountOptions),
				VolumeContext: maps.Clone(w.attributes), PublishContext: maps.Clone(p.publishContext),
				SupplementalGroup: w.group,
			})
			continue
		}
		waits = append(waits, m.volumeWait(w, v, p))
	}
	for _, o := range pod.nonCSI {
		mounts = append(mounts, o.mount())
	}
	if len(waits) == 0 {
		return mountState{mounts: mounts}
	}
	if err := m.checkDeleting(&pod); err != nil {
		return mountState{err: err}
	}
	return mountState{changed: pod.changed, waits: waits}
}

// findPodVolume returns the entry of a pod's volume, or nil. The caller holds mu.
func (m *volumeManager) findPodVolume(w *volumeToMount) (*podVolume, *volume) {
	v := m.all[w.name()]
	if v == nil {
		return nil, nil
	}
	return v.findPod(w.key()), v
}

// describeWait returns what a volume waits for, since when, and its last failure.
func (m *volumeManager) describeWait(w *volumeToMount, v *volume, p *podVolume) string {
	state, now := "", time.Now()
	switch {
	case p != nil && p.groupChange != nil:
		state = explain.GroupChange(int64(p.groupChange.GID), p.groupChange.Seen.Load())
	case v != nil && v.pending != nil:
		state = m.describeCall(v).AsOf(now)
	case v != nil:
		state = explain.NodeReason("")
		if wait, ok := v.waits[w.key()]; ok {
			why := cmp.Or(m.labelText(v, w.key(), wait.reason), explain.NodeReason(wait.reason))
			state = explain.NodeWait{Reason: wait.reason, Since: wait.since, Detail: why}.AsOf(now)
		}
	}
	text := explain.NodeVolume(w.volume, w.specName, state)
	if p != nil && p.problem != nil {
		return explain.LastFailure(text, p.problem)
	}
	return text
}

// waitUnmounted blocks until no volume of the pod is published.
func (m *volumeManager) waitUnmounted(ctx context.Context, uid types.UID) error {
	for {
		changed, published := m.publishedWaits(uid)
		if len(published) == 0 {
			return nil
		}
		select {
		case <-changed:
			continue
		case <-m.ended:
		case <-ctx.Done():
		}
		return unmountWaitError(endOfWait(ctx), uid, published)
	}
}

// publishedWaits returns the volumes that may be published for a pod.
func (m *volumeManager) publishedWaits(uid types.UID) (<-chan struct{}, []*VolumeWait) {
	pod, known := m.pods.snapshot(uid)
	if !known {
		return nil, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var published []*VolumeWait
	for name := range pod.volumes {
		v := m.all[name]
		if v == nil {
			continue
		}
		for _, p := range v.pods {
			if p.Key.PodUID == string(uid) && (p.Phase != nodevolume.Absent || v.publishing == p.Key) {
				wait := v.waits[p.Key]
				why := m.waitText(v, nodevolume.Wait{Key: p.Key, Reason: wait.reason})
				if v.pending != nil {
					why = m.describeCall(v).Unanswered()
				}
				published = append(published, &VolumeWait{
					Volume: p.Record.Pod.Volume, Reason: wait.reason, Since: wait.since, Err: p.problem,
					text: explain.StillPublished(v.specName(), why),
				})
			}
		}
	}
	return pod.changed, published
}

// checkDeleting fails the wait of a pod that is being deleted before all its volumes are known: like kubelet, the agent starts no new
// mounts then. The caller holds mu.
func (m *volumeManager) checkDeleting(pod *pod) error {
	if pod.object.DeletionTimestamp == nil {
		return nil
	}
	for _, w := range pod.toMount {
		if p, _ := m.findPodVolume(w); p == nil {
			return refuse(explain.PodBeingDeleted(pod.object.Name, w.volume))
		}
	}
	return nil
}
