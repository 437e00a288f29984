package labdisk

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"path"
	"sync"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// share is a shared directory in one attachment, as one node sees it.
type share struct {
	client *ioClient
	volume string
	epoch  uint64
	root   *fusefs.Inode
}

// shareNode is a file or directory of a share. It knows nothing but its place: every question goes to the fabric.
type shareNode struct {
	fusefs.Inode
	share *share
}

var (
	_ fusefs.NodeLookuper   = (*shareNode)(nil)
	_ fusefs.NodeGetattrer  = (*shareNode)(nil)
	_ fusefs.NodeSetattrer  = (*shareNode)(nil)
	_ fusefs.NodeReaddirer  = (*shareNode)(nil)
	_ fusefs.NodeMkdirer    = (*shareNode)(nil)
	_ fusefs.NodeUnlinker   = (*shareNode)(nil)
	_ fusefs.NodeRmdirer    = (*shareNode)(nil)
	_ fusefs.NodeRenamer    = (*shareNode)(nil)
	_ fusefs.NodeSymlinker  = (*shareNode)(nil)
	_ fusefs.NodeLinker     = (*shareNode)(nil)
	_ fusefs.NodeReadlinker = (*shareNode)(nil)
	_ fusefs.NodeOpener     = (*shareNode)(nil)
	_ fusefs.NodeCreater    = (*shareNode)(nil)
	_ fusefs.NodeStatfser   = (*shareNode)(nil)
	_ fusefs.NodeFsyncer    = (*shareNode)(nil)
)

// ask sends the request for this node, or the child that Path names, and decodes the JSON of the answer into out.
func (n *shareNode) ask(ctx context.Context, q ioRequest, out any) syscall.Errno {
	p := n.do(ctx, q)
	if p.Errno != 0 || out == nil {
		return p.Errno
	}
	if err := json.Unmarshal(p.Data, out); err != nil {
		return syscall.EIO
	}
	return 0
}

// do sends the request; its Path is relative to this node.
func (n *shareNode) do(ctx context.Context, q ioRequest) *ioReply {
	q.Volume, q.Epoch, q.Path = n.share.volume, n.share.epoch, n.at(q.Path)
	if caller, ok := fuse.FromContext(ctx); ok && q.Op != opSetattr {
		q.UID, q.GID = caller.Uid, caller.Gid
	}
	return n.share.client.do(ctx, q)
}

func (n *shareNode) at(name string) string {
	if n.EmbeddedInode() == n.share.root {
		return name
	}
	return path.Join(n.Path(n.share.root), name)
}

// child makes the inode of an entry. Its generation is the epoch, so that an inode of an attachment that has ended is
// never taken for one of the next.
func (n *shareNode) child(ctx context.Context, a shareAttr, out *fuse.EntryOut) *fusefs.Inode {
	a.fill(&out.Attr)
	return n.NewInode(ctx, &shareNode{share: n.share}, fusefs.StableAttr{Mode: a.Mode & syscall.S_IFMT, Ino: a.Ino, Gen: n.share.epoch})
}

func (a shareAttr) fill(out *fuse.Attr) {
	out.Ino, out.Mode, out.Nlink, out.Rdev = a.Ino, a.Mode, a.Nlink, a.Rdev
	out.Owner = fuse.Owner{Uid: a.UID, Gid: a.GID}
	out.Size, out.Blocks, out.Blksize = uint64(a.Size), uint64(a.Blocks), 4096
	split := func(ns int64) (uint64, uint32) { return uint64(ns / 1e9), uint32(ns % 1e9) }
	out.Atime, out.Atimensec = split(a.Atime)
	out.Mtime, out.Mtimensec = split(a.Mtime)
	out.Ctime, out.Ctimensec = split(a.Ctime)
}

func (n *shareNode) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	return n.make(ctx, ioRequest{Op: opGetattr, Path: name}, out)
}

func (n *shareNode) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	return n.make(ctx, ioRequest{Op: opMkdir, Path: name, Mode: mode}, out)
}

func (n *shareNode) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	return n.make(ctx, ioRequest{Op: opSymlink, Path: name, Path2: target}, out)
}

// make asks for the attributes of a child, after what the request does to it.
func (n *shareNode) make(ctx context.Context, q ioRequest, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	var a shareAttr
	if errno := n.ask(ctx, q, &a); errno != 0 {
		return nil, errno
	}
	return n.child(ctx, a, out), 0
}

func (n *shareNode) Link(ctx context.Context, target fusefs.InodeEmbedder, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	from, ok := target.(*shareNode)
	if !ok || from.share != n.share {
		return nil, syscall.EXDEV
	}
	var a shareAttr
	if errno := from.ask(ctx, ioRequest{Op: opLink, Path2: n.at(name)}, &a); errno != 0 {
		return nil, errno
	}
	return n.child(ctx, a, out), 0
}

func (n *shareNode) Rename(ctx context.Context, name string, parent fusefs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	to, ok := parent.(*shareNode)
	if !ok || to.share != n.share {
		return syscall.EXDEV
	}
	return n.ask(ctx, ioRequest{Op: opRename, Path: name, Path2: to.at(newName), Flags: flags}, nil)
}

func (n *shareNode) Unlink(ctx context.Context, name string) syscall.Errno {
	return n.ask(ctx, ioRequest{Op: opUnlink, Path: name}, nil)
}

func (n *shareNode) Rmdir(ctx context.Context, name string) syscall.Errno {
	return n.ask(ctx, ioRequest{Op: opRmdir, Path: name}, nil)
}

func (n *shareNode) Readlink(ctx context.Context) ([]byte, syscall.Errno) {
	p := n.do(ctx, ioRequest{Op: opReadlink})
	return p.Data, p.Errno
}

func (n *shareNode) Readdir(ctx context.Context) (fusefs.DirStream, syscall.Errno) {
	var listed []shareEntry
	if errno := n.ask(ctx, ioRequest{Op: opReaddir}, &listed); errno != 0 {
		return nil, errno
	}
	entries := make([]fuse.DirEntry, 0, len(listed))
	for _, e := range listed {
		entries = append(entries, fuse.DirEntry{Name: e.Name, Mode: e.Mode, Ino: e.Ino})
	}
	return fusefs.NewListDirStream(entries), 0
}

func (n *shareNode) Getattr(ctx context.Context, fh fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	var a shareAttr
	errno := n.ask(ctx, ioRequest{Op: opGetattr, Handle: handleOf(fh)}, &a)
	a.fill(&out.Attr)
	return errno
}

func (n *shareNode) Setattr(ctx context.Context, fh fusefs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	q := ioRequest{Op: opSetattr, Handle: handleOf(fh), Data: make([]byte, 16)}
	if mode, ok := in.GetMode(); ok {
		q.Flags, q.Mode = q.Flags|setMode, mode
	}
	if uid, ok := in.GetUID(); ok {
		q.Flags, q.UID = q.Flags|setUID, uid
	}
	if gid, ok := in.GetGID(); ok {
		q.Flags, q.GID = q.Flags|setGID, gid
	}
	if size, ok := in.GetSize(); ok {
		q.Flags, q.Size = q.Flags|setSize, int64(size)
	}
	if t, ok := in.GetATime(); ok {
		q.Flags |= setAtime
		binary.LittleEndian.PutUint64(q.Data, uint64(t.UnixNano()))
	}
	if t, ok := in.GetMTime(); ok {
		q.Flags |= setMtime
		binary.LittleEndian.PutUint64(q.Data[8:], uint64(t.UnixNano()))
	}
	var a shareAttr
	errno := n.ask(ctx, q, &a)
	a.fill(&out.Attr)
	return errno
}

func (n *shareNode) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	var st unix.Statfs_t
	errno := n.ask(ctx, ioRequest{Op: opStatfs}, &st)
	*out = fuse.StatfsOut{Blocks: st.Blocks, Bfree: st.Bfree, Bavail: st.Bavail, Files: st.Files, Ffree: st.Ffree,
		Bsize: uint32(st.Bsize), Frsize: uint32(st.Frsize), NameLen: uint32(st.Namelen)}
	return errno
}

// Fsync without an open file is that of a directory.
func (n *shareNode) Fsync(ctx context.Context, fh fusefs.FileHandle, flags uint32) syscall.Errno {
	if f, ok := fh.(*shareFile); ok {
		return f.Fsync(ctx, flags)
	}
	return n.ask(ctx, ioRequest{Op: opSync}, nil)
}

func (n *shareNode) Open(ctx context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	p := n.do(ctx, ioRequest{Op: opOpen, Flags: flags &^ (syscall.O_CREAT | syscall.O_EXCL)})
	if p.Errno != 0 {
		return nil, 0, p.Errno
	}
	return &shareFile{node: n, flags: flags, handle: p.Value}, fuse.FOPEN_DIRECT_IO, 0
}

func (n *shareNode) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fusefs.Inode, fusefs.FileHandle, uint32, syscall.Errno) {
	p := n.do(ctx, ioRequest{Op: opOpen, Path: name, Flags: flags | syscall.O_CREAT, Mode: mode})
	var a shareAttr
	if p.Errno == 0 && json.Unmarshal(p.Data, &a) != nil {
		p.Errno = syscall.EIO
	}
	if p.Errno != 0 {
		return nil, nil, 0, p.Errno
	}
	inode := n.child(ctx, a, out)
	node, ok := inode.Operations().(*shareNode)
	if !ok {
		return nil, nil, 0, syscall.EIO
	}
	return inode, &shareFile{node: node, flags: flags, handle: p.Value}, fuse.FOPEN_DIRECT_IO, 0
}

// shareFile is an open file of a share. Direct I/O keeps the nodes' views of it the same.
type shareFile struct {
	node  *shareNode
	flags uint32

	// mu guards handle, which is new after a restart of the fabric.
	mu     sync.Mutex
	handle uint64
}

var (
	_ fusefs.FileReader    = (*shareFile)(nil)
	_ fusefs.FileWriter    = (*shareFile)(nil)
	_ fusefs.FileFsyncer   = (*shareFile)(nil)
	_ fusefs.FileAllocater = (*shareFile)(nil)
	_ fusefs.FileReleaser  = (*shareFile)(nil)
)

func handleOf(fh fusefs.FileHandle) uint64 {
	f, ok := fh.(*shareFile)
	if !ok {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.handle
}

// do works on the open file; if the fabric does not know it any more it is opened again by its name, once.
func (f *shareFile) do(ctx context.Context, q ioRequest) *ioReply {
	q.Handle = handleOf(f)
	p := f.node.do(ctx, q)
	if p.Errno != syscall.ESTALE {
		return p
	}
	again := f.node.do(ctx, ioRequest{Op: opOpen, Flags: f.flags &^ (syscall.O_CREAT | syscall.O_EXCL | syscall.O_TRUNC)})
	if again.Errno != 0 {
		return p
	}
	f.mu.Lock()
	f.handle = again.Value
	f.mu.Unlock()
	q.Handle = again.Value
	return f.node.do(ctx, q)
}

func (f *shareFile) Read(ctx context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	p := f.do(ctx, ioRequest{Op: opRead, Offset: off, Size: int64(len(dest))})
	return fuse.ReadResultData(p.Data), p.Errno
}

func (f *shareFile) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	p := f.do(ctx, ioRequest{Op: opWrite, Offset: off, Data: data, Flags: f.flags & syscall.O_APPEND})
	return uint32(p.Value), p.Errno
}

func (f *shareFile) Fsync(ctx context.Context, _ uint32) syscall.Errno {
	return f.do(ctx, ioRequest{Op: opSync}).Errno
}

func (f *shareFile) Allocate(ctx context.Context, off, size uint64, mode uint32) syscall.Errno {
	return f.do(ctx, ioRequest{Op: opAllocate, Offset: int64(off), Size: int64(size), Mode: mode}).Errno
}

func (f *shareFile) Release(ctx context.Context) syscall.Errno {
	return f.node.do(ctx, ioRequest{Op: opRelease, Handle: handleOf(f)}).Errno
}
