package printable

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// hostile has one of each kind of what a terminal could obey: C0, OSC, DEL, C1, bidi controls, an invisible rune, a line separator, and one
// beyond the basic plane.
const hostile = "\x1b]0;title\a\r\b\x7f\u009b2J\u202e\u2066\u200b\u2028\U000e0041"

func TestWriter(t *testing.T) {
	for text, want := range map[string]string{
		"":                "",
		"plain \t text\n": "plain \t text\n",
		"größe, 音量, é, √ ‼ ×, █░": "größe, 音量, é, √ ‼ ×, █░",
		"a\x1b[2Jb":           `a\u001b[2Jb`,
		"a\u009b2Jb\u202ec":   `a\u009b2Jb\u202ec`,
		"\U000e0041":          `\udb40\udc41`,
		"bad \xff\xc3( bytes": "bad \ufffd\ufffd( bytes",
		"given \ufffd":        "given \ufffd",
		Red.String() + "a\x1b[1;31mb" + Plain.String(): "\x1b[1;31ma\\u001b[1;31mb\x1b[0m",
		Clear.String() + Return.String() + "x":         "\x1b[H\x1b[2J\rx",
		mark + "z":                                     `\u001b` + mark[1:] + "z", // no style
	} {
		var whole, split bytes.Buffer
		if n, err := New(&whole).Write([]byte(text)); n != len(text) || err != nil {
			t.Errorf("%q: wrote %d bytes, %v", text, n, err)
		}
		w := New(&split)
		for i := range len(text) {
			if _, err := w.Write([]byte{text[i]}); err != nil {
				t.Fatal(err)
			}
		}
		if whole.String() != want || split.String() != want {
			t.Errorf("%q: %q, byte by byte %q, want %q", text, whole.String(), split.String(), want)
		}
	}
}

// TestWriterKeepsJSON: a document has the same meaning after it.
func TestWriterKeepsJSON(t *testing.T) {
	document, err := json.Marshal(map[string]string{"a": hostile + `\`, hostile: "b"})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := New(&out).Write(document); err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got["a"] != hostile+`\` || got[hostile] != "b" {
		t.Errorf("%v: %q of %s", err, got, out.String())
	}
	for _, r := range out.String() {
		if !unicode.IsPrint(r) {
			t.Errorf("%U is in %q", r, out.String())
		}
	}
}

// TestYAML: no character costs the document, and what YAML escapes itself has its meaning.
func TestYAML(t *testing.T) {
	text := hostile + "\u0085\ufeff\ufffe\uffff"
	made, err := YAML(map[string]string{"a": text, text: "b", "c": "plain"})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range string(made) {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("%U is in %q", r, made)
		}
	}
	var got map[string]string
	if err := yaml.Unmarshal(made, &got); err != nil || got["a"] != text || got[text] != "b" || got["c"] != "plain" {
		t.Errorf("%v: %q of %s", err, got, made)
	}
}

// TestWriterFails: what the writer behind it reports is the answer.
func TestWriterFails(t *testing.T) {
	read, write := io.Pipe()
	_ = read.CloseWithError(errors.New("the disk is full"))
	if n, err := New(write).Write([]byte("text")); n != 0 || err == nil || err.Error() != "the disk is full" {
		t.Errorf("%d bytes, %v", n, err)
	}
}

func TestLine(t *testing.T) {
	for text, want := range map[string]string{
		"a name": "a name", "two\nlines\tand a tab": "two lines and a tab", "a\r\nb": `a\u000d b`, "\xff\xe2\x80": "\ufffd\ufffd\ufffd",
		Red.String(): `\u001b` + mark[1:] + "a",
	} {
		if got := Line(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// FuzzWriter: whatever is written, in whichever parts, only printable text comes out, and all that is printable does.
func FuzzWriter(f *testing.F) {
	f.Add([]byte(hostile), 3)
	f.Add([]byte("größe\n"), 3)
	f.Add([]byte("\x1b\x1b[\xf0\x9f\x98"), 1)
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		var whole, parts bytes.Buffer
		end := "." // completes whatever is unfinished
		_, _ = New(&whole).Write(append(bytes.Clone(text), end...))
		w := New(&parts)
		for rest := text; len(rest) > 0; {
			n := min(max(cut, 1), len(rest))
			if wrote, err := w.Write(rest[:n]); wrote != n || err != nil {
				t.Fatalf("wrote %d of %d bytes: %v", wrote, n, err)
			}
			rest = rest[n:]
		}
		_, _ = w.Write([]byte(end))
		if whole.String() != parts.String() {
			t.Fatalf("%q: %q at once, %q in parts of %d", text, whole.String(), parts.String(), cut)
		}
		if got := Text(string(text) + end); got != whole.String() {
			t.Fatalf("%q: Text is %q, a Writer writes %q", text, got, whole.String())
		}
		kept := strings.Map(func(r rune) rune {
			if r == '\n' || r == '\t' || unicode.IsPrint(r) && r != utf8.RuneError {
				return r
			}
			return -1
		}, string(text)+end)
		if strings.ToValidUTF8(whole.String(), "") != whole.String() {
			t.Fatalf("%q: %q is not UTF-8", text, whole.String())
		}
		for _, r := range whole.String() {
			if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
				t.Fatalf("%q: %U came out", text, r)
			}
			if first, size := utf8.DecodeRuneInString(kept); r == first {
				kept = kept[size:]
			}
		}
		if kept != "" {
			t.Fatalf("%q: %q is not in %q", text, kept, whole.String())
		}
		if line := Line(string(text)); strings.ContainsAny(line, "\n\t") || Line(line) != line {
			t.Fatalf("%q is not a line", line)
		}
	})
}
