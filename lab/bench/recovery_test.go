package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labtest"
)

// movedWithin bounds a recovery with the profile fast on a machine that has other work: the target of 15 s is for one that has none.
const movedWithin = 40 * time.Second

func executeRecovery(ctx context.Context, out, progress io.Writer, args ...string) error {
	command := Command()
	command.SetArgs(append([]string{"recovery"}, args...))
	command.SetOut(out)
	command.SetErr(progress)
	command.SilenceErrors = true
	return command.ExecuteContext(ctx)
}

func needsFencing(t *testing.T) {
	t.Helper()
	labtest.Needs(t)
	if testing.Short() {
		t.Skip("NOT RUN: make demo shows a power cut; the rest belongs to the long tests")
	}
	if !cluster.CanFence() {
		t.Skip("NOT RUN: ipmi_sim, ipmitool or fence_ipmilan is missing: run hack/install-packages")
	}
}

func TestRecoveryCommandLine(t *testing.T) {
	for _, args := range [][]string{{"--runs=-1"}, {"-o", "yaml"}, {"--nodes", "hollow"}, {"--faults", "flood"}, {"--profiles", "slow"}, {"--planes", "floor"}} {
		if err := executeRecovery(t.Context(), io.Discard, io.Discard, args...); usage.Status(err) != usage.StatusWrong {
			t.Errorf("%v gave %v", args, err)
		}
	}
}

// TestRecovery: a StatefulSet's pod writes again elsewhere after its node lost its power, and after it hung, with nothing but the node's
// BMC as evidence; with real kubelets and with belay's nodes, with belay's attach/detach controller and beside upstream's.
// BELAY_RECOVERY_RUNS is how often (1).
func TestRecovery(t *testing.T) {
	needsFencing(t)
	kinds := []string{cluster.NodeKindBelay}
	if kind, because := cluster.DefaultNodeKind(); kind == cluster.NodeKindKubelet {
		kinds = append(kinds, kind)
	} else {
		t.Log("NOT RUN with kubelets: " + because)
	}
	runs := labtest.Number(t, "BELAY_RECOVERY_RUNS", 1)
	var out bytes.Buffer
	err := executeRecovery(t.Context(), &out, t.Output(), "--name", "bench-recover", "--runs", strconv.Itoa(runs), "--upstream-runs", "0", "--upstream-wait", "0",
		"--profiles", "fast", "--planes", "belay,upstream", "--nodes", strings.Join(kinds, ","), "--no-targets", "-o", "json")
	must(t, err)
	assertGone(t, "bench-recover")
	var report RecoveryReport
	must(t, json.Unmarshal(out.Bytes(), &report))
	must(t, report.write(t.Output(), "text"))
	if len(report.Series) != 4*len(kinds) {
		t.Errorf("there are %d series", len(report.Series))
	}
	for _, s := range report.Series {
		if len(s.Runs) != runs || s.Failures > 0 || s.Total.Max > movedWithin.Seconds() {
			t.Errorf("%s: %d failures, at most %.1f s", s.title(), s.Failures, s.Total.Max)
		}
		hops := len(s.Hops)
		if s.Fault == FaultPowerCut {
			hops++ // no command is sent to a machine that is off
		}
		if hops != 11 {
			t.Errorf("%s: hops are missing: %+v", s.title(), s.Hops)
		}
	}
}

// TestFailedRecoveryIsNotStored: `make bench-recovery` stores what it gets as JSON. The text of a bench that failed has what there is.
func TestFailedRecoveryIsNotStored(t *testing.T) {
	report, failed := &RecoveryReport{Machine: "2 processors", Series: []*RecoverySeries{{Nodes: "kubelet", Fault: FaultHung}}}, errors.New("no lab")
	for _, tt := range []struct {
		output  string
		failed  error
		written bool
	}{{"json", failed, false}, {"text", failed, true}, {"json", nil, true}} {
		var out bytes.Buffer
		if err := (recoveryOptions{output: tt.output}).end(report, tt.failed, &out); !errors.Is(err, tt.failed) {
			t.Errorf("%s of a bench that ended with %v ended with %v", tt.output, tt.failed, err)
		}
		if written := strings.Contains(out.String(), FaultHung); written != tt.written {
			t.Errorf("%s of a bench that ended with %v wrote %q", tt.output, tt.failed, out.String())
		}
	}
}

// TestRecoveryInterrupted ends the bench while a node hangs.
func TestRecoveryInterrupted(t *testing.T) {
	needsFencing(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hangs := &signalWriter{out: t.Output(), word: "hangs", signal: cancel}
	err := executeRecovery(ctx, io.Discard, hangs, "--name", "bench-hung", "--nodes", "belay", "--profiles", "fast", "--faults", "hung", "--runs", "1")
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "the bench was stopped") {
		t.Errorf("it ended with %v", err)
	}
	assertGone(t, "bench-hung")
}
