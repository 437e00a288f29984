package attacher

import (
	"context"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/kubernetes-csi/csi-lib-utils/standardflags"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/testing/wait"
)

// A leader that is stopped releases its lease after all calls to the driver have ended. If it stops waiting for a call,
// it lets the lease expire instead: the driver may run beside the process, and the driver of the next leader does not
// know of the call.
func TestLeaseAfterShutdown(t *testing.T) {
	for name, hangs := range map[string]bool{"all calls ended": false, "a call in flight": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.node("node1")
			w.volume("pv1")
			shippedKubeconfig(t) // and the namespace of the lease
			answered := make(chan struct{})
			w.driver.SetAnswer(func(context.Context, call, int) (map[string]string, error) {
				<-answered
				return nil, nil
			})
			o := &Options{Common: &standardflags.SidecarConfiguration{
				LeaderElection: true, LeaderElectionNamespace: shippedNamespace, LeaderElectionLeaseDuration: 5 * time.Minute,
				LeaderElectionRenewDeadline: 4 * time.Minute, LeaderElectionRetryPeriod: time.Second,
			}}
			lease, err := o.lease(w.config, w.driver.Name)
			must(t, err)
			drain := wait.Timeout
			if hangs {
				drain = 100 * time.Millisecond
			}
			a, err := New(Config{Client: kubernetes.NewForConfigOrDie(w.config), Driver: w.driver.Name, Controller: w.controller(),
				Timeout: wait.Timeout, RetryStart: time.Second, RetryMax: time.Second, WorkerThreads: 1, DrainTimeout: drain})
			must(t, err)
			logged := w.logs()
			ctx, stop := context.WithCancel(log.IntoContext(t.Context(), w.logger))
			defer stop()
			ended := make(chan error, 1)
			go func() { ended <- o.lead(ctx, a, lease, newHealth()) }()
			va := w.attachment("pv1", "node1")
			w.driver.WaitCalls(1)
			if !hangs {
				close(answered)
				w.until(va, "attached", isAttached)
			}
			stop()
			if err := <-ended; err == nil {
				t.Error("a leader that stopped returned no error")
			}
			if hangs {
				close(answered)
			}
			host, err := os.Hostname()
			must(t, err)
			if spec := w.lease().Spec; held(w.lease()) != hangs || hangs && *spec.HolderIdentity != host {
				t.Errorf("the lease is held: %v (%v)", held(w.lease()), spec)
			}
			if kept := len(logged.of("Letting the leader lease expire because calls to the driver are still in flight")) == 1; kept != hangs {
				t.Errorf("logged that the lease is kept: %v", kept)
			}
		})
	}
}

// Once the log says that an attacher shuts down, nothing more begins: an operator may act on that line (ADR 11).
func TestNothingBeginsAfterTheShutdownIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.logger = funcr.New(func(_, text string) {
			if strings.Contains(text, "waiting for calls in flight") {
				b.attach("late", "node1")
				time.Sleep(time.Second) // for what an attacher at work does with it
			}
		}, funcr.Options{})
		stop := b.start()
		b.pass(time.Second)
		stop()
		late := b.attachment("late", "node1")
		if late == nil {
			t.Fatal("the shutdown was not logged")
		}
		if len(late.Finalizers) > 0 || len(b.received("")) > 0 {
			t.Errorf("begun after the shutdown was logged: finalizers %v, calls %v", late.Finalizers, b.received(""))
		}
	})
}
