package nodeagent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

func TestWhoseTurnItIs(t *testing.T) {
	quantity := resource.MustParse
	one, two := quantity("1Gi"), quantity("2Gi")
	size := func(given, allocated string, status corev1.ClaimResourceStatus, everywhere bool) claimSize {
		s := claimSize{given: quantity(given), known: true, requested: two, status: status, everywhere: everywhere}
		if allocated != "" {
			s.allocated, s.tracked = quantity(allocated), true
		}
		return s
	}
	const (
		pending    = corev1.PersistentVolumeClaimNodeResizePending
		progress   = corev1.PersistentVolumeClaimNodeResizeInProgress
		infeasible = corev1.PersistentVolumeClaimNodeResizeInfeasible
		controller = corev1.PersistentVolumeClaimControllerResizeInProgress
	)
	tests := map[string]struct {
		claim          claimSize
		capacity, here resource.Quantity
		want           plan
	}{
		"as it was":                             {size("1Gi", "", "", false), one, one, plan{}},
		"the claim's size is not known":         {claimSize{}, two, one, plan{}},
		"grown, old resizer":                    {size("1Gi", "", "", false), two, one, plan{call: true, size: two}},
		"grown, old resizer, claim knows":       {size("2Gi", "", "", false), two, one, plan{call: true, size: two, written: true}},
		"node is next":                          {size("1Gi", "2Gi", pending, false), two, one, plan{call: true, size: two}},
		"node had begun":                        {size("1Gi", "2Gi", progress, false), two, one, plan{call: true, size: two}},
		"node is next, of less than there is":   {size("1Gi", "1536Mi", pending, false), two, one, plan{call: true, size: quantity("1536Mi")}},
		"done here, not written":                {size("1Gi", "2Gi", progress, false), two, two, plan{call: true, size: two}},
		"infeasible":                            {size("1Gi", "2Gi", infeasible, false), two, one, plan{size: two}},
		"controller's turn":                     {size("1Gi", "2Gi", controller, false), two, one, plan{size: two}},
		"the controller is about to say so":     {size("1Gi", "2Gi", "", false), two, one, plan{size: two}},
		"done by the controller":                {size("2Gi", "2Gi", "", false), two, one, plan{size: two, done: true, written: true}},
		"done on another node":                  {size("2Gi", "2Gi", "", true), two, one, plan{size: two, call: true, written: true}},
		"done on another node and here":         {size("2Gi", "2Gi", "", true), two, two, plan{}},
		"shared, driver gave more than was due": {size("1536Mi", "1536Mi", "", true), two, two, plan{size: quantity("1536Mi"), done: true, written: true}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := planFor(test.claim, test.capacity, test.here)
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(plan{})); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAnEarlyWakeKeepsTheResync: a retry that was planned before the pod's volumes were
// known stands in the queue in the place of the first resync. The resyncs go on nevertheless.
func TestAnEarlyWakeKeepsTheResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const uid, period = types.UID("p"), time.Minute
		p := newPod()
		p.resolved = true
		a := &Agent{
			config:   Config{SyncPeriod: period},
			podQueue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](lookUpFirst, lookUpMax)),
			pods:     map[types.UID]*pod{uid: p},
		}
		defer a.podQueue.ShutDown()
		go serve(a.podQueue, func(uid types.UID) { a.resync(t.Context(), uid) })
		a.podQueue.AddAfter(uid, time.Second) // as after a first look that failed
		a.mu.Lock()
		a.syncLater(uid, p)
		first := p.syncAt
		a.mu.Unlock()
		time.Sleep(2 * period)
		synctest.Wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		if !p.syncAt.After(first) {
			t.Errorf("no resync in %v, one was due after %v at most", 2*period, period*3/2)
		}
	})
}

// TestWhatComesEachPeriodIsDoneTogether: at one of few moments, and never early.
func TestWhatComesEachPeriodIsDoneTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const period = time.Minute
		a := &Agent{made: time.Now()}
		at := map[time.Duration]int{}
		for i := range 1000 {
			time.Sleep(7 * time.Millisecond)
			pause := period + time.Duration(i)*period/2000
			longer := a.together(pause, period)
			if longer < pause || longer > pause+period/moments {
				t.Fatalf("%v became %v", pause, longer)
			}
			at[time.Since(a.made)+longer]++
		}
		if len(at) > moments {
			t.Errorf("%d moments in %v and a half", len(at), period)
		}
		if got := a.together(time.Second, time.Nanosecond); got != time.Second {
			t.Errorf("a period that cannot be divided: %v", got)
		}
	})
}
