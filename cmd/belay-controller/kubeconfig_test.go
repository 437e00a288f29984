package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
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
