package demo

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/scenario"
	"belay.dev/belay/lab/timeline"
)

func result(plane string, reported time.Duration) *Result {
	placement := &timeline.Move{
		Title: "placement", To: "node-1", Volume: timeline.Volume{Claim: "default/data-writer-0"},
		Steps: []timeline.Step{
			{Name: timeline.StepBound, Owner: "scheduler", Seen: true, Ended: 10 * time.Millisecond},
			{Name: timeline.StepReported, Owner: "controller", Seen: true, Ended: 10*time.Millisecond + reported},
		},
	}
	r := &Result{
		Plane: plane, NodeKind: "kubelet", Seconds: 41,
		Steps: []Step{{Move: placement}, {Move: drained(0)}, {Refused: &scenario.Refused{
			Node: "node-3", Pod: "default/intruder", Reason: "FailedAttachVolume", Message: "held", Holder: "writer-0 on node-2", Seconds: 0.3,
		}}, {Move: cut()}},
		Verified: &scenario.Verified{Acknowledged: 90, Count: 91},
		Answers:  []Answer{{Command: "kubectl belay explain pod/intruder", Output: plane + " BLOCKED\n", Status: 2}},
	}
	if plane == "belay" {
		r.Recovery = "fast"
	}
	r.Outcomes = r.outcomes()
	return r
}

// chain is a move whose steps follow one another: each takes the time given, in milliseconds.
func chain(title string, steps ...timeline.Step) *timeline.Move {
	move := &timeline.Move{Title: title, From: "node-1", To: "node-2", Volume: timeline.Volume{Claim: "default/data-writer-0"}}
	var now time.Duration
	for _, step := range steps {
		took := time.Duration(step.Ended.Nanoseconds()) * time.Millisecond // they are given in milliseconds
		step.Seen, step.Began, step.Ended = true, now, now+took
		now = step.Ended
		move.Steps = append(move.Steps, step)
	}
	return move
}

// drained is a move with two things at once: the volume is reported while the kubelet's status tick is still awaited.
func drained(later time.Duration) *timeline.Move {
	move := chain(TitleDrain,
		timeline.Step{Name: timeline.StepPodDeleted, Owner: "user", Ended: 20},
		timeline.Step{Name: timeline.StepEnded, Owner: "node", Ended: 1600},
		timeline.Step{Name: timeline.StepPodGone, Owner: "node", Ended: 700 + later},
		timeline.Step{Name: timeline.StepPodCreated, Owner: "workload", Ended: 30},
		timeline.Step{Name: timeline.StepBound, Owner: "scheduler", Ended: 50},
		timeline.Step{Name: timeline.StepVACreated, Owner: "controller", Ended: 40},
		timeline.Step{Name: timeline.StepAttached, Owner: "attacher", Ended: 60},
	)
	bound := move.Step(timeline.StepBound).Ended
	staged := bound + 800*time.Millisecond
	move.Steps = append(move.Steps,
		timeline.Step{Name: timeline.StepInUse, Owner: "node", Seen: true, Began: bound, Ended: staged},
		timeline.Step{Name: timeline.StepRunning, Owner: "node", Seen: true, Began: staged, Ended: staged + 500*time.Millisecond})
	return move
}

func cut() *timeline.Move {
	return chain(titleCut,
		timeline.Step{Name: timeline.StepOutOfService, Owner: "recovery", Ended: 10500},
		timeline.Step{Name: timeline.StepPodDeleted, Owner: "taint eviction", Ended: 40},
		timeline.Step{Name: timeline.StepPodGone, Owner: "recovery", Ended: 300},
		timeline.Step{Name: timeline.StepVACreated, Owner: "controller", Ended: 20},
		timeline.Step{Name: timeline.StepInUse, Owner: "node", Ended: 900},
		timeline.Step{Name: timeline.StepRunning, Owner: "node", Ended: 340},
	)
}

// play gives a screen all steps and the end of some runs.
func play(t *testing.T, show *screen, results ...*Result) {
	t.Helper()
	for _, r := range results {
		for _, step := range r.Steps {
			if err := show.move(r.Plane, step); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := show.end(results, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := show.close(); err != nil {
		t.Fatal(err)
	}
}

func TestOutcomesDivideTheTimeAmongTheStepsThatWereWaitedFor(t *testing.T) {
	want := []Outcome{
		{
			Happened: "node drained", Saw: "pod ran elsewhere", Seconds: 3.7, Moves: 1, PlaneSeconds: 0.1,
			Waits: []Wait{
				{"containers end", 1.6},
				{"kubelet's status tick", 0.8},
				{"node removes the pod", 0.7},
				{"containers start", 0.5},
				{"scheduler", 0.05},
				{"workload replaces the pod", 0.03},
				{"pod is deleted", 0.02},
			},
		},
		{Happened: "second pod wants the volume", Saw: "refused", Seconds: 0.3, Moves: 1, Holder: "writer-0 on node-2 uses it"},
		{
			Happened: "node lost its power", Saw: "pod ran elsewhere", Seconds: 12.1, Moves: 1, PlaneSeconds: 0.02,
			Waits: []Wait{
				{"silence and proof of power-off", 10.5},
				{"kubelet's status tick", 0.9},
				{"containers start", 0.34},
				{"recovery removes the pod", 0.3},
				{"pod is deleted", 0.04},
				{"belay's controller and attacher", 0.02},
			},
		},
	}
	if diff := cmp.Diff(want, result("belay", 20*time.Millisecond).Outcomes, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}

func TestOutcomeOfSeveralMovesIsTheMedianOne(t *testing.T) {
	r := &Result{Plane: "belay", NodeKind: "kubelet", Steps: []Step{{Move: drained(500)}, {Move: drained(0)}, {Move: drained(100)}}}
	got := r.outcomes()
	if len(got) != 1 || got[0].Moves != 3 || got[0].Seconds != 3.8 {
		t.Errorf("got %+v, want the move of 3.8 s, of 3", got)
	}
}

// TestMedianOfTwo: the middle of two moves lies between them, and so do its parts.
func TestMedianOfTwo(t *testing.T) {
	one := func(later ...time.Duration) Outcome {
		r := &Result{Plane: "belay", NodeKind: "kubelet"}
		for _, by := range later {
			r.Steps = append(r.Steps, Step{Move: drained(by)})
		}
		return r.outcomes()[0]
	}
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
	fast, slow, both := one(0), one(5000), one(5000, 0)
	if both.Moves != 2 || !near(both.Seconds, (fast.Seconds+slow.Seconds)/2) || !near(both.PlaneSeconds, fast.PlaneSeconds) {
		t.Errorf("%s: %.1f s, of %.1f and %.1f s", both.what(), both.Seconds, fast.Seconds, slow.Seconds)
	}
	sum := 0.0
	for _, wait := range both.Waits {
		sum += wait.Seconds
	}
	if !near(sum, both.Seconds) {
		t.Errorf("the waits are %v, which is %.3f s of %.3f s", both.Waits, sum, both.Seconds)
	}
}

func TestWaitsOfAPowerCutWithoutRecovery(t *testing.T) {
	r := &Result{Plane: "upstream", NodeKind: "belay", Steps: []Step{{Move: chain(titleCut,
		timeline.Step{Name: timeline.StepNotReady, Owner: "node lifecycle", Ended: 17000},
		timeline.Step{Name: timeline.StepOutOfService, Owner: "operator", Ended: 30},
		timeline.Step{Name: timeline.StepPodGone, Owner: "pod GC", Ended: 20000},
		timeline.Step{Name: timeline.StepReported, Owner: "controller", Ended: 700},
		timeline.Step{Name: timeline.StepInUse, Owner: "node", Ended: 10},
		timeline.Step{Name: timeline.StepRunning, Owner: "node", Ended: 100},
	)}}}
	var got []string
	for _, wait := range r.outcomes()[0].Waits {
		got = append(got, wait.For)
	}
	want := []string{
		"pod GC removes the pod", "node counts as NotReady", "upstream's controller and attacher", "containers start", "out-of-service taint",
		"node publishes volumesInUse",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
}

func TestTextEndsWithTheResult(t *testing.T) {
	t.Setenv("BELAY_CACHE", t.TempDir())
	var out bytes.Buffer
	show, err := options{name: "demo", output: "text"}.newScreen(&out)
	if err != nil {
		t.Fatal(err)
	}
	show.notShown = options{}.notShown([]cluster.Missing{{Part: cluster.PartRecovery, Programs: []string{"ipmitool"}, Packages: []string{"ipmitool"}}})
	play(t, show, result("belay", 20*time.Millisecond))
	want := `
RESULT with belay's plane on kubelet nodes

WHAT HAPPENED                WHAT THE USER SAW               WAITED LONGEST FOR                     CONTROLLER AND ATTACHER
node drained                 pod ran elsewhere after 3.7 s   containers end 1.6 s                   0.10 s
                                                             kubelet's status tick 0.80 s
                                                             node removes the pod 0.70 s
second pod wants the volume  refused after 0.30 s            writer-0 on node-2 uses it             -
node lost its power          pod ran elsewhere after 12.1 s  silence and proof of power-off 10.5 s  0.02 s
                                                             kubelet's status tick 0.90 s
                                                             containers start 0.34 s

The event of the second pod: FailedAttachVolume: held

Two waits are shortened: kubelets publish their status every 1 s (default: 10 s), a silent node becomes NotReady after 16 s (default: 50 s).
With default kubelets a drain takes longer: docs/performance.md#the-kubelets-status-tick.
Recovery runs with the profile fast: it suspects a node after 10 s of silence (profile default: 25 s).
Each step of the moves, and what kubectl belay says of them: ` + show.file + ` (or --verbose).

NOT SHOWN: recovery
  recovery: needs ipmitool (package ipmitool). Instead, the demo sets the out-of-service taint, as an operator does. To see it, run hack/install-packages.

belay's plane on kubelet nodes: all 90 acknowledged records verified (91 in place, chain intact), 0 forbidden writes, 41 s
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

// details are the charts and answers that are printed with --verbose, and else are in the file.
var details = []string{
	"belay's plane, placement: volume of default/data-writer-0, to node-1",
	"belay's plane, move 1, drain: volume of default/data-writer-0, node-1 -> node-2",
	"default/intruder on node-3 got the event\n  FailedAttachVolume: held",
	"\n$ kubectl belay explain pod/intruder\nbelay BLOCKED\n",
}

func TestDetailsAreInAFileThatTheNextRunOverwrites(t *testing.T) {
	t.Setenv("BELAY_CACHE", t.TempDir())
	for _, plane := range []string{"upstream", "belay"} {
		var out bytes.Buffer
		show, err := options{name: "demo", output: "text"}.newScreen(&out)
		if err != nil {
			t.Fatal(err)
		}
		play(t, show, result(plane, 20*time.Millisecond))
		content, err := os.ReadFile(show.file)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range details {
			if strings.Contains(out.String(), want) {
				t.Errorf("the output contains %q:\n%s", want, out.String())
			}
			if want = strings.ReplaceAll(want, "belay's", plane+"'s"); plane == "belay" && !strings.Contains(string(content), want) {
				t.Errorf("the file does not contain %q:\n%s", want, content)
			}
		}
		if plane == "belay" && strings.Contains(string(content), "upstream's plane") {
			t.Errorf("the file contains the run before:\n%s", content)
		}
	}
}

func TestDetailsOfAFailedRunAreNamed(t *testing.T) {
	t.Setenv("BELAY_CACHE", t.TempDir())
	show, err := options{name: "demo", output: "text"}.newScreen(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if got := show.written(); got != "" {
		t.Errorf("before the first step there are details in %q", got)
	}
	if err := show.move("belay", Step{Move: drained(0)}); err != nil {
		t.Fatal(err)
	}
	if got := show.written(); got != show.file {
		t.Errorf("after the first step the details are in %q, want %q", got, show.file)
	}
	if err := show.close(); err != nil {
		t.Error(err)
	}
}

func TestVerbosePrintsTheDetailsBeforeTheResult(t *testing.T) {
	t.Setenv("BELAY_CACHE", t.TempDir())
	var out bytes.Buffer
	show, err := options{name: "demo", output: "text", verbose: true}.newScreen(&out)
	if err != nil {
		t.Fatal(err)
	}
	play(t, show, result("belay", 20*time.Millisecond))
	end := strings.Index(out.String(), "\nRESULT with belay's plane")
	for _, want := range details {
		if at := strings.Index(out.String(), want); at < 0 || at > end {
			t.Errorf("%q is not before the result:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "--verbose") {
		t.Errorf("the output names a file:\n%s", out.String())
	}
	if left, err := filepath.Glob(filepath.Join(os.Getenv("BELAY_CACHE"), "*")); err != nil || len(left) > 0 {
		t.Errorf("the cache folder has %v, %v", left, err)
	}
}

func TestComparisonBeginsWithWhatAUserFeels(t *testing.T) {
	var out bytes.Buffer
	show := &screen{out: &out, details: io.Discard}
	play(t, show, result("belay", 20*time.Millisecond), result("upstream", 700*time.Millisecond))
	rest := out.String()
	for _, want := range []string{
		"RESULT with belay's plane", "RESULT with upstream's plane",
		"WHAT A USER FEELS                             UPSTREAM  BELAY\n",
		"node drained: pod ran elsewhere after         3.7 s     3.7 s\n",
		"second pod wants the volume: refused after    0.30 s    0.30 s\n",
		"On upstream's plane no recovery runs",
		"700.0 ms      20.0 ms    35.0x",
		"Two waits are shortened",
		"belay's plane on kubelet nodes: all 90 acknowledged records verified (91 in place, chain intact), 0 forbidden writes, 41 s\n" +
			"upstream's plane on kubelet nodes: all 90",
	} {
		_, after, found := strings.Cut(rest, want)
		if !found {
			t.Fatalf("the output does not contain %q, or not in this order:\n%s", want, out.String())
		}
		rest = after
	}
	if strings.Count(rest, "\n") != 1 {
		t.Errorf("lines follow the records: %q", rest)
	}
}

func TestJSONIsOneDocument(t *testing.T) {
	var out bytes.Buffer
	show := &screen{out: &out, json: true, notShown: []NotShown{{Part: cluster.PartKubelets}}}
	play(t, show, result("belay", 20*time.Millisecond))
	var got report
	decoder := json.NewDecoder(&out)
	if err := decoder.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if err := decoder.Decode(&struct{}{}); err != io.EOF {
		t.Errorf("something follows the document: %v", err)
	}
	if got.Seconds != 60 || len(got.NotShown) != 1 || len(got.Results) != 1 || len(got.Results[0].Outcomes) != 3 {
		t.Errorf("got %+v, want 60 seconds, a part that is not shown, and three outcomes", got)
	}
}

func TestNotShown(t *testing.T) {
	all := []cluster.Missing{
		{Part: cluster.PartRecovery, Programs: []string{"ipmi_sim", "ipmitool"}, Packages: []string{"openipmi", "ipmitool"}},
		{Part: cluster.PartKubelets, Programs: []string{"runc"}, Packages: []string{"runc"}},
	}
	for name, tc := range map[string]struct {
		o       options
		missing []cluster.Missing
		want    string
	}{
		"all is shown": {},
		"programs are missing": {missing: all, want: `NOT SHOWN: recovery, kubelets
  recovery: needs ipmi_sim, ipmitool (packages openipmi, ipmitool). Instead, the demo sets the out-of-service taint, as an operator does. To see it, run hack/install-packages.
  kubelets: needs runc (package runc). Instead, the nodes run belay-node, and processes in place of containers. To see it, run hack/install-packages.
`},
		"not asked for": {o: options{upstream: true, nodes: "belay"}, missing: all, want: `NOT SHOWN: recovery, kubelets
  recovery: upstream's plane has none. Instead, the demo sets the out-of-service taint, as an operator does. To see it, leave --upstream out.
  kubelets: --nodes belay. Instead, the nodes run belay-node, and processes in place of containers. To see it, leave --nodes out.
`},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if err := writeNotShown(&out, tc.o.notShown(tc.missing)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("block (-want +got):\n%s", diff)
			}
		})
	}
}

// bare is a machine without any program but for what /usr/sbin has, such as runc, and with an empty cache folder.
func bare(t *testing.T) (cache string) {
	t.Helper()
	cache = t.TempDir()
	t.Setenv("BELAY_CACHE", cache)
	t.Setenv("BELAY_BIN", t.TempDir())
	t.Setenv("PATH", t.TempDir())
	return cache
}

func runCommand(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	command := Command()
	command.SetArgs(args)
	command.SilenceErrors = true
	var out, progress strings.Builder
	command.SetOut(&out)
	command.SetErr(&progress)
	err = command.ExecuteContext(t.Context())
	return out.String(), progress.String(), err
}

func TestRequireAllRefusesBeforeStart(t *testing.T) {
	cache := bare(t)
	stdout, stderr, err := runCommand(t, "--require-all")
	if err == nil || usage.Status(err) != usage.StatusFailed || stdout+stderr != "" {
		t.Fatalf("got %v after %q and %q, want a refusal with status 1 after nothing", err, stdout, stderr)
	}
	for _, want := range []string{
		"recovery needs ipmi_sim, ipmitool", "kubelets needs containerd", "run hack/install-packages",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the refusal does not contain %q: %v", want, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(cache, "*")); err != nil || len(left) > 0 {
		t.Errorf("the cache folder has %v, %v", left, err)
	}
}

func TestWhatIsNotShownIsPrintedFirst(t *testing.T) {
	bare(t)
	stdout, stderr, err := runCommand(t)
	if err == nil || stdout != "" {
		t.Fatalf("got %v after %q, want an error of a demo without programs", err, stdout)
	}
	if !strings.HasPrefix(stderr, "NOT SHOWN: recovery, kubelets\n") {
		t.Errorf("the progress begins with %q", stderr)
	}
}

func TestInvalidFlagsAreRefusedBeforeStart(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"unknown output":         {args: []string{"-o", "yaml"}, want: "text or json"},
		"no rounds":              {args: []string{"--rounds", "0"}, want: "--rounds must be at least 1, not 0"},
		"fewer rounds than none": {args: []string{"--rounds", "-2"}, want: "--rounds must be at least 1, not -2"},
		"unknown kind of nodes":  {args: []string{"--nodes", "foo"}, want: `--nodes must be kubelet or belay, not "foo"`},
		"no name":                {args: []string{"--name", ""}, want: `--name is "", but must be 1 to 32 lower-case letters`},
		"all without recovery":   {args: []string{"--require-all", "--upstream"}, want: "leave --upstream out"},
		"all without kubelets":   {args: []string{"--require-all", "--nodes", "belay"}, want: "leave --nodes belay out"},
		"verbose JSON":           {args: []string{"--verbose", "-o", "json"}, want: "leave --verbose out"},
		"compare with one plane": {args: []string{"--compare", "--upstream"}, want: "leave --upstream out"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, err := runCommand(t, tc.args...)
			if err == nil || !strings.Contains(err.Error(), tc.want) || usage.Status(err) != usage.StatusWrong || stdout+stderr != "" {
				t.Errorf("got %v after %q, want a refusal with %q after nothing", err, stdout+stderr, tc.want)
			}
		})
	}
}
