package attachdetach

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/wait"
)

// launchAs starts a controller with exactly these options.
func launchAs(t *testing.T, o Options, wrap func(http.RoundTripper) http.RoundTripper) (stop func()) {
	t.Helper()
	config := rest.CopyConfig(controllerConfig)
	config.UserAgent = kube.FieldManager + "/test"
	config.Wrap(wrap)
	mgr, err := kube.NewManager(config, kube.ManagerConfig{
		Lease: &kube.LeaseConfig{
			Namespace: "kube-system", Name: "belay-controller", RenewDeadline: wait.Timeout, // on a busy machine, the API server may not answer for a while
			Identity: fmt.Sprintf("%s-%d", t.Name(), time.Now().UnixNano()),
		},
		LeaseDuration: wait.Timeout + 5*time.Second,
		RetryPeriod:   100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	if err := Setup(ctx, mgr, o); err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("controller ended: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// upstream runs the real kube-controller-manager, with nothing but its attach/detach
// controller, until the test ends. Each of its requests is delayed until before returns.
func (l *lab) upstream(before func(*http.Request)) {
	l.Helper()
	program := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), otherProgram)
	if _, err := os.Stat(program); err != nil {
		l.Skip("needs kube-controller-manager in KUBEBUILDER_ASSETS")
	}
	transport, err := rest.TransportFor(cluster.Config())
	l.must(err)
	target, _, err := rest.DefaultServerUrlFor(cluster.Config())
	l.must(err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport, proxy.FlushInterval = transport, -1
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		before(r)
		proxy.ServeHTTP(w, r)
	}))
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: server.URL}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "x"
	kubeconfig := filepath.Join(l.TempDir(), "kubeconfig")
	l.must(clientcmd.WriteToFile(*config, kubeconfig))
	cmd := exec.Command(program, "--v=2", "--kubeconfig="+kubeconfig, "--controllers=persistentvolume-attach-detach-controller",
		"--leader-elect=false", "--secure-port=0", "--use-service-account-credentials=false") //nolint:noctx // ended by the test itself
	read, write, err := os.Pipe()
	l.must(err)
	cmd.Stdout, cmd.Stderr = write, write
	l.must(cmd.Start())
	_ = write.Close()
	var log strings.Builder
	synced, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		started := sync.OnceFunc(func() { close(synced) })
		for lines := bufio.NewScanner(read); lines.Scan(); {
			fmt.Fprintln(&log, lines.Text())
			if strings.Contains(lines.Text(), "Caches are synced") {
				started()
			}
		}
	}()
	l.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		<-ended
		server.CloseClientConnections()
		server.Close()
		if l.Failed() {
			l.Logf("log of %s:\n%s", otherProgram, &log)
		}
	})
	select {
	case <-synced:
	case <-ended:
		l.Fatalf("%s ended", otherProgram)
	}
}

// emitted reports whether the program emitted an attach/detach controller's event about
// the pod; hold l.mu.
func (l *lab) emitted(program, pod string) bool {
	for _, e := range l.events {
		if e.InvolvedObject.Namespace != l.prefix || e.InvolvedObject.Name != pod || e.Source.Component != EventComponent {
			continue
		}
		if slices.ContainsFunc(e.ManagedFields, func(f metav1.ManagedFieldsEntry) bool { return f.Manager == program }) {
			return true
		}
	}
	return false
}

// warned returns the warnings about another controller, on any node; hold l.mu.
func (l *lab) warned() (messages []string) {
	for _, e := range l.events {
		if e.Reason == ForeignWriterReason && e.InvolvedObject.Kind == "Node" {
			messages = append(messages, e.Message)
		}
	}
	return messages
}

// Upstream's controller runs beside belay's and is always a moment slower: belay creates
// the VolumeAttachment, reports it and deletes it first. The first move draws a warning, and
// then belay holds an attach back until upstream has made it, and halts.
func TestUpstreamThatIsAlwaysSlowerIsFound(t *testing.T) {
	l := newLab(t)
	l.node("a")
	l.node("b")
	l.volume("v")
	l.volume("first")
	l.options.Settle = time.Nanosecond
	launchAs(t, l.options, func(next http.RoundTripper) http.RoundTripper { return next })
	l.pod("first", "a", "first")
	l.awaitReported("first", "a") // it leads
	l.upstream(func(r *http.Request) {
		if isAttach(r) {
			l.await("belay was faster in the first move", func() bool { return l.attachment("v", "a") != nil || len(l.warned()) > 0 })
		}
	})
	halted := func() bool {
		return slices.ContainsFunc(l.warned(), func(m string) bool { return strings.Contains(m, "has halted") })
	}
	began := time.Now()
	unproven := 0 // moves in which upstream was faster, too late for a proof
	for i := 0; ; i++ {
		node, pod := []string{"a", "b"}[i%2], fmt.Sprint("p", i)
		l.pod(pod, node, "v")
		made := time.Now()
		l.await("the VolumeAttachment is made", func() bool { return l.attachment("v", node) != nil })
		late := time.Since(made) > time.Second // as on a busy machine
		l.awaitReported("v", node)
		maker, _ := kube.AttachmentCreator(l.read("v", node))
		t.Logf("move %d: created by %s", i+1, maker.Manager)
		if i == 0 && maker.Manager != kube.FieldManager {
			t.Errorf("%s created the first VolumeAttachment", maker.Manager)
		}
		l.use(node, "v")
		l.await("upstream reports that it attached", func() bool { return l.emitted(otherProgram, pod) })
		l.await("a warning", func() bool { return len(l.warned()) > 0 })
		if maker.Manager == otherProgram {
			held, answered := time.Now().Add(10*time.Second), false
			wait.Until(t, "belay halts, or it is too late for that", func() bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				answered = halted()
				return answered || time.Now().After(held)
			})
			if answered {
				break
			}
			if !late {
				unproven++
			}
			if unproven == 3 {
				t.Fatal("belay did not halt, although upstream was faster in three moves")
			}
		}
		if time.Since(began) > wait.Timeout { // on a busy machine belay may win more often
			t.Fatal("belay never halted")
		}
		l.use(node)
		l.gone(pod)
		l.awaitDetached("v", node)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Log(strings.Join(l.warned(), "\n"))
}
