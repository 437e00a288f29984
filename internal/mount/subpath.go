package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// SubPath is a file or directory of a mounted volume that is to be mounted at another path.
type SubPath struct {
	// Volume is where the volume is mounted, and Target where the part is to be mounted, both below the root.
	Volume, Target string
	// Path is the part, relative to the volume.
	Path string
	// ReadOnly makes the mount at Target read-only.
	ReadOnly bool
}

// ErrOutsideVolume is returned for a path that leads out of its volume.
var ErrOutsideVolume = errors.New("path leads out of the volume")

// BindSubPath mounts a part of a volume at a path of its own. A missing directory is created with the mode of the volume's root. An
// existing mount at the target is kept if it is the same, and replaced if not.
//
// Containers may write to the volume at the same time and replace any element of the path by a symbolic link (CVE-2017-1002101,
// CVE-2021-25741). So the kernel resolves the path once, within the volume, and what was opened is mounted; the path is not used
// again. Symbolic links inside the volume are followed; absolute ones, and those that lead out, are refused with
// [ErrOutsideVolume].
func (r *Root) BindSubPath(s SubPath) error {
	if err := checkSubPath(s.Path); err != nil {
		return err
	}
	volume, err := openAt(unix.AT_FDCWD, r.Path(s.Volume), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("open volume %s: %w", r.Path(s.Volume), err)
	}
	defer closeFD(volume)
	part, err := openOrMake(volume, s.Path)
	if err != nil {
		return fmt.Errorf("open subPath %q of volume %s: %w", s.Path, r.Path(s.Volume), escapeError(err))
	}
	defer closeFD(part)
	if there, err := r.isBound(part, s); err != nil || there {
		return err
	}
	if err := r.unbind(s.Target); err != nil {
		return err
	}
	if err := r.bind(part, s); err != nil {
		return errors.Join(fmt.Errorf("mount subPath %q of volume %s: %w", s.Path, r.Path(s.Volume), err), r.unbind(s.Target))
	}
	return nil
}

// checkSubPath refuses what kubelet and the API server refuse, before the kernel sees the path.
func checkSubPath(path string) error {
	if path == "" || filepath.IsAbs(path) || slices.Contains(strings.Split(path, "/"), "..") {
		return fmt.Errorf("subPath %q must be relative and must not contain '..': %w", path, ErrOutsideVolume)
	}
	return nil
}

// escapeError replaces the kernel's error for a path that leaves the directory in which it is resolved.
func escapeError(err error) error {
	if errors.Is(err, unix.EXDEV) {
		return ErrOutsideVolume
	}
	return err
}

// inVolume lets the kernel resolve a path within a directory, which no "..", link or mount of /proc can leave.
const inVolume = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS

// openAttempts is how often a path is resolved while the kernel cannot decide if it leads out, because of a concurrent rename
// (openat2(2), EAGAIN).
const openAttempts = 100

func openAt(directory int, name string, flags, resolve uint64) (fd int, err error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: resolve}
	for range openAttempts {
		err = retryEINTR(func() error {
			fd, err = unix.Openat2(directory, name, &how)
			return err
		})
		if !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return fd, err
}

// openOrMake opens a part of a volume, and creates missing directories.
func openOrMake(volume int, path string) (int, error) {
	path = filepath.Clean(path)
	fd, err := openAt(volume, path, unix.O_PATH, inVolume)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	top, err := stat(volume)
	if err != nil {
		return -1, err
	}
	elements := strings.Split(path, "/")
	for i := range elements {
		if err := makeIn(volume, elements[:i+1], top.Mode&modeBits); err != nil {
			return -1, err
		}
	}
	return openAt(volume, path, unix.O_PATH, inVolume)
}

// makeIn creates the last directory of a path if it is missing. Each path is resolved within the volume again, so that concurrent
// changes can make it fail but not lead out.
func makeIn(volume int, path []string, mode uint32) error {
	parent, name := volume, path[len(path)-1]
	if len(path) > 1 {
		var err error
		if parent, err = openAt(volume, filepath.Join(path[:len(path)-1]...), unix.O_PATH|unix.O_DIRECTORY, inVolume); err != nil {
			return err
		}
		defer closeFD(parent)
	}
	err := retryEINTR(func() error { return unix.Mkdirat(parent, name, mode) })
	switch {
	case errors.Is(err, unix.EEXIST):
		return nil // if it is not a directory, the open will fail
	case err != nil:
		return fmt.Errorf("create directory %s: %w", filepath.Join(path...), err)
	}
	made, err := openBelow(parent, name, unix.O_RDONLY|unix.O_DIRECTORY, inVolume|unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return err
	}
	defer closeFD(made)
	return retryEINTR(func() error { return unix.Fchmod(made, mode) }) // because of the umask
}

// isBound reports whether the part is already mounted at its target, with the same options.
func (r *Root) isBound(part int, s SubPath) (bool, error) {
	mounted, err := r.MountedByKernel(s.Target)
	if err != nil || !mounted {
		return false, err
	}
	target, err := r.openTop(s.Target)
	if err != nil {
		return false, err
	}
	defer closeFD(target)
	is, err := stat(target)
	if err != nil {
		return false, err
	}
	want, err := stat(part)
	if err != nil {
		return false, err
	}
	isReadOnly, err := readOnly(target)
	if err != nil {
		return false, err
	}
	volumeReadOnly, err := readOnly(part)
	return is.Dev == want.Dev && is.Ino == want.Ino && isReadOnly == (s.ReadOnly || volumeReadOnly), err
}

func readOnly(fd int) (bool, error) {
	var st unix.Statfs_t
	err := retryEINTR(func() error { return unix.Fstatfs(fd, &st) })
	return st.Flags&unix.ST_RDONLY != 0, err
}

// bind mounts the opened part at the target. The mount is made read-only before it is visible.
func (r *Root) bind(part int, s SubPath) error {
	what, err := stat(part)
	if err != nil {
		return err
	}
	if err := r.makeTarget(s.Target, isDirectory(what)); err != nil {
		return err
	}
	target, err := r.openTop(s.Target)
	if err != nil {
		return err
	}
	defer closeFD(target)
	tree, err := unix.OpenTree(part, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("clone the mount: %w", err)
	}
	defer closeFD(tree)
	if s.ReadOnly {
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return fmt.Errorf("make the mount read-only: %w", err)
		}
	}
	return unix.MoveMount(tree, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// makeTarget creates a mount point: a directory for a directory, otherwise a file.
func (r *Root) makeTarget(name string, directory bool) error {
	if info, err := r.root.Lstat(name); err == nil && info.IsDir() != directory {
		if err := r.Remove(name); err != nil {
			return err
		}
	}
	if directory {
		return r.MakeDir(name)
	}
	if err := r.MakeDir(filepath.Dir(name)); err != nil {
		return err
	}
	return r.writeFile(name, nil, Crash)
}

// unbind removes all mounts at a target, and the target.
func (r *Root) unbind(name string) error {
	for {
		mounted, err := r.MountedByKernel(name)
		if err != nil {
			return err
		}
		if !mounted {
			return r.Remove(name)
		}
		if err := unix.Unmount(r.Path(name), unix.UMOUNT_NOFOLLOW); err != nil {
			return &fs.PathError{Op: "unmount", Path: r.Path(name), Err: err}
		}
	}
}

// UnbindSubPaths undoes BindSubPath for all targets two levels below a directory, and removes the directory.
func (r *Root) UnbindSubPaths(dir string) error {
	groups, err := r.List(dir)
	if err != nil {
		return err
	}
	var problems []error
	for _, group := range groups {
		group = filepath.Join(dir, group)
		targets, err := r.List(group)
		problems = append(problems, err)
		for _, target := range targets {
			problems = append(problems, r.unbind(filepath.Join(group, target)))
		}
		if err := errors.Join(problems...); err == nil {
			problems = append(problems, r.Remove(group))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("unmount subPaths: %w", err)
	}
	return r.Remove(dir)
}
