package kube

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// fakeLock is a Lease object that answers after a delay.
type fakeLock struct {
	resourcelock.Interface
	delay time.Duration
	err   error
}

func (f *fakeLock) Identity() string { return "me" }

func (f *fakeLock) Update(context.Context, resourcelock.LeaderElectionRecord) error {
	<-time.After(f.delay)
	return f.err
}

// No write is sent unless the lease was renewed within its deadline.
func TestWritesNeedTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock := &fakeLock{}
		lease := &Lease{Interface: lock, renewDeadline: 10 * time.Second}
		sent := 0
		transport := guard{lease: lease, next: roundTripper(func(*http.Request) (*http.Response, error) {
			sent++
			return &http.Response{Body: http.NoBody}, nil
		})}
		try := func(what, method string, want bool) {
			t.Helper()
			before := sent
			request, err := http.NewRequestWithContext(t.Context(), method, "http://api/x", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := transport.RoundTrip(request)
			if answer != nil {
				_ = answer.Body.Close()
			}
			if got := sent > before; got != want || !want && !errors.Is(err, ErrNotLeading) {
				t.Errorf("%s: sent %v, error %v, want sent %v", what, got, err, want)
			}
		}
		mine := resourcelock.LeaderElectionRecord{HolderIdentity: "me"}

		try("write before the lease is held", http.MethodPost, false)
		try("read before the lease is held", http.MethodGet, true)
		_ = lease.Update(t.Context(), mine)
		try("write while it is held", http.MethodDelete, true)
		<-time.After(9 * time.Second)
		try("write just before the deadline", http.MethodPatch, true)
		<-time.After(2 * time.Second)
		try("write after a pause", http.MethodPatch, false)
		lock.err = errors.New("conflict")
		_ = lease.Update(t.Context(), mine)
		try("write after a renewal that failed", http.MethodPatch, false)
		lock.err, lock.delay = nil, 6*time.Second
		_ = lease.Update(t.Context(), mine)
		<-time.After(5 * time.Second)
		try("the deadline counts from before a slow renewal was sent", http.MethodPatch, false)
		lock.delay = 0
		_ = lease.Update(t.Context(), mine)
		_ = lease.Update(t.Context(), resourcelock.LeaderElectionRecord{})
		try("write after the lease was released", http.MethodPatch, false)
	})
}

// The process is healthy as a standby, as the leader and after giving the lease back,
// and not when it should have ended.
func TestHealthOfTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var renewed []time.Time
		lease := &Lease{
			Interface: &fakeLock{}, renewDeadline: 10 * time.Second,
			renewed: func(at time.Time) { renewed = append(renewed, at) },
		}
		healthy := lease.healthy(15 * time.Second)
		try := func(what string, want bool) {
			t.Helper()
			if err := healthy(nil); (err == nil) != want {
				t.Errorf("%s: %v", what, err)
			}
		}
		try("standby", true)
		start := time.Now()
		_ = lease.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"})
		try("leader", true)
		<-time.After(24 * time.Second)
		try("just lost", true)
		<-time.After(2 * time.Second)
		try("long lost", false)
		_ = lease.Update(t.Context(), resourcelock.LeaderElectionRecord{})
		try("long lost, and not released", false)
		_ = lease.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"})
		try("renewed", true)
		_ = lease.Update(t.Context(), resourcelock.LeaderElectionRecord{})
		<-time.After(26 * time.Second)
		try("released", true)
		if len(renewed) != 3 || !renewed[0].Equal(start) || renewed[1].IsZero() || !renewed[2].IsZero() {
			t.Errorf("notified of renewals %v", renewed)
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
