package labdisk

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// fuseType is the file system type of the host adapter's mount, as the mount table shows it.
const fuseType = "fuse.labdisk"

// fuseTransfer is the largest request in bytes: what go-fuse and the fabric both carry.
const fuseTransfer = 256 << 10

// adapterOptions configures a host adapter.
type adapterOptions struct {
	Fabric     string // unix socket
	Node       string
	Mountpoint string
	Patience   time.Duration // of I/O, with a fabric that is away
}

// runAdapter serves the node's volumes as files under Mountpoint/realm(Mountpoint), by their handles, until the mount is
// taken away. ready is called once when the mount stands.
//
// Nothing in this process may touch the mount, a loop device over it or a file system on such: a thread that waits in the
// kernel for a request which this very process must answer cannot be killed, and with it nothing of the node could. That
// goes for its end, too. The last process to leave a mount namespace unmounts all that is in it, before its descriptor of
// /dev/fuse is closed. So the driver makes the mount, and the adapter lives in a mount namespace of its own from which it
// first takes away every mount that hangs on an adapter.
func runAdapter(o adapterOptions, ready func()) error {
	if len(realm(o.Mountpoint)) > 255 {
		return fmt.Errorf("serve %s: the path is too long for a file name once escaped (255 bytes); use a shorter folder", o.Mountpoint)
	}
	if err := dropVolumeMounts(); err != nil {
		return err
	}
	incarnation := rand.Text()
	control := newClient(o.Fabric)
	ctx, cancel := context.WithTimeout(context.Background(), ioPatience)
	defer cancel()
	if err := control.RegisterNode(ctx, Node{Name: o.Node, Incarnation: incarnation}); err != nil {
		return fmt.Errorf("register node %s: %w", o.Node, err)
	}
	client := &ioClient{addr: o.Fabric, node: o.Node, incarnation: incarnation, patience: o.Patience}
	if _, err := client.connection(); err != nil {
		return err
	}
	none := time.Duration(0)
	root := &fusefs.Inode{}
	server, err := fusefs.Mount(fmt.Sprintf("/dev/fd/%d", adapterFuseFD), root, &fusefs.Options{
		EntryTimeout: &none, AttrTimeout: &none, NegativeTimeout: &none, // a volume is there exactly while the node holds it
		NullPermissions: true,
		OnAdd: func(ctx context.Context) {
			dir := root.NewPersistentInode(ctx, &realmNode{client: client}, fusefs.StableAttr{Mode: syscall.S_IFDIR})
			root.AddChild(realm(o.Mountpoint), dir, true)
		},
		MountOptions: fuse.MountOptions{
			Name: "labdisk", FsName: "labdisk", MaxWrite: fuseTransfer, DisableXAttrs: true,
		},
	})
	if err != nil {
		return fmt.Errorf("serve FUSE at %s: %w", o.Mountpoint, err)
	}
	ready()
	server.Wait()
	return nil
}

// Descriptors that the driver hands to an adapter.
const (
	adapterReadyFD = 3 // a pipe for one line
	adapterFuseFD  = 4 // /dev/fuse, mounted
)

// dropVolumeMounts detaches, in this process's own mount namespace, the copies of all mounts that hang on an adapter.
func dropVolumeMounts() error {
	mine, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return fmt.Errorf("look at own mount namespace: %w", err)
	}
	parents, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid()))
	if err != nil {
		return fmt.Errorf("look at the mount namespace of the node driver: %w", err)
	}
	if mine == parents {
		return errors.New("a host adapter is started by the node driver, in a mount namespace of its own")
	}
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return i.FSType != fuseType && i.Major != loopMajor, false
	})
	if err != nil {
		return fmt.Errorf("read mount table: %w", err)
	}
	for _, i := range slices.Backward(infos) {
		err := unix.Unmount(i.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // it went with one above it
			return fmt.Errorf("detach copy of mount %s: %w", i.Mountpoint, err)
		}
	}
	return nil
}

// openFUSE opens the FUSE device, or says what to do when the machine has none.
func openFUSE() (*os.File, error) {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.ENXIO):
		return nil, fmt.Errorf("this machine has no FUSE (/dev/fuse): run `modprobe fuse`, or give the container the device: %w", err)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("open /dev/fuse: not allowed; run as root, in a container with access to the device: %w", err)
	case err != nil:
		return nil, fmt.Errorf("open /dev/fuse: %w", err)
	}
	return f, nil
}

// realmNode is the directory of the volumes.
type realmNode struct {
	fusefs.Inode
	client *ioClient
}

var (
	_ fusefs.NodeLookuper  = (*realmNode)(nil)
	_ fusefs.NodeReaddirer = (*realmNode)(nil)
	_ fusefs.NodeGetattrer = (*realmNode)(nil)
)

func (r *realmNode) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = 0o755
	return 0
}

func (r *realmNode) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	p := r.client.do(ctx, ioRequest{Op: opLookup, Volume: name})
	if p.Errno != 0 {
		return nil, p.Errno
	}
	var info volumeInfo
	if err := json.Unmarshal(p.Data, &info); err != nil {
		return nil, syscall.EIO
	}
	if info.Share {
		root := &shareNode{share: &share{client: r.client, volume: name, epoch: info.Epoch}}
		root.share.root = &root.Inode
		var attr shareAttr
		if errno := root.ask(ctx, ioRequest{Op: opGetattr}, &attr); errno != 0 {
			return nil, errno
		}
		attr.fill(&out.Attr)
		return r.NewInode(ctx, root, fusefs.StableAttr{Mode: syscall.S_IFDIR, Ino: info.inode()}), 0
	}
	disk := &diskNode{client: r.client, volume: name, info: info}
	disk.fill(&out.Attr)
	return r.NewInode(ctx, disk, fusefs.StableAttr{Mode: syscall.S_IFREG, Ino: info.inode()}), 0
}

func (r *realmNode) Readdir(ctx context.Context) (fusefs.DirStream, syscall.Errno) {
	p := r.client.do(ctx, ioRequest{Op: opList})
	if p.Errno != 0 {
		return nil, p.Errno
	}
	var handles []string
	if err := json.Unmarshal(p.Data, &handles); err != nil {
		return nil, syscall.EIO
	}
	entries := make([]fuse.DirEntry, 0, len(handles))
	for _, h := range handles {
		entries = append(entries, fuse.DirEntry{Name: h, Mode: syscall.S_IFREG})
	}
	return fusefs.NewListDirStream(entries), 0
}

// inode is the inode number of a volume in one attachment; from it the node driver knows whether a loop device or mount
// belongs to the attachment of today. It stays clear of the numbers of files in shared directories and of go-fuse's own.
func (i volumeInfo) inode() uint64 {
	if i.Epoch == 0 {
		return 1<<62 | 1<<61 | i.Sequence
	}
	return epochInode(i.Epoch)
}

func epochInode(epoch uint64) uint64 { return 1<<62 | epoch }

// diskNode is a block volume in one attachment. Its I/O names the epoch it was looked up in, so what was opened before a
// detach stays dead after the next attach.
type diskNode struct {
	fusefs.Inode
	client *ioClient
	volume string
	info   volumeInfo
}

var (
	_ fusefs.NodeGetattrer = (*diskNode)(nil)
	_ fusefs.NodeSetattrer = (*diskNode)(nil)
	_ fusefs.NodeOpener    = (*diskNode)(nil)
	_ fusefs.NodeReader    = (*diskNode)(nil)
	_ fusefs.NodeWriter    = (*diskNode)(nil)
	_ fusefs.NodeFsyncer   = (*diskNode)(nil)
	_ fusefs.NodeAllocater = (*diskNode)(nil)
)

func (d *diskNode) fill(out *fuse.Attr) { d.fillAs(d.info.Bytes, out) }

func (d *diskNode) fillAs(bytes int64, out *fuse.Attr) {
	out.Mode = syscall.S_IFREG | 0o600
	if d.info.ReadOnly {
		out.Mode = syscall.S_IFREG | 0o400
	}
	out.Ino, out.Size, out.Nlink = d.info.inode(), uint64(bytes), 1
	out.Blocks, out.Blksize = out.Size/512, 4096
}

// Getattr asks for the size of now: a disk may grow under its attachment.
func (d *diskNode) Getattr(ctx context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	bytes := d.info.Bytes
	var now volumeInfo
	if p := d.client.do(ctx, ioRequest{Op: opLookup, Volume: d.volume}); p.Errno == 0 && json.Unmarshal(p.Data, &now) == nil && now.Epoch == d.info.Epoch {
		bytes = now.Bytes
	}
	d.fillAs(bytes, &out.Attr)
	return 0
}

func (d *diskNode) Setattr(_ context.Context, _ fusefs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if size, ok := in.GetSize(); ok && size != uint64(d.info.Bytes) {
		return syscall.EPERM // a disk does not change its size
	}
	d.fill(&out.Attr)
	return 0
}

func (d *diskNode) Open(_ context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	if d.info.ReadOnly && flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		return nil, 0, syscall.EROFS
	}
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (d *diskNode) Read(ctx context.Context, _ fusefs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	p := d.do(ctx, ioRequest{Op: opRead, Offset: off, Size: int64(len(dest))})
	return fuse.ReadResultData(p.Data), p.Errno
}

func (d *diskNode) Write(ctx context.Context, _ fusefs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	p := d.do(ctx, ioRequest{Op: opWrite, Offset: off, Data: data})
	return uint32(p.Value), p.Errno
}

func (d *diskNode) Fsync(ctx context.Context, _ fusefs.FileHandle, _ uint32) syscall.Errno {
	return d.do(ctx, ioRequest{Op: opSync}).Errno
}

func (d *diskNode) Allocate(ctx context.Context, _ fusefs.FileHandle, off, size uint64, mode uint32) syscall.Errno {
	return d.do(ctx, ioRequest{Op: opAllocate, Offset: int64(off), Size: int64(size), Mode: mode}).Errno
}

func (d *diskNode) do(ctx context.Context, q ioRequest) *ioReply {
	q.Volume, q.Epoch = d.volume, d.info.Epoch
	return d.client.do(ctx, q)
}
