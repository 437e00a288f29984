package containers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Locks is how a runtime without CRI reports that it runs containers of a pod: it holds a shared flock(2) on <directory>/<pod
// UID>.lock from before it looks for the pod's volumes until the last process of the pod has ended. It should pass the open file to
// a process that lives as long as the containers: the kernel releases the lock with the last process that has it open, whatever
// happens to the runtime.
//
// The node agent takes the lock itself while it unmounts the volumes of a pod, and removes the file afterwards. A runtime that then
// holds a lock on a file that is no longer at the path must start nothing.
type Locks struct {
	directory string
}

// lockSuffix follows the pod's UID.
const lockSuffix = ".lock"

// NewLocks creates the directory, and removes files without a lock, which an agent that was killed has left.
func NewLocks(directory string) (*Locks, error) {
	if err := os.MkdirAll(directory, 0o750); err != nil {
		return nil, fmt.Errorf("create the directory of the pod locks: %w", err)
	}
	l := &Locks{directory: directory}
	files, err := os.ReadDir(directory)
	if err != nil {
		return nil, fmt.Errorf("list the pod locks: %w", err)
	}
	for _, file := range files {
		uid, isLock := strings.CutSuffix(file.Name(), lockSuffix)
		if !isLock {
			continue
		}
		if release, err := l.Ended(context.Background(), uid); err == nil {
			release()
		}
	}
	return l, nil
}

// Ended takes the lock of a pod. Any error means that containers of the pod may be running. The caller releases the lock once the
// pod's volumes are unmounted.
func (l *Locks) Ended(_ context.Context, podUID string) (release func(), err error) {
	if podUID == "." || filepath.Base(podUID) != podUID || !filepath.IsLocal(podUID) {
		return nil, fmt.Errorf("lock pod %q: the UID is not a valid path element", podUID)
	}
	path := filepath.Join(l.directory, podUID+lockSuffix)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o640)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS) {
		if _, missing := os.Lstat(path); errors.Is(missing, fs.ErrNotExist) {
			return func() {}, nil // nothing can have locked it; a full disk must not keep mounted what fills it
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open the lock of pod %s: %w", podUID, err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, &RunningError{What: []string{"the runtime holds " + path}}
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() {
		_ = os.Remove(path) // if it stays, it is not locked
		_ = file.Close()
	}, nil
}
