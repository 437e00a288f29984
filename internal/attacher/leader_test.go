package attacher

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/kubernetes-csi/csi-lib-utils/standardflags"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/kube"
)

// A leader that loses its lease reports that, and not a shutdown, also if it has ended before its elector returns.
func TestLostLeaseIsNoShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		defer b.create()()
		b.attach("pv", "node1")
		var cut atomic.Bool
		b.api.refuse = func(r *http.Request) error {
			if cut.Load() && r.Method == http.MethodPut {
				return errors.New("connection refused")
			}
			return nil
		}
		const renewDeadline, retryPeriod = 10 * time.Second, 5 * time.Second
		lease, err := kube.NewLease(&rest.Config{Host: "http://memory", Transport: b.api, QPS: -1}, kube.LeaseConfig{
			Namespace: "default", Name: "lease", Identity: "a", RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		})
		must(t, err)
		o := &Options{Common: &standardflags.SidecarConfiguration{
			LeaderElectionLeaseDuration: 15 * time.Second, LeaderElectionRenewDeadline: renewDeadline, LeaderElectionRetryPeriod: retryPeriod,
		}}
		logger := funcr.New(func(_, line string) {
			if strings.Contains(line, "Stopped leading") { // the elector is about to return
				synctest.Wait()
			}
		}, funcr.Options{})
		ctx, cancel := context.WithCancel(log.IntoContext(context.Background(), logger))
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- o.lead(ctx, b.attacher, lease, newHealth()) }()

		b.within(time.Minute, "attached", func() bool { return b.isAttached("pv", "node1") })
		cut.Store(true)
		if err := <-ended; err == nil || errors.Is(err, ErrShutDown) {
			t.Errorf("lead: %v, want that the lease was lost", err)
		}
	})
}
