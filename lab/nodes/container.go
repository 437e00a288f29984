package nodes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"belay.dev/belay/lab/jsonfile"
	"belay.dev/belay/lab/proc"
)

// prepared is a container-exec that waits for its spec. It is started as soon as the
// pod is known, so that its own start-up time passes while volumes are attached.
type prepared struct {
	dir     string
	command *exec.Cmd
	spec    *os.File
	reply   *os.File
	exited  chan struct{}
}

// prepareContainer starts container-exec for a container whose directory is dir.
func prepareContainer(belayLab, dir string) (*prepared, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make directory of container: %w", err)
	}
	specRead, specWrite, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe to container-exec: %w", err)
	}
	defer func() { _ = specRead.Close() }()
	replyRead, replyWrite, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make pipe from container-exec: %w", err), specWrite.Close())
	}
	defer func() { _ = replyWrite.Close() }()
	p := &prepared{dir: dir, spec: specWrite, reply: replyRead, exited: make(chan struct{})}
	p.command = exec.Command(belayLab, "container-exec", "--dir", dir)
	p.command.ExtraFiles = []*os.File{specRead, replyWrite} // specFD, replyFD
	p.command.Stderr = os.Stderr
	// Its own session: what ends the agent does not reach it.
	p.command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNS}
	if err := p.command.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start container-exec: %w", err), specWrite.Close(), replyRead.Close())
	}
	go func() {
		_ = p.command.Wait() // how the container ended is in its files
		close(p.exited)
	}()
	return p, nil
}

// discard ends a container-exec that is not wanted any more.
func (p *prepared) discard() {
	_ = p.spec.Close()
	<-p.exited
	_ = p.reply.Close()
	_ = os.RemoveAll(p.dir)
}

// start hands the spec over and returns when the command runs or could not be
// started; the latter shows in outcome once the container is done.
func (p *prepared) start(spec containerSpec) (*container, error) {
	defer func() { _ = p.reply.Close() }()
	record, err := proc.Of("container", p.command.Process.Pid)
	if err == nil {
		// From here on an agent that is restarted counts this container.
		err = record.Write(filepath.Join(p.dir, shimFile))
	}
	if err != nil {
		return nil, errors.Join(err, p.spec.Close())
	}
	if err := errors.Join(json.NewEncoder(p.spec).Encode(spec), p.spec.Close()); err != nil {
		return nil, fmt.Errorf("hand spec to container-exec: %w", err)
	}
	c := &container{dir: p.dir, process: record, done: p.exited}
	if err := json.NewDecoder(p.reply).Decode(&c.started); err != nil {
		<-p.exited // it died; outcome says so
	}
	return c, nil
}

// container is one that was started, by this agent or the one before it.
type container struct {
	dir     string
	process proc.Record
	started started
	// done is closed when container-exec has ended: then its mount namespace is gone too,
	// and nothing of the container keeps a volume busy.
	done <-chan struct{}
}

// adoptContainer finds a container again by its directory. found is false if the
// container was never started.
func adoptContainer(dir string) (c *container, found bool, err error) {
	record, err := proc.ReadRecord(filepath.Join(dir, shimFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	done := make(chan struct{})
	c = &container{dir: dir, process: record, done: done}
	if err := jsonfile.Read(filepath.Join(dir, startedFile), &c.started); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	if !record.Alive() {
		close(done)
		return c, true, nil
	}
	pidfd, err := unix.PidfdOpen(record.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		close(done)
		return c, true, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("open process of container %s: %w", dir, err)
	}
	go func() {
		defer close(done)
		defer func() { _ = unix.Close(pidfd) }()
		for {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, -1)
			if !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	return c, true, nil
}

// running reports whether the command runs.
func (c *container) running() bool {
	select {
	case <-c.done:
		return false
	default:
		return c.started.Problem == ""
	}
}

// terminate asks the command to end.
func (c *container) terminate() { _ = c.process.Signal(unix.SIGTERM) } // it may have ended

// kill ends the command with SIGKILL; container-exec stays to say so.
func (c *container) kill() { _ = c.process.Signal(unix.SIGUSR1) }

// outcome is how the container ended. Call it after done.
func (c *container) outcome() ended {
	var end ended
	if err := jsonfile.Read(filepath.Join(c.dir, endedFile), &end); err == nil {
		return end
	}
	// The power was cut, or container-exec was killed: the command died with it.
	return ended{
		ExitCode: 128 + int(unix.SIGKILL), Signal: int(unix.SIGKILL), At: time.Now(),
		Problem: "the container was killed from outside, or lost its power",
	}
}
