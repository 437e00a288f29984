package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"belay.dev/belay/internal/usage"
)

// Outside of a cluster the advice is the flag: $KUBECONFIG is for people, the controller does not read it.
func TestNoKubeconfig(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err := daemonConfig(t.Context(), "")
	if err == nil || !strings.Contains(err.Error(), "set --kubeconfig") || strings.Contains(err.Error(), "KUBERNETES_MASTER") {
		t.Error(err)
	}
}

// An API server that does not answer is named, with what to check.
func TestUnreachableServer(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "nowhere")
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}
	config.Contexts["staging"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "staging"
	must(t, clientcmd.WriteToFile(*config, kubeconfig))
	for name, tt := range map[string]struct {
		args []string
		env  string
		from string
	}{
		"controller":               {[]string{"--kubeconfig=" + kubeconfig, "--leader-elect=false"}, "", "kubeconfig " + kubeconfig},
		"preflight":                {[]string{"preflight", "--kubeconfig=" + kubeconfig}, "", `context "staging" of kubeconfig ` + kubeconfig},
		"preflight by $KUBECONFIG": {[]string{"preflight"}, kubeconfig, `context "staging" of kubeconfig ` + kubeconfig},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], tt.args...)
			cmd.Env = append(os.Environ(), childVariable+"=1", "KUBECONFIG="+tt.env)
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != 1 {
				t.Errorf("exit status %d", code)
			}
			for _, want := range []string{"cannot reach https://127.0.0.1:1: ", "connection refused", "check that the API server is running", tt.from} {
				if !strings.Contains(string(out), want) {
					t.Errorf("no %q in:\n%s", want, out)
				}
			}
		})
	}
}

// Wrong usage ends the program with status 2, and the error names the flag.
func TestWrongUsage(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		says string
	}{
		"unknown flag":          {[]string{"--frob"}, "unknown flag: --frob; see belay-controller --help"},
		"argument":              {[]string{"frob"}, `unknown command "frob"`},
		"value of a wrong type": {[]string{"--leader-elect=perhaps"}, "--leader-elect"},
		"value that cannot be":  {[]string{"--deleted-node-policy=ignore"}, "--deleted-node-policy must be wait or detach"},
		"log format":            {[]string{"--logging-format=prose"}, "configure logging"},
		"preflight, flag":       {[]string{"preflight", "--frob"}, "unknown flag: --frob; see belay-controller preflight --help"},
		"preflight, argument":   {[]string{"preflight", "now"}, "now"},
		"preflight, output":     {[]string{"preflight", "-o", "yaml"}, `--output must be text or json, not "yaml"`},
		"preflight, below zero": {[]string{"preflight", "--observe=-1s"}, "must not be below 0"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], tt.args...)
			cmd.Env = append(os.Environ(), childVariable+"=1", "KUBECONFIG=/dev/null")
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != usage.StatusWrong || !strings.Contains(string(out), tt.says) {
				t.Errorf("exit status %d, want %d and %q in:\n%s", code, usage.StatusWrong, tt.says, out)
			}
		})
	}
}
