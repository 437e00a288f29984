package kubectl

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"belay.dev/belay/internal/explain"
)

// offline runs a command that needs no cluster.
func offline(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	var b bytes.Buffer
	c := NewCommand(genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &b, ErrOut: &b}, "test")
	c.SetArgs(args)
	err = c.ExecuteContext(t.Context())
	return b.String(), err
}

// TestRunbookOfEachReason: the section is plain text that fits on a terminal, but for its commands, and the list has each reason.
func TestRunbookOfEachReason(t *testing.T) {
	list, err := offline(t, "runbook")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range explain.Guides() {
		out, err := offline(t, "runbook", string(r))
		title := explain.GuideTo(r).Title
		if err != nil || !strings.HasPrefix(strings.Join(strings.Fields(out), " "), string(r)+": "+title) || !strings.Contains(list, title+"\n") {
			t.Errorf("%s: %v\n%s", r, err, out)
		}
		for _, mark := range []string{"**", "```", "](", "<!--", "\n\n\n"} {
			if strings.Contains(out, mark) {
				t.Errorf("%s has %q:\n%s", r, mark, out)
			}
		}
		for line := range strings.Lines(out) {
			if !strings.HasPrefix(line, "    ") && utf8.RuneCountInString(strings.TrimSpace(line)) > longestText {
				t.Errorf("%s: a line of %d characters: %s", r, utf8.RuneCountInString(line), line)
			}
		}
		for _, part := range []string{"\nHow to verify\n", "\n    ", "\nWhat is safe\n", "What is not safe", "\nWhat belay does by itself\n"} {
			if !strings.Contains(out, part) {
				t.Errorf("%s has no %q:\n%s", r, part, out)
			}
		}
	}
}

// TestRunbookNames: a reason is found in any case of its letters, and one that does not exist is wrong usage that names similar ones.
func TestRunbookNames(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
		fail string
	}{
		"in lower case":    {[]string{"nodenotready"}, "NodeNotReady: The node that has the volume is not Ready", ""},
		"with a mistake":   {[]string{"NodNotReady"}, "", `there is no reason "NodNotReady"; similar: NodeNotReady`},
		"the beginning":    {[]string{"Detach"}, "", "DetachFailed"},
		"something else":   {[]string{"a-name-of-nothing"}, "", "\"kubectl belay runbook\" lists them"},
		"two of them":      {[]string{"NodeGone", "NodeSilent"}, "", "name one reason"},
		"common to a page": {[]string{"AwaitingSource"}, "What is not safe, whatever the reason\n- Do not set the taint", ""},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := offline(t, append([]string{"runbook"}, tc.args...)...)
			if tc.fail == "" {
				if err != nil || !strings.Contains(out, tc.want) {
					t.Errorf("%v\n%s", err, out)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.fail) || Status(err) != StatusError || out != "" {
				t.Errorf("status %d, %v\n%s", Status(err), err, out)
			}
		})
	}
}
