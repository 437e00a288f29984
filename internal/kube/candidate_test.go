package kube

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const (
	testNamespace = "ns"
	testLease     = "lease"
)

// election is a Lease object for which electors stand; time is synctest's.
type election struct {
	t      *testing.T
	client *fake.Clientset
}

// candidate is an elector. Its lease is csi-attacher's by default: 15 s, 10 s, 5 s.
type candidate struct {
	lease *Lease
	led   chan time.Time
	ended chan struct{}
	leave context.CancelFunc
}

func (e *election) stand(identity string) *candidate {
	e.t.Helper()
	lock, err := resourcelock.NewWithLabels(resourcelock.LeasesResourceLock, testNamespace, testLease,
		e.client.CoreV1(), e.client.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: identity}, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	c := &candidate{led: make(chan time.Time, 1), ended: make(chan struct{})}
	c.lease = &Lease{
		Interface: lock, leases: e.client.CoordinationV1().Leases(testNamespace), name: testLease,
		renewDeadline: 10 * time.Second, retryPeriod: 5 * time.Second,
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: c.lease, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 5 * time.Second, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { c.led <- time.Now() }, OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		e.t.Fatal(err)
	}
	var ctx context.Context
	ctx, c.leave = context.WithCancel(e.t.Context())
	go func() {
		defer close(c.ended)
		elector.Run(ctx)
	}()
	e.t.Cleanup(func() { c.leave(); <-c.ended })
	synctest.Wait()
	return c
}

func (c *candidate) leads() bool { return len(c.led) > 0 }

func (e *election) stored() *coordinationv1.Lease {
	e.t.Helper()
	lease, err := e.client.CoordinationV1().Leases(testNamespace).Get(e.t.Context(), testLease, metav1.GetOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	return lease
}

// A candidate leads as soon as the leader releases the lease or it is deleted, and when a leader that is gone has not renewed it
// for its duration, without waiting for a retry period.
func TestCandidateIsWokenByTheLease(t *testing.T) {
	const forbidden, watched = true, false
	for name, test := range map[string]struct {
		watch bool
		end   func(e *election, leader *candidate)
		after time.Duration // at most
	}{
		"released":                      {watched, func(_ *election, l *candidate) { l.leave() }, 0},
		"released, unwatched":           {forbidden, func(_ *election, l *candidate) { l.leave() }, 5 * time.Second},
		"deleted":                       {watched, (*election).remove, 0},
		"leader gone":                   {watched, (*election).crash, 15 * time.Second},
		"leader gone, unwatched":        {forbidden, (*election).crash, 20 * time.Second},
		"released while the API is off": {watched, (*election).offline, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &election{t: t, client: fake.NewClientset()}
				if test.watch == forbidden {
					e.client.PrependWatchReactor("leases", clienttesting.DefaultWatchReactor(nil, errors.New("forbidden")))
				}
				leader, standby := e.stand("a"), e.stand("b")
				<-time.After(10*time.Minute + 12345*time.Millisecond)
				if !leader.leads() || standby.leads() {
					t.Fatalf("after ten minutes a leads: %v, b leads: %v", leader.leads(), standby.leads())
				}
				ended := time.Now()
				test.end(e, leader)
				took := (<-standby.led).Sub(ended)
				if took > test.after {
					t.Errorf("led after %v, want %v at most", took, test.after)
				}
				stored := e.stored()
				for what, at := range map[string]*metav1.MicroTime{"acquire": stored.Spec.AcquireTime, "renew": stored.Spec.RenewTime} {
					if at.Time.Before(ended) {
						t.Errorf("%s time %v is before the end of the last leader, %v", what, at, ended)
					}
				}
				standby.led <- time.Time{} // it still leads
				<-time.After(time.Minute)
				if !standby.lease.Held() {
					t.Error("the new leader does not renew its lease")
				}
				if acquired := e.stored().Spec.AcquireTime; !acquired.Equal(stored.Spec.AcquireTime) {
					t.Errorf("a renewal changed the acquire time from %v to %v", stored.Spec.AcquireTime, acquired)
				}
			})
		})
	}
}

func (e *election) remove(leader *candidate) {
	e.crash(leader)
	if err := e.client.CoordinationV1().Leases(testNamespace).Delete(e.t.Context(), testLease, metav1.DeleteOptions{}); err != nil {
		e.t.Error(err)
	}
}

// crash makes all writes of the leader fail: it is gone as far as others can see.
func (e *election) crash(leader *candidate) {
	synctest.Wait() // the fake client may not be in use
	e.client.PrependReactor("update", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		lease := action.(clienttesting.UpdateAction).GetObject().(*coordinationv1.Lease)
		return *lease.Spec.HolderIdentity != "b", nil, errors.New("gone")
	})
	leader.leave()
}

// offline lets the candidate's next read fail.
func (e *election) offline(leader *candidate) {
	synctest.Wait()
	reads := 0
	e.client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		reads++ // the first is the leader's own
		return reads == 2, nil, errors.New("connection refused")
	})
	leader.leave()
}

// A lease is not taken while its holder renews it, however seldom, and a candidate
// that was looking away does not take what it saw long ago for the present.
func TestCandidateRespectsRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &election{t: t, client: fake.NewClientset()}
		leases := e.client.CoordinationV1().Leases(testNamespace)
		seconds, holder := int32(15), "another program"
		lease, err := leases.Create(t.Context(), &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: testLease, Namespace: testNamespace},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		standby := e.stand("b")
		var renewed time.Time
		for range 20 {
			<-time.After(14900 * time.Millisecond)
			renewed = time.Now()
			// Its clock is an hour behind: only the change counts.
			lease.Spec.RenewTime = &metav1.MicroTime{Time: renewed.Add(-time.Hour)}
			if lease, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if standby.leads() {
				t.Fatal("the lease was taken from a leader that renews it")
			}
		}
		if took := (<-standby.led).Sub(renewed); took != 15*time.Second {
			t.Errorf("led %v after the last renewal, want 15s", took)
		}
	})
}

// A candidate that is stopped ends at once and leaves the lease alone.
func TestCandidateStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &election{t: t, client: fake.NewClientset()}
		e.stand("a")
		standby := e.stand("b")
		standby.leave()
		synctest.Wait()
		select {
		case <-standby.ended:
		default:
			t.Error("the candidate continues")
		}
		if holder := e.stored().Spec.HolderIdentity; holder == nil || *holder != "a" {
			t.Errorf("holder %v", holder)
		}
	})
}

// A leader that finds the lease held or released by another process does not lead again: it does not know what happened in between.
func TestDeposedLeaderStaysDeposed(t *testing.T) {
	for name, holder := range map[string]string{"another holds it": "b", "another had it": ""} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &election{t: t, client: fake.NewClientset()}
				a := e.stand("a")
				a.leave()
				<-a.ended
				lease := a.lease
				record := resourcelock.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15}
				if err := lease.Update(t.Context(), record); err != nil || !lease.Held() {
					t.Fatalf("held %v, %v", lease.Held(), err)
				}
				stored := e.stored()
				stored.Spec.HolderIdentity = &holder
				if _, err := e.client.CoordinationV1().Leases(testNamespace).Update(t.Context(), stored, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				for range 2 {
					if _, _, err := lease.Get(t.Context()); !errors.Is(err, errLeaseTaken) {
						t.Errorf("Get: %v", err)
					}
					if err := lease.Update(t.Context(), record); !errors.Is(err, errLeaseTaken) {
						t.Errorf("Update: %v", err)
					}
					if lease.Held() {
						t.Error("the lease is held")
					}
				}
			})
		})
	}
}

// versioned makes the API server refuse an update of a Lease that was changed meanwhile. The answer to an update is lost
// where lost says so.
func (e *election) versioned(lost func() bool) {
	version := 0 // the fake client serves one request at a time
	e.client.PrependReactor("update", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		updated := action.(clienttesting.UpdateAction).GetObject().(*coordinationv1.Lease).DeepCopy()
		stored, err := e.client.Tracker().Get(action.GetResource(), testNamespace, testLease)
		if err != nil {
			return true, nil, err
		}
		if stored.(*coordinationv1.Lease).ResourceVersion != updated.ResourceVersion {
			return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, testLease, errors.New("it was changed"))
		}
		version++
		updated.ResourceVersion = strconv.Itoa(version)
		if err := e.client.Tracker().Update(action.GetResource(), updated, testNamespace); err != nil {
			return true, nil, err
		}
		if lost() {
			return true, nil, errors.New("the answer was lost")
		}
		return true, updated, nil
	})
}

// Two processes of one identity (pods on the host network of one node) both take the lease. The first stops leading at
// its next renewal, which finds one that it did not send, and reports why.
func TestSecondProcessOfTheSameIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &election{t: t, client: fake.NewClientset()}
		e.versioned(func() bool { return false })
		first := e.stand("a")
		<-time.After(time.Minute + time.Second)
		if !first.leads() {
			t.Fatal("the first does not lead")
		}
		second := e.stand("a")
		<-time.After(time.Second)
		if !second.leads() {
			t.Error("a container that restarts does not take its own lease back at once")
		}
		<-time.After(5 * time.Second) // the retry period
		if first.lease.Held() {
			t.Error("the first still leads after its next renewal")
		}
		if err := first.lease.Lost(); err == nil || !strings.Contains(err.Error(), `another process renews the leader lease under this identity "a"`) {
			t.Errorf("the first reports %v", err)
		}
		<-time.After(time.Minute)
		select {
		case <-first.ended:
		default:
			t.Error("the first has not ended")
		}
		if !second.lease.Held() || second.lease.Lost() != nil {
			t.Errorf("the second does not lead any more: %v", second.lease.Lost())
		}
	})
}

// A renewal that was stored although its answer was lost is the leader's own, and so is one after another client edited the Lease.
func TestLostReplyIsNotASecondProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &election{t: t, client: fake.NewClientset()}
		var lose atomic.Int32
		e.versioned(func() bool { return lose.Add(-1) >= 0 })
		leader := e.stand("a")
		<-time.After(time.Minute)
		lose.Store(1)
		<-time.After(time.Minute)
		if lose.Load() > 0 || !leader.lease.Held() || leader.lease.Lost() != nil {
			t.Errorf("%d answers to be lost, held: %v, lost: %v", lose.Load(), leader.lease.Held(), leader.lease.Lost())
		}
	})
}

// A leader stopped during a renewal abandons the request, and the API server may carry it out after the leader has read the lease to release
// it. The lease is released all the same: the standby does not wait for it to expire. A lease that another process took at that
// moment stays that process's.
func TestReleaseAfterAbandonedRenewal(t *testing.T) {
	for name, taken := range map[string]bool{"carried out late": false, "taken": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &election{t: t, client: fake.NewClientset()}
				e.versioned(func() bool { return false })
				var leader *candidate
				var stop atomic.Bool
				var stopped time.Time
				var late *coordinationv1.Lease
				e.client.PrependReactor("update", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
					lease := action.(clienttesting.UpdateAction).GetObject().(*coordinationv1.Lease)
					switch own := *lease.Spec.HolderIdentity == "a"; {
					case !stop.Load():
					case own && stopped.IsZero():
						stopped, late = time.Now(), lease.DeepCopy()
						leader.leave()
						return true, nil, context.Canceled
					case own:
						return true, nil, context.Canceled // the elector tries again before it looks whether it is stopped
					case late != nil:
						if taken {
							late.Spec.HolderIdentity = new("b")
						}
						e.carriesOut(late)
						late = nil
					}
					return false, nil, nil
				})
				leader = e.stand("a")
				<-time.After(time.Minute)
				stop.Store(true)
				<-leader.ended
				if stopped.IsZero() || late != nil {
					t.Fatal("no renewal was abandoned and carried out")
				}
				holder, lost := *e.stored().Spec.HolderIdentity, leader.lease.Lost()
				if taken && (holder != "b" || !errors.Is(lost, errLeaseTaken)) || !taken && (holder != "" || lost != nil) {
					t.Errorf("%q holds the lease, and the leader's error is %v", holder, lost)
				}
				if took := time.Since(stopped); took != 0 {
					t.Errorf("the leader ended %v after it was stopped", took)
				}
			})
		})
	}
}

// carriesOut stores a Lease that the API server was sent before.
func (e *election) carriesOut(late *coordinationv1.Lease) {
	e.t.Helper()
	leases := coordinationv1.SchemeGroupVersion.WithResource("leases")
	stored, err := e.client.Tracker().Get(leases, testNamespace, testLease)
	if err != nil || stored.(*coordinationv1.Lease).ResourceVersion != late.ResourceVersion {
		e.t.Errorf("the API server would refuse %v (%v): stored is %v", late, err, stored)
	}
	late.ResourceVersion += "-late"
	if err := e.client.Tracker().Update(leases, late, testNamespace); err != nil {
		e.t.Error(err)
	}
}

// A leader that has not renewed its lease in time may have calls in flight. It lets the lease expire, also if the API server is back when
// its elector ends.
func TestNoReleaseAfterDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &election{t: t, client: fake.NewClientset()}
		var off atomic.Bool
		e.client.PrependReactor("update", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
			lease := action.(clienttesting.UpdateAction).GetObject().(*coordinationv1.Lease)
			return off.Load() && *lease.Spec.HolderIdentity == "a", nil, errors.New("connection refused")
		})
		leader := e.stand("a")
		<-time.After(time.Minute)
		off.Store(true)
		<-leader.ended
		if holder := *e.stored().Spec.HolderIdentity; holder != "a" {
			t.Errorf("%q holds the lease, want that it expires", holder)
		}
	})
}

// What refuses the lease to a candidate, or to the leader, is its trouble until a request succeeds.
func TestLeaseThatIsForbidden(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, testLease, errors.New("no rights"))
	for verb, want := range map[string]string{
		"get":    "the leader lease cannot be read: leases.coordination.k8s.io \"lease\" is forbidden",
		"create": "the leader lease cannot be written: leases.coordination.k8s.io \"lease\" is forbidden",
	} {
		t.Run(verb, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &election{t: t, client: fake.NewClientset()}
				var refuse atomic.Bool
				refuse.Store(true)
				e.client.PrependReactor(verb, "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
					return refuse.Load(), nil, forbidden
				})
				c := e.stand("a")
				if err := c.lease.Denied(); err == nil || !strings.HasPrefix(err.Error(), want) {
					t.Errorf("trouble %v, want %q", err, want)
				}
				refuse.Store(false)
				<-time.After(30 * time.Second)
				if err := c.lease.Denied(); err != nil || !c.leads() {
					t.Errorf("it works again: trouble %v, leads: %v", err, c.leads())
				}
			})
		})
	}
}
