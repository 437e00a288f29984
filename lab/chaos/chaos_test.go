package chaos

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"belay.dev/belay/lab/callcheck"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
	"belay.dev/belay/lab/timeline"
)

// Environment of TestKillAnywhere: how many seeds, the first of them, and the kind of nodes.
const (
	envSeeds = "BELAY_CHAOS_SEEDS"
	envFirst = "BELAY_CHAOS_FIRST_SEED"
	envNodes = "BELAY_CHAOS_NODES"
)

const (
	longSeeds  = 48 // three rounds over all steps
	shortSeeds = 3
)

// TestKillAnywhere moves a pod's volume once per seed and kills a part of the plane, or cuts it off from the API server,
// at some moment of the move. Replay seed 17 alone with
// BELAY_CHAOS_FIRST_SEED=17 BELAY_CHAOS_SEEDS=1.
func TestKillAnywhere(t *testing.T) {
	labtest.Needs(t)
	t.Run("permissive", func(t *testing.T) { killAnywhere(t, true) })
	t.Run("strict", func(t *testing.T) {
		if testing.Short() {
			t.Skip("NOT RUN: what a strict storage refuses, a permissive one records")
		}
		killAnywhere(t, false)
	})
}

func killAnywhere(t *testing.T, permissive bool) {
	t.Helper()
	seeds := longSeeds
	// The short run takes steps that lie apart: another three with each build would
	// be nicer, but a failure must be seen by all who run the same commit.
	first := 0
	if testing.Short() {
		seeds, first = shortSeeds, 9
	}
	seeds, first = number(t, envSeeds, seeds), number(t, envFirst, first)
	t.Logf("seeds %d to %d; %s and %s choose others", first, first+seeds-1, envFirst, envSeeds)
	run := newRun(t, permissive)
	t.Run("a leader that is cut off", run.formerLeader)
	for seed := first; seed < first+seeds; seed++ {
		plan := PlanFor(seed)
		if run.kind == cluster.NodeKindKubelet && knownOfKubelet(plan) {
			t.Logf("NOT RUN: %v: a real kubelet forgets the staged volume then (k/k#85476, k/k#121937)", plan)
			continue
		}
		// After a failed seed the state of the lab is no basis for the next seed.
		if !t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { run.seed(t, plan) }) {
			break
		}
	}
	run.finish(t)
}

func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		t.Fatalf("%s=%q is no number", name, text)
	}
	return n
}

// run is one lab with the writer in it, and what was killed or cut off so far.
type run struct {
	scene *scenario.Scene
	kind  string // of nodes
	hits  tally
	// landed counts the same hits by the step that was in progress at that moment.
	landed tally
}

func newRun(t *testing.T, permissive bool) *run {
	t.Helper()
	kind := os.Getenv(envNodes)
	if kind == "" {
		kind = cluster.NodeKindBelay
	}
	name := "chaos" // short: unix sockets lie below the folder of that name
	if kind == cluster.NodeKindKubelet {
		name += "-k"
	}
	if permissive {
		name += "-p"
	}
	scene := labtest.Open(t, cluster.Options{
		Name: name, Nodes: 2, NodeKind: kind, Plane: cluster.PlaneBelay,
		Drivers: []string{labdisk.DriverDisk}, NodeStatusUpdateFrequency: time.Second, Permissive: permissive,
		Standbys: true,
	})
	if _, err := scene.Place(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &run{scene: scene, kind: kind, hits: tally{}, landed: tally{}}
}

// knownOfKubelet: a kubelet that dies between a volume's last unpublish and the end of
// its unstage rebuilds its volumes from the pods' folders alone, so it drops the volume
// from volumesInUse with the file system still mounted, and no plane can know. The next
// stage on that node writes the old file system's leftovers: here the storage refuses
// that. Belay's own node agent keeps a record and passes.
func knownOfKubelet(plan Plan) bool {
	return plan.Victim == Agent && (plan.Step == timeline.StepUnpublished || plan.Step == timeline.StepUnstaged)
}

// seed makes one move with one kill, or one cut.
func (r *run) seed(t *testing.T, plan Plan) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 15*time.Minute)
	defer stop()
	t.Log(plan)
	from, err := r.scene.WriterNode()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.slowDown(ctx, plan.Step); err != nil {
		t.Fatal(err)
	}
	struck := r.arm(ctx, t, plan, from)
	move := r.scene.DeleteAndCordon
	if plan.Drain {
		move = r.scene.Drain
	}
	way, err := move(ctx, plan.String())
	if err != nil {
		t.Fatal(err)
	}
	hit := <-struck
	if hit.err != nil {
		t.Fatal(hit.err)
	}
	r.hits.Add(plan.Step, plan.Victim)
	r.landed.Add(underWay(way, hit.at), plan.Victim)
	if err := timeline.Chart(t.Output(), way, timeline.Style{}); err != nil {
		t.Error(err)
	}
	r.check(ctx, t, way.To)
	if err := r.awaitLeaders(ctx); err != nil {
		t.Error(err)
	}
}

// slowDown stretches the call that a step consists of, so that a hit can fall into it.
func (r *run) slowDown(ctx context.Context, step timeline.StepName) error {
	sign, _ := timeline.SignOf(step)
	if sign.Method == "" {
		return nil
	}
	_, err := r.scene.Cluster.Fabric().SetFault(ctx, labdisk.Fault{
		Method: sign.Method, Effect: labdisk.EffectDelay, Delay: 2 * maxDelay, Count: 1,
	})
	return err
}

// hit is what became of one kill or cut.
type hit struct {
	at  time.Time
	err error
}

// arm waits for the step and kills the victim, or cuts it off and heals it. What it returns receives when that is over.
func (r *run) arm(ctx context.Context, t *testing.T, plan Plan, from string) <-chan hit {
	t.Helper()
	seen, err := r.scene.OnStep(ctx, plan.Step, from)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan hit, 1)
	go func() {
		select {
		case node := <-seen:
			late := time.After(plan.Delay)
			victim, err := r.component(ctx, plan.Victim, node)
			<-late
			at := time.Now()
			switch {
			case err != nil:
			case plan.cuts():
				err = r.cutOff(ctx, plan, victim)
			default:
				err = r.scene.Cluster.Kill(victim)
				at = time.Now()
			}
			done <- hit{at: at, err: err}
		case <-ctx.Done():
			done <- hit{err: fmt.Errorf("step %q was never seen: %w", plan.Step, context.Cause(ctx))}
		}
	}()
	return done
}

// component is the victim's name in the lab.
func (r *run) component(ctx context.Context, victim Victim, node string) (string, error) {
	switch victim {
	case Controller, CutController:
		return r.leader(ctx, controller)
	case Attacher, CutAttacher:
		return r.leader(ctx, attacher)
	case Agent:
		return node + "/agent", nil
	default:
		return "kube-apiserver", nil
	}
}

// underWay is the step that a hit fell into: the first that had not ended.
func underWay(m *timeline.Move, at time.Time) timeline.StepName {
	since := at.Sub(m.Start)
	var last timeline.StepName
	for _, step := range m.Steps {
		if step.Seen && step.Began <= since && since < step.Ended {
			return step.Name
		}
		last = step.Name
	}
	return last
}

// check: the records are in place, the storage saw no forbidden write, each call was
// permitted, and the cluster's view has settled on the writer's node.
func (r *run) check(ctx context.Context, t *testing.T, node string) {
	t.Helper()
	if err := r.scene.AwaitSettled(ctx, node); err != nil {
		t.Error(err)
	}
	found, err := r.scene.Verify(ctx)
	if err != nil {
		t.Fatal(err)
	}
	violations, err := r.scene.Violations(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range violations {
		t.Errorf("forbidden write: %+v", v)
	}
	calls := labtest.EndedCalls(t, r.scene)
	for _, wrong := range callcheck.Check(calls) {
		t.Error(wrong)
	}
	if t.Failed() {
		show(t, calls)
	}
	t.Logf("%d acknowledged records in place (%d written), %d forbidden writes, %d calls", found.Acknowledged, found.Count, len(violations), len(calls))
}

// show prints the last calls of the driver's record, for the search for a fault.
func show(t *testing.T, calls []labdisk.Call) {
	t.Helper()
	for _, c := range calls {
		if time.Since(c.Start) < time.Minute {
			t.Logf("call %s %s on %s: %s to %s %s %s", c.Method, c.Volume, c.Node,
				c.Start.Format(time.StampMilli), c.End.Format(time.StampMilli), c.Code, c.Message)
		}
	}
}

// finish removes the writer and logs what was hit when.
func (r *run) finish(t *testing.T) {
	t.Helper()
	t.Logf("hits by the step that was waited for:\n%s", table(r.hits))
	t.Logf("hits by the step that was under way:\n%s", table(r.landed))
	if t.Failed() {
		return
	}
	if err := r.scene.RemoveWriter(t.Context()); err != nil {
		t.Error(err)
	}
}
