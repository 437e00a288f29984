package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMissingCapabilityIsRefused: belay-node does not start where it could not see who uses a volume, and names what to set.
func TestMissingCapabilityIsRefused(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to give capabilities up")
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	content := `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],` +
		`"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:9"}}],"users":[{"name":"u","user":{}}]}`
	if err := os.WriteFile(kubeconfig, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	for dropped, name := range map[string]string{"-sys_ptrace": "CAP_SYS_PTRACE", "-dac_override,-dac_read_search": "CAP_DAC_READ_SEARCH"} {
		cmd := exec.Command("timeout", "20", "setpriv", "--bounding-set", dropped, os.Args[0],
			"--node-name="+nodeName, "--kubeconfig="+kubeconfig, "--root-dir="+filepath.Join(t.TempDir(), "root"))
		cmd.Env = append(os.Environ(), asDaemon+"=1")
		cmd.WaitDelay = time.Second
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "lacks "+name) || !strings.Contains(string(out), "privileged: true") {
			t.Errorf("without %s: %v: %s", name, err, out)
		}
	}
}
