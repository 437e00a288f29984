package labdisk

import "syscall"

// The I/O of a node uses one connection per host adapter: an HTTP request that is upgraded to two streams of gob values, ioRequest
// and ioReply. The connection names node and incarnation; each request names volume and epoch. Replies carry the request's ID and
// come in any order.

// ioProtocol is the value of the Upgrade header.
const ioProtocol = "labdisk-io/2"

// maxTransfer bounds the data of one read or write, bytes.
const maxTransfer = 1 << 20

type ioOp uint8

// Operations on a block volume name no path; those on a shared directory do.
const (
	opRead ioOp = iota + 1
	opWrite
	opSync
	opAllocate // fallocate: Mode, Offset, Size
	opLookup   // is the volume visible to the node, and as what
	opList     // the volumes visible to the node
	// Shared directories only.
	opGetattr
	opSetattr
	opReaddir
	opMkdir
	opUnlink
	opRmdir
	opRename
	opSymlink
	opReadlink
	opLink
	opOpen
	opRelease
	opStatfs
)

// changes reports whether the operation can alter what the volume holds.
func (o ioOp) changes(flags uint32) bool {
	switch o {
	case opWrite, opAllocate, opSetattr, opMkdir, opUnlink, opRmdir, opRename, opSymlink, opLink:
		return true
	case opOpen:
		return flags&(syscall.O_CREAT|syscall.O_TRUNC) != 0
	default:
		return false
	}
}

type ioRequest struct {
	ID     uint64
	Op     ioOp
	Volume string
	Epoch  uint64
	Handle uint64 // open file of a shared directory
	Offset int64
	Size   int64
	Mode   uint32
	Flags  uint32
	UID    uint32
	GID    uint32
	Path   string // inside the shared directory; "" is its root
	Path2  string // new name of a rename or link, target of a symlink
	Data   []byte
}

type ioReply struct {
	ID    uint64
	Errno syscall.Errno
	Value uint64 // bytes written, handle opened, epoch looked up
	Data  []byte // bytes read; JSON for opLookup, opList, opGetattr, opReaddir, opStatfs
}
