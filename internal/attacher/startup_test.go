package attacher

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/process"
	"belay.dev/belay/internal/testing/wait"
)

func hang[T any](ctx context.Context) (none T, err error) {
	<-ctx.Done()
	return none, ctx.Err()
}

// The start of csi-attacher 4.12: it waits forever for a driver that is not ready or does not answer a Probe in time,
// and exits with status 1 on any other error.
func TestStart(t *testing.T) {
	broken := status.Error(codes.Internal, "broken")
	name := func(name string, err error) func(*csidriver.Driver) {
		return func(d *csidriver.Driver) {
			d.OnGetPluginInfo = func(context.Context) (string, error) { return name, err }
		}
	}
	tests := map[string]struct {
		change func(d *csidriver.Driver)
		args   []string
		ends   string // a part of its output when it exits with status 1; empty if it attaches
		ships  bool   // runs the program as it is shipped, because the other tests' children wait for longer
	}{
		"ready at once": {},
		"not ready, then silent, then ready": {
			change: func(d *csidriver.Driver) {
				d.OnProbe = func(ctx context.Context, nth int) (bool, error) {
					if nth == 2 {
						return hang[bool](ctx)
					}
					return nth > 2, nil
				}
			},
			args: []string{"--timeout=5s"}, // of everything that it asks, so not too short for a busy machine
		},
		"probe fails": {
			change: func(d *csidriver.Driver) {
				d.OnProbe = func(context.Context, int) (bool, error) { return false, broken }
			},
			ends: "to become ready",
		},
		"no name":      {change: name("", nil), ends: "driver name is empty"},
		"name fails":   {change: name("", broken), ends: "get the name of the CSI driver"},
		"name hangs":   {change: func(d *csidriver.Driver) { d.OnGetPluginInfo = hang[string] }, ends: "DeadlineExceeded", ships: true},
		"capabilities": {change: func(d *csidriver.Driver) { d.OnGetCapabilities = func(context.Context) error { return broken } }, ends: "get the controller capabilities"},
		"capabilities hang": {
			change: func(d *csidriver.Driver) {
				d.OnGetCapabilities = func(ctx context.Context) error { _, err := hang[any](ctx); return err }
			},
			ends: "DeadlineExceeded", ships: true,
		},
		"not a unix socket": {args: []string{"--csi-address=127.0.0.1:1"}, ends: `--csi-address is "127.0.0.1:1", but must be the absolute path of a Unix socket`},
		"lease times that allow two leaders": {
			args: []string{"--leader-election", "--leader-election-lease-duration=5s"}, ends: "--leader-election-lease-duration is 5s, but must be more than the renew deadline of 10s",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if test.change != nil {
				test.change(w.driver)
			}
			w.node("node1")
			w.volume("pv1")
			va := w.attachment("pv1", "node1")
			program := os.Args[0]
			if test.ships {
				program = programPath(t)
			}
			s := w.launch(exec.Command(program, w.arguments(w.driver.Address, test.args...)...))
			if test.ends == "" {
				w.until(va, "attached", isAttached)
				return
			}
			s.WantExit(1, test.ends)
			w.wantCalls()
		})
	}
}

// Without a flag the lease is in the pod's namespace, as csi-attacher's.
func TestNamespaceOfTheLease(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "")
	for want, given := range map[string]struct{ flag, pod string }{
		"flag": {"flag", "pod"}, "pod": {"", "pod"}, "default": {},
	} {
		t.Setenv("POD_NAMESPACE", given.pod)
		if got := leaseNamespace(given.flag); got != want {
			t.Errorf("flag %q in a pod of %q: %q, want %q", given.flag, given.pod, got, want)
		}
	}
}

// A process that waits for its driver ends at once on SIGTERM.
func TestSignalWhileTheDriverIsNotReady(t *testing.T) {
	w := newWorld(t)
	w.driver.OnProbe = func(context.Context, int) (bool, error) { return false, nil }
	s := w.sidecar()
	s.WaitLog("not ready")
	s.Signal(syscall.SIGTERM)
	s.WantExit(1, "context canceled")
}

// ask returns the reply of the process at a path: "503 why".
func ask(t *testing.T, address, path string) string {
	t.Helper()
	status, body := process.Get(t, address, path)
	return strings.TrimSpace(fmt.Sprint(status, " ", body))
}

// A process is ready when it could lead immediately: the driver is running and the caches are synced, regardless of
// which process leads. /healthz/leader-election is csi-attacher's.
func TestHealth(t *testing.T) {
	w := newWorld(t)
	started := make(chan struct{})
	w.driver.OnProbe = func(_ context.Context, nth int) (bool, error) {
		if nth == 1 {
			return false, nil
		}
		<-started
		return true, nil
	}
	const lead = "/healthz/leader-election"
	leader, standby, without := process.FreeAddress(), process.FreeAddress(), process.FreeAddress()
	says := func(address, path, want string) {
		t.Helper()
		wait.Until(t, address+path+" says "+want, func() bool { return strings.HasPrefix(ask(t, address, path), want) })
	}
	w.candidate("host-a", w.driver.Address, "--http-endpoint="+leader)
	says(leader, "/readyz", "500 internal server error: the CSI driver has not been connected yet")
	says(leader, lead, "200 ok")
	says(leader, "/metrics", "404")
	close(started)
	says(leader, "/readyz", "200 ok")
	says(leader, lead, "200 ok")
	says(leader, "/metrics", "200")
	w.candidate("host-b", w.driver.Address, "--http-endpoint="+standby)
	says(standby, "/readyz", "200 ok")
	says(standby, lead, "200 ok")
	w.sidecar("--metrics-address=" + without)
	says(without, "/readyz", "200 ok")
	says(without, lead, "404")

	w.driver.Stop()
	says(standby, "/readyz", "500 internal server error: the CSI driver is not connected")
	w.driver.Start()
	says(standby, "/readyz", "200 ok")
}

// A replica that may not read the lease can never lead: it is not ready, and reports why.
func TestReadinessWithoutRightsOnTheLease(t *testing.T) {
	w := newWorld(t)
	address := process.FreeAddress()
	w.sidecar("--leader-election", "--leader-election-namespace=default", "--http-endpoint="+address)
	const want = "the leader lease cannot be read: leases.coordination.k8s.io"
	wait.Until(t, "the replica is not ready", func() bool {
		text := ask(t, address, "/readyz")
		return strings.HasPrefix(text, "500") && strings.Contains(text, want) && strings.Contains(text, "is forbidden")
	})
}

// Readiness names the caches that are missing.
func TestReadinessNamesTheCaches(t *testing.T) {
	clients, err := newMemoryAPI().client()
	must(t, err)
	a, err := New(Config{Client: clients, Driver: bubbleDriver, WorkerThreads: 1})
	must(t, err)
	defer a.shutDown()
	if got, want := fmt.Sprint(a.cachesSynced()), "the caches are not synced yet: volumeattachments, persistentvolumes, csinodes"; got != want {
		t.Errorf("warmed: %s, want %s", got, want)
	}
}

// A process that ends at SIGTERM exits with 1, as csi-attacher does with leader election, and does not call that a failure.
// Only one that led reports that it stopped leading.
func TestLogAtSIGTERM(t *testing.T) {
	w := newWorld(t)
	health := process.FreeAddress()
	leader := w.candidateOf(programPath(t), "host-a", w.socket("a"))
	w.untilLeads("host-a")
	leader.WaitLog("Started attaching")
	standby := w.candidateOf(programPath(t), "host-b", w.socket("b"), "--http-endpoint="+health)
	w.untilReady(health)
	for _, s := range []*process.Process{standby, leader} {
		s.Signal(syscall.SIGTERM)
		s.WantExit(1, `"Shut down"`)
		if n := s.Logged("belay-attacher failed"); n > 0 {
			t.Error("the end at SIGTERM is called a failure")
		}
	}
	if standby.Logged("Stopped leading") != 0 || leader.Logged("Stopped leading") != 1 {
		t.Errorf("stopped leading: logged %d times by the standby, %d by the leader", standby.Logged("Stopped leading"), leader.Logged("Stopped leading"))
	}
}
