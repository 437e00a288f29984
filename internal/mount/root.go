package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Root is the tree below kubelet's root directory. All names are relative to it and cannot leave it, neither by ".." nor by a
// symlink.
type Root struct {
	root *os.Root
	path string
	// configured is the absolute path that OpenRoot was given.
	configured string
	// points replaces the kernel's mount table if set.
	points func() ([]string, error)
	// fsync syncs a file or directory, syncFS its whole file system; tests replace them.
	fsync, syncFS func(*os.File) error
}

// OpenRoot opens the directory and creates it if it does not exist. points, if not nil, replaces the kernel's mount table and lists
// every path with a mount on it.
func OpenRoot(path string, points func() ([]string, error)) (*Root, error) {
	if err := os.MkdirAll(path, 0o750); err != nil {
		return nil, fmt.Errorf("create the root directory: %w", err)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("resolve the root directory: %w", err)
	}
	absolute, err := filepath.Abs(real)
	if err != nil {
		return nil, fmt.Errorf("resolve the root directory: %w", err)
	}
	configured, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("resolve the root directory: %w", err)
	}
	root, err := os.OpenRoot(absolute)
	if err != nil {
		return nil, fmt.Errorf("open the root directory: %w", err)
	}
	return &Root{root: root, path: absolute, configured: configured, points: points, fsync: (*os.File).Sync, syncFS: syncFS}, nil
}

func syncFS(file *os.File) error {
	return retryEINTR(func() error { return unix.Syncfs(int(file.Fd())) })
}

// Close closes the directory.
func (r *Root) Close() error { return r.root.Close() }

// ErrSymlinkOutside is returned for a directory that is a symbolic link out of the root.
var ErrSymlinkOutside = errors.New("it is a symbolic link that leads out of the root directory, and such links are not followed")

// Sub opens the tree below a directory, which saves the path resolution for many files.
func (r *Root) Sub(name string) (*Root, error) {
	root, err := r.root.OpenRoot(name)
	if err != nil {
		return nil, fmt.Errorf("open directory: %w", err)
	}
	return &Root{root: root, path: r.Path(name), configured: filepath.Join(r.configured, name), points: r.points, fsync: r.fsync, syncFS: r.syncFS}, nil
}

// Inside returns ErrSymlinkOutside if one of the directories is a symbolic link out of the root.
func (r *Root) Inside(names ...string) error {
	for _, name := range names {
		info, err := r.root.Lstat(name)
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			continue // other errors show where it is used
		}
		if _, err := r.root.Stat(name); err != nil {
			return fmt.Errorf("use %s: %w", r.Path(name), ErrSymlinkOutside)
		}
	}
	return nil
}

// ErrLocked is returned when another process holds the lock.
var ErrLocked = errors.New("another process holds the lock")

// Lock takes a lock that is released when this process exits, or by unlock.
func (r *Root) Lock(name string) (unlock func() error, err error) {
	file, err := r.root.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", r.Path(name), err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrLocked
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", r.Path(name), err), file.Close())
	}
	return file.Close, nil
}

// Path returns the absolute path of a name. Symbolic links in the path of the root are resolved, as in the kernel's mount table.
func (r *Root) Path(name string) string { return filepath.Join(r.path, name) }

// Configured returns the absolute path of the root as OpenRoot was given it: a driver in a container may have no other.
func (r *Root) Configured() string { return r.configured }

// ErrInvalidName is returned for a name that is not a single element of a path.
var ErrInvalidName = errors.New("not a valid path element")

// maxName is the longest file name in bytes (NAME_MAX).
const maxName = 255

// CheckName checks a name from the API before it is used as an element of a path.
func CheckName(name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return fmt.Errorf("name %q is %w", name, ErrInvalidName)
	case len(name) > maxName:
		return fmt.Errorf("name %q... of %d bytes is %w", name[:32], len(name), ErrInvalidName)
	}
	for _, c := range []byte(name) {
		if c == '/' || c < 0x20 || c == 0x7f {
			return fmt.Errorf("name %q is %w", name, ErrInvalidName)
		}
	}
	return nil
}

// MakeDir creates a directory and its parents, with kubelet's mode. A path with a mount on it is left alone: accessing it may hang.
func (r *Root) MakeDir(name string) error {
	if mounted, err := r.Mounted(name); err == nil && mounted {
		return nil
	}
	var there unix.Stat_t
	if err := unix.Lstat(r.Path(name), &there); err == nil && there.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil // one call instead of several per element of the path
	}
	if err := r.root.MkdirAll(name, 0o750); err != nil {
		return fmt.Errorf("create directory: %w", err)
	}
	return nil
}

// MakeDirDurable is MakeDir for a directory that survives a power cut. What is written into it needs its own sync.
func (r *Root) MakeDirDurable(name string) error {
	if err := r.MakeDir(name); err != nil {
		return err
	}
	// Also if it existed: the process that created it may have died before the sync.
	for name = filepath.Clean(name); name != "."; name = filepath.Dir(name) {
		if err := r.syncDir(filepath.Dir(name)); err != nil {
			return err
		}
	}
	return nil
}

// ReadFile reads a file.
func (r *Root) ReadFile(name string) ([]byte, error) { return r.root.ReadFile(name) }

// List returns the names in a directory; none if it does not exist or is not a directory.
func (r *Root) List(name string) ([]string, error) {
	dir, err := r.root.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list directory: %w", err)
	}
	defer func() { _ = dir.Close() }() // only read
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list directory: %w", err)
	}
	return names, nil
}

// Durability is what a write must survive.
type Durability int

const (
	// Crash: the process may die at any moment. After a power cut the file may be empty.
	Crash Durability = iota
	// InPlace: the new content is as long as the old one, and every mix of the two, as a power cut may leave it, is acceptable. It
	// needs no space on the disk.
	InPlace
	// PowerCut: the new content is on the disk when Write returns.
	PowerCut
)

// temporary is the prefix of files that are not complete yet.
const temporary = ".tmp-"

// Write replaces a file atomically: a reader finds the old content or the new one.
func (r *Root) Write(name string, content []byte, must Durability) error {
	if must == InPlace {
		if err := r.overwrite(name, content); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	dir, base := filepath.Split(name)
	tmp := filepath.Join(dir, temporary+base)
	if err := r.writeFile(tmp, content, must); err != nil {
		return errors.Join(err, r.Remove(tmp))
	}
	if err := r.root.Rename(tmp, name); err != nil {
		return errors.Join(fmt.Errorf("rename file: %w", err), r.Remove(tmp))
	}
	if must != Crash {
		return r.syncDir(dir)
	}
	return nil
}

// overwrite writes over the beginning of a file and truncates the rest.
func (r *Root) overwrite(name string, content []byte) error {
	file, err := r.root.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("overwrite file: %w", err)
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Truncate(int64(len(content)))
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("overwrite file: %w", err)
	}
	return nil
}

func (r *Root) writeFile(name string, content []byte, must Durability) error {
	file, err := r.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	_, err = file.Write(content)
	if err == nil && must != Crash {
		err = r.fsync(file)
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	return nil
}

func (r *Root) syncDir(name string) error {
	dir, err := r.root.Open(filepath.Clean(name))
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	if err := errors.Join(r.fsync(dir), dir.Close()); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}

// IsTemporary reports whether a file was left by a writer that died.
func IsTemporary(name string) bool { return strings.HasPrefix(filepath.Base(name), temporary) }

// ErrMounted is returned for a path that was not removed because something is mounted on it.
var ErrMounted = errors.New("a file system is still mounted on it")

// Remove removes one file or one empty directory, if it exists. It removes nothing below it, and nothing with a mount on it.
func (r *Root) Remove(name string) error {
	mounted, err := r.Mounted(name)
	if err != nil {
		return fmt.Errorf("remove %s: %w", r.Path(name), err)
	}
	if mounted {
		return fmt.Errorf("remove %s: %w", r.Path(name), ErrMounted)
	}
	if err := r.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", r.Path(name), err)
	}
	return nil
}

// RemoveWritten removes a file, and the temporary file of a writer that died.
func (r *Root) RemoveWritten(name string) error {
	return errors.Join(r.Remove(name), r.RemoveTemporary(name))
}

// RemoveTemporary removes what a writer of the file left when it died.
func (r *Root) RemoveTemporary(name string) error {
	dir, base := filepath.Split(name)
	return r.Remove(filepath.Join(dir, temporary+base))
}

// RemoveEmpty removes directories that may be shared with others: it stops without an error at the first that is not empty.
func (r *Root) RemoveEmpty(names ...string) error {
	for _, name := range names {
		err := r.Remove(name)
		if errors.Is(err, syscall.ENOTEMPTY) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Symlink makes name a symbolic link to target, replacing another link.
func (r *Root) Symlink(target, name string) error {
	if old, err := r.root.Readlink(name); err == nil {
		if old == target {
			return nil
		}
		if err := r.Remove(name); err != nil {
			return err
		}
	}
	if err := r.root.Symlink(target, name); err != nil {
		return fmt.Errorf("link %s: %w", r.Path(name), err)
	}
	return nil
}

// IsShared reports whether mounts below the root propagate to other mount namespaces and back, as drivers in containers need it.
func (r *Root) IsShared() (bool, error) {
	if r.points != nil {
		return true, nil
	}
	above, err := mountinfo.GetMounts(mountinfo.ParentsFilter(r.path))
	if err != nil {
		return false, fmt.Errorf("read the mount table: %w", err)
	}
	// The longest path is the mount that the root is on; of several on one path, the last is on top.
	var nearest *mountinfo.Info
	for _, m := range above {
		if nearest == nil || len(m.Mountpoint) >= len(nearest.Mountpoint) {
			nearest = m
		}
	}
	return nearest != nil && strings.Contains(nearest.Optional, "shared:"), nil
}

// Mounted reports whether something is mounted on the path itself. The mounted file system is not accessed: if its server is gone,
// it returns an error or hangs.
func (r *Root) Mounted(name string) (bool, error) {
	path := r.Path(name)
	if r.points != nil {
		points, err := r.points()
		if err != nil {
			return false, fmt.Errorf("read the mount table: %w", err)
		}
		return slices.Contains(points, path), nil
	}
	return mountedOn(path)
}

// MountedByKernel is Mounted according to the kernel, whatever mount table [OpenRoot] was given.
func (r *Root) MountedByKernel(name string) (bool, error) { return mountedOn(r.Path(name)) }

// MountedOrLinked is MountedByKernel, and true for a symbolic link too, by which some drivers publish what they mount elsewhere (see
// [Root.IsPublished]). The link is not followed.
func (r *Root) MountedOrLinked(name string) (bool, error) {
	mounted, err := r.MountedByKernel(name)
	if err != nil || mounted {
		return mounted, err
	}
	info, err := r.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && info.Mode()&fs.ModeSymlink != 0, err
}

func mountedOn(path string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, 0, &st)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return false, nil
	case err == nil && st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0:
		return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
	}
	// A kernel before 5.8, or a file system that returns an error even so: use the mount table.
	found, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
	if err != nil {
		return false, fmt.Errorf("look for a mount on %s: %w", path, err)
	}
	return len(found) > 0, nil
}

// IsPublished reports whether a driver has published a volume at a path: a mount or, for a block volume, a device. A symbolic link
// counts as a mount, and is followed to a device, because some drivers mount elsewhere.
func (r *Root) IsPublished(name string, block bool) (bool, error) {
	mounted, err := r.Mounted(name)
	switch {
	case err != nil:
		return false, err
	case mounted && !block, mounted && r.points != nil: // a simulated device is in that table
		return true, nil
	case !block:
		info, err := r.root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return err == nil && info.Mode()&fs.ModeSymlink != 0, err
	}
	// The link, or the bind mount of a file, leads out of the root.
	info, err := os.Stat(r.Path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && info.Mode().Type() == fs.ModeDevice, err
}
