package attacher

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/process"
	"belay.dev/belay/internal/testing/wait"
)

// childVariable makes the test binary be the sidecar: tests that kill it need a
// process.
const childVariable = "BELAY_TEST_SIDECAR"

func runAsSidecar() int {
	flag.CommandLine = flag.NewFlagSet(os.Args[0], flag.ExitOnError) // without those of the test's libraries
	options := RegisterFlags()
	flag.Parse()
	// No test of this child is about the end of one of these, and a busy machine may take longer.
	maxDrain, maxAbsence, csi.ShortTimeout = wait.Timeout, wait.Timeout, wait.Timeout
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := RunSidecar(ctx, options); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// shippedNamespace is that of the service account of deploy/belay-attacher.
const shippedNamespace = "belay-system"

// shippedKubeconfig applies the shipped manifests and writes the credential of a user with exactly the permissions that
// they grant.
func shippedKubeconfig(t *testing.T) string {
	t.Helper()
	server.Start(t)
	return apiserver.Kubeconfig(t, server.ServiceAccount(t, shippedNamespace, "belay-attacher",
		"../../deploy/belay-attacher/rbac.yaml", "../../deploy/belay-attacher/rbac-secrets.yaml"))
}

// sidecar starts a child with the rights that are shipped.
func (w *world) sidecar(args ...string) *process.Process {
	w.t.Helper()
	return w.launch(exec.Command(os.Args[0], w.arguments(w.driver.Address, args...)...))
}

// arguments are those of an attacher at a socket.
func (w *world) arguments(socket string, args ...string) []string {
	w.t.Helper()
	return append([]string{"--kubeconfig", shippedKubeconfig(w.t), "--csi-address", socket, "--retry-interval-start=100ms"}, args...)
}

// launch starts a child that becomes the sidecar, unless it is another program.
func (w *world) launch(cmd *exec.Cmd) *process.Process {
	w.t.Helper()
	cmd.Env = append(os.Environ(), childVariable+"=1")
	return process.Start(w.t, cmd)
}

func held(lease *coordinationv1.Lease) bool {
	return lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != ""
}

// SIGTERM lets the call in flight end, records it, and the process is gone.
func TestSidecarTerminatedWhileACallIsInFlight(t *testing.T) {
	w := newWorld(t)
	answer := make(chan struct{})
	w.driver.SetAnswer(func(context.Context, call, int) (map[string]string, error) {
		<-answer
		return map[string]string{"a": "b"}, nil
	})
	w.node("node1")
	w.volume("pv1")
	w.volume("pv2")
	s := w.sidecar(lateAnswers)
	va := w.attachment("pv1", "node1")
	w.driver.WaitCalls(1)
	s.Signal(syscall.SIGTERM)
	s.WaitLog("waiting for calls in flight")
	late := w.attachment("pv2", "node1")
	close(answer)
	s.Wait()
	if stored := w.get(va); !stored.Status.Attached || stored.Status.AttachmentMetadata["a"] != "b" {
		t.Errorf("the result was not recorded: %+v", stored.Status)
	}
	if code := s.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if stored := w.get(late); len(stored.Finalizers) != 0 {
		t.Errorf("something was begun after SIGTERM: %+v", stored)
	}
	w.wantCalls("Publish id-node1")
}

// An API server that does not answer is named at once, and waited for.
func TestSidecarSaysThatTheAPIServerIsUnreachable(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "nowhere")
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "c"
	must(t, clientcmd.WriteToFile(*config, kubeconfig))
	s := (&world{t: t}).launch(exec.Command(programPath(t), "--kubeconfig", kubeconfig, "--csi-address", filepath.Join(t.TempDir(), "none")))
	began := time.Now()
	s.WaitLog("cannot reach https://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused")
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v", took)
	}
}

// storage is the true state of which node has a volume: it allows everything and records violations.
type storage struct {
	mu       sync.Mutex
	holders  map[string]map[string]bool
	served   map[string]int // the last call for each volume
	doubles  []string
	publishs int
}

// serve takes its time before it acts and before it answers, whether or not the
// caller still lives. As a driver must (docs/drivers.md), it lets no call overtake a
// later one of its volume, also where a busy machine delays the goroutine of one.
func (s *storage) serve(ctx context.Context, c call, nth int) (map[string]string, error) {
	<-time.After(rand.N(20 * time.Millisecond))
	defer func() { <-time.After(rand.N(20 * time.Millisecond)) }()
	s.mu.Lock()
	defer s.mu.Unlock()
	if nth < s.served[c.Volume] && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	s.served[c.Volume] = max(nth, s.served[c.Volume])
	if s.holders[c.Volume] == nil {
		s.holders[c.Volume] = map[string]bool{}
	}
	if c.Method == "Unpublish" {
		delete(s.holders[c.Volume], c.Node)
		return nil, nil
	}
	s.publishs++
	for holder := range s.holders[c.Volume] {
		if holder != c.Node {
			s.doubles = append(s.doubles, fmt.Sprintf("%s published to %s while %s holds it", c.Volume, c.Node, holder))
		}
	}
	s.holders[c.Volume][c.Node] = true
	return nil, nil
}

// Volumes move between two nodes while the sidecar is killed with -9 at random
// moments: none is published twice, none is stuck.
//
//	BELAY_KILL_SEED=17 go test -run TestSidecarKilled ./internal/attacher   replays one
func TestSidecarKilledAtRandomMoments(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("BELAY_KILL_SEED"); s != "" {
		parsed, err := strconv.ParseUint(s, 10, 64)
		must(t, err)
		seed = parsed
	}
	t.Logf("seed %d (replay with BELAY_KILL_SEED=%d)", seed, seed)
	random := rand.New(rand.NewPCG(seed, seed))
	const volumes, moves, kills = 4, 6, 8
	w := newWorld(t)
	truth := &storage{holders: map[string]map[string]bool{}, served: map[string]int{}}
	w.driver.SetAnswer(truth.serve)
	w.node("node-a")
	w.node("node-b")
	for i := range volumes {
		w.volume(fmt.Sprint("pv", i))
	}
	killed := make(chan struct{})
	s := w.sidecar()
	go func() {
		defer close(killed)
		for range kills {
			<-time.After(time.Duration(random.IntN(250)) * time.Millisecond)
			s.Kill()
			s = w.sidecar()
		}
	}()
	nodes := []string{"node-a", "node-b"}
	for move := range moves {
		var next []string
		for i := range volumes { // made while the last one is still going
			next = append(next, w.attachment(fmt.Sprint("pv", i), nodes[move%2]))
		}
		for _, name := range next {
			w.until(name, "attached", isAttached)
		}
		for _, name := range next {
			w.delete(name)
		}
		if move%2 == 0 {
			continue
		}
		for _, name := range next {
			w.until(name, "gone", isGone)
		}
	}
	wait.For(t, "the last kill", killed)
	for _, va := range w.list() {
		w.until(va.Name, "gone", isGone)
	}
	truth.mu.Lock()
	defer truth.mu.Unlock()
	if len(truth.doubles) > 0 {
		t.Errorf("published twice: %v", truth.doubles)
	}
	for volume, holders := range truth.holders {
		if len(holders) > 0 {
			t.Errorf("%s is still held by %v and no attachment says so", volume, holders)
		}
	}
	if most := volumes * (moves + kills); truth.publishs > most {
		t.Errorf("%d publish calls, want at most one per attach and one per volume and kill: %d", truth.publishs, most)
	}
	t.Logf("%d publish calls for %d attaches and %d kills", truth.publishs, volumes*moves, kills)
}
