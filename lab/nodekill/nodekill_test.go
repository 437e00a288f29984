package nodekill

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labtest"
)

// Environment of the tests.
const (
	envKills         = "BELAY_NODEKILL_KILLS"
	envUpstreamKills = "BELAY_NODEKILL_UPSTREAM_KILLS"
	envSeed          = "BELAY_NODEKILL_SEED"
)

const (
	longKills     = 300
	shortKills    = 10
	upstreamKills = 10
	// maxPods bounds the pods that want volumes at a time.
	maxPods = 6
	// strikeWithin bounds the first wait for the moment of a plan; on a busy machine the pods may lead to it later.
	strikeWithin = 15 * time.Second
)

func TestKills(t *testing.T) {
	kills := longKills
	if testing.Short() {
		kills = shortKills
	}
	survives(t, cluster.PlaneBelay, labtest.Number(t, envKills, kills))
}

// The agent as shipped, between upstream's controller and attacher: whom most clusters have.
func TestKillsUnderUpstreamsPlane(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT RUN: with -short; `make test-long` runs it")
	}
	survives(t, cluster.PlaneUpstream, labtest.Number(t, envUpstreamKills, upstreamKills))
}

// survives kills an agent so often under a plane, and checks.
func survives(t *testing.T, plane string, kills int) {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(envSeed); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s=%q is no number", envSeed, text)
		}
	}
	t.Logf("%d kills under the plane of %s; replay with %s=%d", kills, plane, envSeed, seed)
	r := newRig(t, plane, seed)
	r.startAgent()
	hit := tally{}
	settled := true
	for i, plan := range Plans(seed, kills) {
		r.killOnce(i, plan, hit, settled)
		r.startAgent()
		if settled = plan.Settle; settled {
			r.settle()
		}
		if t.Failed() {
			t.Fatalf("after kill %d: %v", i, plan)
		}
	}
	r.finish()
	t.Logf("what was under way at %d kills:\n%s", kills, hit.Table(append(moments(), AnyTime), append(methods(), "")))
	if names := missed(hit); kills >= longKills && len(names) > 0 {
		t.Errorf("no kill met: %v", names)
	}
}

// killOnce has the pods lead to the plan's call, and kills.
func (r *rig) killOnce(i int, plan Plan, hit tally, settled bool) {
	r.Helper()
	r.settled = settled
	hurt, struck := r.strike(plan, strikeWithin)
	for try := 2; !struck && settled; try++ { // the moment of a record lasts milliseconds: it may have been read too late
		if try > 6 {
			r.Fatalf("kill %d: %v was never seen", i, plan)
		}
		r.settle()
		hurt, struck = r.strike(plan, time.Duration(try)*strikeWithin)
	}
	if !struck { // what the last kill left under way had done it before
		hurt = blow{at: time.Now(), err: r.killAgent()}
	}
	r.must(hurt.err)
	r.underWay(hit, hurt.at)
	r.checkDead()
}

// strike has the pods lead to the plan's call, and reports whether the agent was killed at its moment.
func (r *rig) strike(plan Plan, within time.Duration) (blow, bool) {
	r.Helper()
	do := r.provoke(plan.Method)
	struck := r.killer.arm(plan)
	do()
	select {
	case hurt := <-struck:
		return hurt, true
	case <-time.After(within):
		if !r.killer.disarm() {
			return <-struck, true
		}
		return blow{}, false
	}
}

// provoke gets everything ready for a call of that method, and returns what makes it come.
func (r *rig) provoke(method Method) func() {
	r.Helper()
	stages := func(v *volume) bool { return v.stages }
	switch method {
	case Stage:
		v := r.pick(stages)
		if r.removeAll(v) {
			r.settle()
		}
		return func() { r.create(v, r.pick(func(other *volume) bool { return other != v })) }
	case Publish:
		v := r.pick(func(*volume) bool { return true })
		if r.thinOut() {
			r.settle()
		}
		return func() { r.create(v) }
	case Unpublish, Unstage:
		v := r.pick(stages)
		if len(r.usedBy(v)) == 0 {
			r.create(v)
			r.settle()
			r.settled = true
		}
		end := r.hold(v)
		return func() { r.removeAll(v); end() }
	}
	panic("there is no other method")
}

func (r *rig) pick(fits func(*volume) bool) *volume {
	var all []*volume
	for _, v := range r.volumes {
		if fits(v) {
			all = append(all, v)
		}
	}
	return all[r.random.IntN(len(all))]
}

// removeAll removes the pods that want a volume.
func (r *rig) removeAll(v *volume) (any bool) {
	r.Helper()
	for _, name := range r.usedBy(v) {
		r.remove(name)
		any = true
	}
	return any
}

// thinOut removes a pod if there are many.
func (r *rig) thinOut() bool {
	r.Helper()
	if len(r.pods) < maxPods {
		return false
	}
	r.remove(slices.Min(slices.Collect(maps.Keys(r.pods))))
	return true
}

// finish takes all pods away and checks that nothing is left.
func (r *rig) finish() {
	r.Helper()
	if h := r.held.Load(); h != nil {
		<-h.ended
	}
	for name := range r.pods {
		r.remove(name)
	}
	r.settle()
	r.must(r.killAgent())
	if left := r.leftovers(); len(left) > 0 {
		r.Errorf("left behind: %v", left)
	}
	violations, err := r.scene.Violations(r.Context())
	r.must(err)
	for _, v := range violations {
		r.Errorf("forbidden write: %+v", v)
	}
	counts := map[Method]int{}
	for _, c := range r.calls.snapshot() {
		counts[c.method]++
	}
	r.Logf("%d starts of belay-node; calls: %v; %d live reads of volumesInUse inside calls; %d processes held on to a volume",
		r.starts, counts, r.listings, r.holds)
}
