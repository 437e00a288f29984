package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Spec says how to run one component.
type Spec struct {
	// Name of the component; unique in its Group.
	Name string
	// Path of the program; looked up in PATH if it holds no slash.
	Path string
	Args []string
	// Env is added to the group's environment.
	Env []string
	// Dir is the working directory; default: that of this process.
	Dir string
	// Hostname is the name of the machine that the program sees; default: the real one. It needs root.
	Hostname string
	// LogFile takes what the program writes to stdout and stderr, appended.
	LogFile string
	// Restart starts the program again, with back-off, when it exits without having been stopped.
	Restart bool
	// Grace is the time between SIGTERM and SIGKILL when it is stopped; default 5 s.
	Grace time.Duration
	// Exited, if set, is called after each exit, before a restart.
	Exited func(err error)
}

const (
	defaultGrace = 5 * time.Second
	// A program that fails at once is started again after firstBackOff, then twice that, up to
	// lastBackOff; after a run that took longer than Group.SteadyAfter the back-off starts over.
	firstBackOff       = 100 * time.Millisecond
	lastBackOff        = 5 * time.Second
	defaultSteadyAfter = 10 * time.Second
)

// Group starts processes that share a run folder for their records.
type Group struct {
	// RunDir holds the records; it must exist.
	RunDir string
	// Shim is the path of Program; default: the one in PATH.
	Shim string
	// Env is the environment of every process of the group; default: this process's own.
	Env []string
	// SteadyAfter is how long a program has to run for its end not to count as a failed start; default 10 s.
	SteadyAfter time.Duration
}

// Process is one supervised component. All its methods may be called from any goroutine.
type Process struct {
	spec   Spec
	group  Group
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	current  *exec.Cmd     // nil between runs
	ended    chan struct{} // closed when current has been reaped
	started  time.Time     // when the last run began
	restarts int
	inARow   int // restarts since a run that was steady
	lastErr  error
}

// Start starts a component and, with Spec.Restart, keeps it running until Stop. It returns as soon
// as the process exists; a program that cannot be started at all is an error.
func (g Group) Start(spec Spec) (*Process, error) {
	if spec.Grace == 0 {
		spec.Grace = defaultGrace
	}
	if g.SteadyAfter == 0 {
		g.SteadyAfter = defaultSteadyAfter
	}
	path, err := exec.LookPath(spec.Path)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", spec.Name, err)
	}
	spec.Path = path
	ctx, cancel := context.WithCancel(context.Background())
	p := &Process{spec: spec, group: g, cancel: cancel, done: make(chan struct{})}
	if err := p.launch(); err != nil {
		cancel()
		return nil, err
	}
	go p.supervise(ctx)
	return p, nil
}

// launch starts the program once.
func (p *Process) launch() error {
	logFile, err := p.openLog()
	if err != nil {
		return err
	}
	if logFile != nil {
		defer func() { _ = logFile.Close() }()
	}
	args := []string{"--name", p.spec.Name, "--record", RecordPath(p.group.RunDir, p.spec.Name),
		"--parent", fmt.Sprint(os.Getpid()), "--hostname", p.spec.Hostname}
	args = append(append(args, "--", p.spec.Path), p.spec.Args...)
	command := exec.Command(cmp.Or(p.group.Shim, Program), args...)
	environment := p.group.Env
	if environment == nil {
		environment = os.Environ()
	}
	command.Env = append(slices.Clone(environment), p.spec.Env...)
	command.Dir = p.spec.Dir
	if logFile != nil {
		command.Stdout, command.Stderr = logFile, logFile
	}
	// A session of its own: Ctrl-C in the terminal is for the supervisor, which stops its
	// children in order.
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// A reader that sees the new process, or its record, must see it in the state too.
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = time.Now()
	if err := command.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", p.spec.Name, err)
	}
	p.current, p.ended = command, make(chan struct{})
	return nil
}

func (p *Process) openLog() (*os.File, error) {
	if p.spec.LogFile == "" {
		return nil, nil
	}
	if err := os.MkdirAll(filepath.Dir(p.spec.LogFile), 0o755); err != nil {
		return nil, fmt.Errorf("making the log folder of %s: %w", p.spec.Name, err)
	}
	file, err := os.OpenFile(p.spec.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", p.spec.Name, err)
	}
	return file, nil
}

// supervise reaps the program and starts it again until it is stopped. It owns p.done.
func (p *Process) supervise(ctx context.Context) {
	defer close(p.done)
	delay := firstBackOff
	for {
		err := p.reap()
		if p.spec.Exited != nil {
			p.spec.Exited(err)
		}
		if !p.spec.Restart || ctx.Err() != nil {
			return
		}
		p.mu.Lock()
		if time.Since(p.started) > p.group.SteadyAfter {
			delay = firstBackOff
			p.inARow = 0
		}
		p.mu.Unlock()
		for {
			if !rest(ctx, delay) {
				return
			}
			delay = min(2*delay, lastBackOff)
			if err := p.relaunch(ctx); err == nil {
				break
			}
		}
	}
}

// relaunch starts the program again, unless it has been stopped.
func (p *Process) relaunch(ctx context.Context) error {
	// Counted first: a reader that sees the new process must see the count.
	p.mu.Lock()
	p.restarts++
	p.inARow++
	p.mu.Unlock()
	err := p.launch()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.lastErr = err
		return err
	}
	if ctx.Err() != nil {
		_ = p.current.Process.Kill()
	}
	return nil
}

// reap waits for the current run to end and removes its record.
func (p *Process) reap() error {
	p.mu.Lock()
	command, ended := p.current, p.ended
	p.mu.Unlock()
	err := command.Wait()
	p.mu.Lock()
	p.current = nil
	p.lastErr = err
	p.mu.Unlock()
	_ = os.Remove(RecordPath(p.group.RunDir, p.spec.Name))
	close(ended)
	return err
}

// rest waits for a while; false if ctx ended first.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Name of the component.
func (p *Process) Name() string { return p.spec.Name }

// Done is closed when the component has ended for good.
func (p *Process) Done() <-chan struct{} { return p.done }

// State is the state of a component.
type State struct {
	Name string `json:"name"`
	// PID of the running process; 0 when it does not run at the moment.
	PID int `json:"pid"`
	// Stopped: a signal stopped the process (SIGSTOP), and it does nothing until SIGCONT.
	Stopped bool `json:"stopped,omitempty"`
	// Restarts counts how often it was started again.
	Restarts int `json:"restarts"`
	// RestartsInARow counts those since it last ran for longer than Group.SteadyAfter.
	RestartsInARow int `json:"-"`
	// LastError says how the last run ended, or why it could not be started.
	LastError string `json:"lastError,omitempty"`
}

// State of the component now.
func (p *Process) State() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := State{Name: p.spec.Name, Restarts: p.restarts, RestartsInARow: p.inARow}
	if p.current != nil {
		s.PID = p.current.Process.Pid
		s.Stopped = Stopped(s.PID)
	}
	if p.lastErr != nil {
		s.LastError = p.lastErr.Error()
	}
	return s
}

// Kill kills the current run with SIGKILL and returns when it is gone. With Spec.Restart the
// supervisor then starts it again. Without a current run there is nothing to do.
func (p *Process) Kill() error {
	p.mu.Lock()
	command, ended := p.current, p.ended
	p.mu.Unlock()
	if command == nil {
		return nil
	}
	if err := command.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing %s: %w", p.spec.Name, err)
	}
	select {
	case <-ended:
		return nil
	case <-time.After(killedWithin):
		return fmt.Errorf("%s (pid %d) was killed but is not gone after %v", p.spec.Name, command.Process.Pid, killedWithin)
	}
}

// Signal sends a signal to the current run.
func (p *Process) Signal(sig unix.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == nil {
		return fmt.Errorf("%s does not run", p.spec.Name)
	}
	if err := p.current.Process.Signal(sig); err != nil {
		return fmt.Errorf("sending %v to %s: %w", sig, p.spec.Name, err)
	}
	return nil
}

// LetEnd makes the current run the last one.
func (p *Process) LetEnd() { p.cancel() }

// Stop ends the component for good: SIGTERM, after its grace SIGKILL. With ctx done it is killed
// at once. It returns when the process is gone.
func (p *Process) Stop(ctx context.Context) error {
	p.cancel()
	p.mu.Lock()
	command, ended := p.current, p.ended
	p.mu.Unlock()
	if command != nil {
		_ = command.Process.Signal(unix.SIGTERM)
		grace := time.NewTimer(p.spec.Grace)
		defer grace.Stop()
		select {
		case <-ended:
		case <-grace.C:
		case <-ctx.Done():
		}
	}
	return p.killForGood()
}

// PowerOff ends the component for good with SIGKILL, without a warning.
func (p *Process) PowerOff() error {
	p.cancel()
	return p.killForGood()
}

// killForGood kills whatever runs until the supervising goroutine has ended. A run that was being
// started while the component was stopped is killed by that goroutine itself.
func (p *Process) killForGood() error {
	if err := p.Kill(); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(4 * killedWithin): // Spec.Exited may wait for what the process has left
		return fmt.Errorf("%s does not end", p.spec.Name)
	}
}
