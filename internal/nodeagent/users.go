package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/mounttable"
	"belay.dev/belay/internal/nodevolume"
)

// checkRights refuses to start where the search for other users would not see all of them: each unmount would wait. Simulated nodes mount
// nothing.
func (c *Config) checkRights() error {
	if c.MountPoints != nil {
		return nil
	}
	if err := mounttable.CheckRights(); err != nil {
		return fmt.Errorf("node agent: %w; remedy: %s", err, explain.GrantCapabilities)
	}
	return nil
}

// users are the other users of a volume. Guarded by volumeManager.mu.
type users struct {
	// problem names them, or why they could not be found.
	problem error
	// watched is the PID of a process whose exit is awaited; 0 for none.
	watched int
}

func (u users) text() string {
	text := explain.NodeReason(nodevolume.StillMountedElsewhere)
	if u.problem == nil {
		return text
	}
	return explain.ReasonWithCause(text, u.problem)
}

// lookForUsers finds other users of what the unpublish for a pod, or the unstage, would unmount.
func (m *volumeManager) lookForUsers(ctx context.Context, v *volume, key nodevolume.PublishKey) {
	holders, err := m.holders(v, key)
	var problems []error
	for _, holder := range holders {
		problems = append(problems, errors.New(holder.String()))
	}
	problem := errors.Join(append(problems, err)...)
	m.mu.Lock()
	defer m.mu.Unlock()
	if problem != nil && v.state.Users.Search.Count == 0 {
		m.log.Error(problem, "Keeping volume mounted and in use because another process on this node uses it", v.logValues(key)...)
	}
	v.state.UsersSearched(problem != nil, time.Now(), rand.Float64()) //nolint:gosec // spreads the searches
	v.users.problem = problem
	if len(holders) > 0 && holders[0].PID != 0 && v.users.watched == 0 {
		v.users.watched = holders[0].PID
		m.watches.Go(func() { m.watchUser(ctx, v, holders[0].PID) })
	}
}

// watchUser wakes the volume when a process that uses it exits.
func (m *volumeManager) watchUser(ctx context.Context, v *volume, pid int) {
	err := mounttable.WaitForExit(ctx, pid)
	m.mu.Lock()
	defer m.mu.Unlock()
	v.users.watched = 0
	if err == nil {
		m.wake(v.name)
	}
}

// holders returns all users of the volume except for the mounts that the call itself will remove.
func (m *volumeManager) holders(v *volume, key nodevolume.PublishKey) ([]mounttable.Holder, error) {
	if key == (nodevolume.PublishKey{}) {
		staged := m.root.Path(v.state.Stage.Record.Path)
		if mounted, err := m.root.MountedOrLinked(v.state.Stage.Record.Path); err != nil || !mounted {
			return nil, err
		}
		return m.holdersOf(mounttable.Volume{Paths: []string{staged}})
	}
	if v.state.Stage.Phase != nodevolume.Absent {
		if mounted, err := m.root.MountedOrLinked(v.state.Stage.Record.Path); err != nil || mounted {
			return nil, err // not the last mount: lookForUsers runs again before the unstage
		}
	}
	record := m.podVolume(v, key).Record
	// A driver may have its own mount besides the target, which it removes in the call.
	volume := mounttable.Volume{Paths: []string{m.root.Path(record.Path)}, OtherNamespacesOnly: true}
	if !record.Block {
		if mounted, err := m.root.MountedOrLinked(record.Path); err != nil || !mounted {
			return nil, err
		}
		return m.holdersOf(volume)
	}
	var err error
	if volume.Device, err = mounttable.Device(m.root.Path(record.Path)); err != nil || volume.Device == "" {
		return nil, err
	}
	holders, err := m.holdersOf(volume)
	openers, failed := mounttable.Openers(volume.Device)
	return append(holders, openers...), errors.Join(err, failed)
}

func (m *volumeManager) holdersOf(volume mounttable.Volume) ([]mounttable.Holder, error) {
	table, err := m.mounts.Read()
	if err != nil {
		return nil, err
	}
	return table.Holders(volume)
}
