package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/lab/bench"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/timeline"
)

// stored is a folder of figures: the curves of the documents, and with all made-up ones of each other kind.
func stored(t *testing.T, all bool) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "performance")
	must(t, os.Mkdir(folder, 0o700))
	curves, err := os.ReadFile("../../docs/performance/scale.csv")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(folder, "scale.csv"), curves, 0o600))
	if !all {
		return folder
	}
	drain, err := os.ReadFile("../timeline/testdata/drain.json")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(folder, "drain.json"), []byte(`{"plane": "belay", "nodeKind": "kubelet", "move": `+string(drain)+`}`), 0o600))
	for name, report := range map[string]any{"tick.json": tick(), "attacher.json": attacher(), "recovery.json": recovery()} {
		store(t, folder, name, report)
	}
	return folder
}

func store(t *testing.T, folder, name string, report any) {
	t.Helper()
	raw, err := json.Marshal(report)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(folder, name), raw, 0o600))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func made(name, unit string, upstream, belay []float64) *bench.Figure {
	f := &bench.Figure{Name: name, Unit: unit, Value: map[string]float64{}, Samples: map[string][]float64{}}
	for plane, all := range map[string][]float64{planeUpstream: upstream, planeBelay: belay} {
		if len(all) > 0 {
			f.Value[plane], f.Samples[plane] = timeline.Median(all), all
		}
	}
	return f
}

func tick() *bench.Report {
	return &bench.Report{Stamp: bench.Stamp{Flags: []string{}}, Machine: "2 processors, load 0.1 at the start", Planes: []string{planeBelay, planeUpstream}, Parts: []bench.Part{
		{Name: "moves", What: "drains of real kubelets", Figures: []*bench.Figure{
			made("pod deleted -> running elsewhere, status every 10 s", "s", []float64{17, 16, 18}, []float64{16, 15}),
			made("pod deleted -> running elsewhere, status every 1 s", "s", []float64{10, 10, 10}, []float64{10.6, 10.6, 10.6}),
			made("unmounted -> out of volumesInUse, status every 10 s", "s", []float64{6, 6, 6}, []float64{6, 6, 6}),
		}},
		{Name: "cost", What: "500 hollow kubelets", Figures: []*bench.Figure{
			kubelets("PATCH node status, status every 10 s", "requests/s", 1.7), kubelets("CPU of etcd, status every 10 s", "% of a core", 2),
			kubelets("PATCH node status, status every 1 s, report frequency unset", "requests/s", 480), kubelets("CPU of etcd, status every 1 s, report frequency unset", "% of a core", 31.27),
		}},
	}}
}

func kubelets(name, unit string, value float64) *bench.Figure {
	return &bench.Figure{Name: name, Unit: unit, Value: map[string]float64{"kubelets": value}, Samples: map[string][]float64{"kubelets": {value, value}}}
}

func attacher() *bench.Report {
	r := &bench.Report{Stamp: bench.Stamp{Flags: []string{}}, Machine: "2 processors, load 0.1 at the start", Planes: []string{planeUpstream, planeBelay}}
	for _, names := range [][]string{
		{"one attach, driver of 10 s, %s", "one move, driver answers at once, %s"},
		{"drain of 100, driver of 10 s, %s: last attached elsewhere", "drain of 100, driver of 10 s, %s: median volume attached elsewhere"},
	} {
		p := bench.Part{What: "one volume at a time"}
		p.Name, _, _ = strings.Cut(names[0], " ")
		for _, name := range names {
			for _, comparison := range []string{"as shipped", "csi-attacher tuned"} {
				p.Figures = append(p.Figures, made(fmt.Sprintf(name, comparison), "ms", []float64{700, 701, 702}, []float64{40, 41, 43}))
			}
		}
		r.Parts = append(r.Parts, p)
	}
	r.Parts[0].Figures = append(r.Parts[0].Figures, made("publish calls", "calls", []float64{1}, []float64{2}))
	return r
}

func recovery() *bench.RecoveryReport {
	r := &bench.RecoveryReport{Machine: "2 processors, load 0.1 at the start", LeftAlone: []bench.LeftAlone{{Nodes: cluster.NodeKindKubelet, Seconds: 480.1, Node: "node-1", Terminating: new(355.2), Attached: 1}}}
	r.Stamp = bench.Stamp{Date: "2026-01-02 03:04 UTC", Commit: "0123456789", Flags: []string{"--faults=power cut", "--runs=3"}}
	rest := []bench.Hop{{Name: "pod gone", Seconds: 0.4}, {Name: "replacement bound", Seconds: 0.1}, {Name: "old attachment gone", Seconds: 0.3},
		{Name: "attached and reported", Seconds: 0.2}, {Name: "mounted", Seconds: 3}, {Name: "first record written", Seconds: 2}}
	series := func(profile string, first ...bench.Hop) {
		s := &bench.RecoverySeries{Nodes: cluster.NodeKindKubelet, Plane: planeUpstream, Profile: profile, Fault: bench.FaultPowerCut, Settings: []string{"kubelet's defaults"}}
		s.Total, s.Failures = bench.Spread{Of: 3, P90: 90, Max: 90}, 1
		var all []float64
		for i := range 3 {
			run := bench.RecoveryRun{Fault: s.Fault, Hops: slices.Concat(first, rest)}
			run.Hops[0].Seconds += float64(i)
			for _, hop := range run.Hops {
				run.Seconds += hop.Seconds
			}
			s.Runs, all = append(s.Runs, run), append(all, run.Seconds)
		}
		s.Runs = append(s.Runs, bench.RecoveryRun{Failure: "a record is lost", Seconds: 1000})
		s.Total.P50 = timeline.Median(all)
		r.Series = append(r.Series, s)
	}
	series(fencing.Default.Name, bench.Hop{Name: "suspected", Seconds: 21}, bench.Hop{Name: "isolated", Seconds: 0.2}, bench.Hop{Name: "off confirmed", Seconds: 1},
		bench.Hop{Name: "tainted, and off again", Seconds: 0.5})
	series("", bench.Hop{Name: "NotReady", Seconds: 58}, bench.Hop{Name: "off, marked out of service", Seconds: 0.4})
	return r
}

// TestRender: every picture can be read, which drawing checks, and is XML; no line of the page is too long.
func TestRender(t *testing.T) {
	all, err := render(stored(t, true))
	must(t, err)
	want := []string{"dead-node.svg", "demo.svg", "performance.md", "performance/attach.svg", "performance/burst.svg", "performance/compare.svg",
		"performance/memory.svg", "performance/start.svg"}
	if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, want) {
		t.Errorf("made %q, want %q", got, want)
	}
	for name, content := range all {
		if folder := os.Getenv("BELAY_PICTURES"); folder != "" {
			must(t, os.WriteFile(filepath.Join(folder, filepath.Base(name)), content, 0o600))
		}
		if strings.HasSuffix(name, ".svg") {
			wellFormed(t, name, string(content))
		}
	}
	page := string(all["performance.md"])
	words := strings.Join(strings.Fields(page), " ")
	for _, want := range []string{
		"| pod deleted -> running elsewhere, status every 10 s | 3, 2 | 17 s (16 to 18) | 15.5 s (15 to 16) |",
		"| a node loses its power -> its pod writes elsewhere, recovery with the profile default beside upstream's controller | 3 of 4 | not within 8 min, left alone (n=1) | 29.7 s (28.7 to 30.7), 1 of 4 failed |",
		"| a node loses its power -> its pod writes elsewhere, with a script that sets the out-of-service taint at NotReady | 3 of 4 | 65.4 s (64.4 to 66.4), 1 of 4 failed |  |",
		"\n- a node loses its power, without recovery, with the script: a record is lost\n",
		"What the kubelets cost: 500 hollow kubelets. Measured on 2 processors, load 0.1 at the start; `make bench-tick` repeats it. [tick.json](performance/tick.json)",
		"| the attacher alone: one attach, driver of 10 s, as shipped | 3 | 701 ms (700 to 702) | 41 ms (40 to 43) |",
		"| the attacher alone: drain of 100, driver of 10 s, as shipped: last attached elsewhere | 3 |",
		"was left alone: the pod was deleted after 355 s, and was still Terminating after 480 s. VolumeAttachments of the node that were left: 1.",
		"`make bench-recovery ARGS='--faults=\"power cut\" --runs=3'` repeats it", "`make bench-tick` repeats it",
		"| the attacher alone: publish calls | 1 | 1 calls | 2 calls |",
		"| status every | 10 s | 1 s, report frequency unset |", "| CPU of etcd, % of a core | 2 | 31.3 |",
		"\n## The kubelet's status tick\n", "\n## The attacher alone\n", "\n## Recovery\n",
	} {
		if !strings.Contains(page, want) && !strings.Contains(words, want) {
			t.Errorf("%q is not in the page:\n%s", want, page[:min(len(page), 6000)])
		}
	}
	before, _, _ := strings.Cut(page, "## What is not better")
	for _, not := range []string{"tuned |", "median volume", "unmounted ->"} {
		if strings.Contains(before, not) {
			t.Errorf("%q is in the first table", not)
		}
	}
	for line := range strings.Lines(page) {
		if len(line) > 160 && line[0] != '|' {
			t.Errorf("too long: %s", line)
		}
		for cell := range strings.SplitSeq(line, "|") {
			if line[0] == '|' && len(strings.TrimSpace(cell)) > 120 {
				t.Errorf("too long: %s", cell)
			}
		}
	}
}

func wellFormed(t *testing.T, name, content string) {
	t.Helper()
	for decoder := xml.NewDecoder(strings.NewReader(content)); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%s is not well-formed: %v", name, err)
		}
	}
}

// TestRenderWithout: sections and pictures of files that are missing are left out.
func TestRenderWithout(t *testing.T) {
	all, err := render(stored(t, false))
	must(t, err)
	for _, not := range []string{"What users notice", "status tick", "The attacher alone", "## Recovery", "no value"} {
		if strings.Contains(string(all["performance.md"]), not) {
			t.Errorf("%q is in the page", not)
		}
	}
	if all["dead-node.svg"] != nil || all["demo.svg"] != nil {
		t.Error("a picture is made from nothing")
	}
}

// TestQuickFiguresAreRefused: those of --quick mean little, and a bench that was tried with it may have replaced a file.
func TestQuickFiguresAreRefused(t *testing.T) {
	for _, name := range []string{"tick.json", "attacher.json"} {
		folder := stored(t, true)
		quick := tick()
		quick.Quick = true
		store(t, folder, name, quick)
		if _, err := render(folder); err == nil || !strings.Contains(err.Error(), name+" are of --quick") {
			t.Errorf("the figures of --quick in %s gave %v", name, err)
		}
	}
}

// TestFlagsAreAskedFor: without them the page would name a command that measures something else.
func TestFlagsAreAskedFor(t *testing.T) {
	withTick, withRecovery := tick(), recovery()
	withTick.Flags, withRecovery.Flags = nil, nil
	for name, report := range map[string]any{"tick.json": withTick, "recovery.json": withRecovery} {
		folder := stored(t, true)
		store(t, folder, name, report)
		if _, err := render(folder); err == nil || !strings.Contains(err.Error(), name+" does not say with which flags") {
			t.Errorf("%s without flags gave %v", name, err)
		}
	}
}

// TestFilesOfParts: a file with some of the parts, as --only gives, fills what it has of a section. Each part keeps the date and the commit of its own.
func TestFilesOfParts(t *testing.T) {
	folder := stored(t, true)
	must(t, os.Remove(filepath.Join(folder, "tick.json")))
	moves, cost := tick(), tick()
	moves.Parts, cost.Parts, cost.Date, cost.Commit = moves.Parts[:1], cost.Parts[1:], "2026-03-04 05:06 UTC", "abcdef"
	page := func() string {
		t.Helper()
		all, err := render(folder)
		must(t, err)
		return string(all["performance.md"])
	}
	const hasMoves, hasCost = "| pod deleted -> running elsewhere, status every 10 s | 3, 2 |", "| CPU of etcd, % of a core |"
	store(t, folder, "tick-cost.json", cost)
	if text := page(); strings.Contains(text, hasMoves) || !strings.Contains(text, hasCost) {
		t.Errorf("the page of the cost alone:\n%s", text[:3000])
	}
	store(t, folder, "tick-moves.json", moves)
	if text := page(); !strings.Contains(text, hasMoves) || !strings.Contains(text, hasCost) ||
		strings.Count(text, "2026-03-04 05:06 UTC at commit abcdef") != 1 || !strings.Contains(text, "(performance/tick-moves.json)") {
		t.Errorf("the page of both parts:\n%s", text[:6000])
	}
	store(t, folder, "tick.json", tick())
	if _, err := render(folder); err == nil || !strings.Contains(err.Error(), "tick.json and tick-cost.json both have the part") {
		t.Errorf("a part that was measured twice gave %v", err)
	}
}

// TestFailedRunsAreReported: where a run failed, as with a lost record, the first table and the picture say so beside the time of the others.
func TestFailedRunsAreReported(t *testing.T) {
	d := &data{recovery: recovery(), curves: &figures{}} // one of four runs of each series has failed
	text, err := d.felt()
	must(t, err)
	picture, err := deadNode(d.recovery)
	must(t, err)
	for what, content := range map[string]string{"first table": text, "picture": string(picture)} {
		if strings.Count(content, ", 1 of 4 failed") != 2 || strings.Count(content, "3 of 4") != 2 {
			t.Errorf("the %s does not tell that a run of four has lost a record:\n%s", what, content)
		}
	}
	if table := recoveryTable(d.recovery); !strings.Contains(table, "| 4 | 1 | ") {
		t.Errorf("the table of all runs:\n%s", table)
	}
	for _, s := range d.recovery.Series {
		s.Runs, s.Failures, s.Total = s.Runs[3:], 1, bench.Spread{}
	}
	text, err = d.felt()
	must(t, err)
	if table := recoveryTable(d.recovery); strings.Count(text, "| 1 of 1 failed |") != 2 || strings.Contains(table, "0.0 s") {
		t.Errorf("without a run that did not fail:\n%s%s", text, table)
	}
}

// TestNothingIsWorse: the words about what is worse follow the figures.
func TestNothingIsWorse(t *testing.T) {
	const none = "There is no figure on this page in which"
	page := func(folder string) string {
		t.Helper()
		all, err := render(folder)
		must(t, err)
		return strings.Join(strings.Fields(string(all["performance.md"])), " ")
	}
	folder := stored(t, false)
	if strings.Contains(page(folder), none) {
		t.Error("the curves have figures that are worse, and the page says that there is none")
	}
	curves, err := os.ReadFile(filepath.Join(folder, "scale.csv"))
	must(t, err)
	var better strings.Builder
	for line := range strings.Lines(string(curves)) {
		if cells := strings.Split(strings.TrimSpace(line), ","); len(cells) >= 8 && strings.HasPrefix(strings.Trim(cells[3], `"`), planeBelay) {
			cells[len(cells)-1] = "0.001"
			line = strings.Join(cells, ",") + "\n"
		}
		better.WriteString(line)
	}
	must(t, os.WriteFile(filepath.Join(folder, "scale.csv"), []byte(better.String()), 0o600))
	if !strings.Contains(page(folder), none) {
		t.Error("nothing is worse, and the page does not say so")
	}
}

// TestWorse: each of belay's planes counts, its row says which, and n is of how many attaches a median is.
func TestWorse(t *testing.T) {
	values := map[key]map[int]float64{}
	for plane, value := range map[string]float64{planeUpstream: 10, planeBelay: 10, bench.PlaneBelayGC: 11} {
		values[key{plane, "both", bench.CurveAttach}] = map[int]float64{200: value}
		values[key{plane, "controller", "peak memory"}] = map[int]float64{200: 2*value - 8}
	}
	values[key{planeBelay, "controller", "peak memory"}][200] = 30
	d := &data{curves: &figures{facts: []fact{{"attaches one at a time", "20"}}, sizes: []size{{200, 10, 300}}, values: values,
		units: map[string]string{bench.CurveAttach: "ms", "peak memory": "MiB"}}}
	got, err := d.worse()
	must(t, err)
	want := "| controller: peak memory, 200 volumes | 1 | 12 MiB | 30 MiB |\n| controller: peak memory, 200 volumes (belay, GOGC=100) | 1 | 12 MiB | 14 MiB |\n" +
		"| pod bound -> reported, 200 volumes (belay, GOGC=100) | 20 | 10 ms | 11 ms |\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestCheck: what is not as it would be written is found, and a picture that nothing makes.
func TestCheck(t *testing.T) {
	folder := stored(t, true)
	docs := filepath.Dir(folder)
	must(t, run(docs, "", false))
	must(t, run(docs, "", true))
	must(t, os.WriteFile(filepath.Join(docs, "dead-node.svg"), []byte("<svg/>"), 0o600))
	must(t, os.WriteFile(filepath.Join(folder, "old.svg"), []byte("<svg/>"), 0o600))
	err := run(docs, "", true)
	if err == nil || !strings.Contains(err.Error(), "dead-node.svg is not what") || !strings.Contains(err.Error(), "performance/old.svg is made from no figure") {
		t.Errorf("the check ended with %v", err)
	}
}

// TestDrain is stored from the demo's report.
func TestDrain(t *testing.T) {
	folder := stored(t, true)
	drain, err := os.ReadFile("../timeline/testdata/drain.json")
	must(t, err)
	titled := strings.Replace(string(drain), `"title":`, `"title": "move 1, drain", "was":`, 1)
	demo := filepath.Join(t.TempDir(), "demo.json")
	must(t, os.WriteFile(demo, []byte(`{"results": [{"plane": "belay", "nodeKind": "kubelet", "steps": [{}, {"move": `+titled+`}]}]}`), 0o600))
	must(t, run(filepath.Dir(folder), demo, false))
	got, err := os.ReadFile(filepath.Join(folder, "drain.json"))
	must(t, err)
	if !strings.HasPrefix(string(got), "{\n  \"plane\": \"belay\",\n  \"nodeKind\": \"kubelet\",\n  \"move\": {\n    \"title\": \"move 1, drain\"") || strings.Contains(string(got), "results") {
		t.Errorf("stored:\n%s", got)
	}
	if err := run(filepath.Dir(folder), demo+".not", false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a report that is not there gave %v", err)
	}
	must(t, os.WriteFile(demo, []byte(`{}`), 0o600))
	if err := run(filepath.Dir(folder), demo, false); err == nil || !strings.Contains(err.Error(), "has none") {
		t.Errorf("a report without a drain gave %v", err)
	}
}

// TestDeadNodeIsWhole: no picture is drawn that leaves a hop out, or one of the two sides.
func TestDeadNodeIsWhole(t *testing.T) {
	for want, change := range map[string]func(*bench.RecoveryReport){
		`no stage of the picture has the hop "paused"`: func(r *bench.RecoveryReport) { r.Series[0].Runs[1].Hops[2].Name = "paused" },
		`profile "default"`:                            func(r *bench.RecoveryReport) { r.Series = r.Series[1:] },
		`profile ""`:                                   func(r *bench.RecoveryReport) { r.Series = r.Series[:1] },
		"no run was measured":                          func(r *bench.RecoveryReport) { r.Series[1].Runs = nil },
		"has no kubelet that was left alone":           func(r *bench.RecoveryReport) { r.LeftAlone = nil },
		"was replaced":                                 func(r *bench.RecoveryReport) { r.LeftAlone[0].Replaced = true },
		"left alone for 120 s, and that must be 8m0s":  func(r *bench.RecoveryReport) { r.LeftAlone[0].Seconds = 120 },
		"see its pod deleted":                          func(r *bench.RecoveryReport) { r.LeftAlone[0].Terminating = nil },
	} {
		r := recovery()
		change(r)
		if _, err := deadNode(r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestReflow(t *testing.T) {
	long := strings.Repeat("word ", 40)
	for in, want := range map[string]string{
		"a\nb\n\n\n\nc\n":          "a b\n\nc\n",
		"# " + long + "\n":         "# " + strings.TrimSpace(long) + "\n",
		"| a |\n| b |\ntext\n":     "| a |\n| b |\ntext\n",
		"- a\n  b\n- c\n":          "- a b\n- c\n",
		"- " + long:                "- " + strings.TrimSpace(long[:23*5]) + "\n  " + strings.TrimSpace(long[23*5:]) + "\n",
		long[:23*5] + "word - b":   long[:23*5] + "word -\nb\n",
		long[:23*5] + "word 10. b": long[:23*5] + "word 10.\nb\n",
	} {
		if got := reflow(in); got != want {
			t.Errorf("%q gave %q, want %q", in, got, want)
		}
	}
}

// TestStoredValuesAreMedians: the page says so of all figures of the benches.
func TestStoredValuesAreMedians(t *testing.T) {
	reports, err := filepath.Glob("../../docs/performance/*.json")
	must(t, err)
	checked := 0
	for _, path := range reports {
		raw, err := os.ReadFile(path)
		must(t, err)
		var report bench.Report
		must(t, json.Unmarshal(raw, &report))
		for _, part := range report.Parts {
			for _, f := range part.Figures {
				for plane, value := range f.Value {
					if want := timeline.Median(f.Samples[plane]); len(f.Samples[plane]) == 0 || value != want {
						t.Errorf("%s: %s of %s is %v, and the median of %v is %v", filepath.Base(path), f.Name, plane, value, f.Samples[plane], want)
					}
					checked++
				}
			}
		}
	}
	if checked == 0 {
		t.Errorf("%q have no figure", reports)
	}
}
