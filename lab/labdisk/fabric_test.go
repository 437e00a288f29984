package labdisk

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"belay.dev/belay/lab/socket"
)

// bench is a fabric in this process, with two nodes whose I/O the test does itself: no root, no mounts.
type bench struct {
	*fabric
	t   *testing.T
	dir string
}

func newBench(t *testing.T, permissive bool) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir()}
	b.open(permissive)
	for _, n := range []string{"n1", "n2"} {
		if err := b.register(Node{Name: n, Incarnation: n + "-first"}); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (b *bench) open(permissive bool) {
	b.t.Helper()
	f, err := openFabric(fabricOptions{Dir: b.dir, Permissive: permissive})
	if err != nil {
		b.t.Fatal(err)
	}
	b.fabric = f
	b.t.Cleanup(func() { _ = f.close() })
}

// restart ends the fabric as kill -9 does: nothing is saved that was not saved before.
func (b *bench) restart(permissive bool) {
	b.t.Helper()
	if err := b.close(); err != nil {
		b.t.Fatal(err)
	}
	b.open(permissive)
}

func (b *bench) newDisk(driver, name string) string {
	b.t.Helper()
	v, err := b.create(newVolume{Driver: driver, Name: name, Bytes: 1 << 20, Zone: DefaultZone}, func(Volume) bool { return true })
	if err != nil {
		b.t.Fatal(err)
	}
	return v.Handle
}

func (b *bench) mustAttach(want wantedAttachment) uint64 {
	b.t.Helper()
	a, err := b.attach(want)
	if err != nil {
		b.t.Fatal(err)
	}
	return a.Epoch
}

// io does one I/O as the node's adapter of that incarnation would.
func (b *bench) io(node, incarnation string, q ioRequest) *ioReply {
	s := &session{fabric: b.fabric, node: b.nodes[node], incarnation: incarnation, open: map[uint64]openedFile{}}
	return s.serve(&q)
}

func (b *bench) write(node, volume string, epoch uint64) syscall.Errno {
	return b.io(node, node+"-first", ioRequest{Op: opWrite, Volume: volume, Epoch: epoch, Data: []byte(node)}).Errno
}

// seen is what a violation comes down to.
type seen struct {
	Node, Reason string
	Refused      bool
}

func (b *bench) seen() []seen {
	var out []seen
	for _, v := range b.record.violationsSince(time.Time{}) {
		out = append(out, seen{v.Node, v.Reason, v.Refused})
	}
	return out
}

func TestStrictFabricAcceptsOnlyHolderWrites(t *testing.T) {
	for name, test := range map[string]struct {
		// life attaches and detaches and returns the epoch that n1 writes with.
		life           func(b *bench, v string) uint64
		wantErrno      syscall.Errno
		wantViolations []seen
	}{
		"the holder writes": {
			life: func(b *bench, v string) uint64 {
				return b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: v, Node: "n1"})
			},
		},
		"nobody holds it": {
			life:           func(*bench, string) uint64 { return 1 },
			wantErrno:      syscall.EIO,
			wantViolations: []seen{{"n1", NotHolder, true}},
		},
		"the holder lost it": {
			life: func(b *bench, v string) uint64 {
				e := b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: v, Node: "n1"})
				if err := b.detach(DriverDisk, v, "n1"); err != nil {
					b.t.Fatal(err)
				}
				return e
			},
			wantErrno:      syscall.EIO,
			wantViolations: []seen{{"n1", NotHolder, true}},
		},
		"the holder lost it and has it again, but writes through what it opened before": {
			life: func(b *bench, v string) uint64 {
				e := b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: v, Node: "n1"})
				if err := b.detach(DriverDisk, v, "n1"); err != nil {
					b.t.Fatal(err)
				}
				b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: v, Node: "n1"})
				return e
			},
			wantErrno:      syscall.EIO,
			wantViolations: []seen{{"n1", NotHolder, true}},
		},
		"another node holds it": {
			life: func(b *bench, v string) uint64 {
				return b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: v, Node: "n2"})
			},
			wantErrno:      syscall.EIO,
			wantViolations: []seen{{"n1", NotHolder, true}},
		},
		"the node is cut": {
			life: func(b *bench, v string) uint64 {
				e := b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: v, Node: "n1"})
				if err := b.cut("n1", true); err != nil {
					b.t.Fatal(err)
				}
				return e
			},
			wantErrno:      syscall.EIO,
			wantViolations: []seen{{"n1", NodeCut, true}},
		},
		"the node was cut and is not any more": {
			life: func(b *bench, v string) uint64 {
				e := b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: v, Node: "n1"})
				if err := errors.Join(b.cut("n1", true), b.cut("n1", false)); err != nil {
					b.t.Fatal(err)
				}
				return e
			},
		},
		"the node was switched off and on since": {
			life: func(b *bench, v string) uint64 {
				e := b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: v, Node: "n1"})
				if err := b.register(Node{Name: "n1", Incarnation: "n1-second"}); err != nil {
					b.t.Fatal(err)
				}
				return e
			},
			wantErrno:      syscall.EIO,
			wantViolations: []seen{{"n1", StaleIncarnation, true}},
		},
		"it is attached read-only": {
			life: func(b *bench, v string) uint64 {
				return b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: v, Node: "n1", ReadOnly: true})
			},
			wantErrno:      syscall.EIO,
			wantViolations: []seen{{"n1", ReadOnlyAttachment, true}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, false)
			v := b.newDisk(DriverDisk, "pvc-1")
			if errno := b.write("n1", v, test.life(b, v)); errno != test.wantErrno {
				t.Errorf("errno %v, want %v", errno, test.wantErrno)
			}
			if diff := cmp.Diff(test.wantViolations, b.seen()); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
			data, err := os.ReadFile(filepath.Join(b.dir, "volumes", v))
			if err != nil {
				t.Fatal(err)
			}
			if landed := data[0] != 0; landed != (test.wantErrno == 0) {
				t.Errorf("the write landed: %t", landed)
			}
		})
	}
}

func TestPermissiveFabricRecordsForbiddenWrites(t *testing.T) {
	b := newBench(t, true)
	v := b.newDisk(DriverDisk, "pvc-1")
	first := b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: v, Node: "n1"})
	steps := []struct {
		name string
		do   func() syscall.Errno
		want []seen
	}{
		{"the only holder writes", func() syscall.Errno { return b.write("n1", v, first) }, nil},
		{"a second node holds it and the first writes", func() syscall.Errno {
			b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: v, Node: "n2"})
			return b.write("n1", v, first)
		}, []seen{{"n1", SeveralHolders, false}}},
		{"the first lost it and writes", func() syscall.Errno {
			if err := b.detach(DriverDisk, v, "n1"); err != nil {
				t.Fatal(err)
			}
			return b.write("n1", v, first)
		}, []seen{{"n1", SeveralHolders, false}, {"n1", NotHolder, false}}},
	}
	for _, step := range steps {
		if errno := step.do(); errno != 0 {
			t.Errorf("%s: errno %v", step.name, errno)
		}
		if diff := cmp.Diff(step.want, b.seen()); diff != "" {
			t.Errorf("%s: violations (-want +got):\n%s", step.name, diff)
		}
	}
	if errno := b.cut("n1", true); errno != nil {
		t.Fatal(errno)
	}
	if errno := b.write("n1", v, first); errno != syscall.EIO {
		t.Errorf("a cut node writes: %v, want EIO: a cable that is pulled has no mode", errno)
	}
}

// TestWritesAreCounted: by node and attachment, and only those that landed.
func TestWritesAreCounted(t *testing.T) {
	b := newBench(t, false)
	v := b.newDisk(DriverDisk, "data")
	first := b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: v, Node: "n1"})
	for range 3 {
		if errno := b.write("n1", v, first); errno != 0 {
			t.Fatal(errno)
		}
	}
	b.io("n1", "n1-first", ioRequest{Op: opRead, Volume: v, Epoch: first, Size: 8})
	if err := b.detach(DriverDisk, v, "n1"); err != nil {
		t.Fatal(err)
	}
	second := b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: v, Node: "n2"})
	for node, want := range map[string]syscall.Errno{"n1": syscall.EIO, "n2": 0} {
		if errno := b.write(node, v, map[string]uint64{"n1": first, "n2": second}[node]); errno != want {
			t.Errorf("the write of %s: %v, want %v", node, errno, want)
		}
	}
	got := b.writes()
	if len(got) == 2 && (got[0].Last.After(got[1].First) || got[0].First.After(got[0].Last)) {
		t.Errorf("in another order than they were written: %+v", got)
	}
	for i := range got {
		got[i].First, got[i].Last = time.Time{}, time.Time{}
	}
	want := []Writes{{Volume: v, Node: "n1", Epoch: first, Count: 3}, {Volume: v, Node: "n2", Epoch: second, Count: 1}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAttachIsExclusive(t *testing.T) {
	held := wantedAttachment{Driver: DriverDisk, Node: "n1"}
	for name, test := range map[string]struct {
		held, want wantedAttachment
		refusal    error
		says       string
	}{
		"again for the same node":             {held: held, want: held},
		"another node":                        {held: held, want: wantedAttachment{Node: "n2"}, refusal: errHeldElsewhere, says: "n1"},
		"the same node, read-only now":        {held: held, want: wantedAttachment{Node: "n1", ReadOnly: true}, refusal: errIncompatible},
		"another node, shared, is exclusive":  {held: held, want: wantedAttachment{Node: "n2", Shared: true}, refusal: errHeldElsewhere},
		"another node, both shared":           {held: wantedAttachment{Node: "n1", Shared: true}, want: wantedAttachment{Node: "n2", Shared: true}},
		"a second writer where one may write": {held: wantedAttachment{Node: "n1", Shared: true}, want: wantedAttachment{Node: "n2", Shared: true, SingleWriter: true}, refusal: errHeldElsewhere, says: "n1"},
		"a reader where one may write":        {held: wantedAttachment{Node: "n1", Shared: true}, want: wantedAttachment{Node: "n2", Shared: true, SingleWriter: true, ReadOnly: true}},
		"a node that never registered":        {held: held, want: wantedAttachment{Node: "n9"}, refusal: errNodeNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, false)
			v := b.newDisk(DriverDisk, "pvc-1")
			test.held.Driver, test.held.Volume = DriverDisk, v
			test.want.Driver, test.want.Volume = DriverDisk, v
			first := b.mustAttach(test.held)
			a, err := b.attach(test.want)
			if !errors.Is(err, test.refusal) || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v, want %v that names %q", err, test.refusal, test.says)
			}
			if err == nil && test.held == test.want && a.Epoch != first {
				t.Errorf("epoch %d, want the first one %d", a.Epoch, first)
			}
		})
	}
}

func TestAttachLimitIsPerNodeAndDriver(t *testing.T) {
	b := newBench(t, false)
	if err := b.register(Node{Name: "n1", Zone: DefaultZone, MaxVolumes: 1}); err != nil {
		t.Fatal(err)
	}
	one, two, other := b.newDisk(DriverDisk, "a"), b.newDisk(DriverDisk, "b"), b.newDisk(DriverShare, "c")
	b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: one, Node: "n1"})
	b.mustAttach(wantedAttachment{Driver: DriverShare, Volume: other, Node: "n1", Shared: true})
	b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: one, Node: "n1"}) // again is no second
	if _, err := b.attach(wantedAttachment{Driver: DriverDisk, Volume: two, Node: "n1"}); !errors.Is(err, errTooMany) {
		t.Errorf("error %v, want %v", err, errTooMany)
	}
	b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: two, Node: "n2"})
}

func TestStateSurvivesRestart(t *testing.T) {
	b := newBench(t, false)
	v := b.newDisk(DriverDisk, "pvc-1")
	gone := b.newDisk(DriverDisk, "pvc-2")
	epoch := b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: v, Node: "n1"})
	b.write("n1", v, epoch)
	b.write("n2", v, epoch)
	fault, err := b.setFault(Fault{Effect: EffectError, Code: "Internal", Node: "n2"})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.cut("n2", true), b.remove(DriverDisk, gone)); err != nil {
		t.Fatal(err)
	}
	finished, _, err := b.begin(t.Context(), Call{Method: "CreateVolume", Driver: DriverDisk, Controller: true, Start: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	finished.Code, finished.End = "OK", time.Now()
	b.end(finished)
	if _, _, err := b.begin(t.Context(), Call{Method: "DeleteVolume", Driver: DriverDisk, Controller: true, Start: time.Now()}); err != nil {
		t.Fatal(err)
	}
	before := b.snapshot()

	b.restart(false)
	if diff := cmp.Diff(before, b.snapshot()); diff != "" {
		t.Errorf("state after restart (-before +after):\n%s", diff)
	}
	if errno := b.write("n1", v, epoch); errno != 0 {
		t.Errorf("the holder writes: %v", errno)
	}
	if diff := cmp.Diff([]seen{{"n2", NotHolder, true}}, b.seen()); diff != "" {
		t.Errorf("violations (-want +got):\n%s", diff)
	}
	var codes []string
	for _, c := range b.record.callsSince(time.Time{}) {
		codes = append(codes, c.Code)
	}
	if diff := cmp.Diff([]string{"OK", codeLost}, codes); diff != "" {
		t.Errorf("codes of calls (-want +got):\n%s", diff)
	}
	if err := b.clearFaults([]string{fault.ID}); err != nil {
		t.Fatal(err)
	}
	if next := b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: b.newDisk(DriverDisk, "pvc-3"), Node: "n1"}); next <= epoch {
		t.Errorf("epoch %d was given before", next)
	}
}

func TestRestartRemovesOrphanedData(t *testing.T) {
	b := newBench(t, false)
	v := b.newDisk(DriverDisk, "pvc-1")
	stray := filepath.Join(b.dir, "volumes", "labdisk-9-dead")
	if err := os.WriteFile(stray, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.restart(false)
	if _, err := os.Stat(stray); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("leftover data: %v, want it gone", err)
	}
	if _, err := b.get(DriverDisk, v); err != nil {
		t.Error(err)
	}
}

// No write may reach the disk after the detach has returned, however many are in flight.
func TestDetachWaitsForWrites(t *testing.T) {
	b := newBench(t, false)
	v := b.newDisk(DriverDisk, "pvc-1")
	epoch := b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: v, Node: "n1"})
	var writers sync.WaitGroup
	stop := make(chan struct{})
	for range 8 {
		writers.Go(func() {
			for i := byte(1); ; i++ {
				select {
				case <-stop:
					return
				default:
					b.io("n1", "n1-first", ioRequest{Op: opWrite, Volume: v, Epoch: epoch, Data: []byte{i}})
				}
			}
		})
	}
	time.Sleep(5 * time.Millisecond)
	if err := b.detach(DriverDisk, v, "n1"); err != nil {
		t.Fatal(err)
	}
	read := func() byte {
		data, err := os.ReadFile(filepath.Join(b.dir, "volumes", v))
		if err != nil {
			t.Fatal(err)
		}
		return data[0]
	}
	after := read()
	time.Sleep(5 * time.Millisecond)
	close(stop)
	writers.Wait()
	if now := read(); now != after {
		t.Errorf("the disk changed after the detach: %d, then %d", after, now)
	}
}

func TestDeleteVolumeRemovesData(t *testing.T) {
	for _, driver := range Drivers() {
		b := newBench(t, false)
		v := b.newDisk(driver, "pvc-1")
		path := filepath.Join(b.dir, "volumes", v)
		if _, err := os.Stat(path); err != nil {
			t.Fatal(err)
		}
		if driver == DriverDisk {
			b.mustAttach(wantedAttachment{Driver: driver, Volume: v, Node: "n1"})
			if err := b.remove(driver, v); !errors.Is(err, errStillHeld) || !strings.Contains(err.Error(), "n1") {
				t.Errorf("remove while attached: %v, want %v that names n1", err, errStillHeld)
			}
			if err := b.detach(driver, v, ""); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(b.remove(driver, v), b.remove(driver, v)); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
}

func TestSharedPathsStayInside(t *testing.T) {
	b := newBench(t, false)
	v := b.newDisk(DriverLocal, "pvc-1")
	for _, path := range []string{"../../state.json", "/etc/passwd"} {
		p := b.io("n1", "n1-first", ioRequest{Op: opOpen, Volume: v, Path: path})
		if p.Errno == 0 {
			t.Errorf("%s was opened", path)
		}
	}
}

// A reply longer than a frame would end the connection, and with it all I/O of the node.
func TestTooLongListingIsAnError(t *testing.T) {
	b := newBench(t, false)
	v := b.newDisk(DriverLocal, "pvc-1")
	list := ioRequest{Op: opReaddir, Volume: v}
	for i := range 5000 {
		name := fmt.Sprintf("%04d-%s", i, strings.Repeat("n", 200))
		if err := os.WriteFile(filepath.Join(b.dir, "volumes", v, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if i == 100 {
			if p := b.io("n1", "n1-first", list); p.Errno != 0 {
				t.Fatalf("a short listing: %v", p.Errno)
			}
		}
	}
	if p := b.io("n1", "n1-first", list); p.Errno != syscall.EOVERFLOW || len(p.Data) > maxTransfer {
		t.Errorf("a listing of 5000 files: %v, %d bytes", p.Errno, len(p.Data))
	}
}

// A fabric that drops each connection is as good as one that is away.
func TestIOFailsWhenEveryConnectionBreaks(t *testing.T) {
	socket := filepath.Join(shortDir(t), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
			_ = conn.(*net.UnixConn).CloseWrite()
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
		}
	}()
	client := &ioClient{addr: socket, node: "n1", patience: 200 * time.Millisecond}
	done := make(chan syscall.Errno, 1)
	go func() { done <- client.do(t.Context(), ioRequest{Op: opRead}).Errno }()
	select {
	case errno := <-done:
		if errno != syscall.EIO {
			t.Errorf("errno %v, want EIO", errno)
		}
	case <-time.After(2 * time.Minute):
		t.Error("the I/O never ends")
	}
}

func TestTruncatedLineLosesNoOther(t *testing.T) {
	b := newBench(t, false)
	calls := filepath.Join(b.dir, "calls.jsonl")
	if err := os.WriteFile(calls, []byte(`{"sequence":1,"meth`), 0o600); err != nil {
		t.Fatal(err)
	}
	b.restart(false)
	if _, _, err := b.begin(t.Context(), Call{Method: "Probe"}); err != nil {
		t.Fatal(err)
	}
	b.restart(false)
	if got := b.record.callsSince(time.Time{}); len(got) != 1 || got[0].Method != "Probe" {
		t.Errorf("calls after a restart: %+v", got)
	}
}

func TestVolumeHandleCannotEscapeFolder(t *testing.T) {
	s := &nodeServer{nodeDriver: &nodeDriver{opts: NodeOptions{FuseDir: "/nowhere/fuse"}}, driver: DriverLocal}
	for _, handle := range []string{"../../../../etc", "..", ".", "a/b", "/etc"} {
		if _, err := s.attached(t.Context(), handle); status.Code(err) != codes.NotFound {
			t.Errorf("%s: %v, want NotFound", handle, err)
		}
	}
}

func TestMountsOfAVolumeAreRecognised(t *testing.T) {
	n := &nodeDriver{opts: NodeOptions{FuseDir: "/n/fuse"}}
	for root, want := range map[string]string{
		"/": "", "/%2Fn%2Ffuse": "", "/%2Fn%2Ffuse/v": "v", "/%2Fn%2Ffuse/v//deleted": "v", "/%2Fn%2Ffuse/v/a/folder": "v", "/%2Fm%2Ffuse/v": "",
	} {
		if got := n.recognize(&mountinfo.Info{FSType: fuseType, Root: root}, nil).volume; got != want {
			t.Errorf("%s: volume %q, want %q", root, got, want)
		}
	}
}

func TestAdapterRefusesToStartWithoutDriver(t *testing.T) {
	if err := dropVolumeMounts(); err == nil || strings.Contains(err.Error(), "%!") || errors.Unwrap(err) != nil {
		t.Errorf("started in the mount namespace of its parent: %v", err)
	}
}

// shortDir is short enough for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "ld") //nolint:usetesting // the names of sockets in t.TempDir() are too long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestRefusalsAreOneSentence(t *testing.T) {
	if _, err := socket.Listen("/tmp/" + strings.Repeat("long/", 30) + "x.sock"); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("a socket path that is too long: %v", err)
	}
	if err := checkDrivers([]string{"ebs.csi.aws.com"}); err == nil {
		t.Error("an unknown driver was taken")
	}
	full := describeDisk("/data", fmt.Errorf("write: %w", syscall.ENOSPC))
	if status.Code(statusOf(full)) != codes.ResourceExhausted || !strings.Contains(full.Error(), "/data") {
		t.Errorf("a full disk: %v", statusOf(full))
	}
	if _, err := Dial("/nonexistent/fabric.sock"); err == nil {
		t.Error("dialled nothing")
	}
}

func TestLoopDevicesAreFoundByBackingFile(t *testing.T) {
	for name, test := range map[string]struct {
		backing, prefix string
		want            bool
	}{
		"mounted":                {"/labs/a/nodes/n/fuse/%2Flabs%2Fa%2Fnodes%2Fn%2Ffuse/v", "/labs/a", true},
		"another lab":            {"/labs/ab/nodes/n/fuse/%2Flabs%2Fab%2Fnodes%2Fn%2Ffuse/v", "/labs/a", false},
		"its mount is gone":      {"/%2Flabs%2Fa%2Fnodes%2Fn%2Ffuse/v", "/labs/a/", true},
		"its mount is the place": {"/%2Flabs%2Fa%2Fnodes%2Fn%2Ffuse/v", "/labs/a/nodes/n/fuse", true},
		"another's is gone":      {"/%2Flabs%2Fab%2Fnodes%2Fn%2Ffuse/v", "/labs/a", false},
		"no file of ours":        {"/var/lib/images/disk", "/labs/a", false},
		"a file at the top":      {"/disk", "/labs/a", false},
	} {
		if got := under(test.prefix, test.backing); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}
