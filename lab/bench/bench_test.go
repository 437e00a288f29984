package bench

import (
	"slices"
	"testing"
	"time"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
	"belay.dev/belay/lab/timeline"
)

func labOptions(plane, name string, nodes int) cluster.Options {
	return cluster.Options{
		Name: name, Nodes: nodes, NodeKind: cluster.NodeKindBelay, Plane: plane, Drivers: []string{labdisk.DriverDisk},
	}
}

// TestOnePublishPerAttach counts calls at the driver: 20 volumes, attached to one node after the other, are one call for each attach, and all
// succeed. They are 40 attaches, and 100 in the long tests.
func TestOnePublishPerAttach(t *testing.T) {
	labtest.Needs(t)
	const volumes = 20
	rounds := 5
	if testing.Short() {
		rounds = 2
	}
	ctx := t.Context()
	scene := labtest.Open(t, labtest.Steady(labOptions(cluster.PlaneBelay, "bench", 2)))
	fleet, err := scene.NewFleet(ctx, "vol", volumes)
	if err != nil {
		t.Fatal(err)
	}
	var reported []time.Duration
	for round := range rounds {
		moves, err := fleet.Start(ctx, []string{"node-1", "node-2"}[round%2])
		if err != nil {
			t.Fatal(err)
		}
		reported = append(reported, figures(moves, timeline.FigureBoundReported)...)
		if err := fleet.Stop(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := scene.AwaitSettled(ctx, ""); err != nil {
		t.Fatal(err)
	}
	got := countCalls(t, scene)
	want := map[string]int{"ControllerPublishVolume": volumes * rounds, "ControllerUnpublishVolume": volumes * rounds}
	for method, n := range want {
		if got[method] != n {
			t.Errorf("the driver counted %d calls of %s, want %d", got[method], method, n)
		}
	}
	t.Logf("%d attaches, %d publish calls; pod bound -> reported, %d at a time: median %v, longest %v", volumes*rounds,
		got["ControllerPublishVolume"], volumes, timeline.Median(reported), slices.Max(reported))
}

// countCalls counts the driver's calls by method, failed ones too.
func countCalls(t *testing.T, scene *scenario.Scene) map[string]int {
	t.Helper()
	calls, err := scene.Calls(t.Context(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, c := range calls {
		counts[c.Method]++
		if c.Failed {
			t.Logf("failed call: %+v", c)
		}
	}
	return counts
}

// TestTenTimesUpstream makes the same moves through both planes on belay nodes,
// which publish volumesInUse at once, and compares the medians: the best of several
// would hide the moves that were slow. It wants a machine with nothing else to do.
func TestTenTimesUpstream(t *testing.T) {
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: the comparison with upstream belongs to the long tests")
	}
	const drains = 7
	measured := map[string]map[string]time.Duration{}
	for _, plane := range []string{cluster.PlaneBelay, cluster.PlaneUpstream} {
		t.Run(plane, func(t *testing.T) { measured[plane] = measure(t, plane, drains) })
	}
	if t.Failed() {
		return
	}
	for _, figure := range []string{timeline.FigureBoundReported, timeline.FigureInUseReported} {
		belay, upstream := measured[cluster.PlaneBelay][figure], measured[cluster.PlaneUpstream][figure]
		t.Logf("%s: belay %v, upstream %v: %.1fx", figure, belay, upstream, float64(upstream)/float64(belay))
		if belay*10 > upstream {
			t.Errorf("%s took %v with belay and %v with upstream: not a tenth", figure, belay, upstream)
		}
	}
}

// measure is the median of each figure over a placement and some drains.
func measure(t *testing.T, plane string, drains int) map[string]time.Duration {
	t.Helper()
	ctx := t.Context()
	scene := labtest.Open(t, labOptions(plane, "bench-"+plane, 2))
	move, err := scene.Place(ctx)
	if err != nil {
		t.Fatal(err)
	}
	moves := []*timeline.Move{move}
	for range drains {
		move, err := scene.Drain(ctx, "drain")
		if err != nil {
			t.Fatal(err)
		}
		if err := timeline.Chart(t.Output(), move, timeline.Style{}); err != nil {
			t.Error(err)
		}
		moves = append(moves, move)
	}
	middle := map[string]time.Duration{}
	for _, figure := range []string{
		timeline.FigureBoundReported, timeline.FigureInUseReported, timeline.FigureBoundRunning, timeline.FigurePodGoneDetached,
	} {
		all := figures(moves, figure)
		if len(all) == 0 {
			t.Fatalf("no move through %s's plane shows %s", plane, figure)
		}
		middle[figure] = timeline.Median(all)
		t.Logf("%s's plane, %s: best %v, median %v of %v", plane, figure, slices.Min(all), middle[figure], all)
	}
	return middle
}

func figures(moves []*timeline.Move, name string) []time.Duration {
	var all []time.Duration
	for _, m := range moves {
		if took, ok := m.Figure(name); ok {
			all = append(all, took)
		}
	}
	return all
}
