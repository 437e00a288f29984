package bench

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/labtest"
)

// TestVariants: belay's number is in both comparisons, and each of upstream's in its own. Only upstream tuned has flags.
func TestVariants(t *testing.T) {
	found, l := &samples{}, laneOf(0, 1)
	for i, v := range variants(fullSize()) {
		v.took(found, drainLast(l), float64(i+1))
		if tuned := len(v.flags) > 0; tuned != slices.Equal(v.in, []string{upstreamTuned}) {
			t.Errorf("%v has flags %q", v, v.flags)
		}
	}
	want := map[string]map[string][]float64{
		drainLast(l)(asShipped):     {planeUpstream: {1}, planeBelay: {3}},
		drainLast(l)(upstreamTuned): {planeUpstream: {2}, planeBelay: {3}},
	}
	if diff := cmp.Diff(want, found.all); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
}

// TestCallsByComparison: calls that csi-attacher makes twice when tuned are not counted against it as shipped. A mistake of a turn
// counts once.
func TestCallsByComparison(t *testing.T) {
	found, l := &samples{}, laneOf(0, 10)
	all := variants(fullSize())
	for i, publishes := range []int{11, 19, 10} {
		found.called(all[i].plane, calls{publishes: publishes, unpublishes: 10}, 10, all[i].labels(l)...)
	}
	got := map[string]map[string]float64{}
	for _, f := range found.callFigures(comparedLabels(l)...) {
		got[f.Name] = f.Value
	}
	one := map[string]float64{planeUpstream: 1, planeBelay: 1}
	none := map[string]float64{planeUpstream: 0, planeBelay: 0}
	want := map[string]map[string]float64{
		"10 volumes, driver answers at once, as shipped: publishes per attach":           {planeUpstream: 1.1, planeBelay: 1},
		"10 volumes, driver answers at once, as shipped: unpublishes per detach":         one,
		"10 volumes, driver answers at once, csi-attacher tuned: publishes per attach":   {planeUpstream: 1.9, planeBelay: 1},
		"10 volumes, driver answers at once, csi-attacher tuned: unpublishes per detach": one,
		figureOverlaps: none, figureSecondNode: none,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("figures (-want +got):\n%s", diff)
	}
	if n := len(found.all[figureOverlaps][planeBelay]); n != 1 {
		t.Errorf("one turn of belay counts %d times", n)
	}
}

// TestAlternately: in the default number of rounds, of each two variants each is before the other equally often.
func TestAlternately(t *testing.T) {
	all, rounds := []string{"a", "b", "c"}, (options{planes: attacherPlanes()}).size().Rounds
	before := map[string]int{}
	for round := range rounds {
		order := alternately(all, round)
		for i, first := range order {
			for _, second := range order[i+1:] {
				before[first+second]++
			}
		}
	}
	if !slices.Equal(all, []string{"a", "b", "c"}) {
		t.Errorf("the order itself was changed: %q", all)
	}
	for _, pair := range []string{"ab", "ba", "ac", "ca", "bc", "cb"} {
		if 2*before[pair] != rounds {
			t.Errorf("in %d rounds, the first of %s was before the second %d times", rounds, pair, before[pair])
		}
	}
}

// TestLaneNames: the lanes of a part have drivers and volumes of their own, at both sizes; copies of a lane have one label, as
// their numbers belong to one figure.
func TestLaneNames(t *testing.T) {
	for _, size := range []Size{fullSize(), quickSize()} {
		fast, slow := oneLanes(size)
		inTurn, shipped := drainLanes(size)
		for part, lanes := range map[string][]*lane{
			"one": append(slow, fast), "drain": slices.Concat(inTurn, shipped), "shipped": shippedLanes(size),
		} {
			drivers, labels := map[string]bool{}, map[string]bool{}
			for _, l := range lanes {
				drivers[l.driver.name], labels[l.label] = true, true
				if !strings.HasPrefix(l.driver.name, l.name+".") {
					t.Errorf("%s: the driver of lane %s is %s", part, l.name, l.driver.name)
				}
			}
			if len(drivers) != len(lanes) {
				t.Errorf("%s: %d lanes have %d drivers", part, len(lanes), len(drivers))
			}
			if want := map[string]int{"one": 2, "drain": 3, "shipped": len(lanes)}[part]; len(labels) != want {
				t.Errorf("%s: labels %v, want %d", part, labels, want)
			}
		}
		if len(shipped) != shippedDrains*len(inTurn) {
			t.Errorf("%d lanes for upstream as shipped", len(shipped))
		}
	}
}

// TestFigureNames: each name can be understood without the part's.
func TestFigureNames(t *testing.T) {
	size := fullSize()
	fast, slow := oneLanes(size)
	inTurn, _ := drainLanes(size)
	found := &samples{}
	var names []string
	for _, f := range append(oneFigures(found, fast, slow[0]), drainFigures(found, inTurn[2])...) {
		names = append(names, f.Name+" ["+f.Unit+"] "+f.Targets[0].Text)
	}
	for _, l := range shippedLanes(size)[4:] {
		names = append(names, l.figure(figureAllAttached))
	}
	want := []string{
		"one attach, driver answers at once, as shipped [ms] <= 1.25x upstream",
		"one attach, driver answers at once, csi-attacher tuned [ms] <= 1.25x upstream",
		"one move, driver answers at once, as shipped [ms] <= 1.25x upstream",
		"one move, driver answers at once, csi-attacher tuned [ms] <= 1.25x upstream",
		"one attach, driver of 10 s, as shipped [s] <= 1.1x upstream",
		"one attach, driver of 10 s, csi-attacher tuned [s] <= 1.1x upstream",
		"one move, driver of 10 s, as shipped [s] <= 1.1x upstream",
		"one move, driver of 10 s, csi-attacher tuned [s] <= 1.1x upstream",
		"drain of 100, driver of 10 s, as shipped: last attached elsewhere [s] <= 1x upstream",
		"drain of 100, driver of 10 s, as shipped: median volume attached elsewhere [s] <= 1x upstream",
		"drain of 100, driver of 10 s, csi-attacher tuned: last attached elsewhere [s] <= 1.1x upstream",
		"drain of 100, driver of 10 s, csi-attacher tuned: median volume attached elsewhere [s] <= 1.1x upstream",
		"100 volumes, driver of 10 s, as shipped: all attached",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// TestFigureSpread: the text says how many samples there are, the least and the greatest, for figures that ask for it.
func TestFigureSpread(t *testing.T) {
	f := numbers("one move", "ms", map[string][]float64{planeUpstream: {12, 30, 14}, planeBelay: {9.5}})
	if got := f.spread(attacherPlanes()); got != "" {
		t.Errorf("without being asked: %q", got)
	}
	if got, want := f.withSpread().spread(attacherPlanes()), "    one move, ms: upstream 12 to 30 (3), belay 9.50 to 9.50 (1)\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestAttacherCommandLine(t *testing.T) {
	for _, args := range [][]string{{"--only", "one,scale"}, {"--only", "drains"}, {"--rounds=0"}, {"-o", "csv"}} {
		err := executeAttacher(t.Context(), io.Discard, io.Discard, args...)
		if err == nil || usage.Status(err) != usage.StatusWrong {
			t.Errorf("%v gave %v", args, err)
		}
	}
	chosen, err := options{parts: attacherParts(), name: "bench", output: "text", only: []string{"drain", "one"}}.check()
	if err != nil || !slices.Equal(partNames(chosen), []string{"one", "drain"}) {
		t.Errorf("chosen: %v, %v", partNames(chosen), err)
	}
}

// TestProbeIsAnsweredAtOnce: a slow driver does not make the start of each turn slow.
func TestProbeIsAnsweredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := laneOf(10*time.Second, 1)
		for volume, want := range map[string]time.Duration{l.probe(): 0, l.volume(0): 10 * time.Second} {
			began := time.Now()
			_, err := l.driver.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: volume, NodeId: "a"})
			must(t, err)
			if took := time.Since(began); took != want {
				t.Errorf("%s took %v, want %v", volume, took, want)
			}
		}
	})
}

// TestDrain lets belay-attacher move one volume, and then drain a node twice: one call each, none to a second node, and every
// volume is as it was before, so that the next turn begins as this one did.
func TestDrain(t *testing.T) {
	labtest.Needs(t)
	size := quickSize()
	size.AttachLimit = 10 * time.Minute
	one, drained := laneOf(0, 1), laneOf(50*time.Millisecond, size.DrainVolumes)
	r, err := openRig(t.Context(), rigOptions{name: "bench-drain", later: true, change: labtest.Steady, say: t.Logf})
	must(t, err)
	t.Cleanup(func() {
		must(t, r.close(context.Background()))
		assertGone(t, "bench-drain")
	})
	must(t, r.addLanes(t.Context(), one, drained))
	belay, found := variants(size)[2], &samples{}
	must(t, r.oneTurn(t.Context(), size, belay, one, found))
	for range 2 {
		must(t, r.drainTurn(t.Context(), size, belay, drained, found))
	}
	for _, f := range found.callFigures(comparedLabels(one, drained)...) {
		if !f.Targets[0].Met {
			t.Errorf("%s: %v", f.Name, f.Samples[planeBelay])
		}
	}
	for name, least := range map[string]float64{oneAttach(one)(asShipped): 0, oneMove(one)(upstreamTuned): 0, drainMedian(drained)(asShipped): 0.1} {
		if len(found.all[name][planeBelay]) == 0 {
			t.Errorf("%s was not measured", name)
		}
		for _, took := range found.all[name][planeBelay] {
			if took <= least {
				t.Errorf("%s: %v, which its calls alone take", name, took)
			}
		}
	}
	if n := len(found.all[drainLast(drained)(upstreamTuned)][planeBelay]); n != 2 {
		t.Errorf("two drains gave %d numbers", n)
	}
	if left := len(drained.driver.holder) + len(one.driver.holder); left != 0 {
		t.Errorf("the drivers still hold %d volumes", left)
	}
}
