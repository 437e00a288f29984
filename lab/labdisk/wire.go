package labdisk

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"syscall"
)

// The I/O of a node travels over one connection per host adapter: an HTTP request that is switched to frames. The
// connection names node and incarnation; each frame names volume and epoch. A frame is a 4-byte length and that many
// bytes; integers are little-endian, strings have a 2-byte length. Replies carry the request's id and come in any order.

// ioProtocol is the value of the Upgrade header.
const ioProtocol = "labdisk-io/1"

// maxTransfer bounds the data of one read or write, bytes.
const maxTransfer = 1 << 20

// maxFrame leaves room for the largest data and two long paths.
const maxFrame = maxTransfer + 16<<10

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

// changes tells whether the operation can alter what the volume holds.
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

func writeFrame(w *bufio.Writer, head, data []byte) error {
	var n [4]byte
	binary.LittleEndian.PutUint32(n[:], uint32(len(head)+len(data)))
	if _, err := w.Write(n[:]); err != nil {
		return err
	}
	if _, err := w.Write(head); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}

func readFrame(r *bufio.Reader) ([]byte, error) {
	var n [4]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return nil, err
	}
	size := binary.LittleEndian.Uint32(n[:])
	if size > maxFrame {
		return nil, fmt.Errorf("frame of %d bytes is longer than %d", size, maxFrame)
	}
	frame := make([]byte, size)
	_, err := io.ReadFull(r, frame)
	return frame, err
}

func (q *ioRequest) write(w *bufio.Writer) error {
	head := make([]byte, 0, 96+len(q.Volume)+len(q.Path)+len(q.Path2))
	head = binary.LittleEndian.AppendUint64(head, q.ID)
	head = append(head, byte(q.Op))
	head = binary.LittleEndian.AppendUint64(head, q.Epoch)
	head = binary.LittleEndian.AppendUint64(head, q.Handle)
	head = binary.LittleEndian.AppendUint64(head, uint64(q.Offset))
	head = binary.LittleEndian.AppendUint64(head, uint64(q.Size))
	for _, v := range []uint32{q.Mode, q.Flags, q.UID, q.GID} {
		head = binary.LittleEndian.AppendUint32(head, v)
	}
	for _, s := range []string{q.Volume, q.Path, q.Path2} {
		head = binary.LittleEndian.AppendUint16(head, uint16(len(s)))
		head = append(head, s...)
	}
	return writeFrame(w, head, q.Data)
}

func readRequest(r *bufio.Reader) (*ioRequest, error) {
	frame, err := readFrame(r)
	if err != nil {
		return nil, err
	}
	d := decoder{rest: frame}
	q := &ioRequest{ID: d.uint64(), Op: ioOp(d.byte()), Epoch: d.uint64(), Handle: d.uint64(),
		Offset: int64(d.uint64()), Size: int64(d.uint64()),
		Mode: d.uint32(), Flags: d.uint32(), UID: d.uint32(), GID: d.uint32(),
		Volume: d.string(), Path: d.string(), Path2: d.string()}
	if d.short {
		return nil, fmt.Errorf("I/O request of %d bytes is cut short", len(frame))
	}
	q.Data = d.rest
	return q, nil
}

func (p *ioReply) write(w *bufio.Writer) error {
	head := make([]byte, 0, 20)
	head = binary.LittleEndian.AppendUint64(head, p.ID)
	head = binary.LittleEndian.AppendUint32(head, uint32(p.Errno))
	head = binary.LittleEndian.AppendUint64(head, p.Value)
	return writeFrame(w, head, p.Data)
}

func readReply(r *bufio.Reader) (*ioReply, error) {
	frame, err := readFrame(r)
	if err != nil {
		return nil, err
	}
	d := decoder{rest: frame}
	p := &ioReply{ID: d.uint64(), Errno: syscall.Errno(d.uint32()), Value: d.uint64()}
	if d.short {
		return nil, fmt.Errorf("I/O reply of %d bytes is cut short", len(frame))
	}
	p.Data = d.rest
	return p, nil
}

// decoder takes fields off the front of a frame; short says that it ended too early.
type decoder struct {
	rest  []byte
	short bool
}

func (d *decoder) take(n int) []byte {
	if len(d.rest) < n {
		d.short = true
		return make([]byte, n)
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) byte() byte     { return d.take(1)[0] }
func (d *decoder) uint32() uint32 { return binary.LittleEndian.Uint32(d.take(4)) }
func (d *decoder) uint64() uint64 { return binary.LittleEndian.Uint64(d.take(8)) }
func (d *decoder) string() string {
	return string(d.take(int(binary.LittleEndian.Uint16(d.take(2)))))
}
