package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"belay.dev/belay/lab/audit"
	"belay.dev/belay/lab/cluster"
)

func TestTargets(t *testing.T) {
	all := map[string][]float64{
		planeUpstream: {400, 600}, planeFloor: {10},
		planeBelay: {30, 15, 18},
	}
	f := numbers("f", "ms", all).atMost(planeFloor, 2).atMost(planeFloor, 1.5).atMost(planeUpstream, 1.0/20).limit("none", 0)
	want := []Target{
		{Text: "<= 2x floor", Limit: 20, Is: "1.80x", Met: true},
		{Text: "<= 1.5x floor", Limit: 15, Is: "1.80x"},
		{Text: "<= upstream/20", Limit: 25, Is: "1/27.8", Met: true},
		{Text: "none"},
	}
	if diff := cmp.Diff(want, f.Targets); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
	if f.Value[planeBelay] != 18 || f.Value[planeUpstream] != 500 {
		t.Errorf("medians: %v", f.Value)
	}
	for name, samples := range map[string]map[string][]float64{
		"nothing measured": {}, "belay alone": {planeBelay: {1}}, "the other alone": {planeFloor: {1}},
	} {
		if target := numbers("f", "ms", samples).atMost(planeFloor, 2).Targets[0]; target.Met {
			t.Errorf("%s: the target counts as met: %+v", name, target)
		}
	}
}

// TestLimitOfEachSample: one mistake among many turns misses the target, and the value is the median as of every figure.
func TestLimitOfEachSample(t *testing.T) {
	for name, tt := range map[string]struct {
		belay []float64
		want  Target
	}{
		"one mistake":  {[]float64{1, 1, 1.5}, Target{Is: "1.50 at most"}},
		"none":         {[]float64{1, 1, 1}, Target{Is: "1 at most", Met: true}},
		"not measured": {nil, Target{Is: "not measured"}},
	} {
		tt.want.Text, tt.want.Limit = "exactly one", 1
		f := numbers("publishes", "calls", map[string][]float64{planeUpstream: {2, 3}, planeBelay: tt.belay}).limitEach("exactly one", 1)
		if diff := cmp.Diff([]Target{tt.want}, f.Targets); diff != "" {
			t.Errorf("%s: target (-want +got):\n%s", name, diff)
		}
		if f.Value[planeUpstream] != 2.5 || len(tt.belay) > 0 && f.Value[planeBelay] != 1 {
			t.Errorf("%s: medians %v", name, f.Value)
		}
	}
}

func TestReport(t *testing.T) {
	r := &Report{Planes: planes(), Machine: "2 processors", Seconds: 61, Parts: []Part{{
		Name: "latency", What: "three", Seconds: 60,
		Figures: []*Figure{
			numbers("slow", "ms", map[string][]float64{planeUpstream: {700.4}, planeBelay: {40.04}, planeFloor: {12.5}}).atMost(planeFloor, 2).atMost(planeUpstream, 0.05),
			numbers("plain", "MiB", map[string][]float64{planeBelay: {3}}),
		},
	}}}
	r.Parts[0].Figures[1].Parts = map[string]map[string]float64{planeBelay: {"patch nodes/status": 1, "create events": 2}}
	var out bytes.Buffer
	if err := r.writeText(&out); err != nil {
		t.Fatal(err)
	}
	want := `latency: three (60 s)
  figure  upstream  belay    floor    target          is
  slow    700 ms    40.0 ms  12.5 ms  <= 2x floor     3.20x   MISSED
                                      <= upstream/20  1/17.5  MISSED
  plain             3 MiB
    plain, belay: 2 create events, 1 patch nodes/status

2 processors; 61 s
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	missed, of := r.missed()
	if diff := cmp.Diff([]string{"latency: slow <= 2x floor", "latency: slow <= upstream/20"}, missed); diff != "" || of != 2 {
		t.Errorf("missed of %d (-want +got):\n%s", of, diff)
	}
	out.Reset()
	if err := r.writeJSON(&out); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || !cmp.Equal(*r, back) {
		t.Errorf("JSON: %v\n%s", err, cmp.Diff(*r, back))
	}
}

// TestStampHasTheFlags: those with which the bench is repeated, and not where and how the report is written.
func TestStampHasTheFlags(t *testing.T) {
	for _, tt := range []struct {
		command *cobra.Command
		args    string
		want    []string
	}{
		{recoveryCommand(), "-o json --name lab --no-targets --nodes kubelet --faults power.cut,hung --upstream-wait 8m --runs 8",
			[]string{"--faults=power cut,hung", "--nodes=kubelet", "--runs=8", "--upstream-wait=8m0s"}},
		{tickCommand(), "-o json --ticks 10s,1s --unset 4s", []string{"--ticks=10s,1s", "--unset=4s"}},
		{attacherCommand(), "-o json", []string{}},
	} {
		args := strings.Fields(tt.args)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "power.cut", FaultPowerCut)
		}
		must(t, tt.command.ParseFlags(args))
		if diff := cmp.Diff(tt.want, stampOf(tt.command.Flags()).Flags); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.args, diff)
		}
	}
}

func TestCount(t *testing.T) {
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	request := func(n int, user, verb, resource string) audit.Request {
		return audit.Request{At: at(n), User: user, Verb: verb, Resource: resource}
	}
	belay := cluster.UserController
	got := count([]audit.Request{
		request(0, belay, "create", "volumeattachments"), // before it began
		request(1, belay, "create", "volumeattachments"),
		request(1, belay, "create", "events"),
		request(1, belay, "update", "leases"),
		request(1, belay, "watch", "pods"),
		request(1, belay, "get", ""),
		request(2, belay, "delete", "volumeattachments"),
		request(2, cluster.UserAttacher, "patch", "volumeattachments"),
		request(3, belay, "create", "volumeattachments"),
		request(3, "somebody", "create", "volumeattachments"),
	}, []span{{at(1), at(2), true}, {at(2), at(3), false}, {at(3), at(4), true}, {at(4), at(5), false}}, usersOf(planeBelay))
	want := tally{
		figureRequestsAttach: {"create volumeattachments": 1}, figureEventsAttach: {"create events": 0.5},
		figureRequestsDetach: {"delete volumeattachments": 0.5}, figureAttacherDetach: {"patch volumeattachments": 0.5},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}

func TestUsage(t *testing.T) {
	const nobody = 1 << 30 // more than the kernel's greatest pid
	if took, err := cpuTime(nobody); err == nil {
		t.Errorf("a process that is not there has used %v", took)
	}
	if peak, err := peakMemory(nobody); err == nil {
		t.Errorf("a process that is not there had %d bytes", peak)
	}
	before, err := cpuTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		if now, err := cpuTime(os.Getpid()); err != nil || now > before {
			break // it counts: this loop is what it counts
		}
		if time.Now().After(deadline) {
			t.Fatal("no CPU time in 20 s of looking")
		}
	}
	if peak, err := peakMemory(os.Getpid()); err != nil || peak < 1<<20 {
		t.Errorf("this process: %d, %v", peak, err)
	}
}

// TestDriverSeesTwoWriters: an attacher that publishes an exclusive volume twice does not go unseen.
func TestDriverSeesTwoWriters(t *testing.T) {
	d := newDriver(driverName, 0)
	publish := func(node string) error {
		_, err := d.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: node})
		return err
	}
	if err := errors.Join(publish("a"), publish("a"), d.wrong()); err != nil {
		t.Fatal(err)
	}
	if err := publish("b"); err == nil {
		t.Error("a second node was not refused")
	}
	if err := d.wrong(); err == nil || !strings.Contains(err.Error(), "published to b while a holds it") {
		t.Errorf("the driver tells %v", err)
	}
	if d.published() != 2 {
		t.Errorf("%d calls succeeded", d.published())
	}
}

// TestTurns: in as many rounds as there are planes, each begins once and ends once.
func TestTurns(t *testing.T) {
	first, last := map[string]int{}, map[string]int{}
	for round := range len(planes()) {
		order := turns(planes(), round)
		if !slices.Equal(slices.Sorted(slices.Values(order)), slices.Sorted(slices.Values(planes()))) {
			t.Errorf("round %d has turns %q", round, order)
		}
		first[order[0]]++
		last[order[len(order)-1]]++
	}
	for _, plane := range planes() {
		if first[plane] != 1 || last[plane] != 1 {
			t.Errorf("%s begins %d times and ends %d times", plane, first[plane], last[plane])
		}
	}
}

// TestRoundsAreFair: with the default number of rounds each plane begins equally often, or a ratio says which one began.
func TestRoundsAreFair(t *testing.T) {
	for _, all := range [][]string{{planeBelay}, attacherPlanes(), planes()} {
		rounds, first := (options{planes: all}).size().Rounds, map[string]int{}
		for round := range rounds {
			first[turns(all, round)[0]]++
		}
		for _, plane := range all {
			if rounds < 3 || first[plane]*len(all) != rounds {
				t.Errorf("of %d rounds of %q, %s begins %d", rounds, all, plane, first[plane])
			}
		}
	}
}
