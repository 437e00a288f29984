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

// leasePrefix and the driver's name make the name of the lease, as csi-attacher's:
// one of both kinds is the leader.
const leasePrefix = "external-attacher-leader-"

// maxAbsence bounds how long the process that leads, or would, waits for a driver that
// went away: after that one with a driver beside it shall lead. It is as long as
// csi-lib-utils waits for the driver at the start.
const maxAbsence = 30 * time.Second

// ErrShutDown is returned by RunSidecar with leader election when nothing failed: csi-attacher exits with 1 then (ADR 11).
var ErrShutDown = errors.New("shut down as requested")

// lease makes the leader lease, or none without --leader-election. csi-lib-utils makes
// its own lock, which would neither be watched nor tell whether it is held; name,
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

// leaseNamespace is the given one, or the pod's, as csi-lib-utils finds it.
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

// attach works while the driver is the same as at the start, or away for a while.
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

// States of lead.
const (
	standby int32 = iota
	leading
	ending
)

// lead runs the attacher while it holds the lease, or at once without leader
// election. When ctx ends the calls in flight end first and the lease is given
// up after, or left to expire if some do not end; a standby gives up at once. When the
// lease is lost it returns at once.
func (o *Options) lead(ctx context.Context, a *Attacher, lease *kube.Lease, health *health) error {
	// The lease and the caches outlive ctx until the last result is recorded.
	kept, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	a.Warm(kept)
	if lease == nil {
		return a.Run(ctx)
	}
	var state atomic.Int32
	stopWatching := context.AfterFunc(ctx, func() {
		if state.CompareAndSwap(standby, ending) {
			giveUp()
		}
	})
	defer stopWatching()
	var failed error
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lease, ReleaseOnCancel: true,
		LeaseDuration: o.Common.LeaderElectionLeaseDuration, RenewDeadline: o.Common.LeaderElectionRenewDeadline,
		RetryPeriod: o.Common.LeaderElectionRetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(held context.Context) {
				defer giveUp()
				if !state.CompareAndSwap(standby, leading) {
					return
				}
				held, cancel := context.WithCancel(held)
				defer cancel()
				defer context.AfterFunc(ctx, cancel)()
				failed = a.Run(held)
				if a.callsLeft.Load() {
					// The next leader may have a driver of its own, which does not know of these calls.
					log.FromContext(ctx).Info("Letting the leader lease expire, calls to the driver are still in flight")
					lease.KeepUntilExpiry()
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
		return usage.Wrap(fmt.Errorf("prepare the leader election: %w", err)) // it can only be the values of the flags
	}
	health.leader.SetLeaderElection(elector)
	elector.Run(kept)
	switch {
	case kept.Err() != nil && failed != nil:
		return failed
	case kept.Err() != nil:
		return ErrShutDown
	case lease.Lost() != nil: // others may lead: nothing is waited for
		return fmt.Errorf("lost the leader lease: %w", lease.Lost())
	default:
		return errors.New("lost the leader lease")
	}
}
