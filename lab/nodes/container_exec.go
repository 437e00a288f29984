package nodes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"belay.dev/belay/internal/usage"
)

// File descriptors that container-exec is started with.
const (
	specFD  = 3
	replyFD = 4
)

// containerCommand is `container-exec`: it becomes the keeper of one container. It is
// started in a mount namespace of its own, waits for the spec, makes the
// container's root, starts the command, copies its output into the log, passes
// SIGTERM on, kills at SIGUSR1, and writes down how the command ended. It outlives
// the agent.
func containerCommand() *cobra.Command {
	var dir string
	command := &cobra.Command{
		Use: "container-exec", Short: "Keep one container of a belay node", Hidden: true,
		Args: usage.NoArgs, SilenceUsage: true,
		RunE: func(_ *cobra.Command, _ []string) error { return execContainer(dir) },
	}
	command.Flags().StringVar(&dir, "dir", "", "the container's directory")
	return command
}

func execContainer(dir string) error {
	// The command dies with this thread (Pdeathsig), so the thread must be the process.
	runtime.LockOSThread()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGUSR1)
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGPIPE)

	raw, err := io.ReadAll(os.NewFile(specFD, "spec"))
	if err != nil {
		return fmt.Errorf("read container spec: %w", err)
	}
	if len(raw) == 0 {
		return nil // the agent died, or the pod was deleted, before the volumes were there
	}
	var spec containerSpec
	if err := json.Unmarshal(raw, &spec); err != nil {
		return fmt.Errorf("read container spec: %w", err)
	}
	files, err := openContainerFiles(dir)
	if err != nil {
		return err
	}
	reply := os.NewFile(replyFD, "reply")
	process, outcome := startContainer(dir, spec, files)
	if outcome.Problem == "" {
		if err := files.writeJSON(startedFile, outcome); err != nil {
			outcome.Problem = err.Error()
		}
	}
	if outcome.Problem != "" {
		end := ended{ExitCode: exitStartError, At: time.Now(), Problem: outcome.Problem}
		return errors.Join(files.writeJSON(endedFile, end), json.NewEncoder(reply).Encode(outcome))
	}
	// An agent that has gone does not read it; it will find the file.
	_ = json.NewEncoder(reply).Encode(outcome)
	_ = reply.Close()
	go passSignals(signals, process.Process)
	return files.writeJSON(endedFile, process.wait())
}

func passSignals(signals <-chan os.Signal, process *os.Process) {
	for received := range signals {
		passed := unix.SIGTERM
		if received == unix.SIGUSR1 {
			passed = unix.SIGKILL
		}
		_ = process.Signal(passed) // it may have ended
	}
}

// containerFiles are opened before the root is changed: afterwards the node's files
// cannot be reached by name.
type containerFiles struct {
	dir *os.File
	log *os.File
}

func openContainerFiles(dir string) (containerFiles, error) {
	directory, err := os.Open(dir)
	if err != nil {
		return containerFiles{}, fmt.Errorf("open directory of container: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return containerFiles{}, fmt.Errorf("open log of container: %w", err)
	}
	return containerFiles{dir: directory, log: log}, nil
}

// writeJSON writes a file into the container's directory, whole or not at all.
func (f containerFiles) writeJSON(name string, value any) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	temporary := "." + name
	dir := int(f.dir.Fd())
	fd, err := unix.Openat(dir, temporary, unix.O_CREAT|unix.O_TRUNC|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	file := os.NewFile(uintptr(fd), temporary)
	_, err = file.Write(raw)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := unix.Renameat(dir, temporary, dir, name); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// containerProcess is the command that runs.
type containerProcess struct {
	*exec.Cmd
	copied *sync.WaitGroup
}

func startContainer(dir string, spec containerSpec, files containerFiles) (*containerProcess, started) {
	if err := enterRoot(dir, spec); err != nil {
		return nil, started{Problem: err.Error()}
	}
	process, err := startCommand(spec, files.log)
	if err != nil {
		return nil, started{Problem: err.Error()}
	}
	return process, started{PID: process.Process.Pid, At: time.Now()}
}

func startCommand(spec containerSpec, log *os.File) (*containerProcess, error) {
	program, err := lookPath(spec.Command[0], spec.Env)
	if err != nil {
		return nil, err
	}
	command := &exec.Cmd{
		Path: program, Args: spec.Command, Env: spec.Env, Dir: spec.WorkDir,
		SysProcAttr: &syscall.SysProcAttr{
			Setsid: true,
			// Process 1 of a pid namespace: when it ends, nothing of the container is left.
			Cloneflags: unix.CLONE_NEWPID,
			Pdeathsig:  unix.SIGKILL,
			Credential: credential(spec),
		},
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("open output of container: %w", err)
	}
	stderr, err := command.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("open output of container: %w", err)
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start %q: %w", spec.Command[0], err)
	}
	process := &containerProcess{Cmd: command, copied: &sync.WaitGroup{}}
	writer := &logWriter{file: log}
	process.copied.Go(func() { writer.copy("stdout", stdout) })
	process.copied.Go(func() { writer.copy("stderr", stderr) })
	return process, nil
}

func credential(spec containerSpec) *syscall.Credential {
	if spec.UID == nil && spec.GID == nil && len(spec.Groups) == 0 {
		return nil
	}
	credential := &syscall.Credential{}
	if spec.UID != nil {
		credential.Uid = uint32(*spec.UID)
	}
	if spec.GID != nil {
		credential.Gid = uint32(*spec.GID)
	}
	for _, group := range spec.Groups {
		credential.Groups = append(credential.Groups, uint32(group))
	}
	return credential
}

// lookPath finds a program in the container's root, which is ours by now, by the
// container's own PATH.
func lookPath(program string, env []string) (string, error) {
	if strings.Contains(program, "/") {
		return program, nil
	}
	for _, entry := range env {
		if path, ok := strings.CutPrefix(entry, "PATH="); ok {
			for _, dir := range filepath.SplitList(path) {
				file := filepath.Join(dir, program)
				if info, err := os.Stat(file); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
					return file, nil
				}
			}
		}
	}
	return "", fmt.Errorf("find program %q: %w", program, exec.ErrNotFound)
}

// wait returns when the command has ended and its output is in the log.
func (p *containerProcess) wait() ended {
	p.copied.Wait()
	_ = p.Wait() // how it ended is in ProcessState
	end := ended{At: time.Now(), ExitCode: p.ProcessState.ExitCode()}
	if status, ok := p.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		end.Signal = int(status.Signal())
		end.ExitCode = 128 + end.Signal
	}
	return end
}
