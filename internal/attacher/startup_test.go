package attacher

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// whileStarting scripts what a driver answers before it is asked for volumes. What is
// nil is answered at once.
type whileStarting struct {
	probe        func(ctx context.Context, nth int32) (*csispec.ProbeResponse, error)
	info         func(ctx context.Context) (*csispec.GetPluginInfoResponse, error)
	capabilities func(ctx context.Context) error
}

func hang[T any](ctx context.Context) (none T, err error) {
	<-ctx.Done()
	return none, ctx.Err()
}

// The start of csi-attacher 4.12: it waits for ever for a driver that is not ready or
// does not answer a Probe in time, and ends with 1 on everything else.
func TestStart(t *testing.T) {
	ready := func(is bool) (*csispec.ProbeResponse, error) {
		return &csispec.ProbeResponse{Ready: wrapperspb.Bool(is)}, nil
	}
	info := func(name string, err error) func(context.Context) (*csispec.GetPluginInfoResponse, error) {
		return func(context.Context) (*csispec.GetPluginInfoResponse, error) {
			return &csispec.GetPluginInfoResponse{Name: name}, err
		}
	}
	broken := status.Error(codes.Internal, "broken")
	tests := map[string]struct {
		driver whileStarting
		args   []string
		ends   string // a part of what it says when it ends with 1; empty if it attaches
	}{
		"ready at once": {},
		"not ready, then silent, then ready": {
			driver: whileStarting{probe: func(ctx context.Context, nth int32) (*csispec.ProbeResponse, error) {
				switch nth {
				case 1:
					return ready(false)
				case 2:
					return hang[*csispec.ProbeResponse](ctx)
				default:
					return ready(true)
				}
			}},
			args: []string{"--timeout=5s"}, // of everything that it asks, so not too short for a busy machine
		},
		"probe fails": {
			driver: whileStarting{probe: func(context.Context, int32) (*csispec.ProbeResponse, error) { return nil, broken }},
			ends:   "to become ready",
		},
		"no name":      {driver: whileStarting{info: info("", nil)}, ends: "driver name is empty"},
		"name fails":   {driver: whileStarting{info: info("", broken)}, ends: "get the name of the CSI driver"},
		"name hangs":   {driver: whileStarting{info: hang[*csispec.GetPluginInfoResponse]}, ends: "DeadlineExceeded"},
		"capabilities": {driver: whileStarting{capabilities: func(context.Context) error { return broken }}, ends: "get the controller capabilities"},
		"capabilities hang": {
			driver: whileStarting{capabilities: func(ctx context.Context) error { _, err := hang[any](ctx); return err }},
			ends:   "DeadlineExceeded",
		},
		"not a unix socket": {args: []string{"--csi-address=127.0.0.1:1"}, ends: "only supported for unix:// addresses"},
		"lease times that allow two leaders": {
			args: []string{"--leader-election", "--leader-election-lease-duration=5s"}, ends: "leaseDuration must be greater than renewDeadline",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.driver.starting = test.driver
			w.node("node1")
			w.volume("pv1")
			va := w.attachment("pv1", "node1")
			s := w.sidecar(test.args...)
			if test.ends == "" {
				w.until(va, "attached", isAttached)
				return
			}
			s.endsWith(1, test.ends)
			w.wantCalls()
		})
	}
}

// endsWith waits for the end of the process.
func (s *sidecar) endsWith(code int, text string) {
	s.t.Helper()
	select {
	case <-s.exited:
	case <-time.After(patience):
		s.t.Fatal("the process goes on")
	}
	if got := s.cmd.ProcessState.ExitCode(); got != code {
		s.t.Errorf("exit code %d, want %d", got, code)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if log := strings.Join(s.logs, "\n"); !strings.Contains(log, text) {
		s.t.Errorf("it does not say %q:\n%s", text, log)
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
	w.driver.starting.probe = func(context.Context, int32) (*csispec.ProbeResponse, error) {
		return &csispec.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil
	}
	s := w.sidecar()
	s.waitLog("not ready")
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.endsWith(1, "context canceled")
}

// eventually asks until something is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("not so: %s", what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// ask returns what the process answers at a path: "503 why".
func ask(t *testing.T, address, path string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(answer.StatusCode, " ", strings.TrimSpace(string(body)))
}

// A process is ready when it could lead at once: the driver is there and the caches are
// full, whoever leads. /healthz/leader-election is csi-attacher's.
func TestHealth(t *testing.T) {
	w := newWorld(t)
	started := make(chan struct{})
	w.driver.starting.probe = func(_ context.Context, nth int32) (*csispec.ProbeResponse, error) {
		if nth == 1 {
			return &csispec.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil
		}
		<-started
		return &csispec.ProbeResponse{}, nil
	}
	const lead = "/healthz/leader-election"
	leader, standby, without := freeAddress(), freeAddress(), freeAddress()
	says := func(address, path, want string) {
		t.Helper()
		eventually(t, address+path+" says "+want, func() bool { return strings.HasPrefix(ask(t, address, path), want) })
	}
	w.candidate("host-a", w.driver.address, "--http-endpoint="+leader)
	says(leader, "/readyz", "500 internal server error: the CSI driver has not been connected yet")
	says(leader, lead, "200 ok")
	says(leader, "/metrics", "404")
	close(started)
	says(leader, "/readyz", "200 ok")
	says(leader, lead, "200 ok")
	says(leader, "/metrics", "200")
	w.candidate("host-b", w.driver.address, "--http-endpoint="+standby)
	says(standby, "/readyz", "200 ok")
	says(standby, lead, "200 ok")
	w.sidecar("--metrics-address=" + without)
	says(without, "/readyz", "200 ok")
	says(without, lead, "404")

	w.driver.server.Stop()
	says(standby, "/readyz", "500 internal server error: the CSI driver is not connected")
	w.driver.listen(t, w.driver.address)
	says(standby, "/readyz", "200 ok")
}

// A replica that may not read the lease can never lead: it is not ready, and reports why.
func TestReadinessWithoutRightsOnTheLease(t *testing.T) {
	w := newWorld(t)
	address := freeAddress()
	w.sidecar("--leader-election", "--leader-election-namespace=default", "--http-endpoint="+address)
	const want = "the leader lease cannot be read: leases.coordination.k8s.io"
	eventually(t, "the replica is not ready", func() bool {
		text := ask(t, address, "/readyz")
		return strings.HasPrefix(text, "500") && strings.Contains(text, want) && strings.Contains(text, "is forbidden")
	})
}

// Readiness names the caches that are missing.
func TestReadinessNamesTheCaches(t *testing.T) {
	clients, err := newMemoryAPI().client()
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{Client: clients, Driver: bubbleDriver, WorkerThreads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer a.shutDown()
	if got, want := fmt.Sprint(a.warmed()), "the caches are not synced yet: volumeattachments, persistentvolumes, csinodes"; got != want {
		t.Errorf("warmed: %s, want %s", got, want)
	}
}

// A process that ends at SIGTERM exits with 1, as csi-attacher does with leader election, and does not call that a failure.
// Only one that led reports that it stopped leading.
func TestLogAtSIGTERM(t *testing.T) {
	w := newWorld(t)
	health := freeAddress()
	leader := w.candidateOf(programPath(t), "host-a", w.socket("a"))
	w.untilLeads("host-a")
	leader.waitLog("Started attaching")
	standby := w.candidateOf(programPath(t), "host-b", w.socket("b"), "--http-endpoint="+health)
	w.untilReady(health)
	for _, s := range []*sidecar{standby, leader} {
		s.signal(syscall.SIGTERM)
		s.endsWith(1, `"Shut down"`)
		if n := s.said("belay-attacher failed"); n > 0 {
			t.Error("the end at SIGTERM is called a failure")
		}
	}
	if standby.said("Stopped leading") != 0 || leader.said("Stopped leading") != 1 {
		t.Errorf("stopped leading: logged %d times by the standby, %d by the leader", standby.said("Stopped leading"), leader.said("Stopped leading"))
	}
}
