package attacher

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// builtVersion is what the program under test says of itself.
const builtVersion = "v0.0.0-test"

// built is the real program, linked once for all tests of the package.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// programPath is the real program. Its folder may be read by every user.
func programPath(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "belay-attacher-"); built.err != nil { //nolint:usetesting // shared by the package's tests
			return
		}
		if built.err = os.Chmod(built.dir, 0o755); built.err != nil {
			return
		}
		build := exec.Command("go", "build", "-ldflags", "-X main.version="+builtVersion, "-o", built.dir+"/", "belay.dev/belay/cmd/belay-attacher")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if output, err := build.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("%w: %s", err, output)
		}
	})
	if built.err != nil {
		t.Fatal("build belay-attacher: ", built.err)
	}
	return filepath.Join(built.dir, "belay-attacher")
}

// upstreamPath is csi-attacher v4.12.0, which lies beside the API server that the tests run.
// Only where there are no upstream programs at all the test is skipped.
func upstreamPath(t *testing.T) string {
	t.Helper()
	path := os.Getenv("BELAY_CSI_ATTACHER")
	if path == "" {
		if os.Getenv("KUBEBUILDER_ASSETS") == "" {
			t.Skip("needs csi-attacher v4.12.0: set BELAY_CSI_ATTACHER, or KUBEBUILDER_ASSETS to the folder that `make upstream` fills")
		}
		path = filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "csi-attacher")
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("csi-attacher is missing beside the other upstream programs: %v", err)
	}
	return path
}

// output is what a process wrote to stdout and stderr so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// process is a running program.
type process struct {
	*exec.Cmd
	t      *testing.T
	output output
	exited chan struct{}
}

// run starts a program; it is killed with the test.
func run(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{Cmd: cmd, t: t, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.output, &p.output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.exited
		if t.Failed() {
			lines := strings.Split(p.output.String(), "\n")
			for _, line := range lines[max(0, len(lines)-60):] {
				t.Logf("%d: %s", cmd.Process.Pid, line[:min(len(line), 300)])
			}
		}
	})
	return p
}

// stop sends SIGTERM and waits for the end.
func (p *process) stop(signal os.Signal) int {
	p.t.Helper()
	if err := p.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.t.Fatal("the process does not end")
	}
	return p.ProcessState.ExitCode()
}

var addresses atomic.Int32

// freeAddress is a loopback address that nobody listens on, and nobody but who is given it will: a port of 127.0.0.1 that
// is free now may be another program's when it is used.
func freeAddress() string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d:%d", 1+pid>>16, pid>>8&255, pid&255, 20000+addresses.Add(1))
}
