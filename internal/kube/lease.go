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

	"belay.dev/belay/internal/planted"
)

// ErrNotLeading is returned for writes that were not sent because the lease was not renewed within its deadline.
var ErrNotLeading = errors.New("the leader lease was not renewed in time")

// errLeaseTaken is returned to an elector whose lease another process has acquired.
var errLeaseTaken = errors.New("the leader lease is held by another process")

// maxSent limits the unanswered renewals that are remembered: a leader exits after a few.
const maxSent = 20

// releaseAttempts limits how often a release is repeated after a conflict: an elector abandons one renewal, seldom two.
const releaseAttempts = 3

// Lease is a lock for leader election that knows until when writes may be sent, and wakes candidates when it becomes free. A
// process that was suspended, and resumes before its elector has noticed that it lost the lease, sends no writes.
type Lease struct {
	resourcelock.Interface

	leases        coordinationv1client.LeaseInterface // to watch the Lease
	name          string
	renewDeadline time.Duration
	retryPeriod   time.Duration
	renewed       func(at time.Time) // may be nil

	holder otherHolder // used by the elector's goroutine only

	mu       sync.Mutex
	acquired time.Time // zero before the lease was acquired
	// lost is why this process never leads again: it does not know what the next leader did.
	lost error
	// sent are the renewal times that this process may have stored.
	sent []time.Time
	// unreadable and unwritable are why the API server denied the last read and the last write of the lease.
	unreadable, unwritable error
	keepUntilExpiry        bool // do not release the lease
	// until is when the last renewal expires, on the monotonic clock, counted from before that renewal was sent.
	until time.Time
}

// LeaseConfig configures a Lease object and its holder.
type LeaseConfig struct {
	Namespace, Name string
	Identity        string
	// Labels are set on the Lease object by the holder.
	Labels map[string]string
	// RenewDeadline is how long after its last renewal the leader may write.
	RenewDeadline time.Duration
	// RetryPeriod is how often a candidate reads the lease, besides watching it.
	RetryPeriod time.Duration
	// Renewed, if set, is called with the time when the lease was acquired or renewed, and with the zero time when it was released.
	Renewed func(at time.Time)
}

// NewLease creates the lock. It has its own client, which is not guarded, and not delayed by what the guarded client sends.
func NewLease(config *rest.Config, c LeaseConfig) (*Lease, error) {
	config = rest.AddUserAgent(rest.CopyConfig(config), "leader-election")
	watcher, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create the client that watches the leader lease: %w", err)
	}
	config.Timeout = max(c.RenewDeadline/2, time.Second) // a timeout would end a watch, too
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create the client of the leader lease: %w", err)
	}
	lock, err := resourcelock.NewWithLabels(resourcelock.LeasesResourceLock, c.Namespace, c.Name,
		clients.CoreV1(), clients.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: c.Identity}, c.Labels)
	if err != nil {
		return nil, fmt.Errorf("create the lock of the leader lease %s/%s: %w", c.Namespace, c.Name, err)
	}
	return &Lease{
		Interface: lock, leases: watcher.CoordinationV1().Leases(c.Namespace), name: c.Name,
		renewDeadline: c.RenewDeadline, retryPeriod: c.RetryPeriod, renewed: c.Renewed,
	}, nil
}

// Create creates the Lease object and records until when it is valid.
func (l *Lease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	sent := time.Now()
	record = l.withTimes(sent, record)
	return l.recordResult(sent, record, l.Interface.Create(ctx, record))
}

// Update acquires, renews or releases the lease and records until when it is valid.
func (l *Lease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := l.Lost(); err != nil {
		return err
	}
	if record.HolderIdentity != l.Identity() {
		return l.release(ctx, record)
	}
	sent := time.Now()
	record = l.withTimes(sent, record)
	return l.recordResult(sent, record, l.Interface.Update(ctx, record))
}

// release makes the lease free at once. It lets the lease expire if something of this process may continue: if KeepUntilExpiry was called,
// or the lease was not renewed in time. An elector that misses its deadline calls it before it cancels the context of the leader.
func (l *Lease) release(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	var err error
	for range releaseAttempts {
		if l.keepsUntilExpiry() || !l.Held() {
			return nil
		}
		err = l.Interface.Update(ctx, record)
		if !apierrors.IsConflict(err) {
			break
		}
		// The elector may have abandoned a renewal that the API server carried out late. If it was not that, this fails.
		if _, _, err := l.getOwn(ctx); err != nil {
			return err
		}
	}
	return l.recordResult(time.Time{}, record, err)
}

// KeepUntilExpiry lets the lease expire instead of releasing it. It is for a leader that exits while something continues that must
// not run beside the next leader.
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

// withTimes sets the times of this process's record: the elector sets them before it calls Get, which may wait for hours.
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
	if planted.Lease && !l.acquired.IsZero() {
		err = nil
	}
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

// denied keeps the error of a request for the lease that the API server denied; nil once one succeeds. A conflict, or a Lease that
// does not exist, is part of an election.
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

func (l *Lease) read(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unreadable = denied(l.unreadable, "read", err)
	return record, raw, err
}

// Denied returns why the API server denies this process the lease, nil if it does not.
func (l *Lease) Denied() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.unreadable, l.unwritable)
}

// Lost returns why this process has lost the lease permanently, nil if it has not.
func (l *Lease) Lost() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// healthy fails when the lease expired so long ago that the process should have exited: something prevents that, and a replacement
// is better than waiting.
func (l *Lease) healthy(leaseDuration time.Duration) healthz.Checker {
	return func(*http.Request) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if late := time.Since(l.until); !l.until.IsZero() && late > leaseDuration {
			return fmt.Errorf("the leader lease expired %v ago, and the process is still running", late.Round(time.Second))
		}
		return nil
	}
}

// Held reports whether a write may be sent now.
func (l *Lease) Held() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.until)
}

// Permit returns ErrNotLeading unless the lease is Held.
func (l *Lease) Permit() error {
	if !l.Held() {
		return ErrNotLeading
	}
	return nil
}

// Guard makes the clients of the config refuse writes while the lease is not held. Reads pass.
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
