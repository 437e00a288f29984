package labdisk

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// How much of the records is held in memory; the files hold all.
const (
	keptCalls      = 200_000
	keptViolations = 10_000
)

// codeLost is the code of a controller's call that was in flight when the fabric was killed.
const codeLost = "Lost"

// journal is the record of calls and violations, in memory and as JSON lines in calls.jsonl and violations.jsonl. A call
// has one line when it begins and one when it ends, of the same sequence: the last one counts.
type journal struct {
	// mu guards what follows. It is held over the append to the files: these are in the page cache, not synced.
	mu             sync.Mutex
	calls          []Call // by sequence, without gaps
	violations     []Violation
	callsFile      *os.File
	violationsFile *os.File
	// attaching has the publishes and unpublishes under way, by volume and sequence: what ends when their callers have abandoned them.
	attaching map[string]map[uint64]func() error
}

func openJournal(dir string) (*journal, error) {
	j := &journal{attaching: map[string]map[uint64]func() error{}}
	callsPath, violationsPath := filepath.Join(dir, "calls.jsonl"), filepath.Join(dir, "violations.jsonl")
	err := readLines(callsPath, func(c Call) { j.remember(c) })
	if err != nil {
		return nil, err
	}
	if err := readLines(violationsPath, func(v Violation) { j.violations = append(j.violations, v) }); err != nil {
		return nil, err
	}
	if j.callsFile, err = appendTo(callsPath); err != nil {
		return nil, fmt.Errorf("open record of calls: %w", describeDisk(dir, err))
	}
	if j.violationsFile, err = appendTo(violationsPath); err != nil {
		return nil, errors.Join(fmt.Errorf("open record of violations: %w", describeDisk(dir, err)), j.callsFile.Close())
	}
	for _, c := range j.calls {
		if c.End.IsZero() && c.Controller {
			c.End, c.Code, c.Message = time.Now(), codeLost, "the fabric ended during the call"
			j.finish(c)
		}
	}
	return j, nil
}

// appendTo opens a file of lines for more. A last line that was cut short is ended: the next must not become a part of it.
func appendTo(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() > 0 {
		last := make([]byte, 1)
		if _, err = f.ReadAt(last, info.Size()-1); err == nil && last[0] != '\n' {
			_, err = f.WriteString("\n")
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// readLines calls each for every whole line of the file; a last line that was cut short is left out.
func readLines[T any](path string, each func(T)) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read record: %w", err)
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var value T
		if json.Unmarshal(lines.Bytes(), &value) == nil {
			each(value)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read record %s: %w", path, err)
	}
	return nil
}

func (j *journal) close() error {
	return errors.Join(j.callsFile.Close(), j.violationsFile.Close())
}

// begin adds the call to the record and gives it its sequence. ctx is that of the call.
func (j *journal) begin(ctx context.Context, c Call) Call {
	j.mu.Lock()
	defer j.mu.Unlock()
	c.Sequence = 1
	if n := len(j.calls); n > 0 {
		c.Sequence = j.calls[n-1].Sequence + 1
	}
	if c.attaches() {
		c.Beside = j.beside(c.Volume)
		j.attaching[c.Volume][c.Sequence] = ctx.Err
	}
	j.remember(c)
	appendLine(j.callsFile, c)
	return c
}

// beside is the first publish or unpublish under way whose caller waits for it, 0 if there is none, and forgets the others. Of one connection
// gRPC has read that a call is abandoned before it reads the next call. mu is held.
func (j *journal) beside(volume string) uint64 {
	if j.attaching[volume] == nil {
		j.attaching[volume] = map[uint64]func() error{}
	}
	maps.DeleteFunc(j.attaching[volume], func(_ uint64, abandoned func() error) bool { return abandoned() != nil })
	first := uint64(0)
	for sequence := range j.attaching[volume] {
		if first == 0 || sequence < first {
			first = sequence
		}
	}
	return first
}

// finish replaces the record that begin made; a call that began while the fabric was away has none.
func (j *journal) finish(c Call) {
	if c.Sequence == 0 {
		c = j.begin(context.Background(), c)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if delete(j.attaching[c.Volume], c.Sequence); len(j.attaching[c.Volume]) == 0 {
		delete(j.attaching, c.Volume)
	}
	j.remember(c)
	appendLine(j.callsFile, c)
}

// remember puts the call at its place. mu is held, or there is no other goroutine yet.
func (j *journal) remember(c Call) {
	if n := len(j.calls); n == 0 || c.Sequence > j.calls[n-1].Sequence {
		if n == keptCalls {
			j.calls = append(j.calls[:0:0], j.calls[keptCalls/10:]...)
		}
		j.calls = append(j.calls, c)
		return
	}
	for i := len(j.calls) - 1; i >= 0 && j.calls[i].Sequence >= c.Sequence; i-- {
		if j.calls[i].Sequence == c.Sequence {
			j.calls[i] = c
		}
	}
}

func (j *journal) callsSince(since time.Time) []Call {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := []Call{}
	for _, c := range j.calls {
		if !c.Start.Before(since) {
			out = append(out, c)
		}
	}
	return out
}

func (j *journal) violation(v Violation) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.violations) < keptViolations {
		j.violations = append(j.violations, v)
	}
	appendLine(j.violationsFile, v)
}

func (j *journal) violationsSince(since time.Time) []Violation {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := []Violation{}
	for _, v := range j.violations {
		if !v.Time.Before(since) {
			out = append(out, v)
		}
	}
	return out
}

// appendLine drops the line if the disk is full: the record must not stop the storage.
func appendLine(f *os.File, value any) {
	b, err := json.Marshal(value)
	if err == nil {
		_, _ = f.Write(append(b, '\n'))
	}
}
