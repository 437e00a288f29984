package nodeagent

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
)

// SubPath is documented at belay.dev/belay/node.SubPath.
type SubPath struct {
	Volume     string
	Container  string
	MountIndex int
	Path       string
	ReadOnly   bool
}

// mountSubPath mounts a part of a mounted volume of the pod, and returns its path.
func (m *mountWaits) mountSubPath(uid types.UID, s SubPath) (string, error) {
	if err := mount.CheckName(s.Container); err != nil {
		return "", refuse(explain.InvalidName("container", err))
	}
	p, err := m.publishedFor(uid, s.Volume)
	if err != nil {
		return "", fmt.Errorf("mount a subPath for container %s of pod %s: %w", s.Container, uid, err)
	}
	p.subPaths.Lock()
	defer p.subPaths.Unlock()
	m.mu.Lock()
	record, there := p.Record, p.Phase == nodevolume.Confirmed
	wanted := !m.pods.state(uid).Removed
	m.mu.Unlock()
	switch {
	case !wanted:
		return "", fmt.Errorf("mount a subPath for container %s of pod %s: %w", s.Container, uid, ErrPodNotWanted)
	case !there: // unmounted since publishedFor
		return "", fmt.Errorf("mount a subPath for container %s of pod %s: volume %q is no longer mounted", s.Container, uid, s.Volume)
	case record.Block:
		return "", refuse(explain.DeviceHasNoSubPaths(s.Volume))
	}
	target := filepath.Join(subPathsDir(p.Key), s.Container, strconv.Itoa(s.MountIndex))
	err = m.root.BindSubPath(mount.SubPath{Volume: record.Path, Target: target, Path: s.Path, ReadOnly: s.ReadOnly})
	if err != nil {
		return "", fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: %w", s.Volume, s.Container, err)
	}
	return m.root.Path(target), nil
}

// publishedFor returns a volume of a pod. It fails unless all volumes of the pod are mounted.
func (m *mountWaits) publishedFor(uid types.UID, volume string) (*podVolume, error) {
	state := m.mounted(uid)
	switch {
	case state.err != nil:
		return nil, state.err
	case state.changed != nil:
		return nil, waitError(errNotMounted, uid, state.waits)
	}
	owner, known := m.pods.snapshot(uid)
	if !known {
		return nil, ErrPodNotWanted
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(owner.toMount, func(w *volumeToMount) bool { return w.volume == volume })
	if i < 0 {
		return nil, fmt.Errorf("volume %q of the pod is not one that belay-node mounts", volume)
	}
	p, _ := m.findPodVolume(owner.toMount[i])
	if p == nil {
		return nil, ErrPodNotWanted
	}
	return p, nil
}
