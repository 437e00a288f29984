package labdisk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/drivercheck"
)

// settle is longer than any delay in these tests.
const settle = 3 * time.Second

// untilRight does something up to five times, until it returns that nothing is wrong: a machine that is busy may not send a call by its
// deadline, or not look before the delay of a fault is over. What is wrong for good fails the test at once.
func untilRight(t *testing.T, try func() (wrong string, forGood bool)) {
	t.Helper()
	for left := 4; ; left-- {
		wrong, forGood := try()
		switch {
		case wrong == "":
			return
		case forGood || left == 0:
			t.Fatal(wrong)
		}
		t.Logf("once more: %s", wrong)
	}
}

type checkCase struct {
	fault  Fault
	broken []string // the calls with which the order is broken
	err    error
}

// TestCheckDriver: the check that authors of drivers run finds a driver that carries out calls out of order, and no other.
func TestCheckDriver(t *testing.T) {
	for name, test := range map[string]checkCase{
		"fast":                     {err: drivercheck.ErrNothingShown},
		"late, and in order":       {fault: Fault{Effect: EffectLate, Delay: 2 * time.Second}},
		"loses its answers":        {fault: Fault{Effect: EffectLostReply, Count: 2}},
		"overtakes a publish":      {fault: Fault{Effect: EffectDisorder, Delay: 2 * time.Second, Method: "ControllerPublishVolume", Count: 1}, broken: []string{"publish"}},
		"overtakes an unpublish":   {fault: Fault{Effect: EffectDisorder, Delay: 2 * time.Second, Method: "ControllerUnpublishVolume", Count: 3}, broken: []string{"unpublish"}},
		"is busy with a hung call": {fault: Fault{Effect: EffectHang, Count: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it mostly waits
			untilRight(t, func() (string, bool) { return test.check(t) })
		})
	}
}

// check runs the check, and says what is wrong with its result. An order that it finds broken, and that was kept, is wrong for good.
func (test checkCase) check(t *testing.T) (wrong string, forGood bool) {
	t.Helper()
	b := newBench(t, false)
	volume := b.newDisk(DriverDisk, "pvc-1")
	client, socket := b.serveSocket()
	if test.fault.Effect != "" {
		test.fault.Driver = DriverDisk
		if test.fault.Method == "" {
			test.fault.Method = "ControllerPublishVolume"
		}
		if _, err := client.SetFault(t.Context(), test.fault); err != nil {
			t.Fatal(err)
		}
	}
	driver, err := drivercheck.Dial(t.Context(), "unix://"+socket, time.Minute)
	if err != nil {
		return err.Error(), false
	}
	defer driver.Close()
	deadline := 500 * time.Millisecond
	if test.err != nil {
		deadline = time.Minute
	}
	rounds, err := drivercheck.Run(t.Context(), driver, drivercheck.Options{
		Volume: volume, Node: "n1", Mode: corev1.ReadWriteOnce, Deadlines: []time.Duration{deadline}, Settle: settle, Timeout: time.Minute, Progress: t.Logf,
	})
	var broken []string
	for _, r := range rounds {
		if r.Verdict == drivercheck.Broken {
			broken = append(broken, r.Call)
			forGood = forGood || !slices.Contains(test.broken, r.Call)
		}
	}
	if diff := cmp.Diff(test.broken, broken); diff != "" {
		return fmt.Sprintf("broken with (-want +got):\n%s%+v, %v", diff, rounds, err), forGood
	}
	if !errors.Is(err, test.err) {
		return fmt.Sprintf("%v, want %v", err, test.err), false
	}
	if held := b.attachments(); len(held) > 0 {
		return fmt.Sprintf("the volume is left published: %v", held), true
	}
	return "", false
}

// runCheck runs "check-driver" for a volume and node n1, and returns what it prints.
func runCheck(t *testing.T, socket, volume string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	command := drivercheck.Command()
	command.SilenceErrors, command.SilenceUsage = true, true
	command.SetOut(&out)
	command.SetErr(io.Discard)
	command.SetArgs(append([]string{"--endpoint", socket, "--volume", volume, "--node-id", "n1", "--settle", settle.String()}, args...))
	err := command.ExecuteContext(t.Context())
	return out.String(), err
}

// A call that ends before it is sent shows nothing about the driver.
func TestCheckDriverCountsCallsThatWereSent(t *testing.T) {
	b := newBench(t, false)
	_, socket := b.serveSocket()
	out, err := runCheck(t, "unix://"+socket, b.newDisk(DriverDisk, "pvc-1"), "--deadline", "1ns")
	if !errors.Is(err, drivercheck.ErrNothingShown) || strings.Contains(out, "kept") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A volume that any node uses is left alone.
func TestCheckDriverRefusesUsedVolume(t *testing.T) {
	b := newBench(t, true)
	_, socket := b.serveSocket()
	volume := b.newDisk(DriverDisk, "pvc-1")
	b.mustAttach(wantedAttachment{Driver: DriverDisk, Volume: volume, Node: "n2"})
	out, err := runCheck(t, "unix://"+socket, volume)
	if err == nil || !strings.Contains(err.Error(), "published to node n2") || out != "" {
		t.Errorf("%v, printed %q", err, out)
	}
	for _, c := range b.record.callsSince(time.Time{}) {
		if c.attaches() {
			t.Errorf("%s was called", c.Method)
		}
	}
}

// A publish that the driver would refuse cannot take effect too late.
func TestCheckDriverCountsPublishesThatAreAccepted(t *testing.T) {
	untilRight(t, func() (wrong string, forGood bool) {
		b := newBench(t, false)
		client, socket := b.serveSocket()
		for _, f := range []Fault{{Effect: EffectHang, Count: 1}, {Effect: EffectError, Code: "FailedPrecondition"}} {
			f.Method = "ControllerPublishVolume"
			if _, err := client.SetFault(t.Context(), f); err != nil {
				t.Fatal(err)
			}
		}
		out, err := runCheck(t, "unix://"+socket, b.newDisk(DriverDisk, "pvc-1"), "--deadline", "500ms")
		counted := strings.Contains(out, "kept")
		if err == nil || counted || !strings.Contains(out, "publish  500ms     true       0                    nothing shown") {
			return fmt.Sprintf("%v\n%s", err, out), counted
		}
		return "", false
	})
}

func TestCheckDriverWithoutDriver(t *testing.T) {
	for endpoint, status := range map[string]int{"unix:///nonexist": usage.StatusFailed, "foo": usage.StatusWrong, "unix://": usage.StatusWrong, "dns:///foo": usage.StatusWrong} {
		began := time.Now()
		out, err := runCheck(t, endpoint, "v", "--timeout", "3s")
		if err == nil || usage.Status(err) != status || out != "" {
			t.Errorf("%s: %v (%T), exit status %d, printed %q", endpoint, err, err, usage.Status(err), out)
		}
		if took := time.Since(began); took > 2*time.Minute {
			t.Errorf("%s: took %v with --timeout 3s", endpoint, took)
		}
	}
}

func TestCheckDriverAsJSON(t *testing.T) {
	for name, test := range map[string]struct {
		fault           Fault
		verdict, reason string
	}{
		"kept":          {fault: Fault{Effect: EffectLate, Delay: 2 * time.Second, Count: 1}, verdict: "kept"},
		"broken":        {fault: Fault{Effect: EffectDisorder, Delay: 2 * time.Second, Count: 1}, verdict: "broken", reason: "took effect"},
		"nothing shown": {fault: Fault{Effect: EffectError, Code: "Internal", Count: 1}, verdict: "nothing shown", reason: "answered with an error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it mostly waits
			untilRight(t, func() (wrong string, forGood bool) {
				b := newBench(t, false)
				client, socket := b.serveSocket()
				test.fault.Method = "ControllerPublishVolume"
				if _, err := client.SetFault(t.Context(), test.fault); err != nil {
					t.Fatal(err)
				}
				out, err := runCheck(t, "unix://"+socket, b.newDisk(DriverDisk, "pvc-1"), "--deadline", "500ms", "--output", "json")
				var got struct {
					Verdict string
					Rounds  []struct{ Call, Deadline, Verdict, Reason string }
				}
				if err := errors.Join(json.Unmarshal([]byte(out), &got), err); len(got.Rounds) == 0 {
					return fmt.Sprintf("%v: %s", err, out), false
				}
				if r := got.Rounds[0]; (err == nil) != (name == "kept") || got.Verdict != test.verdict || r.Verdict != test.verdict ||
					r.Deadline != "500ms" || !strings.Contains(r.Reason, test.reason) {
					return fmt.Sprintf("got %+v, %v", got, err), got.Verdict == "broken" && name != "broken"
				}
				return "", false
			})
		})
	}
}
