package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// recordLength is that of the records that filled makes.
const recordLength = 125

// disk is a medium whose writes reach the platter only with Sync.
type disk struct {
	written, synced []byte
	syncErr         error
}

func (d *disk) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(d.written).ReadAt(p, off)
}

func (d *disk) WriteAt(p []byte, off int64) (int, error) {
	if need := int(off) + len(p); need > len(d.written) {
		d.written = append(d.written, make([]byte, need-len(d.written))...)
	}
	return copy(d.written[off:], p), nil
}

func (d *disk) Truncate(size int64) error { d.written = d.written[:size]; return nil }

func (d *disk) Sync() error {
	if d.syncErr != nil {
		return d.syncErr
	}
	d.synced = bytes.Clone(d.written)
	return nil
}

func filled(t *testing.T, layout Layout, count int) []byte {
	t.Helper()
	d := &disk{}
	l, err := open(d, layout)
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		if _, err := l.Append("node-1/ledger-0", noon.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	return d.synced
}

func TestOpen(t *testing.T) {
	lines := func(change func([]byte) []byte) func(*testing.T) ([]byte, Layout) {
		return func(t *testing.T) ([]byte, Layout) {
			t.Helper()
			return change(filled(t, Lines, 3)), Lines
		}
	}
	blocks := func(change func([]byte) []byte) func(*testing.T) ([]byte, Layout) {
		return func(t *testing.T) ([]byte, Layout) {
			t.Helper()
			device := append(filled(t, Blocks, 3), make([]byte, 2*blockSize)...)
			return change(device), Blocks
		}
	}
	type want struct {
		Count, TornBytes int64
		Broken           bool
		// Next is the number of the record appended afterwards.
		Next int64
	}
	tests := map[string]struct {
		medium func(*testing.T) ([]byte, Layout)
		want   want
	}{
		"whole file": {lines(func(b []byte) []byte { return b }), want{Count: 3, Next: 4}},
		"empty file": {lines(func([]byte) []byte { return nil }), want{Next: 1}},
		"last record torn in the middle": {
			lines(func(b []byte) []byte { return b[:len(b)-40] }), want{Count: 2, TornBytes: 85, Next: 3}},
		"last record without its newline": {
			lines(func(b []byte) []byte { return b[:len(b)-1] }), want{Count: 2, TornBytes: 124, Next: 3}},
		"file grew, data of the record did not reach the disk": {
			lines(func(b []byte) []byte { return append(b, make([]byte, 140)...) }), want{Count: 3, TornBytes: 140, Next: 4}},
		"record in the middle changed": {
			lines(func(b []byte) []byte { return bytes.Replace(b, []byte("12:00:01"), []byte("12:00:09"), 1) }),
			want{Count: 1, Broken: true}},
		"last acknowledged record changed": {
			lines(func(b []byte) []byte { return bytes.Replace(b, []byte("12:00:02"), []byte("12:00:09"), 1) }),
			want{Count: 2, Broken: true}},
		"record in the middle missing": {
			lines(func(b []byte) []byte { return append(bytes.Clone(b[:recordLength]), b[2*recordLength:]...) }), want{Count: 1, Broken: true}},
		"second writer wrote the same number": {
			lines(func(b []byte) []byte { return append(b, b[2*recordLength:]...) }), want{Count: 3, Broken: true}},
		"zeros in the middle": {
			lines(func(b []byte) []byte { clear(b[150:200]); return b }), want{Count: 1, Broken: true}},
		"device with room": {blocks(func(b []byte) []byte { return b }), want{Count: 3, Next: 4}},
		"device, last record torn": {
			blocks(func(b []byte) []byte { clear(b[2*blockSize+50 : 3*blockSize]); return b }),
			want{Count: 2, TornBytes: blockSize, Next: 3}},
		"device, torn record followed by another": {
			blocks(func(b []byte) []byte { clear(b[blockSize+50 : 2*blockSize]); return b }), want{Count: 1, Broken: true}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			content, layout := test.medium(t)
			d := &disk{written: content}
			var got want
			report, err := Read(bytes.NewReader(content), layout)
			got.Count, got.TornBytes, got.Broken = report.Count, report.TornBytes, errors.Is(err, ErrBroken)
			l, err := open(d, layout)
			if got.Broken != errors.Is(err, ErrBroken) {
				t.Fatalf("open: %v, read said broken: %v", err, got.Broken)
			}
			if err == nil {
				if got.Next, err = l.Append("node-2/ledger-0", noon); err != nil {
					t.Fatal(err)
				}
				after, err := Read(bytes.NewReader(d.synced), layout)
				if err != nil || after.Count != got.Next || after.TornBytes != 0 {
					t.Errorf("after the next record: %+v, %v", after, err)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestNoAcknowledgementWithoutSync(t *testing.T) {
	d := &disk{syncErr: io.ErrShortWrite}
	l, err := open(d, Lines)
	if err != nil {
		t.Fatal(err)
	}
	if number, err := l.Append("w", noon); err == nil {
		t.Errorf("record %d acknowledged though the disk did not take it", number)
	}
}

func TestEveryPrefixIsCompleteOrTorn(t *testing.T) {
	content := filled(t, Lines, 4)
	for length := range len(content) + 1 {
		report, err := Read(bytes.NewReader(content[:length]), Lines)
		want := int64(length / recordLength)
		if err != nil || report.Count != want || report.TornBytes != int64(length%recordLength) {
			t.Fatalf("first %d bytes: %+v, %v; want %d records", length, report, err, want)
		}
	}
}

func TestProgram(t *testing.T) {
	file := filepath.Join(t.TempDir(), "records")
	run := func(arguments ...string) (string, int) {
		var out bytes.Buffer
		command := Command()
		command.SetArgs(arguments)
		command.SetOut(&out)
		err := command.ExecuteContext(context.Background())
		return out.String(), ExitCode(err)
	}
	type result struct {
		Last string
		Code int
	}
	got := map[string]result{}
	step := func(name string, arguments ...string) {
		out, code := run(arguments...)
		all := strings.Split(strings.TrimSpace(out), "\n")
		got[name] = result{all[len(all)-1], code}
	}
	step("first five", "append", "--file", file, "--count", "5", "--interval", "0", "--writer", "a")
	step("five more", "append", "--file", file, "--count", "5", "--interval", "0", "--writer", "b c")
	step("all there", "verify", "--file", file, "--at-least", "10")
	step("json", "verify", "--file", file, "-o", "json")
	step("too few", "verify", "--file", file, "--at-least", "11")
	step("no file", "verify", "--file", file+"-none")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, content[10:], 0o600); err != nil {
		t.Fatal(err)
	}
	step("broken, append", "append", "--file", file, "--count", "1")
	step("broken, verify", "verify", "--file", file)
	since, err := parse(bytes.Split(content, []byte("\n"))[5]) // the first record of the second writer
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]result{
		"first five":     {"acknowledged 5", 0},
		"five more":      {"acknowledged 10", 0},
		"all there":      {"10 records, 0 torn bytes: the chain holds", 0},
		"json":           {fmt.Sprintf(`{"count":10,"writers":{"a":5,"b_c":5},"since":%q,"tornBytes":0}`, since.Time.Format(time.RFC3339Nano)), 0},
		"too few":        {"10 records, 0 torn bytes: acknowledged records are missing: 10 of 11 are there", ExitBroken},
		"no file":        {"", ExitFailed},
		"broken, append": {"", ExitBroken},
		"broken, verify": {fmt.Sprintf("0 records, 0 torn bytes: %v at byte 0: record 1 cannot be read", ErrBroken), ExitBroken},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
