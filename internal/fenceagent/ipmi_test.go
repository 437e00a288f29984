package fenceagent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/testing/process"
	"belay.dev/belay/internal/testing/wait"
)

const password = "Tr0ub4dor"

// bmc starts a simulated BMC (ipmi_sim) whose power is a file, and returns its address.
func bmc(t *testing.T) (host, port, power string) {
	t.Helper()
	sim, err := exec.LookPath("ipmi_sim")
	if err != nil {
		t.Skip("ipmi_sim is not installed: apt-get install openipmi ipmitool fence-agents")
	}
	dir := t.TempDir()
	host, port, _ = net.SplitHostPort(process.FreeAddress())
	power = filepath.Join(dir, "power")
	for name, content := range map[string]string{
		"power": "1",
		"chassis": `#!/bin/sh
dir=$1
shift 2
case "$*" in
"get power") echo "power:$(cat "$dir/power")";;
"set power "*) echo "$3" > "$dir/power";;
esac
`,
		"lan.conf": fmt.Sprintf(`name "node"
set_working_mc 0x20
  startlan 1
    addr %s %s
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
  chassis_control "%s/chassis %s 0x20"
  user 1 true "" "test" user 10 none md2 md5 straight
  user 2 true "admin" "%s" admin 10 none md2 md5 straight
`, host, port, dir, dir, password),
		"bmc.emu": "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr\nsel_enable 0x20 1000 0x0a\nmc_enable 0x20\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), sim, "-c", dir+"/lan.conf", "-f", dir+"/bmc.emu", "-s", dir, "-n")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Kill() }
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return host, port, power
}

// TestIPMISim: fence_ipmilan asks and commands OpenIPMI's simulator, and no other process sees the password.
func TestIPMISim(t *testing.T) {
	path, err := Find("/usr/sbin", "fence_ipmilan")
	if err != nil {
		t.Skip("fence_ipmilan is not installed: apt-get install openipmi ipmitool fence-agents")
	}
	host, port, power := bmc(t)
	a, err := New(t.Context(), path, map[string]string{
		"ip": host, "ipport": port, "lanplus": "1", "cipher": "3", "power_wait": "0", "power_timeout": "60",
	}, "", map[string][]byte{"username": []byte("admin"), "password": []byte(password)})
	if err != nil {
		t.Fatal(err)
	}
	seen := watchArguments(t)
	wait.Until(t, "the BMC says On", func() bool {
		got, _, _ := a.Status(t.Context())
		return got == fencing.PowerOn
	})
	var id string
	repeat(t, "the BMC shows its identity", func() (err error) { id, err = a.Identity(t.Context()); return err })
	if len(id) != 36 {
		t.Errorf("identity %q", id)
	}
	began := time.Now()
	repeat(t, "the BMC takes the command", func() error { return a.Off(t.Context()) })
	wait.Until(t, "the BMC says Off", func() bool {
		got, _, _ := a.Status(t.Context())
		return got == fencing.PowerOff
	})
	t.Logf("identity %s; off and read back in %v", id, time.Since(began))
	if content, _ := os.ReadFile(power); strings.TrimSpace(string(content)) != "0" {
		t.Errorf("the power is %s", content)
	}
	if found := seen(); found != "" {
		t.Errorf("the password was in the arguments of %q", found)
	}
	a.options["password"] = "wrong"
	if got, raw, err := a.Status(t.Context()); got != fencing.PowerUnknown || err == nil {
		t.Errorf("with a wrong password: %v %q (%v)", got, raw, err)
	}
}

// repeat repeats what may time out on a busy machine, until it succeeds. A machine may be switched off twice.
func repeat(t *testing.T, what string, do func() error) {
	t.Helper()
	wait.Until(t, what, func() bool {
		err := do()
		if err != nil {
			t.Logf("before %s: %v", what, err)
		}
		return err == nil
	})
}

// watchArguments reads the arguments of all processes until the returned function is called, which returns those with the password.
func watchArguments(t *testing.T) (found func() string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan string)
	go func() {
		leaked, read := "", 0
		for ctx.Err() == nil {
			files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, file := range files {
				content, _ := os.ReadFile(file)
				read++
				if strings.Contains(string(content), password) {
					leaked = strings.ReplaceAll(string(content), "\x00", " ")
				}
			}
		}
		if read == 0 {
			leaked = "nothing was read"
		}
		result <- leaked
	}()
	return func() string {
		cancel()
		return <-result
	}
}

// TestMissingTool: without ipmitool the agent is unusable, which is no login that failed: when the image is replaced, the switch is asked again.
func TestMissingTool(t *testing.T) {
	path := agentIn(t, "exit 1")
	ipmi := filepath.Join(filepath.Dir(path), "fence_ipmilan")
	if err := os.Rename(path, ipmi); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir())
	_, err := New(t.Context(), ipmi, map[string]string{"password": "x"}, "", nil)
	if broken := (AgentError{}); !errors.As(err, &broken) || !strings.Contains(err.Error(), "needs ipmitool") {
		t.Errorf("%v, want an AgentError", err)
	}
}
