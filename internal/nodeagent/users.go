package nodeagent

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/mounttable"
	"belay.dev/belay/internal/nodevolume"
)

// userSearch finds the other users of a volume before it is unmounted.
type userSearch struct {
	*volumeSet

	log  logr.Logger
	root *mount.Root
	// mounts are the mount tables of all processes.
	mounts mounttable.Reader
	// watches are the goroutines that wait for the exit of a process.
	watches sync.WaitGroup
}

// lookForUsers finds other users of what the unpublish for a pod, or the unstage, would unmount.
func (s *userSearch) lookForUsers(ctx context.Context, v *volume, key nodevolume.PublishKey) {
	holders, err := s.holders(v, key)
	var problems []error
	for _, holder := range holders {
		problems = append(problems, errors.New(holder.String()))
	}
	problem := errors.Join(append(problems, err)...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if problem != nil && v.state.Users.Search.Count == 0 {
		s.log.Error(problem, "Keeping volume mounted and in use because another process on this node uses it", v.logValues(key)...)
	}
	v.state.UsersSearched(problem != nil, time.Now(), rand.Float64()) //nolint:gosec // spreads the searches
	v.users.problem = problem
	if len(holders) > 0 && holders[0].PID != 0 && v.users.watched == 0 {
		v.users.watched = holders[0].PID
		s.watches.Go(func() { s.watchUser(ctx, v, holders[0].PID) })
	}
}

// watchUser wakes the volume when a process that uses it exits.
func (s *userSearch) watchUser(ctx context.Context, v *volume, pid int) {
	err := mounttable.WaitForExit(ctx, pid)
	s.mu.Lock()
	defer s.mu.Unlock()
	v.users.watched = 0
	if err == nil {
		s.wake(v.name)
	}
}

// holders returns all users of the volume except for the mounts that the call itself will remove.
func (s *userSearch) holders(v *volume, key nodevolume.PublishKey) ([]mounttable.Holder, error) {
	if key == (nodevolume.PublishKey{}) {
		staged := s.root.Path(v.state.Stage.Record.Path)
		if mounted, err := s.root.MountedOrLinked(v.state.Stage.Record.Path); err != nil || !mounted {
			return nil, err
		}
		return s.holdersOf(mounttable.Volume{Paths: []string{staged}})
	}
	if v.state.Stage.Phase != nodevolume.Absent {
		if mounted, err := s.root.MountedOrLinked(v.state.Stage.Record.Path); err != nil || mounted {
			return nil, err // not the last mount: lookForUsers runs again before the unstage
		}
	}
	record := s.podVolume(v, key).Record
	// A driver may have its own mount besides the target, which it removes in the call.
	volume := mounttable.Volume{Paths: []string{s.root.Path(record.Path)}, OtherNamespacesOnly: true}
	if !record.Block {
		if mounted, err := s.root.MountedOrLinked(record.Path); err != nil || !mounted {
			return nil, err
		}
		return s.holdersOf(volume)
	}
	var err error
	if volume.Device, err = mounttable.Device(s.root.Path(record.Path)); err != nil || volume.Device == "" {
		return nil, err
	}
	holders, err := s.holdersOf(volume)
	openers, failed := mounttable.Openers(volume.Device)
	return append(holders, openers...), errors.Join(err, failed)
}

func (s *userSearch) holdersOf(volume mounttable.Volume) ([]mounttable.Holder, error) {
	table, err := s.mounts.Read()
	if err != nil {
		return nil, err
	}
	return table.Holders(volume)
}
