package ledger

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// medium is what a ledger is written to; *os.File is one.
type medium interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
	Sync() error
}

// Ledger is open for writing by one process.
type Ledger struct {
	medium medium
	layout Layout
	report Report
}

// Open reads a ledger to its end, drops a torn tail and makes it ready for the next
// record. An empty or missing file is a new ledger. A broken chain is ErrBroken:
// nothing is written behind it.
func Open(path string, layout Layout) (*Ledger, io.Closer, error) {
	flags := os.O_RDWR
	if layout == Lines {
		flags |= os.O_CREATE
	}
	file, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		return nil, nil, fmt.Errorf("open ledger: %w", err)
	}
	ledger, err := open(file, layout)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("ledger %s: %w", path, err), file.Close())
	}
	return ledger, file, nil
}

func open(m medium, layout Layout) (*Ledger, error) {
	report, err := Read(io.NewSectionReader(m, 0, 1<<62), layout)
	if err != nil {
		return nil, err
	}
	ledger := &Ledger{medium: m, layout: layout, report: report}
	if report.TornBytes > 0 {
		if err := ledger.dropTail(); err != nil {
			return nil, err
		}
	}
	return ledger, nil
}

func (l *Ledger) dropTail() error {
	if l.layout == Blocks {
		if _, err := l.medium.WriteAt(make([]byte, blockSize), l.report.end); err != nil {
			return fmt.Errorf("clear torn record %d: %w", l.report.Count+1, err)
		}
	} else if err := l.medium.Truncate(l.report.end); err != nil {
		return fmt.Errorf("cut off torn record %d: %w", l.report.Count+1, err)
	}
	if err := l.medium.Sync(); err != nil {
		return fmt.Errorf("sync after dropping torn record %d: %w", l.report.Count+1, err)
	}
	return nil
}

// Found is what Open found.
func (l *Ledger) Found() Report { return l.report }

// Append writes one record and returns its number once it is on the disk; only
// then may it be called acknowledged. After an error the ledger must be opened again:
// whether the record reached the disk is unknown.
func (l *Ledger) Append(writer string, now time.Time) (int64, error) {
	record := l.report.last.next(writerName(writer), now)
	line := record.encode()
	if l.layout == Blocks {
		line = append(line, make([]byte, blockSize-len(line))...)
	}
	if _, err := l.medium.WriteAt(line, l.report.end); err != nil {
		return 0, fmt.Errorf("write record %d: %w", record.Number, err)
	}
	if err := l.medium.Sync(); err != nil {
		return 0, fmt.Errorf("sync record %d: %w", record.Number, err)
	}
	if err := l.report.add(record, int64(len(line))); err != nil {
		return 0, fmt.Errorf("chain own record: %w", err)
	}
	return record.Number, nil
}
