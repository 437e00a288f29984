package main

import (
	"testing"

	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/hostile"
)

// TestHostileText: whatever the errors of the API server contain, the logs and preflight's reports are printable.
func TestHostileText(t *testing.T) {
	cluster.Start(t)
	kubeconfig := apiserver.Kubeconfig(t, &rest.Config{Host: hostile.Server(t, cluster.Config()).URL})
	for _, format := range []string{"text", "json"} {
		p := execute(t, "--kubeconfig="+kubeconfig, "--leader-elect=false", "--logging-format="+format, "--v=4")
		p.WaitLog(hostile.Shown)
		p.Kill()
		hostile.Check(t, "the log as "+format, p.Output())
		for _, phase := range []string{"prepare", "take-over", "roll-back"} {
			p := execute(t, "preflight", "--kubeconfig="+kubeconfig, "--observe=0", "--phase="+phase, "-o", format)
			p.WantExit(1, hostile.Shown)
			hostile.Check(t, "preflight of "+phase+" as "+format, p.Output())
		}
	}
	p := execute(t, "--kubeconfig", hostile.Text)
	p.WantExit(1, hostile.Shown)
	hostile.Check(t, "an error", p.Output())
}
