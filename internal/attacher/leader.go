package attacher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/usage"
)

// leasePrefix is the prefix of the lease name, followed by the driver's name. It is csi-attacher's, so that only one of
// the two programs leads.
const leasePrefix = "external-attacher-leader-"

// maxAbsence bounds how long a leader or candidate waits for a disconnected driver before it exits, so that a replica
// with a running driver can lead. csi-lib-utils waits as long for the driver at the start. Tests raise it.
var maxAbsence = 30 * time.Second

// ErrShutDown is returned by RunSidecar with leader election if nothing failed: csi-attacher exits with status 1 (ADR
// 11).
var ErrShutDown = errors.New("shut down as requested")

// lease returns the leader lease, or nil without --leader-election. csi-lib-utils' lock cannot be observed. Name,
// identity and namespace are the same.
func (o *Options) lease(config *rest.Config, driver string) (*kube.Lease, error) {
	if !o.Common.LeaderElection {
		return nil, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("read the hostname for the leader election: %w", err)
	}
	return kube.NewLease(config, kube.LeaseConfig{
		Namespace: leaseNamespace(o.Common.LeaderElectionNamespace), Name: kube.SanitizeDriverName(leasePrefix + driver),
		Identity: kube.SanitizeDriverName(host), Labels: o.Common.LeaderElectionLabels,
		RenewDeadline: o.Common.LeaderElectionRenewDeadline, RetryPeriod: o.Common.LeaderElectionRetryPeriod,
	})
}

// leaseNamespace returns the given namespace or the pod's, like csi-lib-utils.
func leaseNamespace(given string) string {
	if given != "" {
		return given
	}
	if namespace := os.Getenv("POD_NAMESPACE"); namespace != "" {
		return namespace
	}
	if content, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace"); err == nil {
		if namespace := strings.TrimSpace(string(content)); namespace != "" {
			return namespace
		}
	}
	return "default"
}

// attach runs until ctx is done, the driver is replaced by another one, or stays disconnected for too long.
func (o *Options) attach(ctx context.Context, a *Attacher, driver *csi.Driver, lease *kube.Lease, health *health) error {
	ctx, end := context.WithCancelCause(ctx)
	absence := csi.Absence{Back: a.driverBack}
	if lease != nil {
		absence.AtMost = maxAbsence
	}
	var failed error
	var follower sync.WaitGroup
	follower.Go(func() {
		failed = driver.Follow(ctx, absence)
		end(failed)
	})
	err := o.lead(ctx, a, lease, health)
	end(nil)
	follower.Wait()
	if failed != nil && errors.Is(err, ErrShutDown) {
		return failed
	}
	return errors.Join(failed, err)
}

const (
	standby int32 = iota
	leading
	ending
)

// lead runs the attacher while it holds the lease, or at once without leader election. When ctx is done, a leader first
// completes the calls in flight, then releases the lease, or lets it expire if some calls do not end; a standby stops
// at once. When the lease is lost, lead returns at once.
func (o *Options) lead(ctx context.Context, a *Attacher, lease *kube.Lease, health *health) error {
	// The lease and the informers outlive ctx until the last result is recorded.
	leaseCtx, releaseLease := context.WithCancel(context.WithoutCancel(ctx))
	defer releaseLease()
	a.Warm(leaseCtx)
	if lease == nil {
		return a.Run(ctx)
	}
	var state atomic.Int32
	stopWatching := context.AfterFunc(ctx, func() {
		if state.CompareAndSwap(standby, ending) {
			releaseLease()
		}
	})
	defer stopWatching()
	var failed error
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lease, ReleaseOnCancel: true,
		LeaseDuration: o.Common.LeaderElectionLeaseDuration, RenewDeadline: o.Common.LeaderElectionRenewDeadline,
		RetryPeriod: o.Common.LeaderElectionRetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(elected context.Context) {
				if !state.CompareAndSwap(standby, leading) {
					return
				}
				held, cancel := context.WithCancel(elected)
				defer cancel()
				defer context.AfterFunc(ctx, cancel)()
				failed = a.Run(held)
				if a.callsInFlightAtExit.Load() {
					// The next leader may use another instance of the driver, which does not know of these calls.
					log.FromContext(ctx).Info("Letting the leader lease expire because calls to the driver are still in flight")
					lease.KeepUntilExpiry()
				}
				if elected.Err() == nil { // otherwise the lease was lost, and lead must not take that for a shutdown
					releaseLease()
				}
			},
			OnStoppedLeading: func() { // also called for a standby
				if state.Load() == leading {
					log.FromContext(ctx).Info("Stopped leading")
				}
			},
		},
	})
	if err != nil {
		return usage.Wrap(fmt.Errorf("prepare the leader election: %w", err)) // only invalid flags cause it
	}
	health.leader.SetLeaderElection(elector)
	elector.Run(leaseCtx)
	switch {
	case leaseCtx.Err() != nil && failed != nil:
		return failed
	case leaseCtx.Err() != nil:
		return ErrShutDown
	case lease.Lost() != nil: // another replica may lead already
		return fmt.Errorf("lost the leader lease: %w", lease.Lost())
	default:
		return errors.New("lost the leader lease")
	}
}
