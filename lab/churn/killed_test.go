package churn

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/proxy"
)

// point is a named moment at which the controller is killed: a request of its own that is about to be sent or was just
// answered, or an event that it is about to receive.
type point struct {
	name   string
	moment proxy.Moment // empty for an event that the controller receives
	step   string       // as stepsOf and hopsOf name them
	atOnce bool         // belongs to the start of the process
}

// points are all steps of the controller, each before and after, and the steps between.
func points() []point {
	var all []point
	for _, step := range []string{stepCreate, stepReport, stepWithdraw, stepDelete, stepNote, stepEvent, stepLease, stepBarrier, stepMark} {
		atOnce := slices.Contains([]string{stepLease, stepBarrier, stepMark}, step)
		for _, moment := range []proxy.Moment{proxy.Before, proxy.After} {
			all = append(all, point{name: string(moment) + " " + step, moment: moment, step: step, atOnce: atOnce})
		}
	}
	for _, step := range []string{stepBound, stepAttached, stepGone, stepOutOfUse, stepDetached} {
		all = append(all, point{name: "told: " + step, step: step})
	}
	return all
}

// Steps of the controller, as its requests show them.
const (
	stepCreate   = "VolumeAttachment create"
	stepReport   = "report"
	stepWithdraw = "withdraw"
	stepDelete   = "VolumeAttachment delete"
	stepNote     = "note on the VolumeAttachment"
	stepEvent    = "event"
	stepLease    = "lease"
	stepBarrier  = "quorum list of the start"
	stepMark     = "mark of the start"
)

// Steps between its steps, as the API shows them.
const (
	stepBound    = "pod bound"
	stepAttached = "attached recorded"
	stepGone     = "pod gone"
	stepOutOfUse = "out of volumesInUse"
	stepDetached = "VolumeAttachment gone"
)

// stepsOf names what a request does. One write of a Node may report and withdraw.
func (k *killer) stepsOf(r proxy.Request) []string {
	if bytes.Contains(r.Body, []byte(kube.LeadingSinceAnnotation)) {
		return []string{stepMark}
	}
	switch r.Right() {
	case "create volumeattachments":
		return []string{stepCreate}
	case "delete volumeattachments":
		return []string{stepDelete}
	case "patch volumeattachments":
		return []string{stepNote}
	case "create events", "patch events":
		return []string{stepEvent}
	case "update leases", "create leases":
		return []string{stepLease}
	case "list volumeattachments", "list nodes":
		if r.Partial {
			return []string{stepBarrier}
		}
	case "patch nodes/status":
		node, err := k.rig.state.Core().V1().Nodes().Lister().Get(r.Name)
		if err != nil {
			return nil
		}
		return reportSteps(node, r.Body)
	}
	return nil
}

// reportSteps compares the list that a patch writes with the one that the Node has.
func reportSteps(node *corev1.Node, body []byte) []string {
	var patch struct {
		Status struct{ VolumesAttached []corev1.AttachedVolume }
	}
	if json.Unmarshal(body, &patch) != nil {
		return nil
	}
	lists := func(list []corev1.AttachedVolume, v corev1.AttachedVolume) bool {
		return slices.ContainsFunc(list, func(o corev1.AttachedVolume) bool { return o.Name == v.Name })
	}
	var steps []string
	for _, v := range patch.Status.VolumesAttached {
		if !lists(node.Status.VolumesAttached, v) {
			steps = append(steps, stepReport)
			break
		}
	}
	for _, v := range node.Status.VolumesAttached {
		if !lists(patch.Status.VolumesAttached, v) {
			return append(steps, stepWithdraw)
		}
	}
	return steps
}

// killer kills the controller at one point after the other.
type killer struct {
	rig  *rig
	mu   sync.Mutex
	plan *point // nil while none is armed
	hit  chan error
}

func newKiller(r *rig) *killer {
	k := &killer{rig: r, hit: make(chan error, 1)}
	r.proxy.Intercept(func(moment proxy.Moment, request proxy.Request) bool {
		if !k.take(func(p point) bool { return p.moment == moment && slices.Contains(k.stepsOf(request), p.step) }) {
			return true
		}
		k.hit <- r.scene.Cluster.CrashController()
		return false
	})
	k.watch()
	return k
}

// take disarms the plan if it fits.
func (k *killer) take(fits func(point) bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.plan == nil || !fits(*k.plan) {
		return false
	}
	k.plan = nil
	return true
}

// crashOn kills the controller at about the time when it gets the watch event of a step, which this process has just got.
func (k *killer) crashOn(step string) {
	if k.take(func(p point) bool { return p.moment == "" && p.step == step }) {
		go func() { k.hit <- k.rig.scene.Cluster.CrashController() }()
	}
}

func (k *killer) watch() {
	state := k.rig.state
	_, _ = state.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { k.crashOn(stepBound) },
		DeleteFunc: func(any) { k.crashOn(stepGone) },
	})
	_, _ = state.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, now any) {
			if len(now.(*corev1.Node).Status.VolumesInUse) < len(old.(*corev1.Node).Status.VolumesInUse) {
				k.crashOn(stepOutOfUse)
			}
		},
	})
	_, _ = state.Storage().V1().VolumeAttachments().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, now any) {
			if now.(*storagev1.VolumeAttachment).Status.Attached && !old.(*storagev1.VolumeAttachment).Status.Attached {
				k.crashOn(stepAttached)
			}
		},
		DeleteFunc: func(any) { k.crashOn(stepDetached) },
	})
}

// kill arms a point, waits for the kill and starts the controller again. With atOnce the
// controller must be down: the point belongs to its start.
func (k *killer) kill(ctx context.Context, p point, pause time.Duration) error {
	if p.atOnce {
		if err := k.rig.scene.Cluster.CrashController(); err != nil {
			return err
		}
	} else {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	k.mu.Lock()
	k.plan = &p
	k.mu.Unlock()
	if p.atOnce {
		if err := k.start(); err != nil {
			return err
		}
	}
	select {
	case err := <-k.hit:
		if err != nil {
			return err
		}
	case <-time.After(runLimit):
		return fmt.Errorf("the moment %q did not come within %v", p.name, runLimit)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return k.start()
}

func (k *killer) start() error { return k.rig.run() }

// histogram tells how often each point was hit.
func histogram(order []point, hits map[string]int) string {
	var out strings.Builder
	total := 0
	for _, p := range order {
		fmt.Fprintf(&out, "%-40s%6d\n", p.name, hits[p.name])
		total += hits[p.name]
	}
	fmt.Fprintf(&out, "%-40s%6d", "all", total)
	return out.String()
}

// TestKilledWhileVolumesMove kills the controller again and again while many volumes
// move about, and the API server once in the middle.
func TestKilledWhileVolumesMove(t *testing.T) {
	r := newRig(t, "churn-kill")
	volumes := labtest.Number(t, "BELAY_CHURN_VOLUMES", 500)
	kills := labtest.Number(t, "BELAY_CHURN_KILLS", 100)
	ctx := t.Context()
	random := rand.New(rand.NewPCG(r.seed, 1))
	began := time.Now()
	if _, err := r.makeVolumes(ctx, volumes); err != nil {
		t.Fatal(err)
	}
	if err := r.placeAll(ctx, 0, volumes, random); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d volumes attached and reported on %d nodes after %.0f s", volumes, len(r.nodes), time.Since(began).Seconds())
	calm := r.trouble(ctx, t)
	stop := make(chan struct{})
	type result struct {
		moves int
		err   error
	}
	done := make(chan result, 1)
	moving, end := context.WithCancel(ctx)
	defer end()
	movers := rand.New(rand.NewPCG(r.seed, 2))
	go func() {
		moves, err := r.movers(moving, stop, 0, volumes, 16, movers)
		done <- result{moves, err}
	}()
	hits := r.killAll(ctx, t, kills, random)
	close(stop)
	moved := <-done
	calm()
	if moved.err != nil {
		t.Errorf("a volume did not arrive: %v", moved.err)
	}
	t.Logf("%d moves, %d kills in %.0f s:\n%s", moved.moves, kills, time.Since(began).Seconds(), histogram(points(), hits))
	if err := r.awaitSettled(ctx); err != nil {
		t.Error(err)
	}
	for _, p := range points() {
		if kills >= len(points()) && hits[p.name] == 0 {
			t.Errorf("nothing was killed %s", p.name)
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

// killAll goes through the points in random order, repeatedly.
func (r *rig) killAll(ctx context.Context, t *testing.T, kills int, random *rand.Rand) map[string]int {
	t.Helper()
	k, hits := newKiller(r), map[string]int{}
	var round []point
	for n := range kills {
		if len(round) == 0 {
			round = points()
			random.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
		}
		next := round[0]
		round = round[1:]
		if n == kills/2 {
			t.Log("the API server is killed")
			if err := r.scene.Cluster.Kill("kube-apiserver"); err != nil {
				t.Error(err)
			}
		}
		if err := k.kill(ctx, next, time.Duration(random.Int64N(int64(2*time.Second)))); err != nil {
			t.Errorf("kill %d, %s: %v", n+1, next.name, err)
			_ = r.scene.Cluster.CrashController()
			if err := k.start(); err != nil {
				t.Fatal(err)
			}
			return hits
		}
		hits[next.name]++
	}
	r.proxy.Intercept(nil)
	return hits
}
