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
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
)

// mountWaits answers the owner of the pods: what is mounted for a pod, and what the rest waits for.
type mountWaits struct {
	*volumeSet

	root    *mount.Root
	pods    *podManager
	reports *reports
	// ended is closed once nothing will be mounted or unmounted any more.
	ended chan struct{}
}

// waitMounted blocks until the pod's volumes are published.
func (m *mountWaits) waitMounted(ctx context.Context, uid types.UID) ([]Mount, error) {
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

func (m *mountWaits) mounted(uid types.UID) mountState {
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

// describeWait returns what a volume waits for, since when, and its last failure.
func (m *mountWaits) describeWait(w *volumeToMount, v *volume, p *podVolume) string {
	state, now := "", time.Now()
	switch {
	case p != nil && p.groupChange != nil:
		state = explain.GroupChange(int64(p.groupChange.GID), p.groupChange.Seen.Load())
	case v != nil && v.pending != nil:
		state = m.reports.describeCall(v).AsOf(now)
	case v != nil:
		state = explain.NodeReason("")
		if wait, ok := v.waits[w.key()]; ok {
			why := cmp.Or(m.reports.labelText(v, w.key(), wait.reason), explain.NodeReason(wait.reason))
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
func (m *mountWaits) waitUnmounted(ctx context.Context, uid types.UID) error {
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
func (m *mountWaits) publishedWaits(uid types.UID) (<-chan struct{}, []*VolumeWait) {
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
				why := m.reports.waitText(v, nodevolume.Wait{Key: p.Key, Reason: wait.reason})
				if v.pending != nil {
					why = m.reports.describeCall(v).Unanswered()
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
func (m *mountWaits) checkDeleting(pod *pod) error {
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

// waitError returns the error of a WaitMounted that timed out.
func waitError(cause error, uid types.UID, volumes []*VolumeWait) error {
	e := &WaitError{Pod: uid, Volumes: volumes, Cause: cause}
	var texts []string
	for _, v := range volumes {
		texts = append(texts, v.text)
	}
	e.text = explain.NotMounted(string(uid), cause, texts)
	return e
}

// errNotMounted fails a call that needs a pod's volumes and does not wait for them.
var errNotMounted = errors.New("not all volumes of the pod are mounted")

// unresolvedWait is the wait of a pod whose claims have not been read.
func (p *pod) unresolvedWait() []*VolumeWait {
	if p.problem == nil {
		return []*VolumeWait{{Reason: ClaimNotReady, text: explain.ClaimsNotRead}}
	}
	return []*VolumeWait{{
		Reason: ClaimNotReady, Since: p.problemSince, Err: p.problem, text: explain.NodeWait{Reason: ClaimNotReady, Detail: p.problem.Error()}.Waits(),
	}}
}

// volumeWait describes the wait of one volume. The caller holds mu.
func (m *mountWaits) volumeWait(w *volumeToMount, v *volume, p *podVolume) *VolumeWait {
	wait := &VolumeWait{Volume: w.volume, text: m.describeWait(w, v, p)}
	if v != nil {
		current := v.waits[w.key()]
		wait.Reason, wait.Since = current.reason, current.since
		if v.attachLimit != nil {
			wait.Err = v.attachLimit
			wait.text += "\n" + v.attachLimit.Error()
		}
	}
	if p != nil && p.problem != nil {
		wait.Err = errors.Join(p.problem, wait.Err)
	}
	return wait
}

// unmountWaitError returns the error of a WaitUnmounted that timed out.
func unmountWaitError(cause error, uid types.UID, left []*VolumeWait) error {
	var texts []string
	for _, wait := range left {
		texts = append(texts, wait.text)
	}
	slices.Sort(texts)
	return &WaitError{
		Pod: uid, Volumes: left, Cause: cause,
		text: explain.NotUnmounted(string(uid), cause, texts),
	}
}

// Mount is documented at belay.dev/belay/node.Mount.
type Mount struct {
	VolumeName string
	Path       string
	// PersistentVolume is set for a volume that the agent does not mount.
	PersistentVolume  *corev1.PersistentVolume
	Block             bool
	ReadOnly          bool
	SELinuxLabel      string
	SupplementalGroup *int64

	Driver, VolumeHandle          string
	FSType                        string
	MountOptions                  []string
	VolumeContext, PublishContext map[string]string
}

func (o *nonCSIVolume) mount() Mount {
	return Mount{
		VolumeName: o.volume, ReadOnly: o.use.readOnly, Block: mode(o.pv.Spec.VolumeMode) == corev1.PersistentVolumeBlock,
		SupplementalGroup: supplementalGroup(o.pv), PersistentVolume: o.pv.DeepCopy(),
	}
}
