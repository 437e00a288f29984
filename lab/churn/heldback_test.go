package churn

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"belay.dev/belay/lab/labtest"
)

const (
	// lag is how late a watch cache is.
	lag = 5 * time.Second
	// each leader, the one that was there and the fresh one, works so long with the lag.
	heldFor = 25 * time.Second
)

// heldResources are all that the controller keeps a cache of.
var heldResources = []string{
	"pods", "nodes", "persistentvolumeclaims", "persistentvolumes", "volumeattachments", "csidrivers",
}

// TestCachesHeldBack lets each watch cache of the controller lag in turn, including that of a leader that starts with
// it, while volumes move and new ones are created.
func TestCachesHeldBack(t *testing.T) {
	resources := heldResources
	if only := os.Getenv("BELAY_CHURN_HELD"); only != "" {
		if !slices.Contains(resources, only) {
			t.Fatalf("BELAY_CHURN_HELD=%q is none of %v", only, resources)
		}
		resources = []string{only}
	}
	r := newRig(t, "churn-held")
	ctx := t.Context()
	random := rand.New(rand.NewPCG(r.seed, 3))
	volumes := min(labtest.Number(t, "BELAY_CHURN_VOLUMES", 500), 40)
	if _, err := r.makeVolumes(ctx, volumes); err != nil {
		t.Fatal(err)
	}
	if err := r.placeAll(ctx, 0, volumes, random); err != nil {
		t.Fatal(err)
	}
	for _, resource := range resources {
		if !t.Run(resource, func(t *testing.T) { r.holdBack(t, resource, volumes, random) }) {
			return
		}
	}
	if err := r.removeAll(ctx); err != nil {
		t.Error(err)
	}
	if err := r.awaitSettled(ctx); err != nil {
		t.Errorf("after the last pod: %v", err)
	}
	r.check(ctx, t)
}

// holdBack works with one cache late: first the leader that is there, then a fresh one
// after a crash.
func (r *rig) holdBack(t *testing.T, resource string, volumes int, random *rand.Rand) {
	t.Helper()
	ctx := t.Context()
	r.proxy.HoldBack(resource, lag)
	defer r.proxy.HoldBack(resource, 0)
	calm := r.trouble(ctx, t)
	stop := make(chan struct{})
	group, groupCtx := errgroup.WithContext(ctx)
	movers := rand.New(rand.NewPCG(random.Uint64(), 4))
	moves := 0
	group.Go(func() (err error) {
		moves, err = r.movers(groupCtx, stop, 0, volumes, 16, movers)
		return err
	})
	for _, leader := range []string{"the leader that was there", "a fresh leader"} {
		if leader == "a fresh leader" {
			if err := r.scene.Cluster.CrashController(); err != nil {
				t.Fatal(err)
			}
			if err := r.run(); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		if err := r.comeLate(groupCtx, 3); err != nil {
			t.Errorf("new volumes with %s: %v", leader, err)
		}
		t.Logf("%s: 3 new volumes ran %.1f s after their pods", leader, time.Since(began).Seconds())
		select {
		case <-time.After(time.Until(began.Add(heldFor))):
		case <-groupCtx.Done():
		}
	}
	close(stop)
	err := group.Wait()
	calm()
	if err != nil {
		t.Errorf("a volume did not arrive: %v", err)
	}
	if err := r.awaitSettled(ctx); err != nil {
		t.Error(err)
	}
	t.Logf("%d moves with %s %v late", moves, resource, lag)
	r.check(ctx, t)
}

// comeLate makes pods before their claims and volumes, and waits until they run.
func (r *rig) comeLate(ctx context.Context, n int) error {
	r.mu.Lock()
	first := len(r.volumes)
	r.mu.Unlock()
	for i := first; i < first+n; i++ {
		pod := podOf(fmt.Sprintf("late-%d", i), fmt.Sprintf("claim-%d", i), r.nodes[i%len(r.nodes)])
		err := stubborn(ctx, "create pod "+pod.Name, func() error { return r.create(ctx, pod) })
		if err != nil {
			return err
		}
	}
	if _, err := r.makeVolumes(ctx, n); err != nil {
		return err
	}
	for i := first; i < first+n; i++ {
		name := fmt.Sprintf("late-%d", i)
		r.set(i, func(v *volume) { v.node, v.pod = r.nodes[i%len(r.nodes)], name })
		if err := r.awaitRunning(ctx, name); err != nil {
			return err
		}
	}
	return nil
}
