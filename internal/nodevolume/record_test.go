package nodevolume

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func exampleRecord() Record {
	return Record{
		Version: RecordVersion, Kind: PublishKind, Driver: "d", Handle: "h\n^\"../", SpecName: "pv", Path: "pods/u/volumes/x", InUse: true,
		AttachmentUID: "va", SELinuxLabel: "s:o:t:s0:c1,c2", BootID: "boot", Confirmed: true, Pod: RecordPod{UID: "u", Namespace: "ns", Name: "p", Volume: "data", ReadOnly: true},
	}
}

func TestRecordRoundTrip(t *testing.T) {
	raw, err := exampleRecord().Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeRecord(raw)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(exampleRecord(), got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
}

func TestTornRecordIsAnError(t *testing.T) {
	raw, err := exampleRecord().Encode()
	if err != nil {
		t.Fatal(err)
	}
	for length := range len(raw) - 2 { // without the last newline and brace
		if record, err := DecodeRecord(raw[:length]); !errors.Is(err, ErrTorn) {
			t.Fatalf("the first %d bytes were read as %+v, %v", length, record, err)
		}
	}
	for name, text := range map[string]string{
		"zeros":         "\x00\x00\x00\x00",
		"later version": `{"version":2,"kind":"stage","driver":"d","handle":"h","path":"p"}`,
		"no driver":     `{"version":1,"kind":"stage","handle":"h","path":"p"}`,
		"inline stage":  `{"version":1,"kind":"stage","driver":"d","handle":"h","path":"p","inline":true,"pod":{"uid":"u"}}`,
		"inline no pod": `{"version":1,"kind":"publish","driver":"d","handle":"h","path":"p","inline":true}`,
		"path above":    `{"version":1,"kind":"stage","driver":"d","handle":"h","path":"p/../../x"}`,
		"path of root":  `{"version":1,"kind":"stage","driver":"d","handle":"h","path":"/etc"}`,
		"other kind":    `{"version":1,"kind":"mount","driver":"d","handle":"h","path":"p"}`,
	} {
		if record, err := DecodeRecord([]byte(text)); !errors.Is(err, ErrTorn) {
			t.Errorf("%s: read as %+v, %v", name, record, err)
		}
	}
}

func TestRebuiltPhase(t *testing.T) {
	confirmed := exampleRecord()
	begun, leaving := confirmed, confirmed
	begun.Confirmed, leaving.Leaving = false, true
	tests := map[string]struct {
		record  Record
		bootID  string
		mounted Knowledge
		want    Phase
	}{
		"confirmed and mounted":             {confirmed, "boot", Yes, Confirmed},
		"confirmed, mount gone":             {confirmed, "boot", No, Uncertain},
		"confirmed, mount table unreadable": {confirmed, "boot", Unknown, Uncertain},
		"confirmed under another boot":      {confirmed, "boot-2", Yes, Uncertain},
		"boot unknown":                      {confirmed, "", Yes, Uncertain},
		"begun":                             {begun, "boot", Yes, Uncertain},
		"being undone":                      {leaving, "boot", Yes, Uncertain},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := test.record.Rebuilt(test.bootID, test.mounted); got != test.want {
				t.Errorf("phase is %s, want %s", got, test.want)
			}
		})
	}
}

func TestNewRecordKeepsTheEarlierHandshake(t *testing.T) {
	earlier, another := exampleRecord(), exampleRecord()
	earlier.InUse, earlier.AttachmentUID = true, "va-1"
	another.InUse, another.AttachmentUID = false, ""
	if got := another.After(earlier); !got.InUse || got.AttachmentUID != "va-1" {
		t.Errorf("in use %v, attachment %q", got.InUse, got.AttachmentUID)
	}
	if got := another.After(Record{}); got.InUse || got.AttachmentUID != "" {
		t.Errorf("nothing was before: in use %v, attachment %q", got.InUse, got.AttachmentUID)
	}
}

// TestRecordLengthIsConstant: a mix of a record before and after is a record, whatever has been written of it.
func TestRecordLengthIsConstant(t *testing.T) {
	record := Record{Kind: PublishKind, Driver: "d", Handle: "\n  \"confirmed\": true", Path: "x", BootID: "boot", Pod: RecordPod{UID: "p"}}
	before, err := record.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, marks := range [][2]bool{{true, false}, {false, true}, {true, true}} {
		record.Confirmed, record.Leaving = marks[0], marks[1]
		after, err := record.Encode()
		if err != nil || len(after) != len(before) {
			t.Fatalf("%v: %d bytes, %d before, %v", marks, len(after), len(before), err)
		}
		changed := 0
		for cut := range after {
			if after[cut] != before[cut] {
				changed++
			}
			if cut > 0 && (after[cut] != before[cut] || after[cut-1] != before[cut-1]) {
				continue // a disk writes no less than a sector, and no mark is wider than five bytes
			}
			mix := append(bytes.Clone(after[:cut]), before[cut:]...)
			if _, err := DecodeRecord(mix); err != nil {
				t.Fatalf("%v, %d bytes written: %v\n%s", marks, cut, err, mix)
			}
		}
		if changed > 10 {
			t.Errorf("%v: %d bytes differ", marks, changed)
		}
	}
}

// TestRecordKeepsTheRootOfTheFirstCall: the driver gets the same path until the record is gone.
func TestRecordKeepsTheRootOfTheFirstCall(t *testing.T) {
	now := Record{Kind: StageKind, Driver: "d", Handle: "h", Path: "a/b", Root: "/link"}
	for name, test := range map[string]struct {
		earlier Record
		want    string
	}{
		"no earlier call":                 {Record{}, "/link"},
		"a lost record":                   {Record{InUse: true, Guessed: true}, "/link"},
		"by another root":                 {Record{Path: "a/b", Root: "/other"}, "/other"},
		"by the resolved root":            {Record{Path: "a/b"}, ""},
		"by the resolved root, elsewhere": {Record{Path: "a/c"}, "/link"},
	} {
		if got := now.After(test.earlier).Root; got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	for root, valid := range map[string]bool{"/link": true, "": true, "link": false, "/link/../x": false, "/link/": false} {
		now.Root = root
		raw, err := now.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if read, err := DecodeRecord(raw); (err == nil) != valid || valid && read.Root != root {
			t.Errorf("root %q: %q, %v", root, read.Root, err)
		}
		if (root == "") == bytes.Contains(raw, []byte(`"root"`)) {
			t.Errorf("root %q: %s, which earlier versions read only without one", root, raw)
		}
	}
}
