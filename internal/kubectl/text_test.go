package kubectl

import (
	"strings"
	"testing"
	"time"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
)

// TestStepOrder: of a step, the first sentence comes first, then its danger and its command, and then the rest.
func TestStepOrder(t *testing.T) {
	p := &page{style: style{width: 60}}
	p.steps([]explain.Step{
		{Text: "Do it. It ends by itself.", Danger: "it is lost", Command: "kubectl get pods"},
		{Text: "Look. There is no command."},
	})
	const want = "Next      1. Do it.\n             Danger: it is lost\n             kubectl get pods\n             It ends by itself.\n          2. Look. There is no command.\n"
	if got := p.text.String(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// TestLongCause: on a terminal, a sentence that quotes a long error is cut in its middle, and whole elsewhere.
func TestLongCause(t *testing.T) {
	quote := strings.Repeat("wrapped by ", 60) + "the innermost error"
	f := diagnosis.Finding{Verdict: diagnosis.Blocked, Reason: "X", Summary: "the cause comes first: " + quote, Quote: quote}
	for width, cut := range map[int]bool{0: false, 80: true, 120: true, 200: true} {
		for _, wide := range []bool{false, true} {
			p := &page{style: style{width: width}, now: time.Now(), wide: wide}
			p.finding(&f, nil)
			text := strings.Join(strings.Fields(p.text.String()), " ")
			if whole := strings.Contains(text, f.Summary); whole == (cut && !wide) || !strings.Contains(text, "the cause comes first:") || !strings.Contains(text, "the innermost error (X)") {
				t.Errorf("at %d columns, wide %v:\n%s", width, wide, p.text.String())
			}
			if lines := strings.Count(p.text.String(), "\n"); cut && !wide && width >= 120 && lines > 3 {
				t.Errorf("at %d columns it has %d lines:\n%s", width, lines, p.text.String())
			}
		}
	}
}

// TestOwnWordsAreWhole: only what another component wrote is shortened, not what the answer says itself.
func TestOwnWordsAreWhole(t *testing.T) {
	own, after := "an earlier operation of the volume or its machine has not ended, so that the driver refuses: ", " (since noon or before)"
	quote := strings.Repeat("wrapped by ", 60) + "the innermost error"
	for _, width := range []int{80, 120, 200} {
		p := &page{style: style{width: width}}
		for _, f := range []diagnosis.Finding{
			{Reason: "X", Summary: own + quote + after, Quote: quote},
			{Reason: "X", Summary: own + strings.Repeat("all words are its own ", 40) + after},
			{Reason: "X", Summary: own + strings.Repeat("name", 100) + after, Quote: strings.Repeat("name", 100)},
		} {
			p.finding(&f, nil)
			text := strings.Join(strings.Fields(p.text.String()), " ")
			p.text.Reset()
			if !strings.Contains(text, own) || !strings.Contains(text, after) || strings.Contains(text, " ... ") != (strings.Contains(f.Quote, "wrapped")) {
				t.Errorf("at %d columns:\n%s", width, text)
			}
		}
	}
}

// TestMissingPermissions: permissions are one line, other errors and the wide form a list.
func TestMissingPermissions(t *testing.T) {
	unread := []diagnosis.Unread{
		{Ref: diagnosis.Ref{Resource: diagnosis.Nodes}, Verb: "list", Forbidden: true, Message: "forbidden"},
		{Ref: diagnosis.Ref{Resource: diagnosis.Volumes}, Verb: "list", Forbidden: true, Message: "forbidden"},
		{Ref: diagnosis.Ref{Resource: diagnosis.Pods, Namespace: "ns", Name: "a"}, Verb: "get", Forbidden: true, Message: "forbidden"},
		{Ref: diagnosis.Ref{Resource: diagnosis.Leases}, Verb: "list", Message: "connection refused"},
	}
	const missing = "You lack permission to list nodes, persistentvolumes; get pods/a in namespace ns: the answer may lack what these would show.\n"
	for wide, want := range map[bool][]string{
		false: {missing, "  list leases: connection refused\n"},
		true:  {"  list nodes: forbidden\n", "  get pods/a in namespace ns: forbidden\n", "  list leases: connection refused\n"},
	} {
		p := &page{wide: wide}
		p.unread(unread)
		for _, part := range want {
			if !strings.Contains(p.text.String(), part) {
				t.Errorf("wide %v: no %q in\n%s", wide, part, p.text.String())
			}
		}
		if strings.Contains(p.text.String(), "lack permission") == wide {
			t.Errorf("wide %v:\n%s", wide, p.text.String())
		}
	}
}
