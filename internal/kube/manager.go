package kube

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// ManagerConfig is what a controller's process is started with.
type ManagerConfig struct {
	// Lease is the leader lease; without one the process always leads.
	Lease *LeaseConfig
	// LeaseDuration is how long others wait for a holder that no longer renews.
	LeaseDuration time.Duration
	// RetryPeriod is how often the lease is asked for and renewed.
	RetryPeriod time.Duration
	// HealthAddress and MetricsAddress are host:port; "0" or nothing turns them off.
	HealthAddress, MetricsAddress string
}

// NewManager makes a manager whose caches keep only what belay reads, whose client
// does not throttle itself (the API server's fair queueing does), and whose writes
// are refused while the lease is not held.
func NewManager(config *rest.Config, c ManagerConfig) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, storagev1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register API types: %w", err)
		}
	}
	config = Wire(config)
	config.QPS = -1
	options := manager.Options{
		Scheme:                 scheme,
		Cache:                  CacheOptions(),
		Metrics:                server.Options{BindAddress: orOff(c.MetricsAddress)},
		HealthProbeBindAddress: orOff(c.HealthAddress),
	}
	if c.Lease != nil {
		lease, err := NewLease(config, *c.Lease)
		if err != nil {
			return nil, err
		}
		config = lease.Guard(config)
		options.LeaderElection = true
		options.LeaderElectionResourceLockInterface = lease
		options.LeaderElectionReleaseOnCancel = true
		options.LeaderElectionID = c.Lease.Name
		options.LeaseDuration = &c.LeaseDuration
		options.RenewDeadline = &c.Lease.RenewDeadline
		options.RetryPeriod = &c.RetryPeriod
	}
	mgr, err := manager.New(config, options)
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	return mgr, nil
}

func orOff(address string) string {
	if address == "" {
		return "0"
	}
	return address
}
