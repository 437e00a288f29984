package nodevolume

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzDecodeRecord reads any bytes as a record, as an agent that starts does with what is on its disk. What it believes must be
// whole: it is the same when it was written and read again, and leads nowhere outside the root.
func FuzzDecodeRecord(f *testing.F) {
	for _, record := range []Record{
		{Kind: StageKind, Driver: "d", Handle: "h", SpecName: "pv", Path: "plugins/x/globalmount", InUse: true, BootID: "b", Confirmed: true},
		{Kind: PublishKind, Driver: "d", Handle: "h\"\n", Path: "pods/u/mount", SELinuxLabel: "l", Pod: RecordPod{UID: "u", Volume: "v"}, Leaving: true},
		{Kind: PublishKind, Inline: true, Driver: "d", Handle: "csi-1", Path: "pods/u/mount", Pod: RecordPod{UID: "u"}},
	} {
		raw, err := record.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
		f.Add(raw[:len(raw)/2])
	}
	for _, text := range []string{"", "{}", "null", `{"version":1}`, "\x00\x00", `{"version":1,"kind":"stage","driver":"d","handle":"h","path":"../../etc"}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		record, err := DecodeRecord(raw)
		if err != nil {
			if !errors.Is(err, ErrTorn) || record != (Record{}) {
				t.Fatalf("got %+v and %v, want nothing and ErrTorn", record, err)
			}
			return
		}
		root := string(filepath.Separator) + "root"
		if joined := filepath.Join(root, record.Path); joined != root && !strings.HasPrefix(joined, root+string(os.PathSeparator)) {
			t.Fatalf("path %q leads to %s", record.Path, joined)
		}
		if record.Driver == "" || record.Handle == "" || record.Kind != StageKind && record.Kind != PublishKind {
			t.Fatalf("a record that says too little is believed: %+v", record)
		}
		written, err := record.Encode()
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		again, err := DecodeRecord(written)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v\n%s", err, written)
		}
		if diff := cmp.Diff(record, again); diff != "" {
			t.Fatalf("written and read again (-before +after):\n%s", diff)
		}
		// Both marks are changed in place: all four forms have one length.
		record.Confirmed, record.Leaving = !record.Confirmed, !record.Leaving
		if changed, err := record.Encode(); err != nil || len(changed) != len(written) {
			t.Fatalf("with other marks it has %d bytes, not %d (%v)", len(changed), len(written), err)
		}
	})
}
