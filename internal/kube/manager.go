package kube

import (
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
)

// ManagerConfig configures the manager of a controller.
type ManagerConfig struct {
	// Lease is the leader lease; without one the process always leads.
	Lease *LeaseConfig
	// LeaseDuration is how long candidates wait for a holder that no longer renews.
	LeaseDuration time.Duration
	// RetryPeriod is how often the lease is read and renewed.
	RetryPeriod time.Duration
	// HealthAddress, MetricsAddress and ProfileAddress are host:port; "0" or empty disables them.
	HealthAddress, MetricsAddress, ProfileAddress string
	// QPS is how many requests per second the client sends on average, with up to Burst at once. Zero or less, the default, does
	// not limit them: the API server's fair queueing distributes its capacity.
	QPS   float32
	Burst int
	// Clock, if set, follows the API server's time.
	Clock *ServerClock
	// CountWrite, if set, is called for each write except those of the lease.
	CountWrite func(resource, verb string, code int)
}

// NewManager creates a manager whose caches keep only what belay reads, and whose writes are refused while the lease is not held.
// Its /healthz fails when the process should have exited because it lost its lease.
func NewManager(config *rest.Config, c ManagerConfig) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, storagev1.AddToScheme, coordinationv1.AddToScheme, admissionv1.AddToScheme, fencingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register API types: %w", err)
		}
	}
	config = WithProtobuf(config)
	config.QPS, config.Burst = -1, c.Burst
	if c.QPS > 0 {
		config.QPS = c.QPS
	}
	health := healthz.Ping
	options := manager.Options{
		Scheme:                 scheme,
		Cache:                  CacheOptions(),
		Metrics:                server.Options{BindAddress: addressOrOff(c.MetricsAddress)},
		HealthProbeBindAddress: addressOrOff(c.HealthAddress),
		PprofBindAddress:       addressOrOff(c.ProfileAddress),
	}
	if c.Lease != nil {
		candidate := *c.Lease
		candidate.RetryPeriod = c.RetryPeriod
		lease, err := NewLease(config, candidate)
		if err != nil {
			return nil, err
		}
		config = lease.Guard(config)
		health = lease.healthy(c.LeaseDuration)
		options.LeaderElection = true
		options.LeaderElectionResourceLockInterface = lease
		options.LeaderElectionReleaseOnCancel = true
		options.LeaderElectionID = c.Lease.Name
		options.LeaseDuration = &c.LeaseDuration
		options.RenewDeadline = &c.Lease.RenewDeadline
		options.RetryPeriod = &c.RetryPeriod
	}
	if c.Clock != nil {
		config = c.Clock.Follow(config)
	}
	if c.CountWrite != nil {
		config = CountWrites(config, c.CountWrite)
	}
	// controller-runtime chooses protobuf for the types that have it: NodeFences have not.
	config.ContentType, config.AcceptContentTypes = "", ""
	mgr, err := manager.New(config, options)
	if err != nil {
		return nil, fmt.Errorf("create the manager: %w", err)
	}
	if err := mgr.AddHealthzCheck("leader-election", health); err != nil {
		return nil, fmt.Errorf("add the health check: %w", err)
	}
	return mgr, nil
}

func addressOrOff(address string) string {
	if address == "" {
		return "0"
	}
	return address
}
