package labdisk

import (
	"bufio"
	"encoding/gob"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// session is the connection of one host adapter.
type session struct {
	fabric      *fabric
	node        *node
	incarnation string

	// mu guards what follows.
	mu       sync.Mutex
	open     map[uint64]openedFile // files of shared directories
	nextOpen uint64
}

// maxInFlight bounds the I/O that one node has under way at a time.
const maxInFlight = 128

// serveIO answers the requests of one connection until it ends.
func (f *fabric) serveIO(conn net.Conn, r *bufio.Reader, n *node, incarnation string) {
	s := &session{fabric: f, node: n, incarnation: incarnation, open: map[uint64]openedFile{}, nextOpen: 1}
	replies := make(chan *ioReply, maxInFlight)
	var writer, workers sync.WaitGroup
	writer.Go(func() { writeReplies(conn, replies) })
	inFlight := make(chan struct{}, maxInFlight)
	requests := gob.NewDecoder(r)
	for {
		q := &ioRequest{}
		if requests.Decode(q) != nil {
			break
		}
		inFlight <- struct{}{}
		workers.Go(func() {
			p := s.serve(q)
			p.ID = q.ID
			replies <- p
			<-inFlight
		})
	}
	workers.Wait()
	slog.Info("I/O connection ended", "node", n.name, "incarnation", incarnation) // all that was in it has been judged
	close(replies)
	writer.Wait()
	_ = conn.Close()
	for _, file := range s.open {
		_ = file.Close()
	}
}

// writeReplies writes until the channel is closed, and drops what cannot be written any more.
func writeReplies(conn net.Conn, replies <-chan *ioReply) {
	w := bufio.NewWriterSize(conn, 256<<10)
	encoder := gob.NewEncoder(w)
	var failed error
	for p := range replies {
		if failed == nil {
			failed = encoder.Encode(p)
		}
		if failed == nil && len(replies) == 0 {
			failed = w.Flush()
		}
		if failed != nil {
			_ = conn.Close() // wakes the reader
		}
	}
}

func (s *session) serve(q *ioRequest) *ioReply {
	if q.Op == opLookup {
		return s.lookup(q.Volume)
	}
	if q.Op == opList {
		return jsonReply(s.fabric.visibleAll(s))
	}
	s.fabric.mu.Lock()
	v := s.fabric.volumes[q.Volume]
	s.fabric.mu.Unlock()
	if v == nil {
		return &ioReply{Errno: syscall.EIO}
	}
	if q.Op == opSync {
		return s.sync(v, q)
	}
	if q.Op == opRelease {
		return s.shareIO(v, q) // a node that lost the volume may still close its files
	}
	a := admission{node: s.node, incarnation: s.incarnation, epoch: q.Epoch, write: q.Op.changes(q.Flags)}
	return s.fabric.admit(v, a, q, func() *ioReply {
		if v.isShare() {
			return s.shareIO(v, q)
		}
		return blockIO(v, q)
	})
}

// sync asks first and syncs then, without the gate: the disk may take long, and what is synced was admitted before.
func (s *session) sync(v *volume, q *ioRequest) *ioReply {
	var file *os.File
	a := admission{node: s.node, incarnation: s.incarnation, epoch: q.Epoch}
	p := s.fabric.admit(v, a, q, func() *ioReply {
		file = v.data
		if v.isShare() {
			file = s.opened(v, q.Handle)
		}
		return &ioReply{}
	})
	if p.Errno != 0 {
		return p
	}
	if file == nil && q.Handle == 0 {
		return &ioReply{} // a directory: the host's file system keeps it in order
	}
	if file == nil {
		return &ioReply{Errno: syscall.ESTALE}
	}
	return &ioReply{Errno: errnoOf(file.Sync())}
}

// volumeInfo is what a node sees of a volume by its name.
type volumeInfo struct {
	Bytes    int64
	Share    bool
	ReadOnly bool
	Epoch    uint64 // 0 without an attachment
	Sequence uint64
}

func (s *session) lookup(handle string) *ioReply {
	v, a, ok := s.fabric.visible(s, handle)
	if !ok {
		return &ioReply{Errno: syscall.ENOENT}
	}
	return jsonReply(volumeInfo{Bytes: v.about().Bytes, Share: v.isShare(), ReadOnly: a.ReadOnly, Epoch: a.Epoch, Sequence: v.Sequence})
}

func blockIO(v *volume, q *ioRequest) *ioReply {
	switch q.Op {
	case opRead:
		if q.Size < 0 || q.Size > maxTransfer {
			return &ioReply{Errno: syscall.EINVAL}
		}
		buf := make([]byte, q.Size)
		n, err := v.data.ReadAt(buf, q.Offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return &ioReply{Errno: errnoOf(err)}
		}
		return &ioReply{Data: buf[:n]}
	case opWrite:
		if q.Offset < 0 || q.Offset+int64(len(q.Data)) > v.Bytes {
			return &ioReply{Errno: syscall.ENOSPC} // past the end of the disk
		}
		n, err := v.data.WriteAt(q.Data, q.Offset)
		return &ioReply{Value: uint64(n), Errno: errnoOf(err)}
	case opAllocate:
		if q.Mode&unix.FALLOC_FL_KEEP_SIZE == 0 && q.Offset+q.Size > v.Bytes {
			return &ioReply{Errno: syscall.ENOSPC}
		}
		return &ioReply{Errno: errnoOf(unix.Fallocate(int(v.data.Fd()), q.Mode, q.Offset, q.Size))}
	default:
		return &ioReply{Errno: syscall.ENOSYS}
	}
}

func jsonReply(value any) *ioReply {
	b, err := json.Marshal(value)
	if err != nil {
		return &ioReply{Errno: syscall.EIO}
	}
	if len(b) > maxTransfer {
		return &ioReply{Errno: syscall.EOVERFLOW} // longer than a reply may be: a directory with too many files
	}
	return &ioReply{Data: b}
}

// errnoOf finds the errno in an error; what has none is EIO.
func errnoOf(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return syscall.EIO
}
