package labdisk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// state is what the fabric must remember over a restart.
type state struct {
	Volumes      []Volume `json:"volumes"` // with their attachments
	Nodes        []Node   `json:"nodes"`
	Faults       []Fault  `json:"faults"`
	NextEpoch    uint64   `json:"nextEpoch"`
	NextSequence uint64   `json:"nextSequence"`
	NextFault    uint64   `json:"nextFault"`
}

// stateFile keeps state on the disk. Changes that wait for the disk at the same time share one write.
type stateFile struct {
	path string

	// mu guards what follows; it is not held while the disk is written.
	mu      sync.Mutex
	pending *commit // the write that has not begun yet, if anyone waits for one
	writing bool
}

// commit is one write of the file and those who wait for it.
type commit struct {
	snapshot func() state
	done     chan struct{}
	err      error
}

func loadState(path string) (state, error) {
	s := state{NextEpoch: 1, NextSequence: 1, NextFault: 1}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read state of the fabric: %w", err)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("decode state of the fabric in %s: %w", path, err)
	}
	return s, nil
}

// save returns when a state at least as new as the caller's is on the disk. snapshot is called when the write begins.
func (f *stateFile) save(snapshot func() state) error {
	f.mu.Lock()
	if f.pending == nil {
		f.pending = &commit{snapshot: snapshot, done: make(chan struct{})}
	}
	mine := f.pending
	if !f.writing {
		f.writing = true
		go f.drain()
	}
	f.mu.Unlock()
	<-mine.done
	return mine.err
}

func (f *stateFile) drain() {
	for {
		f.mu.Lock()
		c := f.pending
		f.pending = nil
		if c == nil {
			f.writing = false
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		c.err = writeState(f.path, c.snapshot())
		close(c.done)
	}
}

func writeState(path string, s state) (err error) {
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode state of the fabric: %w", err)
	}
	tmp := filepath.Join(filepath.Dir(path), ".state.tmp")
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write state of the fabric: %w", err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return fmt.Errorf("write state of the fabric: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write state of the fabric: %w", err)
	}
	return nil
}
