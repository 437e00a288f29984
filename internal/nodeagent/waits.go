package nodeagent

import (
	"cmp"
	"context"
	"errors"
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
		case <-ctx.Done():
			// Return what it waits for, not only that the time is up.
			if state = m.mounted(uid); state.changed == nil {
				return state.mounts, state.err
			}
			return nil, waitError(context.Cause(ctx), uid, state.waits)
		}
	}
}

// mountState is the progress of a pod's mounts. While volumes are missing, waits lists them and changed is closed at the next change.
type mountState struct {
	mounts  []Mount
	err     error
	changed <-chan struct{}
	waits   []*VolumeWait
}

func (m *volumeManager) mounted(uid types.UID) mountState {
	p, known := m.pods.look(uid) // before reading the volumes, so that changed covers their changes
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !known, p.removed:
		return mountState{err: fmt.Errorf("wait for the volumes of pod %s: %w", uid, ErrPodNotWanted)}
	case p.refused != nil:
		return mountState{err: p.refused}
	case !p.resolved, p.stale:
		return mountState{changed: p.changed, waits: p.lookedUp()}
	}
	var mounts []Mount
	var waits []*VolumeWait
	for _, w := range p.wants {
		publication, v := m.publicationOf(w)
		if publication != nil && v.isReady(publication) {
			mounts = append(mounts, Mount{
				VolumeName: w.volume, Path: m.root.Path(publication.Record.Path), Block: w.block, ReadOnly: w.readOnly,
				SELinuxLabel: publication.Record.SELinuxLabel,
				Driver:       w.driver, VolumeHandle: w.handle, FSType: w.fsType, MountOptions: slices.Clone(w.mountOptions),
				VolumeContext: maps.Clone(w.attributes), PublishContext: maps.Clone(publication.publishContext),
				SupplementalGroup: w.group,
			})
			continue
		}
		waits = append(waits, m.volumeWait(w, v, publication, m.waitsFor(w, v, publication).Error()))
	}
	for _, o := range p.others {
		mounts = append(mounts, o.mount())
	}
	if len(waits) == 0 {
		return mountState{mounts: mounts}
	}
	if err := m.tooLate(&p, waits); err != nil {
		return mountState{err: err}
	}
	return mountState{changed: p.changed, waits: waits}
}

// findPodVolume returns the entry of a pod's volume, or nil. The caller holds mu.
func (m *volumeManager) publicationOf(w *wantedVolume) (*podVolume, *volume) {
	v := m.all[w.name()]
	if v == nil {
		return nil, nil
	}
	return v.find(w.key()), v
}

// describeWait returns what a volume waits for, since when, and its last failure.
func (m *volumeManager) waitsFor(w *wantedVolume, v *volume, p *podVolume) error {
	state, now := "", time.Now()
	switch {
	case p != nil && p.groupChange != nil:
		state = explain.GroupChange(int64(p.groupChange.GID), p.groupChange.Seen.Load())
	case v != nil && v.asked != nil:
		state = m.call(v).AsOf(now)
	case v != nil:
		state = explain.NodeReason("")
		if hold, ok := v.holds[w.key()]; ok {
			why := cmp.Or(m.labelWords(v, w.key(), hold.reason), explain.NodeReason(hold.reason))
			state = explain.NodeWait{Reason: hold.reason, Since: hold.since, Detail: why}.AsOf(now)
		}
	}
	words := explain.NodeVolume(w.volume, w.specName, state)
	if p != nil && p.problem != nil {
		return fmt.Errorf("%s; last failure: %w", words, p.problem)
	}
	return errors.New(words)
}

// waitUnmounted blocks until no volume of the pod is published.
func (m *volumeManager) waitUnmounted(ctx context.Context, uid types.UID) error {
	for {
		changed, published := m.published(uid)
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

// publishedWaits returns the volumes that may be published for a pod.
func (m *volumeManager) published(uid types.UID) (<-chan struct{}, []*VolumeWait) {
	p, known := m.pods.look(uid)
	if !known {
		return nil, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var published []*VolumeWait
	for name := range p.volumes {
		v := m.all[name]
		if v == nil {
			continue
		}
		for _, entry := range v.pods {
			if entry.Key.PodUID == string(uid) && (entry.Phase != nodevolume.Absent || v.publishing == entry.Key) {
				hold := v.holds[entry.Key]
				why := m.whyOf(v, nodevolume.Wait{Key: entry.Key, Reason: hold.reason})
				if v.asked != nil {
					why = m.call(v).Unanswered()
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

// checkDeleting fails the wait of a pod that is being deleted before all its volumes are known: like kubelet, the agent starts no new
// mounts then. The caller holds mu.
func (m *volumeManager) tooLate(p *pod, lacks []*VolumeWait) error {
	if len(lacks) == 0 || p.object.DeletionTimestamp == nil {
		return nil
	}
	for _, w := range p.wants {
		if entry, _ := m.publicationOf(w); entry == nil {
			return refuse("pod %s is being deleted; volume %q is not mounted for it any more", p.object.Name, w.volume)
		}
	}
	return nil
}
