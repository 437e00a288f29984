package fenceagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// maxOutput and maxRaw bound what is read of an answer, and what is kept of it.
const maxOutput, maxRaw = 64 << 10, 1 << 10

// killed is how long the output of a process may stay open after it has ended or was killed. Tests raise it.
var killed = 2 * time.Second

// run carries out one action. The exit status counts only without an error. The text is what the agent said, with what it may have said of secrets: what
// it means is read from that, because a short value in the Secret is a part of many words, and only what is shown is redacted (shown).
func (a *Agent) run(ctx context.Context, action string) (exit int, text string, err error) {
	options := maps.Clone(a.options)
	options["action"] = action
	if a.ipmi && options["password"]+options["passwd"] != "" {
		wrapper, remove, err := a.hidePassword(options)
		if err != nil {
			return 0, "", fmt.Errorf("hide the password from the process list: %w", err)
		}
		defer remove()
		options["ipmitool_path"] = wrapper
	}
	var stdin strings.Builder
	for _, key := range slices.Sorted(maps.Keys(options)) {
		fmt.Fprintf(&stdin, "%s=%s\n", key, options[key])
	}
	exit, text, err = execute(ctx, stdin.String(), a.path)
	if err != nil {
		err = fmt.Errorf("agent %s, action %s: %w", filepath.Base(a.path), action, err)
	}
	return exit, text, err
}

// redact takes secrets out of a text.
func (a *Agent) redact(text string) string {
	for _, secret := range a.secrets {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "(secret)")
		}
	}
	return strings.ToValidUTF8(strings.TrimSpace(text), "?")
}

// shown is what is kept of an answer, which is read as a whole.
func (a *Agent) shown(text string) string {
	text = a.redact(text)
	return strings.ToValidUTF8(text[:min(len(text), maxRaw)], "")
}

// bounded keeps the beginning of an output.
type bounded struct{ bytes.Buffer }

// Write takes everything, and keeps what there is space for.
func (b *bounded) Write(data []byte) (int, error) {
	b.Buffer.Write(data[:min(len(data), maxOutput-b.Len())])
	return len(data), nil
}

// execute runs a program, which ends with the context and with this process. The exit status counts only without an error.
func execute(ctx context.Context, stdin, path string, args ...string) (exit int, text string, err error) {
	ended := make(chan struct{})
	var out bounded
	go func() {
		// The parent of a process with a death signal is the thread that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		cmd := exec.CommandContext(ctx, path, args...) //nolint:gosec // the program is what a FenceSource names, in the directories of a flag
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "PYTHONWARNINGS=ignore", "HOME=" + os.TempDir()}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.WaitDelay = killed
		err = cmd.Run()
		if cmd.Process != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it left behind
		}
	}()
	<-ended
	text = out.String()
	var status *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return 0, text, fmt.Errorf("it did not end in time: %w", ctx.Err())
	case errors.As(err, &status) && status.Exited():
		return status.ExitCode(), text, nil
	case errors.Is(err, exec.ErrWaitDelay):
		return 0, text, errors.New("it left a process behind that kept its output open")
	}
	return 0, text, err
}
