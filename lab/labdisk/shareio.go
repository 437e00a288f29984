package labdisk

import (
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// openedFile is a file of a shared directory that a node has open.
type openedFile struct {
	*os.File
	volume string
}

// shareAttr is what stat says of a file in a shared directory.
type shareAttr struct {
	Ino                 uint64
	Mode                uint32 // with the type bits
	Nlink               uint32
	UID, GID, Rdev      uint32
	Size, Blocks        int64
	Atime, Mtime, Ctime int64 // nanoseconds since 1970
}

// shareEntry is one name in a listing.
type shareEntry struct {
	Name string
	Ino  uint64
	Mode uint32 // with the type bits
}

func attrOf(info os.FileInfo) shareAttr {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return shareAttr{}
	}
	return shareAttr{Ino: st.Ino, Mode: st.Mode, Nlink: uint32(st.Nlink), UID: st.Uid, GID: st.Gid,
		Rdev: uint32(st.Rdev), Size: st.Size, Blocks: st.Blocks,
		Atime: st.Atim.Nano(), Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano()}
}

// opened finds an open file of the volume; nil after a restart of the fabric.
func (s *session) opened(v *volume, handle uint64) *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.open[handle]; o.volume == v.Handle {
		return o.File
	}
	return nil
}

// shareIO works on a shared directory. All paths are confined to it.
func (s *session) shareIO(v *volume, q *ioRequest) *ioReply {
	path := cmp.Or(q.Path, ".")
	switch q.Op {
	case opRead, opWrite, opAllocate:
		return s.fileIO(v, q)
	case opOpen:
		return s.openShared(v, q)
	case opRelease:
		s.mu.Lock()
		defer s.mu.Unlock()
		if o := s.open[q.Handle]; o.volume == v.Handle {
			_ = o.Close()
			delete(s.open, q.Handle)
		}
		return &ioReply{}
	case opGetattr:
		return s.getattr(v, q)
	case opSetattr:
		if errno := s.setattr(v, q); errno != 0 {
			return &ioReply{Errno: errno}
		}
		return s.getattr(v, q)
	case opReaddir:
		return readdir(v.share, path)
	case opReadlink:
		target, err := v.share.Readlink(path)
		return &ioReply{Data: []byte(target), Errno: errnoOf(err)}
	case opStatfs:
		return statfsOf(v.share)
	default:
		return changeNames(v.share, path, q)
	}
}

// changeNames makes, moves and removes names, and returns the attributes of the result.
func changeNames(root *os.Root, path string, q *ioRequest) *ioReply {
	var err error
	made := path
	switch q.Op {
	case opMkdir:
		err = root.Mkdir(path, os.FileMode(q.Mode&0o777))
	case opSymlink:
		err = root.Symlink(q.Path2, path)
	case opLink:
		err, made = root.Link(path, q.Path2), q.Path2
	case opRename:
		err, made = rename(root, path, q), q.Path2
	case opUnlink, opRmdir:
		return &ioReply{Errno: removeName(root, path, q.Op == opRmdir)}
	default:
		err = syscall.ENOSYS
	}
	if err == nil && (q.Op == opMkdir || q.Op == opSymlink) {
		err = root.Lchown(path, int(q.UID), int(q.GID))
	}
	if err == nil && q.Op == opMkdir {
		err = root.Chmod(path, goMode(q.Mode))
	}
	if err != nil {
		return &ioReply{Errno: errnoOf(err)}
	}
	info, err := root.Lstat(made)
	if err != nil {
		return &ioReply{Errno: errnoOf(err)}
	}
	return jsonReply(attrOf(info))
}

func rename(root *os.Root, path string, q *ioRequest) error {
	switch q.Flags {
	case 0:
	case unix.RENAME_NOREPLACE:
		if _, err := root.Lstat(q.Path2); err == nil {
			return syscall.EEXIST
		}
	default:
		return syscall.EINVAL
	}
	return root.Rename(path, q.Path2)
}

func removeName(root *os.Root, path string, dir bool) syscall.Errno {
	info, err := root.Lstat(path)
	switch {
	case err != nil:
		return errnoOf(err)
	case dir && !info.IsDir():
		return syscall.ENOTDIR
	case !dir && info.IsDir():
		return syscall.EISDIR
	}
	return errnoOf(root.Remove(path))
}

func (s *session) openShared(v *volume, q *ioRequest) *ioReply {
	flags := int(q.Flags) & (syscall.O_ACCMODE | syscall.O_CREAT | syscall.O_EXCL | syscall.O_TRUNC)
	_, statErr := v.share.Lstat(q.Path)
	file, err := v.share.OpenFile(q.Path, flags, os.FileMode(q.Mode&0o777))
	if err != nil {
		return &ioReply{Errno: errnoOf(err)}
	}
	if statErr != nil { // it is new
		err = errors.Join(file.Chown(int(q.UID), int(q.GID)), file.Chmod(goMode(q.Mode))) // the umask was the node's business
	}
	info, statErr := file.Stat()
	if err = errors.Join(err, statErr); err != nil {
		_ = file.Close()
		return &ioReply{Errno: errnoOf(err)}
	}
	p := jsonReply(attrOf(info))
	s.mu.Lock()
	defer s.mu.Unlock()
	p.Value = s.nextOpen
	s.nextOpen++
	s.open[p.Value] = openedFile{File: file, volume: v.Handle}
	return p
}

func (s *session) fileIO(v *volume, q *ioRequest) *ioReply {
	file := s.opened(v, q.Handle)
	if file == nil {
		return &ioReply{Errno: syscall.ESTALE}
	}
	switch q.Op {
	case opRead:
		if q.Size < 0 || q.Size > maxTransfer {
			return &ioReply{Errno: syscall.EINVAL}
		}
		buf := make([]byte, q.Size)
		n, err := file.ReadAt(buf, q.Offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return &ioReply{Errno: errnoOf(err)}
		}
		return &ioReply{Data: buf[:n]}
	case opWrite:
		if q.Flags&syscall.O_APPEND != 0 {
			// Nodes do not know each other's end of the file: the fabric does, and lets one append at a time.
			v.appending.Lock()
			defer v.appending.Unlock()
			info, err := file.Stat()
			if err != nil {
				return &ioReply{Errno: errnoOf(err)}
			}
			q.Offset = info.Size()
		}
		n, err := file.WriteAt(q.Data, q.Offset)
		return &ioReply{Value: uint64(n), Errno: errnoOf(err)}
	default:
		return &ioReply{Errno: errnoOf(unix.Fallocate(int(file.Fd()), q.Mode, q.Offset, q.Size))}
	}
}

func (s *session) getattr(v *volume, q *ioRequest) *ioReply {
	var info os.FileInfo
	var err error
	if file := s.opened(v, q.Handle); file != nil {
		info, err = file.Stat()
	} else {
		info, err = v.share.Lstat(cmp.Or(q.Path, "."))
	}
	if err != nil {
		return &ioReply{Errno: errnoOf(err)}
	}
	return jsonReply(attrOf(info))
}

// Which fields of an opSetattr count: Flags.
const (
	setMode = 1 << iota
	setUID
	setGID
	setSize
	setAtime
	setMtime
)

func (s *session) setattr(v *volume, q *ioRequest) syscall.Errno {
	path := cmp.Or(q.Path, ".")
	var errs []error
	if q.Flags&setMode != 0 {
		errs = append(errs, v.share.Chmod(path, goMode(q.Mode)))
	}
	if q.Flags&(setUID|setGID) != 0 {
		uid, gid := -1, -1
		if q.Flags&setUID != 0 {
			uid = int(q.UID)
		}
		if q.Flags&setGID != 0 {
			gid = int(q.GID)
		}
		errs = append(errs, v.share.Lchown(path, uid, gid))
	}
	if q.Flags&setSize != 0 {
		errs = append(errs, s.truncate(v, q))
	}
	if q.Flags&(setAtime|setMtime) != 0 && len(q.Data) == 16 {
		times := [2]time.Time{} // zero leaves it as it is
		for i, bit := range []uint32{setAtime, setMtime} {
			if q.Flags&bit != 0 {
				times[i] = time.Unix(0, int64(binary.LittleEndian.Uint64(q.Data[8*i:])))
			}
		}
		errs = append(errs, v.share.Chtimes(path, times[0], times[1]))
	}
	return errnoOf(errors.Join(errs...))
}

func (s *session) truncate(v *volume, q *ioRequest) error {
	if file := s.opened(v, q.Handle); file != nil {
		return file.Truncate(q.Size)
	}
	file, err := v.share.OpenFile(q.Path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(file.Truncate(q.Size), file.Close())
}

// goMode keeps the permission bits and the three special ones.
func goMode(m uint32) os.FileMode {
	mode := os.FileMode(m & 0o777)
	for bit, flag := range map[uint32]os.FileMode{
		syscall.S_ISUID: os.ModeSetuid, syscall.S_ISGID: os.ModeSetgid, syscall.S_ISVTX: os.ModeSticky,
	} {
		if m&bit != 0 {
			mode |= flag
		}
	}
	return mode
}

func readdir(root *os.Root, path string) *ioReply {
	dir, err := root.Open(path)
	if err != nil {
		return &ioReply{Errno: errnoOf(err)}
	}
	defer func() { _ = dir.Close() }()
	infos, err := dir.Readdir(-1)
	if err != nil {
		return &ioReply{Errno: errnoOf(err)}
	}
	entries := make([]shareEntry, 0, len(infos))
	for _, info := range infos {
		attr := attrOf(info)
		entries = append(entries, shareEntry{Name: info.Name(), Ino: attr.Ino, Mode: attr.Mode})
	}
	return jsonReply(entries)
}

func statfsOf(root *os.Root) *ioReply {
	dir, err := root.Open(".")
	if err != nil {
		return &ioReply{Errno: errnoOf(err)}
	}
	defer func() { _ = dir.Close() }()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return &ioReply{Errno: errnoOf(err)}
	}
	return jsonReply(st)
}
