package nodekill

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// envHold is set for a process of this test that has a device open and whose first thread has ended: its open files are those of
// another thread.
const envHold = "BELAY_NODEKILL_HOLD"

func init() {
	device := os.Getenv(envHold)
	if device == "" {
		return
	}
	runtime.LockOSThread() // the first thread
	file, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() {
		fmt.Println("ready")
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the test ends it, or itself
		_ = file.Close()
		os.Exit(0)
	}()
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
}

// longestHold bounds how long a process holds on to a volume that no pod wants any more.
const longestHold = time.Second

// holder is a process that holds on to a volume.
type holder struct {
	volume *volume
	cmd    *exec.Cmd
	stdin  io.Closer
	alive  atomic.Bool
	ended  chan struct{}
}

// end ends the process. alive is unset first: the kernel removes its mounts before Wait returns.
func (h *holder) end() {
	h.alive.Store(false)
	_ = h.stdin.Close()
	_ = h.cmd.Wait()
	close(h.ended)
}

// hold has a process hold on to a volume that is staged: to a file system by a mount below its copy of the stage in a namespace that
// receives the machine's unmounts, to a raw device by a thread. The function ends it, after a random time.
func (r *rig) hold(v *volume) (thenEnd func()) {
	r.Helper()
	if !r.settled {
		return func() {} // it may not be staged yet
	}
	if last := r.held.Load(); last != nil {
		<-last.ended
	}
	args := []string{"-t", strconv.Itoa(r.init), "-m", "-p", "--"}
	cmd := exec.Command("nsenter", append(args, "unshare", "-m", "--propagation", "slave", "sh", "-ec",
		`mkdir -p "$0/below"; mount -t tmpfs below "$0/below"; echo ready; read line || true`, r.staging(v))...)
	if v.block {
		file := filepath.Join(r.dir, fmt.Sprintf("device-%d", r.made))
		var st unix.Stat_t
		r.must(unix.Stat(r.inside(r.target(r.pods[r.usedBy(v)[0]], v)), &st))
		r.must(unix.Mknod(r.inside(file), unix.S_IFBLK|0o600, int(st.Rdev)))
		r.Cleanup(func() { _ = os.Remove(file) })
		self, err := os.Executable()
		r.must(err)
		cmd = exec.Command("nsenter", append(args, self)...)
		cmd.Env = append(os.Environ(), envHold+"="+file)
	}
	h := &holder{volume: v, cmd: cmd, ended: make(chan struct{})}
	var err error
	h.stdin, err = cmd.StdinPipe()
	r.must(err)
	out, err := cmd.StdoutPipe()
	r.must(err)
	cmd.Stderr = os.Stderr
	r.must(cmd.Start())
	if n, err := out.Read(make([]byte, 16)); err != nil || n == 0 {
		r.Fatalf("no process holds on to %s: %v", v.claim, err)
	}
	h.alive.Store(true)
	r.held.Store(h)
	r.holds++
	after := time.Duration(r.random.Int64N(int64(longestHold)))
	return func() { time.AfterFunc(after, h.end) }
}

// heldBy returns the process that holds on to a volume; 0 for none.
func (r *rig) heldBy(unique string) int {
	if h := r.held.Load(); h != nil && h.volume.unique() == unique && h.alive.Load() {
		return h.cmd.Process.Pid
	}
	return 0
}
