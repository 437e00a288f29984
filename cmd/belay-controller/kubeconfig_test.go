package main

import (
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/testing/apiserver"
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
	kubeconfig := apiserver.Kubeconfig(t, &rest.Config{Host: "https://127.0.0.1:1"})
	for name, tt := range map[string]struct {
		args []string
		env  string
		from string
	}{
		"controller":               {[]string{"--kubeconfig=" + kubeconfig, "--leader-elect=false"}, "", "kubeconfig " + kubeconfig},
		"preflight":                {[]string{"preflight", "--kubeconfig=" + kubeconfig}, "", `context "test" of kubeconfig ` + kubeconfig},
		"preflight by $KUBECONFIG": {[]string{"preflight"}, kubeconfig, `context "test" of kubeconfig ` + kubeconfig},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", tt.env)
			p := execute(t, tt.args...)
			for _, want := range []string{"cannot reach https://127.0.0.1:1: ", "connection refused", "check that the API server is running", tt.from} {
				p.WantExit(1, want)
			}
			if starts := p.Logged(`"Starting belay-controller" version="unknown"`); starts != 1 && name == "controller" {
				t.Errorf("the log has its start %d times, want once:\n%s", starts, p.Output())
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
		"argument":              {[]string{"frob"}, `belay-controller accepts no arguments except a command (leave, preflight), received "frob"`},
		"value of a wrong type": {[]string{"--leader-elect=perhaps"}, `--leader-elect is "perhaps", but must be true or false; see belay-controller --help`},
		"log level below zero":  {[]string{"-v", "-1"}, `--v is "-1", but must be a whole number of at least 0`},
		"value that cannot be":  {[]string{"--deleted-node-policy=ignore"}, "--deleted-node-policy must be wait or detach"},
		"log format":            {[]string{"--logging-format=prose"}, "configure logging"},
		"preflight, flag":       {[]string{"preflight", "--frob"}, "unknown flag: --frob; see belay-controller preflight --help"},
		"preflight, argument":   {[]string{"preflight", "now"}, `belay-controller preflight accepts no arguments, received "now"`},
		"preflight, output":     {[]string{"preflight", "-o", "yaml"}, `--output must be text or json, not "yaml"`},
		"preflight, below zero": {[]string{"preflight", "--observe=-1s"}, "must not be below 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", "/dev/null")
			execute(t, tt.args...).WantExit(usage.StatusWrong, tt.says)
		})
	}
}
