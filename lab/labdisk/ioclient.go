package labdisk

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"syscall"
	"time"
)

// How long I/O waits for a fabric that is away, as a host waits for its SAN before it reports an error; and how often it
// tries to reach it in that time.
const (
	ioPatience   = 30 * time.Second
	redialPeriod = 50 * time.Millisecond
)

// ioClient connects a host adapter with the fabric: one connection, opened again when it breaks.
type ioClient struct {
	addr        string
	node        string
	incarnation string
	// patience is how long I/O waits for the fabric.
	patience time.Duration

	// mu guards conn.
	mu   sync.Mutex
	conn *ioConn
}

// ioConn is one connection. It is dead once err is set.
type ioConn struct {
	net.Conn

	// writeMu guards what follows.
	writeMu sync.Mutex
	w       *bufio.Writer
	encoder *gob.Encoder

	// mu guards what follows.
	mu      sync.Mutex
	nextID  uint64
	waiting map[uint64]chan *ioReply
	err     error
}

// do sends the request and waits for its reply. What may safely be done twice is sent again when the connection breaks.
func (c *ioClient) do(ctx context.Context, q ioRequest) *ioReply {
	deadline := time.Now().Add(c.patience)
	for {
		conn, err := c.connection()
		if err == nil {
			p, sent := conn.call(&q)
			if p != nil {
				return p
			}
			if sent && !q.Op.repeatable(q.Flags) {
				return &ioReply{Errno: syscall.EIO}
			}
			err = conn.failure() // the next turn dials
		}
		if time.Now().After(deadline) {
			slog.Error("I/O failed because the fabric is away", "volume", q.Volume, "op", q.Op, "err", err)
			return &ioReply{Errno: syscall.EIO}
		}
		timer := time.NewTimer(redialPeriod)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return &ioReply{Errno: syscall.EINTR}
		}
	}
}

// repeatable reports whether doing the operation twice is as good as once.
func (o ioOp) repeatable(flags uint32) bool {
	return !o.changes(flags) || o == opAllocate || o == opSetattr || o == opWrite && flags&syscall.O_APPEND == 0
}

// connection returns the live connection, or makes one.
func (c *ioClient) connection() (*ioConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil && c.conn.failure() == nil {
		return c.conn, nil
	}
	raw, err := net.Dial("unix", c.addr)
	if err != nil {
		return nil, fmt.Errorf("reach fabric: %w", err)
	}
	r := bufio.NewReaderSize(raw, 256<<10)
	if err := upgrade(raw, r, c.node, c.incarnation); err != nil {
		return nil, errors.Join(fmt.Errorf("open I/O connection of node %s: %w", c.node, err), raw.Close())
	}
	w := bufio.NewWriterSize(raw, 256<<10)
	c.conn = &ioConn{Conn: raw, w: w, encoder: gob.NewEncoder(w), waiting: map[uint64]chan *ioReply{}}
	go c.conn.receive(r)
	return c.conn, nil
}

func upgrade(conn net.Conn, r *bufio.Reader, node, incarnation string) error {
	q := url.Values{"node": {node}, "incarnation": {incarnation}}
	req, err := http.NewRequest(http.MethodPost, "http://fabric/v1/io?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", ioProtocol)
	if err := req.Write(conn); err != nil {
		return err
	}
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // there is none: what follows are replies
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return fmt.Errorf("fabric answered %s", resp.Status)
	}
	return nil
}

func (n *ioConn) failure() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// call returns nil when the connection broke before the reply; sent reports whether the fabric may have had the request.
func (n *ioConn) call(q *ioRequest) (p *ioReply, sent bool) {
	reply := make(chan *ioReply, 1)
	n.mu.Lock()
	if n.err != nil {
		n.mu.Unlock()
		return nil, false
	}
	n.nextID++
	id := n.nextID
	n.waiting[id] = reply
	n.mu.Unlock()

	n.writeMu.Lock()
	q.ID = id
	err := n.encoder.Encode(q)
	if err == nil {
		err = n.w.Flush()
	}
	n.writeMu.Unlock()
	if err != nil {
		n.fail(err) // closes reply
		<-reply
		return nil, false // the fabric has a part of the request at most, and drops it
	}
	return <-reply, true
}

// receive hands out replies until the connection breaks.
func (n *ioConn) receive(r *bufio.Reader) {
	replies := gob.NewDecoder(r)
	for {
		p := &ioReply{}
		if err := replies.Decode(p); err != nil {
			n.fail(err)
			return
		}
		n.mu.Lock()
		ch := n.waiting[p.ID]
		delete(n.waiting, p.ID)
		n.mu.Unlock()
		if ch != nil {
			ch <- p
		}
	}
}

// fail ends the connection and wakes all who wait on it.
func (n *ioConn) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err != nil {
		return
	}
	n.err = err
	_ = n.Close()
	for id, ch := range n.waiting {
		close(ch)
		delete(n.waiting, id)
	}
}
