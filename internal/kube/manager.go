package kube

import (
	"fmt"
	"net/http"
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
	// MetricsFilter, if set, decides who may read the metrics, which are then served over TLS with a certificate that the process makes.
	MetricsFilter func(*rest.Config, *http.Client) (server.Filter, error)
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
		Metrics:                c.metrics(config),
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

// metrics are the options of the server of metrics. Its filter asks the API server by requests that create, which a standby sends too, and which
// are none of belay's writes: neither the lease nor --kube-api-qps holds for them. Their rate is limited, because everyone can make the filter ask:
// the limits are those of upstream's (k8s.io/apiserver v0.36.3, pkg/server/options/authentication.go:486 and authorization.go:235).
func (c *ManagerConfig) metrics(config *rest.Config) server.Options {
	o := server.Options{BindAddress: addressOrOff(c.MetricsAddress)}
	if c.MetricsFilter == nil {
		return o
	}
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 200, 400
	o.SecureServing = true
	o.FilterProvider = func(*rest.Config, *http.Client) (server.Filter, error) {
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			return nil, fmt.Errorf("make a client for the metrics' authentication: %w", err)
		}
		return c.MetricsFilter(config, client)
	}
	return o
}

func addressOrOff(address string) string {
	if address == "" {
		return "0"
	}
	return address
}
