package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

// ErrNotLeading is returned for what was not sent because the lease was not
// renewed within its deadline.
var ErrNotLeading = errors.New("the leader lease was not renewed in time")

// errLeaseTaken is returned to an elector that has lost its lease to another process.
var errLeaseTaken = errors.New("the leader lease is held by another process")

// maxSent bounds the renewals without an answer that are remembered: a leader ends after a few.
const maxSent = 20

// Lease is a lock for leader election that knows until when writes may be sent, and
// whose candidates are woken when it becomes free.
// A process that was stopped for a while, and goes on before its elector has noticed
// that it lost the lease, sends none.
type Lease struct {
	resourcelock.Interface

	leases        coordinationv1client.LeaseInterface // to watch name
	name          string
	renewDeadline time.Duration
	retryPeriod   time.Duration
	renewed       func(at time.Time) // may be nil

	holder otherHolder // only the elector's goroutine uses it

	mu       sync.Mutex
	acquired time.Time // zero before the lease was ours
	// lost is why this process never leads again: what it knows is not what the next leader did.
	lost error
	// sent are the renewal times that this process may have stored.
	sent []time.Time
	// unreadable and unwritable are why the API server denied the last read and the last write of the lease.
	unreadable, unwritable error
	keepUntilExpiry        bool // not to be given back
	// until is when the last renewal runs out, counted on the monotonic clock from
	// before that renewal was sent.
	until time.Time
}

// LeaseConfig names the Lease object and who holds it.
type LeaseConfig struct {
	Namespace, Name string
	Identity        string
	// Labels are put on the Lease object by the one who holds it.
	Labels map[string]string
	// RenewDeadline is how long after its last renewal the leader still writes.
	RenewDeadline time.Duration
	// RetryPeriod is how often a candidate looks at the lease besides watching it.
	RetryPeriod time.Duration
	// Renewed, if set, is told when the lease was acquired or renewed, and the zero
	// time when it was given back.
	Renewed func(at time.Time)
}

// NewLease makes the lock. Its client is its own, so that it is neither guarded nor
// held up by what it guards.
func NewLease(config *rest.Config, c LeaseConfig) (*Lease, error) {
	config = rest.AddUserAgent(rest.CopyConfig(config), "leader-election")
	watcher, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the client that watches the leader lease: %w", err)
	}
	config.Timeout = max(c.RenewDeadline/2, time.Second) // would end a watch, too
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the client of the leader lease: %w", err)
	}
	lock, err := resourcelock.NewWithLabels(resourcelock.LeasesResourceLock, c.Namespace, c.Name,
		clients.CoreV1(), clients.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: c.Identity}, c.Labels)
	if err != nil {
		return nil, fmt.Errorf("make the lock of the leader lease %s/%s: %w", c.Namespace, c.Name, err)
	}
	return &Lease{
		Interface: lock, leases: watcher.CoordinationV1().Leases(c.Namespace), name: c.Name,
		renewDeadline: c.RenewDeadline, retryPeriod: c.RetryPeriod, renewed: c.Renewed,
	}, nil
}

// Create makes the Lease object and notes how long that is good for.
func (l *Lease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	sent := time.Now()
	record = l.withTimes(sent, record)
	return l.recordResult(sent, record, l.Interface.Create(ctx, record))
}

// Update acquires, renews or releases the lease and notes how long that is good for.
func (l *Lease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := l.Lost(); err != nil {
		return err
	}
	if record.HolderIdentity != l.Identity() && l.keepsUntilExpiry() {
		return nil
	}
	sent := time.Now()
	record = l.withTimes(sent, record)
	return l.recordResult(sent, record, l.Interface.Update(ctx, record))
}

// KeepUntilExpiry makes the lease end by running out: its elector no longer gives it back. It is for a
// leader that ends while something goes on that must not happen beside the next leader.
func (l *Lease) KeepUntilExpiry() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keepUntilExpiry = true
}

func (l *Lease) keepsUntilExpiry() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.keepUntilExpiry
}

// withTimes sets the times of a record of ours: the elector takes them before it calls
// Get, and that may wait for hours.
func (l *Lease) withTimes(now time.Time, record resourcelock.LeaderElectionRecord) resourcelock.LeaderElectionRecord {
	if record.HolderIdentity != l.Identity() {
		return record
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	acquired := l.acquired
	if acquired.IsZero() {
		acquired = now
	}
	record.AcquireTime, record.RenewTime = metav1.NewTime(acquired), metav1.NewTime(now)
	l.sent = append(l.sent[max(0, len(l.sent)-maxSent):], now)
	return record
}

func (l *Lease) recordResult(sent time.Time, record resourcelock.LeaderElectionRecord, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unwritable = denied(l.unwritable, "written", err)
	if err != nil {
		return err
	}
	if record.HolderIdentity == l.Identity() {
		l.sent = []time.Time{sent} // an earlier one names a version that is no longer stored
		l.until = sent.Add(l.renewDeadline)
		if l.acquired.IsZero() {
			l.acquired = sent
		}
	} else {
		sent, l.until = time.Time{}, time.Time{}
	}
	if l.renewed != nil {
		l.renewed(sent)
	}
	return nil
}

// denied keeps the error of a request for the lease that the API server denied; nil once one succeeds. A conflict, or a
// Lease that does not exist, is part of an election.
func denied(before error, verb string, err error) error {
	switch {
	case err == nil, apierrors.IsNotFound(err):
		return nil
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err), apierrors.IsInvalid(err):
		return fmt.Errorf("the leader lease cannot be %s: %w", verb, err)
	default:
		return before
	}
}

// read reads the lease.
func (l *Lease) read(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unreadable = denied(l.unreadable, "read", err)
	return record, raw, err
}

// Denied is why the API server denies this process the lease, nil while it does not.
func (l *Lease) Denied() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.unreadable, l.unwritable)
}

// Lost is why this process has lost the lease for good, nil while it has not.
func (l *Lease) Lost() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// healthy fails when the lease ran out so long ago that the process should have ended:
// something keeps it, and its replacement is better than waiting.
func (l *Lease) healthy(leaseDuration time.Duration) healthz.Checker {
	return func(*http.Request) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if late := time.Since(l.until); !l.until.IsZero() && late > leaseDuration {
			return fmt.Errorf("the leader lease ran out %v ago, and the process is still here", late.Round(time.Second))
		}
		return nil
	}
}

// Held tells whether a write may be sent now.
func (l *Lease) Held() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.until)
}

// Permit is nil while the lease is Held, else ErrNotLeading.
func (l *Lease) Permit() error {
	if !l.Held() {
		return ErrNotLeading
	}
	return nil
}

// Guard makes a client of the config refuse to write while the lease is not held.
// Reads pass.
func (l *Lease) Guard(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return guard{lease: l, next: next}
	})
	return config
}

type guard struct {
	lease *Lease
	next  http.RoundTripper
}

// RoundTrip sends the request if it is a read or the lease is held.
func (g guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && !g.lease.Held() {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, fmt.Errorf("%s %s: %w", r.Method, r.URL.Path, ErrNotLeading)
	}
	return g.next.RoundTrip(r)
}
