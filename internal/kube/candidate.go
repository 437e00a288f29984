package kube

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// otherHolder is the last lease of another process that a candidate saw. That the lease has expired is decided by how long it did
// not change, on this machine's clock: the times in the record are those of another machine.
type otherHolder struct {
	record []byte
	since  time.Time
}

// Get reads the lease. A candidate's Get returns once the lease can be acquired: it was released or deleted, is held by this
// process already, or was not renewed for its duration. In the last case the record is returned without a holder, because the
// elector would start to count only now. (client-go's elector alone asks again one to 2.2 retry periods later.) The Update that
// follows carries the resource version read here, so that a renewal in between succeeds.
//
// A leader's Get fails once another process held the lease, even one with the same identity. client-go's elector would acquire it
// again when it is free, and continue as if nothing had led in between.
func (l *Lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if l.wasAcquired() {
		return l.getOwn(ctx)
	}
	changes := leaseWatch{lease: l}
	defer changes.end()
	for {
		changes.start(ctx)
		record, raw, err := l.read(ctx)
		again := l.retryPeriod
		switch {
		case ctx.Err() != nil:
			return nil, nil, context.Cause(ctx)
		case apierrors.IsNotFound(err):
			return nil, nil, err
		case err != nil:
			klog.FromContext(ctx).Error(err, "Failed to read the leader lease", "lease", l.Describe())
		case record.HolderIdentity == "" || record.HolderIdentity == l.Identity():
			return record, raw, nil
		default:
			left := l.holder.remaining(record, raw)
			if left <= 0 {
				klog.FromContext(ctx).Info("The leader did not renew its lease", "lease", l.Describe(), "leader", record.HolderIdentity)
				record.HolderIdentity = ""
				return record, raw, nil
			}
			again = min(again, left)
		}
		changes.wait(ctx, again)
	}
}

// wasAcquired reports whether this process holds or held the lease. A process that loses it exits.
func (l *Lease) wasAcquired() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.acquired.IsZero()
}

func (l *Lease) getOwn(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.read(ctx)
	if err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.lost != nil:
	case record.HolderIdentity != l.Identity():
		l.lost, l.until = errLeaseTaken, time.Time{}
	case !l.isOwnRenewal(record.RenewTime.Time):
		l.lost, l.until = fmt.Errorf("another process renews the leader lease under this identity %q: is the pod on the host network?", l.Identity()), time.Time{}
	}
	if l.lost != nil {
		return nil, nil, l.lost
	}
	return record, raw, nil
}

// isOwnRenewal reports whether this process may have stored a renewal time, which the API server keeps in microseconds;
// hold the lock.
func (l *Lease) isOwnRenewal(at time.Time) bool {
	return slices.ContainsFunc(l.sent, func(sent time.Time) bool {
		return sent.Truncate(time.Microsecond).Equal(at.Truncate(time.Microsecond))
	})
}

// remaining returns how long the lease of the other holder is still valid.
func (r *otherHolder) remaining(record *resourcelock.LeaderElectionRecord, raw []byte) time.Duration {
	if !bytes.Equal(raw, r.record) {
		r.record, r.since = raw, time.Now()
	}
	return time.Until(r.since.Add(time.Duration(record.LeaseDurationSeconds) * time.Second))
}

// leaseWatch wakes a candidate when the lease changes. If the watch is not allowed or hangs, the candidate still reads the lease
// each retry period.
type leaseWatch struct {
	lease   *Lease
	changes <-chan watch.Event // nil without a watch
	hung    time.Time
	stop    func() // set with a watch
}

func (b *leaseWatch) start(ctx context.Context) {
	if b.changes != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(b.lease.retryPeriod, cancel) // the lease is read without it
	watching, err := b.lease.leases.Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, b.lease.name).String(),
	})
	late.Stop()
	if err != nil {
		cancel()
		klog.FromContext(ctx).V(1).Info("Cannot watch the leader lease", "lease", b.lease.Describe(), "err", err)
		return
	}
	b.changes, b.hung = watching.ResultChan(), time.Now()
	b.stop = func() { watching.Stop(); cancel() }
}

func (b *leaseWatch) end() {
	if b.changes != nil {
		b.stop()
		b.changes = nil
	}
}

// wait waits for a change of the lease, for at most the given time.
func (b *leaseWatch) wait(ctx context.Context, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	for {
		select {
		case _, ok := <-b.changes:
			if ok {
				return
			}
			b.end()
			if time.Since(b.hung) > b.lease.retryPeriod {
				return // the API server ends each watch after a while
			}
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
