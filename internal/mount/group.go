package mount

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// GroupChange changes the group of the files of a volume. Its counters may be read while it is running.
type GroupChange struct {
	// GID is the group.
	GID int
	// Seen counts the files that were examined.
	Seen atomic.Int64
	// Refused counts how often the file system did not let root change a file (a squashed export, FAT, a read-only mount). As with
	// kubelet, the pod gets the volume anyway.
	Refused atomic.Int64
	// FirstRefusal is the first such error, once ChangeGroup has returned.
	FirstRefusal error
}

// What kubelet adds to the mode of files and directories.
const (
	groupFile      = 0o660
	groupDirectory = groupFile | 0o110 | unix.S_ISGID
	modeBits       = 0o7777
)

// openDirectories is how many directories one change keeps open at most. In a deeper tree those far above are closed, so that no
// tree is too deep.
const openDirectories = 32

// ErrMoved is returned when a directory was moved while the tree below it was being changed.
var ErrMoved = errors.New("the directory was moved during the change")

// HasGroup reports whether a directory has the group and mode that ChangeGroup sets. Since ChangeGroup makes the top of a tree mismatch
// before anything below it is changed, and changes it last, the whole tree then has them. Only a directory can.
func (r *Root) HasGroup(name string, gid int) (bool, error) {
	fd, err := r.openTop(name)
	if err != nil {
		return false, err
	}
	defer closeFD(fd)
	st, err := stat(fd)
	if err != nil {
		return false, fmt.Errorf("stat %s: %w", r.Path(name), err)
	}
	return fits(st, gid), nil
}

func fits(st unix.Stat_t, gid int) bool {
	return isDirectory(st) && int(st.Gid) == gid && st.Mode&groupDirectory == groupDirectory
}

// ChangeGroup changes a file or a directory and everything below it, children first. It follows no symlink and enters no other
// mount. A file that is created meanwhile may be missed. It ends early when ctx ends, with its cause.
//
// Other processes may write to the volume at the same time and must not redirect the change: each file is opened in its opened
// directory with O_PATH, and is changed only through that descriptor.
func (r *Root) ChangeGroup(ctx context.Context, name string, change *GroupChange) error {
	top, err := r.openTop(name)
	if err != nil {
		return err
	}
	defer closeFD(top)
	walk := groupWalk{GroupChange: change, path: r.Path(name), fsync: r.fsync, syncFS: r.syncFS}
	defer walk.close()
	if err := walk.run(ctx, top); err != nil && !errors.Is(err, errReadOnlyFileSystem) {
		return err
	}
	return nil
}

// openTop opens a name below the root, even a mount point, but never the target of a symlink.
func (r *Root) openTop(name string) (int, error) {
	parent, err := r.root.Open(path.Dir(name))
	if err != nil {
		return -1, fmt.Errorf("open the directory of %s: %w", r.Path(name), err)
	}
	defer parent.Close() //nolint:errcheck // only read
	fd, err := openBelow(int(parent.Fd()), path.Base(name), unix.O_PATH, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", r.Path(name), err)
	}
	return fd, nil
}

// openBelow opens an entry of an opened directory, but never the target of a symlink.
func openBelow(directory int, name string, flags, resolve uint64) (fd int, err error) {
	how := unix.OpenHow{Flags: flags | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: resolve}
	err = retryEINTR(func() error {
		fd, err = unix.Openat2(directory, name, &how)
		return err
	})
	return fd, err
}

func stat(fd int) (st unix.Stat_t, err error) {
	return st, retryEINTR(func() error { return unix.Fstat(fd, &st) })
}

// retryEINTR repeats a call that a signal interrupted; the Go runtime sends itself signals all the time.
func retryEINTR(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func closeFD(fd int) { _ = unix.Close(fd) } // nothing was written through it

func isDirectory(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// errReadOnlyFileSystem ends the walk over a read-only file system.
var errReadOnlyFileSystem = errors.New("the file system is read-only")

// groupWalk is one walk. It goes down by names in opened directories, and up by "..".
type groupWalk struct {
	*GroupChange
	path          string // of the top
	down          []level
	fsync, syncFS func(*os.File) error
}

// level is a directory on the path to the current one.
type level struct {
	name string
	// dir is nil while it is closed because too many below it are open.
	dir *os.File
	// device and inode identify the directory.
	device, inode uint64
	// left has the names of its directories that are still to be entered, each followed by a NUL: there may be millions.
	left []byte
}

func (w *groupWalk) current() *level { return &w.down[len(w.down)-1] }

func (w *groupWalk) close() {
	for _, l := range w.down {
		if l.dir != nil {
			_ = l.dir.Close()
		}
	}
}

func (w *groupWalk) run(ctx context.Context, top int) error {
	st, err := stat(top)
	if err != nil {
		return w.failed("stat", "", err)
	}
	if !isDirectory(st) {
		return w.change(top, st, "")
	}
	if err := w.mark(top, st); err != nil {
		return err
	}
	for err = w.enter(ctx, top, "."); err == nil && len(w.down) > 0; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if name, ok := w.current().next(); ok {
			err = w.enter(ctx, int(w.current().dir.Fd()), name)
		} else {
			err = w.leave()
		}
	}
	return err
}

// mark makes the top mismatch for every group, on the disk too, before anything below it is changed to another group. So an
// interrupted change is repeated with the next mount: by this agent after a restart, another node, and a kubelet, whose rule for
// OnRootMismatch requires the set-group-ID bit of every group (k8s.io/kubernetes v1.36.3, pkg/volume/volume_linux.go:227):
//
//	if (unixPerms&filePerm != unixPerms) || (fsInfo.Mode()&os.ModeSetgid == 0) {
//
// Without that bit no process loses access: a file that a container creates in the top meanwhile, and only there, gets the group of its
// process. A top that has the group already keeps the bit: each file that is changed then fits what the top says, and containers that run
// with the group do not see the change. A top that may not be changed says nothing about its files, with kubelet neither.
func (w *groupWalk) mark(top int, st unix.Stat_t) error {
	if int(st.Gid) == w.GID || st.Mode&unix.S_ISGID == 0 {
		return nil
	}
	err := setMode(top, st.Mode&modeBits&^unix.S_ISGID)
	if errors.Is(err, unix.EDQUOT) { // for now: others may be permitted
		return w.failed("change the mode of", "", err)
	}
	if err != nil {
		return w.classify("change the mode of", "", err)
	}
	fd, err := openBelow(top, ".", unix.O_RDONLY|unix.O_DIRECTORY, unix.RESOLVE_NO_XDEV)
	if err != nil {
		return w.failed("open", "", err)
	}
	dir := os.NewFile(uintptr(fd), ".")
	defer dir.Close() //nolint:errcheck // only read
	return w.sync(w.fsync, dir)
}

// sync has a change reach the disk before those that follow: a file system need not keep their order in a power cut. One that syncs no
// directories (EINVAL) is left alone.
func (w *groupWalk) sync(sync func(*os.File) error, dir *os.File) error {
	switch err := sync(dir); {
	case err == nil, errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOSYS):
		return nil
	default:
		return w.failed("write to the disk", "", err)
	}
}

// next removes and returns the last of the remaining names.
func (l *level) next() (string, bool) {
	if len(l.left) == 0 {
		return "", false
	}
	names := l.left[:len(l.left)-1]
	start := bytes.LastIndexByte(names, 0) + 1
	l.left = l.left[:start]
	return string(names[start:]), true
}

// enter opens a directory, changes its files, and collects the names of its directories.
func (w *groupWalk) enter(ctx context.Context, above int, name string) error {
	fd, err := openBelow(above, name, unix.O_RDONLY|unix.O_DIRECTORY, unix.RESOLVE_NO_XDEV)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EXDEV):
		return nil
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return w.entry(name) // it was replaced meanwhile
	case err != nil:
		return w.failed("open", name, err)
	}
	st, err := stat(fd)
	if err != nil {
		closeFD(fd)
		return w.failed("stat", name, err)
	}
	if n := len(w.down) - openDirectories; n >= 0 {
		_ = w.down[n].dir.Close() // only read
		w.down[n].dir = nil
	}
	dir := os.NewFile(uintptr(fd), name)
	w.down = append(w.down, level{name: name, dir: dir, device: st.Dev, inode: st.Ino})
	for {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := w.entry(name); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return w.failed("list", "", err)
		}
	}
}

// entry changes an entry of the current directory, or collects its name if it is a directory.
func (w *groupWalk) entry(name string) error {
	fd, err := openBelow(int(w.current().dir.Fd()), name, unix.O_PATH, unix.RESOLVE_NO_XDEV)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EXDEV) {
		return nil
	}
	if err != nil {
		return w.failed("open", name, err)
	}
	defer closeFD(fd)
	st, err := stat(fd)
	if err != nil {
		return w.failed("stat", name, err)
	}
	if isDirectory(st) {
		in := w.current()
		in.left = append(append(in.left, name...), 0)
		return nil
	}
	return w.change(fd, st, name)
}

// leave changes the current directory, whose content is done, and goes up.
func (w *groupWalk) leave() error {
	lowest := *w.current()
	fd := int(lowest.dir.Fd())
	st, err := stat(fd)
	if err != nil {
		return w.failed("stat", "", err)
	}
	if len(w.down) == 1 && !fits(st, w.GID) {
		if err := w.sync(w.syncFS, lowest.dir); err != nil { // the top fits last
			return err
		}
	}
	if err := w.change(fd, st, ""); err != nil {
		return err
	}
	if len(w.down) > 1 && w.down[len(w.down)-2].dir == nil {
		if err := w.reopen(&w.down[len(w.down)-2], fd); err != nil {
			return err
		}
	}
	w.down = w.down[:len(w.down)-1]
	_ = lowest.dir.Close() // only read
	return nil
}

// reopen opens a closed directory from one below it.
func (w *groupWalk) reopen(l *level, below int) error {
	fd, err := openBelow(below, "..", unix.O_RDONLY|unix.O_DIRECTORY, unix.RESOLVE_NO_XDEV)
	if err != nil {
		return w.failed("go up from", "", err)
	}
	l.dir = os.NewFile(uintptr(fd), l.name)
	st, err := stat(fd)
	if err != nil {
		return w.failed("go up from", "", err)
	}
	if st.Dev != l.device || st.Ino != l.inode {
		return w.failed("go up from", "", ErrMoved)
	}
	return nil
}

// change sets the group and mode of one opened file, and writes only what differs. A symlink has no mode.
func (w *groupWalk) change(fd int, st unix.Stat_t, name string) error {
	w.Seen.Add(1)
	before := st.Mode & modeBits
	mode := before | groupFile
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		mode |= groupDirectory
	case unix.S_IFLNK:
		mode = before
	}
	if int(st.Gid) != w.GID {
		err := retryEINTR(func() error { return unix.Fchownat(fd, "", -1, w.GID, unix.AT_EMPTY_PATH) })
		if err := w.classify("change the group of", name, err); err != nil {
			return err
		}
		// The change of the group cleared set-user-ID and set-group-ID.
		before &^= unix.S_ISUID | unix.S_ISGID
	}
	if mode == before {
		return nil
	}
	return w.classify("change the mode of", name, setMode(fd, mode))
}

// setMode is fchmod for a descriptor that was opened with O_PATH, with which that does not work.
func setMode(fd int, mode uint32) error {
	return retryEINTR(func() error { return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), mode) })
}

// classify separates what the file system does not permit, which is not a failure, from errors.
func (w *groupWalk) classify(attempt, name string, err error) error {
	switch {
	case err == nil, errors.Is(err, unix.ENOENT): // a network file system notices late that it was deleted
		return nil
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.EROFS), errors.Is(err, unix.ENOTSUP),
		errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EDQUOT):
		if w.Refused.Add(1) == 1 {
			w.FirstRefusal = w.failed(attempt, name, err)
		}
		if errors.Is(err, unix.EROFS) {
			return errReadOnlyFileSystem
		}
		return nil
	default:
		return w.failed(attempt, name, err)
	}
}

// failed names the file in the error, shortened: a hostile path is longer than any message.
func (w *groupWalk) failed(attempt, name string, err error) error {
	const enough = 1024
	where := w.path
	for _, l := range w.down {
		where = path.Join(where, l.name)
		if len(where) > enough {
			where += "/..."
			break
		}
	}
	return fmt.Errorf("%s %q: %w", attempt, path.Join(where, name), err)
}
