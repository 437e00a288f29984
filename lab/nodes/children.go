package nodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"belay.dev/belay/lab/proc"
)

// Back-off of a child that ends again and again; a child that ran for longer than
// stableAfter starts from the shortest again.
const (
	shortestRest = 50 * time.Millisecond
	longestRest  = 5 * time.Second
	stableAfter  = 10 * time.Second
)

// child is one program that node-init keeps running.
type child struct {
	name string
	path string
	args []string
	env  []string
}

// children starts programs and reaps every process of the node: its own children
// and the orphans that the kernel hands to process 1. One wait4(-1) loop does both,
// since two waiters would steal from each other; os/exec's Wait cannot be used.
type children struct {
	logDir string
	log    *slog.Logger

	mu sync.Mutex
	// running holds the pid of each child that runs, by name. Guarded by mu, as the rest.
	running map[string]int
	// waiters receive how a child ended.
	waiters map[int]chan<- unix.WaitStatus
	// starts counts how often each child was started.
	starts map[string]int
	// held has the children that are not to be started again until the channel is closed.
	held map[string]chan struct{}
}

func newChildren(logDir string, log *slog.Logger) *children {
	return &children{
		logDir: logDir, log: log,
		running: map[string]int{}, waiters: map[int]chan<- unix.WaitStatus{}, starts: map[string]int{}, held: map[string]chan struct{}{},
	}
}

// stopGrace is how long a child that is stopped has after SIGTERM.
const stopGrace = 5 * time.Second

// stop ends a child, as systemctl stop ends a unit, and keeps it from being started again until startAgain. What it started continues.
func (c *children) stop(name string) error {
	c.mu.Lock()
	known := c.starts[name] > 0
	if known && c.held[name] == nil {
		c.held[name] = make(chan struct{})
	}
	c.mu.Unlock()
	if !known {
		return fmt.Errorf("the node has no child %q", name)
	}
	endChild(c, name, stopGrace)
	return nil
}

// startAgain lets a child be started that was stopped.
func (c *children) startAgain(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.starts[name] == 0 {
		return fmt.Errorf("the node has no child %q", name)
	}
	if held := c.held[name]; held != nil {
		close(held)
		delete(c.held, name)
	}
	return nil
}

// whileHeld waits until a child may be started, or ctx ends.
func (c *children) whileHeld(ctx context.Context, name string) {
	c.mu.Lock()
	held := c.held[name]
	c.mu.Unlock()
	if held == nil {
		return
	}
	select {
	case <-held:
	case <-ctx.Done():
	}
}

// keep runs a child until ctx ends, and starts it again whenever it ends.
func (c *children) keep(ctx context.Context, program child) {
	rest := shortestRest
	for ctx.Err() == nil {
		began := time.Now()
		status, err := c.run(program)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.log.Error("cannot start child", "child", program.name, "err", err)
		default:
			c.log.Info("child ended", "child", program.name, "status", describe(status))
		}
		if time.Since(began) > stableAfter {
			rest = shortestRest
		}
		select {
		case <-ctx.Done():
		case <-time.After(rest):
		}
		c.whileHeld(ctx, program.name)
		rest = min(2*rest, longestRest)
	}
}

func describe(status unix.WaitStatus) string {
	if status.Signaled() {
		return status.Signal().String()
	}
	return fmt.Sprintf("exit code %d", status.ExitStatus())
}

// run starts a program and returns when it has ended.
func (c *children) run(program child) (unix.WaitStatus, error) {
	ended, err := c.start(program)
	if err != nil {
		return 0, err
	}
	return <-ended, nil
}

func (c *children) start(program child) (<-chan unix.WaitStatus, error) {
	output, err := os.OpenFile(filepath.Join(c.logDir, program.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", program.name, err)
	}
	defer func() { _ = output.Close() }()
	nothing, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("open input of %s: %w", program.name, err)
	}
	defer func() { _ = nothing.Close() }()
	// Held until the pid is known, so that the reaper cannot take it for an orphan.
	c.mu.Lock()
	defer c.mu.Unlock()
	process, err := os.StartProcess(program.path, append([]string{program.path}, program.args...), &os.ProcAttr{
		Env:   append(os.Environ(), program.env...),
		Files: []*os.File{nothing, output, output},
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", program.name, err)
	}
	ended := make(chan unix.WaitStatus, 1)
	c.waiters[process.Pid] = ended
	c.running[program.name] = process.Pid
	c.starts[program.name]++
	return ended, errors.Join(process.Release())
}

// reap collects every process that has ended, each time a signal comes in.
func (c *children) reap(signals <-chan os.Signal) {
	for range signals {
		for c.reapOne() {
		}
	}
}

func (c *children) reapOne() bool {
	var status unix.WaitStatus
	// WNOHANG under the lock: a child that was started but not yet written down
	// cannot be reaped in between.
	c.mu.Lock()
	defer c.mu.Unlock()
	pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
	if errors.Is(err, unix.EINTR) {
		return true
	}
	if err != nil || pid <= 0 {
		return false
	}
	if ended, ok := c.waiters[pid]; ok {
		delete(c.waiters, pid)
		for name, running := range c.running {
			if running == pid {
				delete(c.running, name)
			}
		}
		ended <- status
	}
	return true
}

// signal sends a signal to the running child of that name.
func (c *children) signal(name string, sig unix.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	pid, ok := c.running[name]
	if !ok {
		return fmt.Errorf("child %q does not run", name)
	}
	if err := unix.Kill(pid, sig); err != nil {
		return fmt.Errorf("send %v to %s: %w", sig, name, err)
	}
	return nil
}

// pid is the process of a child inside the node, 0 if it does not run.
func (c *children) pid(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running[name]
}

// ChildState is what node-init says about one of its children.
type ChildState struct {
	Name string `json:"name"`
	// PID is the process inside the node's pid namespace; 0: it does not run.
	PID int `json:"pid"`
	// Stopped: a signal stopped it (SIGSTOP), and it does nothing until SIGCONT.
	Stopped bool `json:"stopped,omitempty"`
	// Starts counts how often it was started since the power came on.
	Starts int `json:"starts"`
}

func (c *children) states() []ChildState {
	c.mu.Lock()
	defer c.mu.Unlock()
	states := []ChildState{}
	for name, starts := range c.starts {
		pid := c.running[name]
		states = append(states, ChildState{Name: name, PID: pid, Stopped: proc.Stopped(pid), Starts: starts})
	}
	return states
}
