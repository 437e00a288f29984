// Package process runs a program under test, reads its log and ends it with the test.
package process

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"belay.dev/belay/internal/testing/wait"
)

// Process is a program that runs.
type Process struct {
	*exec.Cmd

	tb     testing.TB
	exited chan struct{}
	output Output
}

// Output is what a program wrote so far; several goroutines may write to it.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// String is what was written so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Write appends to the output.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// Start starts a command and collects its stdout and stderr. The process is killed at the end of the test; if the test
// failed, the end of its output is logged.
func Start(tb testing.TB, cmd *exec.Cmd) *Process {
	tb.Helper()
	p := &Process{Cmd: cmd, tb: tb, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.output, &p.output
	// A child that outlives it may keep its output open. On a busy machine the end of the output is late.
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	tb.Cleanup(func() {
		p.Kill()
		if tb.Failed() {
			lines := p.Lines()
			tb.Logf("output of process %d:\n%s", cmd.Process.Pid, strings.Join(lines[max(0, len(lines)-60):], "\n"))
		}
	})
	return p
}

// TestBinary is a command that runs the test binary again with an environment variable set, at which its TestMain becomes
// the program under test.
func TestBinary(tb testing.TB, variable, value string, args ...string) *exec.Cmd {
	tb.Helper()
	path, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(path, args...) //nolint:noctx // Start ends it with the test
	cmd.Env = append(os.Environ(), variable+"="+value)
	return cmd
}

// Output is what the program wrote so far.
func (p *Process) Output() string { return p.output.String() }

// Lines are the lines of the output so far.
func (p *Process) Lines() []string { return strings.Split(strings.TrimSuffix(p.Output(), "\n"), "\n") }

// Logged counts the lines of the output that contain all the texts.
func (p *Process) Logged(texts ...string) (lines int) {
	for _, line := range p.Lines() {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			lines++
		}
	}
	return lines
}

// WaitLog waits for a line of the output that contains the text.
func (p *Process) WaitLog(text string) {
	p.tb.Helper()
	wait.Until(p.tb, fmt.Sprintf("process %d logs %q", p.Process.Pid, text), func() bool {
		exited := p.HasExited() // before the look at the output, which is then complete
		logged := p.Logged(text) > 0
		if exited && !logged {
			p.tb.Fatalf("process %d exited without logging %q", p.Process.Pid, text)
		}
		return logged
	})
}

// Exited is closed when the process has exited and its output is complete.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// HasExited reports whether the process has exited.
func (p *Process) HasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// Wait waits until the process exits and returns its exit status.
func (p *Process) Wait() int {
	p.tb.Helper()
	wait.For(p.tb, fmt.Sprintf("process %d to exit", p.Process.Pid), p.exited)
	return p.ProcessState.ExitCode()
}

// Signal sends a signal to the process.
func (p *Process) Signal(signal os.Signal) {
	p.tb.Helper()
	if err := p.Process.Signal(signal); err != nil {
		p.tb.Fatal(err)
	}
}

// Stop sends a signal, waits until the process exits and returns its exit status.
func (p *Process) Stop(signal os.Signal) int {
	p.tb.Helper()
	p.Signal(signal)
	return p.Wait()
}

// Kill is kill -9, and waits for the exit.
func (p *Process) Kill() {
	_ = p.Process.Kill()
	<-p.exited
}

// WantExit waits until the process exits, and checks its exit status and that its output contains the text.
func (p *Process) WantExit(status int, text string) {
	p.tb.Helper()
	if got := p.Wait(); got != status {
		p.tb.Errorf("exit status %d, want %d", got, status)
	}
	if !strings.Contains(p.Output(), text) {
		p.tb.Errorf("the output does not contain %q:\n%s", text, p.Output())
	}
}

var addresses atomic.Int32

// FreeAddress is a loopback address that nothing listens on, and that no other process is given: a port of 127.0.0.1 that
// is free now may be taken by another program when it is used.
func FreeAddress() string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d:%d", 1+pid>>16, pid>>8&255, pid&255, 20000+addresses.Add(1))
}

// Get returns the status and the body that an HTTP server at the address replies at a path; no status and the error if
// there is no reply.
func Get(tb testing.TB, address, path string) (status int, body string) {
	tb.Helper()
	request, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = reply.Body.Close() }()
	content, err := io.ReadAll(reply.Body)
	if err != nil {
		return 0, err.Error()
	}
	return reply.StatusCode, string(content)
}
