package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/mounttable"
	"belay.dev/belay/internal/nodevolume"
)

// userSearch is what is known of who else has a volume mounted. Under Agent.mu.
type userSearch struct {
	found  nodevolume.Knowledge
	search nodevolume.Failure
	// problem says who it is, or what could not be read.
	problem error
	// watched is the process whose end is waited for; 0 for none.
	watched int
}

func (u userSearch) words() string {
	words := explain.NodeReason(nodevolume.StillMountedElsewhere)
	if u.problem == nil {
		return words
	}
	return fmt.Sprintf("%s: %v", words, u.problem)
}

// userWait is the longest wait before mount tables are read again: a process that unmounts tells nobody.
const userWait = 10 * time.Second

// lookForUsers looks who has what the unpublish for a pod, or the unstage, would take from the machine.
func (a *Agent) lookForUsers(ctx context.Context, v *volume, key nodevolume.PublishKey) {
	holders, err := a.holders(v, key)
	var problems []error
	for _, holder := range holders {
		problems = append(problems, errors.New(holder.String()))
	}
	problem := errors.Join(append(problems, err)...)
	a.mu.Lock()
	defer a.mu.Unlock()
	if problem == nil {
		v.users = userSearch{found: nodevolume.No, watched: v.users.watched}
		return
	}
	if v.users.search.Count == 0 {
		a.log.Error(problem, "Volume stays mounted and in use: something else on this node has it", "volume", v.name, "pod", key.PodUID)
	}
	v.users.found, v.users.search, v.users.problem = nodevolume.Yes, again(v.users.search), problem
	v.users.search.AtMost = userWait
	if len(holders) > 0 && holders[0].PID != 0 && v.users.watched == 0 {
		v.users.watched = holders[0].PID
		a.watches.Go(func() { a.watchUser(ctx, v, holders[0].PID) })
	}
}

// watchUser has the volume looked at when a process that has it ends.
func (a *Agent) watchUser(ctx context.Context, v *volume, pid int) {
	err := mounttable.AwaitEnd(ctx, pid)
	a.mu.Lock()
	defer a.mu.Unlock()
	v.users.watched = 0
	if err == nil {
		a.wake(v.name)
	}
}

// holders are all that have the volume but the mounts that the call will take away, and that go with them.
func (a *Agent) holders(v *volume, key nodevolume.PublishKey) ([]mounttable.Holder, error) {
	if key == (nodevolume.PublishKey{}) {
		staged := a.root.Path(v.stage.record.Path)
		if mounted, err := a.root.MountedByKernel(v.stage.record.Path); err != nil || !mounted {
			return nil, err
		}
		return a.holdersOf(mounttable.Volume{Paths: []string{staged}})
	}
	if v.stage.phase != nodevolume.Absent {
		if mounted, err := a.root.MountedByKernel(v.stage.record.Path); err != nil || mounted {
			return nil, err // it is not the last mount; before that one goes, there is another look
		}
	}
	record := a.entry(v, key).publish.record
	// Drivers that mount where they publish may have a mount of their own beside it, which goes with the call.
	volume := mounttable.Volume{Paths: []string{a.root.Path(record.Path)}, OtherNamespacesOnly: true}
	if !record.Block {
		if mounted, err := a.root.MountedByKernel(record.Path); err != nil || !mounted {
			return nil, err
		}
		return a.holdersOf(volume)
	}
	var err error
	if volume.Device, err = mounttable.Device(a.root.Path(record.Path)); err != nil || volume.Device == "" {
		return nil, err
	}
	holders, err := a.holdersOf(volume)
	openers, failed := mounttable.Openers(volume.Device)
	return append(holders, openers...), errors.Join(err, failed)
}

func (a *Agent) holdersOf(volume mounttable.Volume) ([]mounttable.Holder, error) {
	table, err := a.mounts.Read()
	if err != nil {
		return nil, err
	}
	return table.Holders(volume)
}

// forget drops what does not hold any more after a step: what was found of users holds for the very next one alone.
func (a *Agent) forget(v *volume, step nodevolume.Step) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, looked := step.(nodevolume.LookForUsers); !looked {
		v.users.found = nodevolume.Unknown
	}
	if nodevolume.Outdates(step) {
		v.attachment.Doubt()
	}
}
