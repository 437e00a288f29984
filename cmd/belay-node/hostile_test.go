package main

import (
	"testing"

	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/hostile"
	"belay.dev/belay/internal/testing/process"
)

// TestHostileText: whatever the errors of the API server contain, the log is printable.
func TestHostileText(t *testing.T) {
	kubeconfig := apiserver.Kubeconfig(t, &rest.Config{Host: hostile.Server(t, nil).URL})
	daemon := process.Start(t, process.TestBinary(t, asDaemon, "1", "--kubeconfig="+kubeconfig, "--node-name="+nodeName, "--root-dir="+t.TempDir(), "--v=4"))
	daemon.WaitLog(hostile.Shown)
	daemon.Kill()
	hostile.Check(t, "the log", daemon.Output())
	daemon = process.Start(t, process.TestBinary(t, asDaemon, "1", "--kubeconfig="+hostile.Text, "--node-name="+nodeName))
	daemon.WantExit(1, hostile.Shown)
	hostile.Check(t, "an error", daemon.Output())
}
