package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

func TestCommandLine(t *testing.T) {
	for _, args := range [][]string{{"--only", "speed"}, {"-o", "yaml"}, {"--rounds=-1"}} {
		err := execute(t.Context(), io.Discard, io.Discard, args...)
		if err == nil || usage.Status(err) != usage.StatusWrong {
			t.Errorf("%v gave %v", args, err)
		}
	}
	chosen, err := options{parts: controllerParts(), name: "bench", output: "text", only: []string{"scale", "latency"}}.check()
	if err != nil || len(chosen) != 2 || chosen[0].name != "latency" {
		t.Errorf("chosen: %v, %v", chosen, err)
	}
}

func execute(ctx context.Context, out, progress io.Writer, args ...string) error {
	command := Command()
	command.SetArgs(append([]string{"controller"}, args...))
	command.SetOut(out)
	command.SetErr(progress)
	command.SilenceErrors = true
	return command.ExecuteContext(ctx)
}

// assertGone checks that nothing of the bench's lab is on the machine.
func assertGone(t *testing.T, name string) {
	t.Helper()
	if labs, err := cluster.Labs(); err != nil || strings.Contains(" "+strings.Join(labs, " ")+" ", " "+name+" ") {
		t.Errorf("labs that are left: %v, %v", labs, err)
	}
	cache, err := cluster.CacheDir()
	must(t, err)
	if left := scenario.LeftOnMachine(cache + "/labs/" + name); len(left) > 0 {
		t.Errorf("the bench left on the machine:\n%s", strings.Join(left, "\n"))
	}
}

// TestController runs all parts at small sizes: each figure is there for each plane that has it.
// Targets are for a machine that has nothing else to do.
func TestController(t *testing.T) {
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: the bench belongs to the long tests")
	}
	var out bytes.Buffer
	if err := execute(t.Context(), &out, t.Output(), "--quick", "--no-targets", "--name", "bench-quick", "-o", "json"); err != nil {
		t.Fatal(err)
	}
	assertGone(t, "bench-quick")
	var report Report
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	if err := report.writeText(t.Output()); err != nil {
		t.Error(err)
	}
	if len(report.Parts) != len(controllerParts()) {
		t.Errorf("there are %d parts", len(report.Parts))
	}
	for _, part := range report.Parts {
		for _, figure := range part.Figures {
			for _, plane := range planes() {
				if len(figure.Samples[plane]) == 0 && part.Name+" "+plane != "scale "+planeFloor && part.Name+" "+plane != "shared "+planeUpstream {
					t.Errorf("%s: %s was not measured for %s", part.Name, figure.Name, plane)
				}
			}
		}
	}
}

// TestInterrupted ends the bench in the middle of its work, as Ctrl-C does.
func TestInterrupted(t *testing.T) {
	labtest.Needs(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	atWork := &signalWriter{out: t.Output(), word: "making", signal: cancel}
	err := execute(ctx, io.Discard, atWork, "--quick", "--only", "burst", "--name", "bench-ended")
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "the bench was stopped") {
		t.Errorf("it ended with %v", err)
	}
	assertGone(t, "bench-ended")
}

// signalWriter tells when a word is written.
type signalWriter struct {
	out    io.Writer
	word   string
	once   sync.Once
	signal func()
}

func (w *signalWriter) Write(p []byte) (int, error) {
	if strings.Contains(string(p), w.word) {
		w.once.Do(w.signal)
	}
	return w.out.Write(p)
}
