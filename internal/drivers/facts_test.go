package drivers

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"belay.dev/belay/internal/decision"
)

var place = regexp.MustCompile(`^([\w.-]+/[\w.-]+@[\w.-]+/)?[\w./-]+:[1-9][0-9]*$`)

// codeNames are gRPC's codes as its errors print them.
func codeNames() (names []string) {
	for c := codes.OK; c <= codes.Unauthenticated; c++ {
		names = append(names, c.String())
	}
	return names
}

// TestFacts: every fact has a place in the driver's source, or is "not read" and says nothing.
func TestFacts(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range All() {
		t.Run(f.Driver, func(t *testing.T) {
			if seen[f.Driver] {
				t.Error("the driver has two entries")
			}
			seen[f.Driver] = true
			if f.Driver == "" || f.Title == "" || strings.Count(f.Repository, "/") != 1 || f.Version == "" {
				t.Errorf("the entry lacks driver, title, version, or a repository of the form owner/name: %+v", f)
			}
			sourced(t, "nodeID", f.NodeID.Source, f.NodeID.Form != "" && f.NodeID.Example != "", f.NodeID.Form+f.NodeID.Example == "")
			l := f.Lists
			sourced(t, "lists", l.Source, l.Volumes != nil && l.PublishedNodes != nil, l.Volumes == nil && l.PublishedNodes == nil && l.Note == "")
			sourced(t, "late", f.Late.Source, f.Late.TooEarly != nil, f.Late.TooEarly == nil && f.Late.Ends == nil && f.Late.Note == "")
			for situation := range f.Answers {
				if !slices.Contains(Situations(), situation) {
					t.Errorf("no such situation: %s", situation)
				}
			}
			for _, situation := range Situations() {
				if len(f.Answers[situation]) == 0 {
					t.Errorf("%s has no answer, and is not %q either", situation, NotRead)
				}
				for _, a := range f.Answers[situation] {
					checkAnswer(t, situation, a)
				}
			}
		})
	}
}

func checkAnswer(t *testing.T, situation Situation, a Answer) {
	t.Helper()
	empty := a.Call == "" && a.Code == "" && len(a.Text) == 0 && a.Example == "" && a.Note == ""
	code := a.Code == AnyCode || slices.Contains(codeNames(), a.Code)
	sourced(t, string(situation), a.Source, a.Never && empty || (a.Call == Publish || a.Call == Unpublish) && code, empty && !a.Never)
	if a.Code == AnyCode && len(a.Text) == 0 {
		t.Errorf("%s: an answer of any code and any text is every answer", situation)
	}
	if !containsAll(a.Example, a.Text) {
		t.Errorf("%s: the example does not contain %q", situation, a.Text)
	}
	if a.Code != "" && (a.Code == "OK") != (a.Example == "") {
		t.Errorf("%s: an answer but OK has an example of its message: %+v", situation, a)
	}
}

// sourced checks that a fact is whole and has places, or is "not read" and empty.
func sourced(t *testing.T, what, source string, whole, empty bool) {
	t.Helper()
	switch {
	case source == NotRead && !empty:
		t.Errorf("%s is not read, and says something", what)
	case source == NotRead:
	case !places(source):
		t.Errorf("%s: source %q is neither places of the form PATH:LINE nor %q", what, source, NotRead)
	case !whole:
		t.Errorf("%s has a source, and does not say all that it has to", what)
	}
}

func places(source string) bool {
	if source == "" {
		return false
	}
	for s := range strings.SplitSeq(source, " ") {
		if !place.MatchString(s) {
			return false
		}
	}
	return true
}

// TestOKTooEarly: the drivers that were seen to answer an unpublish OK while an abandoned publish was pending.
func TestOKTooEarly(t *testing.T) {
	for name, want := range map[string]decision.Knowledge{
		"pd.csi.storage.gke.io": decision.Yes, "csi.hetzner.cloud": decision.Yes, "example.com": decision.Unknown,
	} {
		f, ok := Of(name)
		if got := f.OKTooEarly(); got != want || ok != (name != "example.com") {
			t.Errorf("%s: okTooEarly is %v (known driver: %v), want %v", name, got, ok, want)
		}
	}
}

// TestMeans: each example of the file is recognized as what it is an example of.
func TestMeans(t *testing.T) {
	for _, f := range All() {
		for situation, answers := range f.Answers {
			for _, a := range answers {
				if a.Example == "" {
					continue
				}
				code := a.Code
				if code == AnyCode {
					code = codes.ResourceExhausted.String()
				}
				if got := f.Means(a.Call, code, a.Example); got != situation {
					t.Errorf("%s: %s %q means %q, want %q", f.Driver, code, a.Example, got, situation)
				}
			}
		}
	}
}
