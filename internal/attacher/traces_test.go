package attacher

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"belay.dev/belay/internal/testing/process"
	"belay.dev/belay/internal/testing/wait"
)

// collector receives what is exported to it, by OTLP over gRPC, as bytes: the tests only examine the strings in them.
type collector struct {
	address string
	mu      sync.Mutex
	method  string
	taken   strings.Builder
}

func startCollector(t *testing.T) *collector {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	c := &collector{address: listener.Addr().String()}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		var unknown emptypb.Empty // keeps the fields that it does not know
		if err := stream.RecvMsg(&unknown); err != nil {
			return err
		}
		content, err := proto.Marshal(&unknown)
		c.mu.Lock()
		c.method, _ = grpc.MethodFromServerStream(stream)
		c.taken.Write(content)
		c.mu.Unlock()
		if err != nil {
			return err
		}
		return stream.SendMsg(&emptypb.Empty{})
	}))
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return c
}

func (c *collector) got() (method, content string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.method, c.taken.String()
}

// traceCycle attaches and detaches a volume with a secret, which the driver repeats in an error. It returns the program,
// and the trace parent that the driver received.
func traceCycle(t *testing.T, w *world, env ...string) (p *process.Process, parent string) {
	t.Helper()
	w.node("node1")
	w.secret("s1", map[string][]byte{"password": []byte("xK4vQ9zR2mT7wB5nJ8cL")})
	w.volume("pv1", withSecret(w, "s1"))
	parents := make(chan string, 100)
	w.driver.SetAnswer(func(ctx context.Context, c call, nth int) (map[string]string, error) {
		parents <- strings.Join(metadata.ValueFromIncomingContext(ctx, "traceparent"), " ")
		if nth == 0 {
			return nil, status.Error(codes.Unauthenticated, "refused "+c.Secrets["password"])
		}
		return nil, nil
	})
	cmd := exec.Command(programPath(t), "--kubeconfig", shippedKubeconfig(t), "--csi-address", w.driver.Address, "--retry-interval-start=50ms", "--retry-interval-max=50ms")
	cmd.Env = append(os.Environ(), env...)
	p = process.Start(t, cmd)
	attachAndDetach(w, "pv1")
	return p, <-parents
}

// Each call is a span with its objects and its result, without its secrets, and the driver can add its own spans below
// it.
func TestTracesOfCalls(t *testing.T) {
	w, c := newWorld(t), startCollector(t)
	p, parent := traceCycle(t, w, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+c.address, "OTEL_SERVICE_NAME=attacher-of-the-test", "OTEL_BSP_SCHEDULE_DELAY=100",
		// Spans that a busy machine does not send in time are lost.
		"OTEL_EXPORTER_OTLP_TIMEOUT=120000", "OTEL_BSP_EXPORT_TIMEOUT=120000")
	id := strings.Split(parent, "-")
	if len(id) != 4 {
		t.Fatalf("the driver got the trace parent %q", parent)
	}
	wanted := []string{unhex(t, id[1]), unhex(t, id[2]), "attach by driver", "detach by driver", "ControllerPublishVolume", "UNAUTHENTICATED", "attacher-of-the-test", w.driver.Name, w.name("pv1"), w.name("node1"), "id-node1", "belay.attachment", "refused [REDACTED]"}
	for _, want := range wanted { // before the program ends: it does not send for long then
		wait.Until(t, fmt.Sprintf("the traces of %s say %q", parent, want), func() bool {
			_, content := c.got()
			return strings.Contains(content, want)
		})
	}
	p.Stop(syscall.SIGTERM)
	method, content := c.got()
	if method != "/opentelemetry.proto.collector.trace.v1.TraceService/Export" {
		t.Errorf("called %s", method)
	}
	w.holdsNone(content, "the trace", "xK4vQ9zR2mT7wB5nJ8cL")
}

// Without the variables there are no traces, and an unreachable collector costs nothing but the bounded wait at the
// end.
func TestTracesAreOptional(t *testing.T) {
	t.Run("off", func(t *testing.T) {
		if _, parent := traceCycle(t, newWorld(t)); parent != "" {
			t.Errorf("the driver got the trace %s", parent)
		}
	})
	t.Run("collector away", func(t *testing.T) {
		began := time.Now()
		p, _ := traceCycle(t, newWorld(t), "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+process.FreeAddress())
		p.Stop(syscall.SIGTERM)
		if took := time.Since(began); took > wait.Timeout {
			t.Errorf("took %v", took)
		}
		if !strings.Contains(p.Output(), "Failed to send traces") {
			t.Error("the log does not report the traces that were not collected")
		}
	})
	t.Run("collector hangs", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections, and never answers
		must(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		began := time.Now()
		p, _ := traceCycle(t, newWorld(t), "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+listener.Addr().String(), "OTEL_BSP_MAX_QUEUE_SIZE=1", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=1")
		p.Stop(syscall.SIGTERM)
		if took := time.Since(began); took > wait.Timeout {
			t.Errorf("took %v", took)
		}
	})
	for name, env := range map[string]string{"exporter": "OTEL_TRACES_EXPORTER=zipkin", "protocol": "OTEL_EXPORTER_OTLP_PROTOCOL=http/json"} {
		t.Run("unknown "+name, func(t *testing.T) {
			t.Parallel() // each waits 30 s for the driver
			cmd := exec.Command(programPath(t), "--kubeconfig", shippedKubeconfig(t), "--csi-address=/none")
			cmd.Env = append(os.Environ(), "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", env)
			p := process.Start(t, cmd)
			p.Wait()
			if code := p.ProcessState.ExitCode(); code != 1 || !strings.Contains(p.Output(), env) {
				t.Errorf("ended with %d", code)
			}
		})
	}
}

func unhex(t *testing.T, text string) string {
	t.Helper()
	content, err := hex.DecodeString(text)
	must(t, err)
	return string(content)
}
