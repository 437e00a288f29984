package main

import (
	"syscall"
	"testing"
	"time"
)

// The API server refuses each list, so the caches are never full. A signal ends the process nevertheless.
func TestEndsBeforeItsCachesAreFull(t *testing.T) {
	none := reader(t, "no-rights")
	p := execute(t, "--kubeconfig="+none, "--metrics-bind-address=0", "--health-probe-bind-address=0")
	p.WaitLog("nodes is forbidden")
	sent := time.Now()
	p.Signal(syscall.SIGTERM)
	if code := p.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(sent); took > 35*time.Second {
		t.Errorf("it took %v", took)
	}
}

// Without the permissions to fill its caches it reports which are missing, and exits.
func TestMissingRightsEndIt(t *testing.T) {
	few := reader(t, "few-rights", rule("", []string{"list", "watch"}, "nodes", "pods", "persistentvolumeclaims"),
		rule("", []string{"list"}, "persistentvolumes"), rule("storage.k8s.io", []string{"list", "watch"}, "volumeattachments"))
	t.Setenv(fillVariable, "1s")
	p := execute(t, "--kubeconfig="+few, "--metrics-bind-address=0", "--health-probe-bind-address=0")
	if code := p.Wait(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if want := "cannot start without the rights to list csidrivers, watch csidrivers, watch persistentvolumes:"; p.Logged(want) == 0 {
		t.Errorf("it never said %q", want)
	}
}
