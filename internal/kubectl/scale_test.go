package kubectl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/inspect"
	"belay.dev/belay/internal/testing/apiserver"
)

// The limits of issue 14 for 5,000 nodes, 20,000 VolumeAttachments and 50,000 pods.
const (
	explainLimit  = time.Second
	crowdedLimit  = 2 * time.Second // where all pods are in one namespace
	clusterLimit  = 5 * time.Second
	requestsLimit = 40
	memoryMost    = 300 << 20
)

// attempts of a command, of which the fastest counts: other programs may use the processors during one.
const attempts = 3

// TestScale runs the commands on a large cluster in a real API server. The times are those of the built program, from its start to its
// end, with the API server on the same machine. Where more processes want to run than there are processors, the limits are longer by
// that factor, up to four times.
func TestScale(t *testing.T) {
	if testing.Short() {
		t.Skip("fills an API server with 100,000 objects")
	}
	program := buildProgram(t)
	for name, namespaces := range map[string]int{"50 namespaces": 50, "one namespace": 1} {
		t.Run(name, func(t *testing.T) {
			large := apiserver.Server{}
			large.StartFor(t)
			large.Apply(t, recoveryFiles...)
			began := time.Now()
			c := crowd{namespaces: namespaces}
			large.Store(t, c.produce)
			c.wait(t, &large)
			t.Logf("objects stored in %v", time.Since(began).Round(time.Second))
			kubeconfig := apiserver.Kubeconfig(t, large.Config())
			for _, args := range c.subjects() {
				m := measure(t, program, kubeconfig, append([]string{"explain"}, args...)...)
				n := requests(t, large.Config(), args)
				m.requests = &n
				limit := explainLimit
				if namespaces == 1 {
					limit = crowdedLimit // a claim may be used by any pod of its namespace, which has 50,000
				}
				m.check(t, limit)
				if n >= requestsLimit {
					t.Errorf("%v: %d requests, want fewer than %d", args, n, requestsLimit)
				}
			}
			for _, args := range [][]string{{"stuck", "-A"}, {"orphans"}, {"map"}, {"map", "-o", "json"}} {
				m := measure(t, program, kubeconfig, args...)
				m.check(t, clusterLimit)
				if m.time > progressAfter+progressElse && !strings.Contains(m.err, "Reading: ") {
					t.Errorf("%v: no progress was shown in %v: %s", args, m.time, m.err)
				}
				c.checkAnswer(t, args, m.out)
			}
		})
	}
}

func buildProgram(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "kubectl-belay")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "belay.dev/belay/cmd/kubectl-belay").CombinedOutput()
	if err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	return program
}

// measured is what one command took.
type measured struct {
	args     []string
	time     time.Duration
	cpu      time.Duration
	memory   int64 // the most at any time
	requests *int
	out, err string
}

// measure runs a command several times, and returns the shortest time with the largest memory.
func measure(t *testing.T, program, kubeconfig string, args ...string) measured {
	t.Helper()
	best := measured{args: args}
	for i := range attempts {
		c := exec.CommandContext(t.Context(), program, append(args, "--kubeconfig", kubeconfig)...)
		var out, errOut bytes.Buffer
		c.Stdout, c.Stderr = &out, &errOut
		began := time.Now()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		most := make(chan int64)
		go func() { most <- peak(ctx, c.Process.Pid) }()
		err := c.Wait()
		took := time.Since(began)
		cancel()
		best.memory = max(best.memory, <-most)
		var exit *exec.ExitError
		if err != nil && (!errors.As(err, &exit) || exit.ExitCode() < StatusBlocked) {
			t.Fatalf("%v: %v\n%s", args, err, errOut.String())
		}
		if i == 0 || took < best.time {
			best.time, best.cpu, best.out, best.err = took, c.ProcessState.UserTime()+c.ProcessState.SystemTime(), out.String(), errOut.String()
		}
	}
	return best
}

var highWater = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// peak reads the high-water mark of the memory of a process until it ends. That of its resource usage would be the test's own, which
// a child that shares the memory until it executes the program inherits.
func peak(ctx context.Context, pid int) (bytes int64) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if found := highWater.FindSubmatch(status); found != nil {
			kilobytes, _ := strconv.ParseInt(string(found[1]), 10, 64)
			bytes = max(bytes, kilobytes<<10)
		}
		select {
		case <-ctx.Done():
			return bytes
		case <-tick.C:
		}
	}
}

func (m *measured) check(t *testing.T, limit time.Duration) {
	t.Helper()
	asked := ""
	if m.requests != nil {
		asked = fmt.Sprintf(", %d requests", *m.requests)
	}
	allowed := time.Duration(float64(limit) * load(t))
	t.Logf("%-40s %6d ms (allowed %d), %d ms of processor time, at most %d MiB%s", strings.Join(m.args, " "), m.time.Milliseconds(), allowed.Milliseconds(),
		m.cpu.Milliseconds(), m.memory>>20, asked)
	if m.time > allowed {
		t.Errorf("%v took %v, want at most %v", m.args, m.time, allowed)
	}
	if m.memory > memoryMost {
		t.Errorf("%v used %d MiB, want at most %d", m.args, m.memory>>20, memoryMost>>20)
	}
}

// load is how many processes want to run for each processor, between 1 and 4. Three of the processes are this test's.
func load(t *testing.T) float64 {
	t.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 1
	}
	average, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	return min(4, max(1, (average-3)/processors()))
}

// requests counts what an explanation asks of the API server.
func requests(t *testing.T, config *rest.Config, args []string) int {
	t.Helper()
	var n atomic.Int64
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return counted{next, &n}
	})
	reader, err := inspect.New(config)
	if err != nil {
		t.Fatal(err)
	}
	kind, object, _ := strings.Cut(args[0], "/")
	ref := diagnosis.Ref{Resource: aliases[kind], Name: object}
	if len(args) == 3 {
		ref.Namespace = args[2]
	}
	s := reader.About(t.Context(), ref)
	if _, err := diagnosis.Explain(s, ref); err != nil {
		t.Fatal(err)
	}
	if len(s.Unread) > 0 {
		t.Fatalf("%v: could not be read: %v", args, s.Unread)
	}
	return int(n.Load())
}

type counted struct {
	http.RoundTripper
	n *atomic.Int64
}

func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.RoundTripper.RoundTrip(r)
}
