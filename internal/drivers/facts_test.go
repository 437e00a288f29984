package drivers

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/codes"

	"belay.dev/belay/internal/decision"
)

var place = regexp.MustCompile(`^([\w.-]+/[\w.-]+@[\w.-]+/)?[\w./-]+:[1-9][0-9]*$|^[\w.-]+/[\w.-]+#[1-9][0-9]*$`)

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
			if c := f.Ask.Command; c != "" && (!strings.Contains(c, " HANDLE") || !strings.HasPrefix(f.Ask.Documentation, "https://")) {
				t.Errorf("the command does not name the handle, or has no documentation: %+v", f.Ask)
			}
			if r := f.Rights; len(r.For) > 0 {
				sourced(t, "rights", r.Source, true, false)
			}
			for _, situation := range Situations() {
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
	sourced(t, string(situation), a.Source, a.Never && empty || (a.Call == Publish || a.Call == Unpublish) && code, false)
	if a.Where != "" && group(a.Where, a.Example) == "" && !strings.Contains(a.Example, "op-1 failed") {
		t.Errorf("%s: the example names no machine as %q does", situation, a.Where)
	}
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

// TestRead: each example of the file is read as what it is an example of.
func TestRead(t *testing.T) {
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
				if got := Read(f.Driver, a.Call, code, a.Example); got.Situation != situation || got.Where != group(a.Where, a.Example) {
					t.Errorf("%s: %s %q means %+v, want %q", f.Driver, code, a.Example, got, situation)
				}
			}
		}
	}
}

// TestWords: each example of words is read as what it is an example of, for a driver that the file does not know; and the words say whose they are.
func TestWords(t *testing.T) {
	for _, w := range AllWords() {
		if w.Of == "" || !places(w.Source) || !slices.Contains(AllSituations(), w.Situation) || len(w.Codes) == 0 && w.Match == "" {
			t.Errorf("the words lack whose they are, a place, a situation, or a code or an expression: %+v", w)
		}
		call, code := Publish, codes.Internal.String()
		if len(w.Calls) > 0 {
			call = w.Calls[0]
		}
		if len(w.Codes) > 0 {
			code = w.Codes[0]
		}
		if got := Read("example.com", call, code, w.Example); got.Situation != w.Situation {
			t.Errorf("%q is read as %q, want %q", w.Example, got.Situation, w.Situation)
		}
	}
}

// TestCause: the innermost message of a long error is found, and a short error stays as it is.
func TestCause(t *testing.T) {
	long := strings.Repeat("could not attach volume vol-1 to node i-1: ", 4)
	for message, want := range map[string]string{
		"volume v1 is in use": "volume v1 is in use",
		long + "operation error EC2: AttachVolume, https response error StatusCode: 400, RequestID: 7f, api error VolumeInUse: vol-1 is already attached to an instance":                           "VolumeInUse: vol-1 is already attached to an instance",
		long + `error message: {"badRequest": {"code": 400, "message": "Invalid volume: Volume v1 status must be available (HTTP 400)"}}`:                                                          "Invalid volume: Volume v1 status must be available (HTTP 400)",
		long + `Fault: (*types.ResourceInUse)(0xc000f00500)({ Name: (string) (len=6) "volume" }), LocalizedMessage: (string) (len=32) \"The resource 'volume' is in use.\" }) ". opId: "2bdbfb61"`: "The resource 'volume' is in use.",
		long + "googleapi: Error 400: The disk resource is already being used":                                                                                                                     "The disk resource is already being used",
		long + "mount failed: exit status 32 Mounting command: mount Mounting arguments: -t xfs /dev/sdb /mnt Output: mount: /mnt: wrong fs type, bad option, bad superblock on /dev/sdb":          "wrong fs type, bad option, bad superblock on /dev/sdb",
		long + "error in formatting and mounting volume. output: mount: /mnt/globalmount: can't read superblock on /dev/sdi":                                                                       "can't read superblock on /dev/sdi",
		long + "'fsck' found errors on device /dev/nvme1n1 but could not correct them: fsck from util-linux 2.37.4 /dev/nvme1n1: Inode 14 has an invalid extent node":                              "'fsck' found errors on device /dev/nvme1n1 but could not correct them",
		long + "the zone is wrong: volume v1 is not in the same zone as i-1":                                                                                                                       "volume v1 is not in the same zone as i-1",
		strings.Repeat("/a-long-path", 40) + " to i-2 failed with disk already attached to node(" + strings.Repeat("/p", 99) + "/i-1), could not be":                                               "already attached to node(" + strings.Repeat("/p", 99) + "/i-1), could not be",
		long: long,
	} {
		call := Publish
		if strings.Contains(want, "dev") {
			call = Mount
		}
		if got := Read("example.com", call, "Internal", message).Cause(message); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
}

// TestShorten: what is left out is in the middle, and ends at words.
func TestShorten(t *testing.T) {
	text := strings.Repeat("begin ", 50) + strings.Repeat("fin ", 50)
	got := Shorten(text, 100)
	if len(got) > 105 || !strings.HasPrefix(got, "begin begin") || !strings.HasSuffix(got, "fin fin ") || !strings.Contains(got, "begin ... fin") {
		t.Errorf("%q", got)
	}
	if got := Shorten("short", 100); got != "short" {
		t.Errorf("%q", got)
	}
	if got := Shorten(strings.Repeat("\u00e4", 100), 101); !utf8.ValidString(got) {
		t.Errorf("%q is no text", got)
	}
}

// TestShortenKeepsNot: a cut does not turn a sentence into its opposite.
func TestShortenKeepsNot(t *testing.T) {
	const text = "InvalidVolume.ZoneMismatch: The volume 'vol-0zone' is not in the same availability zone as instance 'i-0n1'"
	for n := 40; n < len(text); n++ {
		if got := Shorten(text, n); strings.Contains(got, "same availability zone") && !strings.Contains(got, "not in the same") || len(got) > n+len(" ... ") && n > 70 {
			t.Errorf("%d: %q", n, got)
		}
	}
}

// FuzzRead: what is read from any message is a part of it, and the cause is text.
func FuzzRead(f *testing.F) {
	for _, w := range AllWords() {
		f.Add("ebs.csi.aws.com", "Internal", w.Example)
	}
	for _, facts := range All() {
		for _, a := range facts.Answers[AttachedElsewhere] {
			f.Add(facts.Driver, a.Code, strings.Repeat("could not: ", 30)+a.Example)
		}
	}
	f.Fuzz(func(t *testing.T, driver, code, message string) {
		for _, call := range []Call{Publish, Unpublish, Mount} {
			r := Read(driver, call, code, message)
			if !strings.Contains(message, r.Where) || !strings.Contains(message, r.Cause(message)) || r.Situation != "" && !slices.Contains(AllSituations(), r.Situation) {
				t.Fatalf("%q is read as %+v, because of %q", message, r, r.Cause(message))
			}
			if short := Shorten(message, 40); utf8.ValidString(message) && !utf8.ValidString(short) || len(short) > max(len(message), 45) {
				t.Fatalf("%q is shortened to %q", message, short)
			}
		}
	})
}
