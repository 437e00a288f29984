package demo

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/scenario"
	"belay.dev/belay/lab/timeline"
)

func result(plane string, reported time.Duration) *Result {
	move := &timeline.Move{
		Title: "placement", To: "node-1", Volume: timeline.Volume{Claim: "default/data-writer-0"},
		Steps: []timeline.Step{
			{Name: timeline.StepBound, Owner: "scheduler", Seen: true, Ended: 10 * time.Millisecond},
			{Name: timeline.StepReported, Owner: "controller", Seen: true, Ended: 10*time.Millisecond + reported},
		},
	}
	return &Result{
		Plane: plane, NodeKind: "belay", Seconds: 41,
		Steps:    []Step{{Move: move}, {Refused: &scenario.Refused{Node: "node-3", Pod: "default/intruder", Reason: "FailedAttachVolume", Message: "held"}}},
		Verified: &scenario.Verified{Acknowledged: 90, Count: 91},
		Answers:  []Answer{{Command: "kubectl belay explain pod/intruder", Output: plane + " BLOCKED\n", Status: 2}},
	}
}

func TestTextEndsWithComparisonAndSummary(t *testing.T) {
	var out bytes.Buffer
	show := &screen{out: &out}
	results := []*Result{result("belay", 20*time.Millisecond), result("upstream", 700*time.Millisecond)}
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
	for _, want := range []string{
		"belay's plane, placement: volume of default/data-writer-0, to node-1",
		"default/intruder on node-3 got the event\n  FailedAttachVolume: held",
		"700.0 ms      20.0 ms    35.0x",
		"all 90 acknowledged records verified (91 in place, chain intact), 0 forbidden writes",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output does not contain %q:\n%s", want, out.String())
		}
	}
	// Of the two runs, the first one's plane is the one that is shown.
	if end := "\n$ kubectl belay explain pod/intruder\nbelay BLOCKED\n"; !strings.HasSuffix(out.String(), end) {
		t.Errorf("the output does not end with %q:\n%s", end, out.String())
	}
}

func TestJSONIsOneDocument(t *testing.T) {
	var out bytes.Buffer
	show := &screen{out: &out, json: true}
	r := result("belay", 20*time.Millisecond)
	for _, step := range r.Steps {
		if err := show.move(r.Plane, step); err != nil {
			t.Fatal(err)
		}
	}
	if err := show.end([]*Result{r}, time.Minute); err != nil {
		t.Fatal(err)
	}
	var got report
	decoder := json.NewDecoder(&out)
	if err := decoder.Decode(&struct {
		Results *[]json.RawMessage `json:"results"`
		*report
	}{report: &got}); err != nil {
		t.Fatal(err)
	}
	if err := decoder.Decode(&struct{}{}); err != io.EOF {
		t.Errorf("something follows the document: %v", err)
	}
	if got.Seconds != 60 {
		t.Errorf("got %v seconds, want 60", got.Seconds)
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
		"compare with one plane": {args: []string{"--compare", "--upstream"}, want: "leave --upstream out"},
	} {
		t.Run(name, func(t *testing.T) {
			command := Command()
			command.SetArgs(tc.args)
			command.SilenceErrors = true
			var printed strings.Builder
			command.SetOut(&printed)
			command.SetErr(&printed)
			err := command.ExecuteContext(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.want) || usage.Status(err) != usage.StatusWrong || printed.Len() > 0 {
				t.Errorf("got %v after %q, want a refusal with %q after nothing", err, printed.String(), tc.want)
			}
		})
	}
}
