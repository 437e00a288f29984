package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/timeline"
)

func executeTick(ctx context.Context, out, progress io.Writer, args ...string) error {
	command := Command()
	command.SetArgs(append([]string{"tick"}, args...))
	command.SetOut(out)
	command.SetErr(progress)
	command.SilenceErrors = true
	return command.ExecuteContext(ctx)
}

func TestTickCommandLine(t *testing.T) {
	for _, args := range [][]string{
		{"--only", "speed"}, {"-o", "yaml"}, {"--rounds", "0"}, {"--nodes", "0"}, {"--nodes", "100000"}, {"--window", "1s"}, {"--settle=-1s"},
		{"--ticks", "500ms"}, {"--unset", "10ms"}, {"--name", "No"}, {"more"},
	} {
		if err := executeTick(t.Context(), io.Discard, io.Discard, args...); usage.Status(err) != usage.StatusWrong {
			t.Errorf("%q gave %v", args, err)
		}
	}
	var help bytes.Buffer
	if err := executeTick(t.Context(), &help, io.Discard, "--help"); err != nil || !strings.Contains(help.String(), "about") {
		t.Errorf("the help does not say how long it takes (%v): %s", err, help.String())
	}
}

func TestTickQuickLeavesWhatIsGiven(t *testing.T) {
	o := tickOptions{nodes: 300, rounds: 6, window: time.Minute, settle: time.Minute, ticks: []time.Duration{DefaultTick}}
	o.quickly(func(flag string) bool { return flag == "nodes" })
	if o.nodes != 300 || o.rounds != 1 || o.window != 6*time.Second || o.settle != 5*time.Second || !slices.Equal(o.ticks, []time.Duration{2 * time.Second, time.Second}) {
		t.Errorf("sizes: %+v", o)
	}
}

// TestPhases: the drains of a tick are spread over it, in an order that does not grow, and the same for the same seed.
func TestPhases(t *testing.T) {
	const n, tick = 6, 10 * time.Second
	got := phases(n, tick, 1)
	if !slices.Equal(got, phases(n, tick, 1)) {
		t.Error("two runs with one seed differ")
	}
	if slices.Equal(got, phases(n, tick, 2)) {
		t.Error("another seed gives the same pauses")
	}
	if slices.IsSorted(got) {
		t.Errorf("the pauses grow with the rounds: %v", got)
	}
	for i, pause := range slices.Sorted(slices.Values(got)) {
		if share := tick / n; pause < time.Duration(i)*share || pause > time.Duration(i+1)*share {
			t.Errorf("pause %v is not in share %d of the tick", pause, i)
		}
	}
}

func TestMovePartsOf(t *testing.T) {
	steps := func(inUse time.Duration) []timeline.Step {
		at := func(name timeline.StepName, ended time.Duration) timeline.Step {
			return timeline.Step{Name: name, Seen: true, Ended: ended}
		}
		return []timeline.Step{
			at(timeline.StepPodDeleted, 0), at(timeline.StepUnstaged, 2*time.Second), at(timeline.StepOutOfUse, 9*time.Second), at(timeline.StepBound, 3*time.Second),
			at(timeline.StepReported, 9500*time.Millisecond), at(timeline.StepInUse, inUse), at(timeline.StepRunning, 15*time.Second),
		}
	}
	for _, tt := range []struct {
		name                    string
		inUse, waited, mounting time.Duration
	}{
		{"listed before it was reported", 5 * time.Second, 0, 5500 * time.Millisecond},
		{"listed after it was reported", 12 * time.Second, 2500 * time.Millisecond, 3 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			took, err := movePartsOf(&timeline.Move{Steps: steps(tt.inUse)})
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]time.Duration{
				timeline.FigureDeletedRunning: 15 * time.Second, figureUnmounted: 2 * time.Second, figureLeftUse: 7 * time.Second,
				timeline.FigureInUseReported: 500 * time.Millisecond, figureCameInUse: tt.waited, figureMounted: tt.mounting,
			}
			var sum time.Duration
			for name, d := range want {
				if took[name] != d {
					t.Errorf("%s took %v, want %v", name, took[name], d)
				}
				if name != timeline.FigureDeletedRunning {
					sum += took[name]
				}
			}
			if sum != took[timeline.FigureDeletedRunning] {
				t.Errorf("the parts add up to %v of %v", sum, took[timeline.FigureDeletedRunning])
			}
		})
	}
	if _, err := movePartsOf(&timeline.Move{Steps: steps(0)[:4]}); err == nil {
		t.Error("a move of which a step was not seen has all its parts")
	}
}

const servedMetrics = `# HELP apiserver_request_total [STABLE] Counter of apiserver requests
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="nodes",scope="resource",subresource="status",verb="PATCH",version="v1"} 120
apiserver_request_total{code="409",component="apiserver",dry_run="",group="",resource="nodes",scope="resource",subresource="status",verb="PATCH",version="v1"} 3
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="nodes",scope="resource",subresource="",verb="GET",version="v1"} 7
apiserver_request_total{code="200",component="apiserver",dry_run="",group="coordination.k8s.io",resource="leases",scope="resource",subresource="",verb="PUT",version="v1"} 1.5e+03
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="nodes",scope="resource",subresource="",verb="PATCH",version="v1"} 1
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="",scope="",subresource="/metrics",verb="GET",version=""} 4
apiserver_request_body_size_bytes_sum{group="",resource="nodes",verb="patch"} 24576
apiserver_request_body_size_bytes_sum{group="",resource="nodes",verb="create"} 999
apiserver_request_body_size_bytes_count{group="",resource="nodes",verb="patch"} 124
apiserver_request_duration_seconds_sum{resource="nodes",verb="PATCH"} 17
`

func TestParseServed(t *testing.T) {
	got, err := parseServed([]byte(servedMetrics))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{requestStatus: 120, requestNode: 7, requestLease: 1500, requestOther: 8} {
		if got.requests[name] != want {
			t.Errorf("%s: %g, want %g", name, got.requests[name], want)
		}
	}
	if got.statusBytes != 24576 {
		t.Errorf("bodies of patches have %g bytes", got.statusBytes)
	}
	for name, text := range map[string]string{"none": "", "others": "up{} 1\n", "no number": `apiserver_request_total{verb="GET"} many`} {
		if _, err := parseServed([]byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// reading is one of a window in which 500 kubelets compute a status every second, but for those that fall behind.
func reading(second int, ticks int64) tickReading {
	return tickReading{
		at:     time.Unix(int64(second), 0),
		served: served{requests: map[string]float64{requestStatus: float64(10 * second), requestLease: float64(50 * second)}, statusBytes: float64(2048 * second)},
		ticks:  ticks, cpu: map[string]time.Duration{"etcd": time.Duration(second) * 100 * time.Millisecond, hollowComponent: time.Duration(second) * time.Second},
	}
}

func TestRatesBetween(t *testing.T) {
	rates := ratesBetween(reading(100, 1000), reading(120, 10800))
	if rates.requests[requestStatus] != 10 || rates.requests[requestLease] != 50 || rates.requests[requestNode] != 0 ||
		rates.statusBytes != 2048 || rates.ticks != 490 || rates.cpu["etcd"] != 0.1 || rates.cpu[hollowComponent] != 1 {
		t.Errorf("rates: %+v", rates)
	}
}

// TestSaturatedRowIsMarked: a row whose kubelets keep their tick is not, whatever it costs.
func TestSaturatedRowIsMarked(t *testing.T) {
	row := costRow{tick: time.Second}
	for _, tt := range []struct {
		perSecond int64
		saturated bool
	}{{490, false}, {470, false}, {460, true}, {250, true}} {
		figures := costFigures(row, 500, []tickRates{ratesBetween(reading(0, 0), reading(10, 10*tt.perSecond))})
		done := figures[len(figures)-1]
		if marked := !done.Targets[0].Met; marked != tt.saturated || (done.Note != "") != tt.saturated {
			t.Errorf("%d statuses/s of 500 kubelets, %.1f %%: saturated %v, want %v", tt.perSecond, done.Value[planeKubelets], marked, tt.saturated)
		}
		for _, f := range figures {
			if len(f.Samples[planeKubelets]) != 1 || !strings.HasSuffix(f.Name, ", status every 1 s") {
				t.Errorf("%s has samples %v", f.Name, f.Samples)
			}
		}
	}
}

// TestCostRows: only the last ones leave the report frequency to kubelet.
func TestCostRows(t *testing.T) {
	rows := costRows([]time.Duration{DefaultTick, time.Second}, []time.Duration{2 * time.Second})
	var names []string
	for _, row := range rows {
		names = append(names, row.String())
	}
	if got := strings.Join(names, "; "); got != "status every 10 s; status every 1 s; status every 2 s, report frequency unset" {
		t.Errorf("rows: %s", got)
	}
	for _, row := range rows {
		config, err := row.config()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(config), "nodeStatusReportFrequency: 5m0s") == row.follows {
			t.Errorf("%s has the configuration\n%s", row, config)
		}
	}
}

// TestTick runs both parts at small sizes with real kubelets and with hollow ones.
func TestTick(t *testing.T) {
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: the bench belongs to the long tests")
	}
	if _, because := cluster.DefaultNodeKind(); because != "" {
		t.Skip("NOT RUN: " + because)
	}
	var out bytes.Buffer
	if err := executeTick(t.Context(), &out, t.Output(), "--quick", "--ticks", "1s", "--name", "tick-quick", "-o", "json"); err != nil {
		t.Fatal(err)
	}
	assertGone(t, "tick-quick")
	var report Report
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	if err := report.writeText(t.Output()); err != nil {
		t.Error(err)
	}
	value := map[string]map[string]float64{}
	for _, part := range report.Parts {
		for _, f := range part.Figures {
			value[f.Name] = f.Value
		}
	}
	for _, name := range tickFigures() {
		for _, plane := range attacherPlanes() {
			if _, ok := value[ofTick(name, time.Second)][plane]; !ok {
				t.Errorf("%s was not measured for %s", name, plane)
			}
		}
	}
	// What unset means is kubelet's own doing: each status is then a PATCH.
	reported, unset := value[requestStatus+", status every 1 s"][planeKubelets], value[requestStatus+", status every 1 s, report frequency unset"][planeKubelets]
	if unset < 10 || reported > unset/5 {
		t.Errorf("20 kubelets patch %g statuses a second every 5 minutes, %g with each status", reported, unset)
	}
}

// TestTickIsStopped: nothing is left of the kubelets of a bench that is interrupted.
func TestTickIsStopped(t *testing.T) {
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: the bench belongs to the long tests")
	}
	ctx, stop := context.WithCancel(t.Context())
	progress := &signalWriter{out: t.Output(), word: "settling", signal: stop}
	err := executeTick(ctx, io.Discard, progress, "--only", "cost", "--ticks", "1s", "--nodes", "5", "--name", "tick-stopped")
	if err == nil || !strings.Contains(err.Error(), "the bench was stopped") {
		t.Errorf("it ended with %v", err)
	}
	assertGone(t, "tick-stopped")
}
