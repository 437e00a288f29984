package ledger

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrBroken says that the chain of records does not hold: a record is missing,
// changed, or from a second writer. A torn tail is no break.
var ErrBroken = errors.New("the chain of records is broken")

// Report is what a ledger was found to hold.
type Report struct {
	// Count is the number of the last good record; all before it are good too.
	Count int64 `json:"count"`
	// Writers counts the records of each writer.
	Writers map[string]int64 `json:"writers"`
	// Since is when the writer of the last record wrote its first one after the records of another writer.
	Since time.Time `json:"since,omitzero"`
	// TornBytes follow the last good record: the begin of one that was never acknowledged.
	TornBytes int64 `json:"tornBytes"`
	// Problem is empty if the chain holds.
	Problem string `json:"problem,omitempty"`

	last Record
	// end is the offset behind the last good record.
	end int64
}

func (r *Report) add(record Record, length int64) error {
	if err := record.follow(r.last); err != nil {
		return fmt.Errorf("%w at byte %d: %w", ErrBroken, r.end, err)
	}
	if record.Writer != r.last.Writer {
		r.Since = record.Time
	}
	r.last, r.Count, r.end = record, record.Number, r.end+length
	r.Writers[record.Writer]++
	return nil
}

// Layout is how records lie on the medium.
type Layout string

const (
	// Lines puts one record behind the other in a file that grows.
	Lines Layout = "lines"
	// Blocks puts each record into a block of its own, for a device that cannot grow.
	Blocks Layout = "blocks"
)

// blockSize is one block of the device: a record is written by one write of one block.
const blockSize = 4096

// Read goes through a ledger from its beginning. The report is valid as far as it
// goes, also with an error; ErrBroken says that the chain does not hold.
func Read(source io.Reader, layout Layout) (Report, error) {
	report := Report{Writers: map[string]int64{}}
	read := readLines
	if layout == Blocks {
		read = readBlocks
	}
	err := read(bufio.NewReaderSize(source, 1<<16), &report)
	if err != nil {
		report.Problem = err.Error()
	}
	return report, err
}

func readLines(source *bufio.Reader, report *Report) error {
	for {
		line, err := source.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return classifyTail(line, report)
		}
		if err != nil {
			return fmt.Errorf("read record %d: %w", report.Count+1, err)
		}
		record, err := parse(line[:len(line)-1])
		if err != nil {
			// A file system may return zeros for the end of a file whose data did
			// not reach the disk; then no newline ends them but one of a later writer would.
			return fmt.Errorf("%w at byte %d: record %d cannot be read", ErrBroken, report.end, report.Count+1)
		}
		if err := report.add(record, int64(len(line))); err != nil {
			return err
		}
	}
}

// classifyTail distinguishes a torn tail, which may be cut off, from damage: only the one
// record that was being written can be torn, and it has no newline.
func classifyTail(tail []byte, report *Report) error {
	zeros := len(bytes.Trim(tail, "\x00")) == 0
	if len(tail) >= MaxRecord && !zeros {
		return fmt.Errorf("%w at byte %d: %d bytes that are no record", ErrBroken, report.end, len(tail))
	}
	report.TornBytes = int64(len(tail))
	return nil
}

func readBlocks(source *bufio.Reader, report *Report) error {
	block := make([]byte, blockSize)
	for {
		n, err := io.ReadFull(source, block)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil // the device's size is no multiple of a block: the rest is not used
		}
		if err != nil {
			return fmt.Errorf("read block of record %d: %w", report.Count+1, err)
		}
		line, rest, found := bytes.Cut(block[:n], []byte("\n"))
		record, err := parse(line)
		if !found || err != nil || len(bytes.Trim(rest, "\x00")) != 0 {
			return classifyBlock(block, source, report)
		}
		if err := report.add(record, blockSize); err != nil {
			return err
		}
	}
}

// classifyBlock looks at the first block that is no record: an empty one ends the
// ledger; a torn one must be followed by an empty one.
func classifyBlock(block []byte, source *bufio.Reader, report *Report) error {
	if len(bytes.Trim(block, "\x00")) == 0 {
		return nil
	}
	following, err := source.Peek(blockSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read block behind record %d: %w", report.Count, err)
	}
	if len(bytes.Trim(following, "\x00")) != 0 {
		return fmt.Errorf("%w at byte %d: record %d cannot be read", ErrBroken, report.end, report.Count+1)
	}
	report.TornBytes = blockSize
	return nil
}
