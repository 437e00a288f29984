package fenceagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/testing/wait"
)

// agentIn writes an agent whose answer to the actions that are not its metadata is a piece of shell. $action is the action.
func agentIn(t *testing.T, answer string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fence_test")
	script := `#!/bin/sh
while IFS= read -r line; do
	case "$line" in action=*) action="${line#action=}";; esac
	echo "$line" >> "${0%/*}/asked"
done
if [ "$action" = metadata ]; then
	cat <<X
<?xml version="1.0" ?>
<resource-agent name="fence_test"><parameters>
<parameter name="ip" obsoletes="ipaddr"/><parameter name="username"/><parameter name="password"/><parameter name="plug"/></parameters>
<actions><action name="on"/><action name="off"/><action name="reboot"/><action name="status"/><action name="identity"/></actions></resource-agent>
X
	exit 0
fi
` + answer + "\n"
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func newAgent(t *testing.T, answer string) *Agent {
	t.Helper()
	a, err := New(t.Context(), agentIn(t, answer), map[string]string{"ip": "192.0.2.1"}, "", map[string][]byte{"username": []byte("admin"), "password": []byte("s3cret!\n")})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestStatus (hole 8): only a clear answer is On or Off.
func TestStatus(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		want   fencing.Power
	}{
		"on":                         {"echo 'Status: ON'; exit 0", fencing.PowerOn},
		"off":                        {"echo 'Status: OFF'; exit 2", fencing.PowerOff},
		"bad arguments exit 2 too":   {"echo 'Unknown option' >&2; exit 2", fencing.PowerUnknown},
		"off with the status of on":  {"echo 'Status: OFF'; exit 0", fencing.PowerUnknown},
		"on with the status of off":  {"echo 'Status: ON'; exit 2", fencing.PowerUnknown},
		"a failure that says off":    {"echo 'Status: OFF'; exit 1", fencing.PowerUnknown},
		"both":                       {"echo 'Status: ON'; echo 'Status: OFF'; exit 2", fencing.PowerUnknown},
		"part of a line":             {"echo 'last Status: OFF'; exit 2", fencing.PowerUnknown},
		"killed":                     {"echo 'Status: OFF'; kill -9 $$", fencing.PowerUnknown},
		"a word that begins with it": {"echo 'Status: OFFLINE'; exit 2", fencing.PowerUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			got, raw, err := newAgent(t, c.answer).Status(t.Context())
			if got != c.want || (err == nil) != (c.want != fencing.PowerUnknown) {
				t.Errorf("%v %q (%v), want %v", got, raw, err, c.want)
			}
		})
	}
}

// TestNeverReboots (hole 8): the default action of agents is to reboot, so each call names its action, and no other one.
func TestNeverReboots(t *testing.T) {
	a := newAgent(t, `echo 'Status: ON'; echo "Identity: X"`)
	_, _, err := a.Status(t.Context())
	_, failed := a.Identity(t.Context())
	if err := errors.Join(err, failed, a.Off(t.Context())); err != nil {
		t.Fatal(err)
	}
	asked, err := os.ReadFile(filepath.Join(filepath.Dir(a.path), "asked"))
	if err != nil || strings.Count(string(asked), "action=") != 4 || strings.Contains(string(asked), "reboot") {
		t.Errorf("asked %s (%v)", asked, err)
	}
}

// TestOptions that would change what the agent does, or that it ignores, are refused.
func TestOptions(t *testing.T) {
	path := agentIn(t, "exit 1")
	for name, options := range map[string]map[string]string{
		"an action":                 {"action": "on"},
		"another plug":              {"port": "3"},
		"missing counts as off":     {"missing_as_off": "1"},
		"a newline":                 {"ip": "192.0.2.1\naction=reboot"},
		"a newline in the key":      {"ip=x\naction": "reboot"},
		"a program":                 {"ipmitool_path": "/tmp/x"},
		"a script for the password": {"password_script": "/tmp/x"},
		"a key that is shown":       {"hexadecimal_kg": "00"},
		"a file to write":           {"debug_file": "/etc/passwd"},
		"a program over ssh":        {"ssh_options": "-o ProxyCommand=x"},
		"two passwords":             {"password": "a", "passwd": "b"},
		"unknown":                   {"ipadress": "192.0.2.1"},
	} {
		if _, err := New(t.Context(), path, options, "", nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := New(t.Context(), path, nil, "1\naction=reboot", nil); err == nil {
		t.Error("a newline in the plug: no error")
	}
	if _, err := New(t.Context(), path, map[string]string{"password": "a"}, "", map[string][]byte{"password": []byte("b")}); err == nil {
		t.Error("an option twice: no error")
	}
	if _, err := New(t.Context(), path, map[string]string{"ipaddr": "192.0.2.1"}, "", nil); err != nil {
		t.Errorf("the former name of an option: %v", err)
	}
}

// TestFind: no path leads out of the directories.
func TestFind(t *testing.T) {
	path := agentIn(t, "exit 1")
	if got, err := Find("/nonexistent:"+filepath.Dir(path), "fence_test"); got != path || err != nil {
		t.Errorf("%s (%v)", got, err)
	}
	for _, name := range []string{"../fence_test", "fence_../x", "sh", "fence_missing", ""} {
		if got, err := Find(filepath.Dir(path), name); err == nil {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestSecretsStayHidden in what an agent prints.
func TestSecretsStayHidden(t *testing.T) {
	a := newAgent(t, `echo "login with s3cret! failed"; exit 1`)
	_, raw, err := a.Status(t.Context())
	if strings.Contains(raw+err.Error(), "s3cret") || !strings.Contains(raw, "(secret)") {
		t.Errorf("%q, %v", raw, err)
	}
}

// TestShortSecrets: what an answer means does not depend on the values in the Secret, of which a short one is a part of many words. A whole value of the
// Secret is no identity.
func TestShortSecrets(t *testing.T) {
	agent := func(answer, password string) *Agent {
		a, err := New(t.Context(), agentIn(t, answer), nil, "", map[string][]byte{"password": []byte(password)})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if id, err := agent("echo 'Identity: 4C4C4544-0042'", "4").Identity(t.Context()); id != "4C4C4544-0042" || err != nil {
		t.Errorf("%s (%v)", id, err)
	}
	if power, raw, err := agent("echo 'Status: ON'", "N").Status(t.Context()); power != fencing.PowerOn || strings.Contains(raw, "N") {
		t.Errorf("%v %q (%v)", power, raw, err)
	}
	if id, err := agent("echo 'Identity: s3cret!'", "s3cret!").Identity(t.Context()); id != "" || err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%s (%v)", id, err)
	}
}

// TestHugeOutput is cut.
func TestHugeOutput(t *testing.T) {
	_, raw, err := newAgent(t, "head -c 5000000 /dev/zero | tr '\\0' x; exit 1").Status(t.Context())
	if len(raw) > maxRaw || err == nil {
		t.Errorf("%d bytes (%v)", len(raw), err)
	}
}

// TestHang: an agent that hangs is killed with what it started, and its answer is unknown.
func TestHang(t *testing.T) {
	a := newAgent(t, `sleep 300 & echo 'Status: OFF'; echo $! > "${0%/*}/child"; wait`)
	child := filepath.Join(filepath.Dir(a.path), "child")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got fencing.Power
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		got, _, err = a.Status(ctx)
	}()
	written(t, child)
	cancel()
	wait.For(t, "the end of the agent", ended)
	if got != fencing.PowerUnknown || !errors.Is(err, context.Canceled) {
		t.Errorf("%v (%v)", got, err)
	}
	gone(t, child)
}

// written waits until the agent has written a file.
func written(t *testing.T, file string) {
	t.Helper()
	wait.Until(t, "the agent runs", func() bool {
		content, err := os.ReadFile(file)
		return err == nil && len(content) > 0
	})
}

// gone waits until the process whose number a file has does not run.
func gone(t *testing.T, file string) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(content)))
	wait.Until(t, "the process is gone", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// parentVariable makes the test binary a process that asks an agent, to be killed.
const parentVariable = "BELAY_TEST_FENCE_PARENT"

func TestMain(m *testing.M) {
	if path := os.Getenv(parentVariable); path != "" {
		if a, err := New(context.Background(), path, nil, "", nil); err == nil {
			_ = a.Off(context.Background())
		}
		os.Exit(0)
	}
	killed = wait.Timeout // no test is about its end, and a busy machine may take longer
	os.Exit(m.Run())
}

// TestParentKilled (hole 5): an agent does not outlive the process that runs it, so that no command is sent late.
func TestParentKilled(t *testing.T) {
	path := agentIn(t, `echo $$ > "${0%/*}/child"; exec sleep 300`)
	parent := exec.Command(os.Args[0]) //nolint:noctx // it is this program, and is killed below
	parent.Env = append(os.Environ(), parentVariable+"="+path)
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	child := filepath.Join(filepath.Dir(path), "child")
	written(t, child)
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	gone(t, child)
}

// TestIdentity is what the command says, and ErrNoIdentity if it has no such action.
func TestIdentity(t *testing.T) {
	a := newAgent(t, `echo "Identity: 4C4C4544-0042"`)
	if id, err := a.Identity(t.Context()); id != "4C4C4544-0042" || err != nil {
		t.Errorf("%s (%v)", id, err)
	}
	content, err := os.ReadFile(a.path)
	if err != nil {
		t.Fatal(err)
	}
	without := filepath.Join(t.TempDir(), "fence_test")
	if err := os.WriteFile(without, []byte(strings.Replace(string(content), `<action name="identity"/>`, "", 1)), 0o700); err != nil {
		t.Fatal(err)
	}
	b, err := New(t.Context(), without, nil, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Identity(t.Context()); !errors.Is(err, ErrNoIdentity) {
		t.Errorf("%v", err)
	}
}

// TestDocumentedCommand: the example of docs/fence-command.md is a fence agent.
func TestDocumentedCommand(t *testing.T) {
	page, err := os.ReadFile("../../docs/fence-command.md")
	if err != nil {
		t.Fatal(err)
	}
	_, script, _ := strings.Cut(string(page), "```sh\n")
	script, _, _ = strings.Cut(script, "```")
	dir := t.TempDir()
	path := filepath.Join(dir, "fence_example")
	for name, content := range map[string]string{"fence_example": script, "vm1.power": "on\n", "vm1.uuid": "4c4c4544-0042\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	a, err := New(t.Context(), path, map[string]string{"directory": dir}, "vm1", nil)
	if err != nil {
		t.Fatal(err)
	}
	id, err := a.Identity(t.Context())
	on, _, failed := a.Status(t.Context())
	if err := errors.Join(err, failed, a.Off(t.Context())); err != nil || id != "4c4c4544-0042" || on != fencing.PowerOn {
		t.Fatalf("%s, %v: %v", id, on, err)
	}
	if off, _, err := a.Status(t.Context()); off != fencing.PowerOff || err != nil {
		t.Errorf("%v (%v)", off, err)
	}
}
