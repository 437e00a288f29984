package proxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// echo answers each line with itself, and closes a connection once its client has finished.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return listener.Addr().String()
}

func newLink(t *testing.T, target string) *Link {
	t.Helper()
	l, err := NewLink(t.Context(), "127.0.0.1:0", target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

type caller struct {
	*net.TCPConn
	t      *testing.T
	answer *bufio.Reader
}

func call(t *testing.T, l *Link) *caller {
	t.Helper()
	c, err := net.Dial("tcp", l.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &caller{c.(*net.TCPConn), t, bufio.NewReader(c)}
}

func (c *caller) say(line string) {
	c.t.Helper()
	if _, err := c.Write([]byte(line + "\n")); err != nil {
		c.t.Fatal(err)
	}
}

func (c *caller) hears(want string) {
	c.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if got, err := c.answer.ReadString('\n'); err != nil || got != want+"\n" {
		c.t.Errorf("heard %q (%v), want %q", got, err, want)
	}
}

// patience is for what comes, also on a machine that is busy with much else.
const patience = 2 * time.Minute

// hearsNothing waits for a moment in which an answer would have come.
func (c *caller) hearsNothing() {
	c.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if got, err := c.answer.ReadString('\n'); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Errorf("heard %q (%v) over a link that is cut", got, err)
	}
}

// TestCutLink: a link that is cut swallows what is sent, on old connections and on new ones, and ends none. Healed, all continue with what
// was in flight.
func TestCutLink(t *testing.T) {
	l := newLink(t, echo(t))
	before := call(t, l)
	before.say("one")
	before.hears("one")
	l.Cut()
	during := call(t, l)
	before.say("two")
	during.say("three")
	before.hearsNothing()
	during.hearsNothing()
	l.Heal()
	before.hears("two")
	during.hears("three")
	l.Cut()
	l.Cut()
	before.hearsNothing()
	l.Heal()
	l.Heal()
	before.say("four")
	before.hears("four")
}

// TestEndIsHeldBack: the end of a connection does not pass a link that is cut either, as a machine that is cut off never learns that its
// peer has closed.
func TestEndIsHeldBack(t *testing.T) {
	l := newLink(t, echo(t))
	c := call(t, l)
	c.say("one")
	c.hears("one")
	l.Cut()
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	c.hearsNothing()
	l.Heal()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := c.answer.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("after the link healed: %v, want the end of the connection", err)
	}
}

// TestResetLink ends connections also while the link is cut.
func TestResetLink(t *testing.T) {
	l := newLink(t, echo(t))
	c := call(t, l)
	c.say("one")
	c.hears("one")
	l.Cut()
	l.Reset()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := c.answer.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection lives: %v", err)
	}
}

// TestTargetThatIsGone resets connections.
func TestTargetThatIsGone(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	c, err := net.Dial("tcp", newLink(t, listener.Addr().String()).address)
	if err != nil {
		return // reset before the caller looked
	}
	defer func() { _ = c.Close() }()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection to nothing lives: %v", err)
	}
}

// TestRefuse: the kernel refuses connections while no process listens at the target, and what is connected stays.
func TestRefuse(t *testing.T) {
	l := newLink(t, echo(t))
	c := call(t, l)
	c.say("one")
	c.hears("one")
	for _, refuse := range []bool{true, true, false, false, true, false} {
		if err := l.Refuse(refuse); err != nil {
			t.Fatal(err)
		}
		again, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.address)
		if err == nil {
			_ = again.Close()
		}
		if errors.Is(err, syscall.ECONNREFUSED) != refuse {
			t.Errorf("refuse %t: %v", refuse, err)
		}
	}
	c.say("two")
	c.hears("two")
}
