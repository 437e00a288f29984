package labdisk

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
)

// fabricOptions configures a fabric.
type fabricOptions struct {
	Dir string // state, volumes and records
	// Permissive makes a storage that forbids nothing: a second publish succeeds, an unpublish cuts nothing, writes land.
	// Violations are recorded anyway.
	Permissive bool
}

// fabric is the storage: volumes, the nodes that hold them, and the only way to read and write them.
type fabric struct {
	opts   fabricOptions
	file   *stateFile
	record *journal

	// mu guards what follows. It may be held while a volume's gate is taken, never the other way round, and over no I/O on
	// the disk but the making of an empty volume.
	mu           sync.Mutex
	volumes      map[string]*volume // by handle
	nodes        map[string]*node
	nextEpoch    uint64
	nextSequence uint64
	faults       faultSet
}

// volume is one volume with its data.
type volume struct {
	Volume // without Attachments; does not change, but for Bytes, which grows and is guarded by gate

	// gate makes I/O atomic with the check of who holds the volume. I/O holds its read side from the check until the
	// bytes are in the file; a change of holders holds its write side. So when a detach returns, no write is under way.
	gate    sync.RWMutex
	holders map[string]Attachment // by node; guarded by gate
	gone    bool                  // deleted; guarded by gate
	data    *os.File              // of a block volume
	share   *os.Root              // of a shared directory
	// appending lets one append to a file of a shared directory at a time.
	appending sync.Mutex
	landed    landed
}

// node is a node's access to the fabric. Cut and incarnation are read in I/O under the gate of a volume; who changes them
// then passes through the gates of all volumes, to leave no I/O behind that saw the old value.
type node struct {
	name        string
	zone        string // guarded by fabric.mu, as is maxVolumes
	maxVolumes  int64
	incarnation atomic.Pointer[string]
	cut         atomic.Bool
}

func openFabric(o fabricOptions) (*fabric, error) {
	for _, d := range []string{o.Dir, filepath.Join(o.Dir, "volumes")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("make folder of the fabric: %w", describeDisk(o.Dir, err))
		}
	}
	path := filepath.Join(o.Dir, "state.json")
	s, err := loadState(path)
	if err != nil {
		return nil, err
	}
	record, err := openJournal(o.Dir)
	if err != nil {
		return nil, err
	}
	f := &fabric{opts: o, file: &stateFile{path: path}, record: record,
		volumes: map[string]*volume{}, nodes: map[string]*node{},
		nextEpoch: s.NextEpoch, nextSequence: s.NextSequence}
	f.faults.load(s.Faults, s.NextFault)
	for _, n := range s.Nodes {
		known := &node{name: n.Name, zone: n.Zone, maxVolumes: n.MaxVolumes}
		known.incarnation.Store(&n.Incarnation)
		known.cut.Store(n.Cut)
		f.nodes[n.Name] = known
	}
	for _, rec := range s.Volumes {
		v := &volume{Volume: rec, holders: map[string]Attachment{}}
		v.Attachments = nil
		for _, a := range rec.Attachments {
			v.holders[a.Node] = a
		}
		if err := v.open(f.opts.Dir); err != nil {
			return nil, errors.Join(err, f.close())
		}
		f.volumes[v.Handle] = v
	}
	if err := f.sweep(); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

// sweep removes data that no volume owns: of a create or delete that a crash cut short.
func (f *fabric) sweep() error {
	entries, err := os.ReadDir(filepath.Join(f.opts.Dir, "volumes"))
	if err != nil {
		return fmt.Errorf("list volumes' data: %w", err)
	}
	for _, e := range entries {
		if f.volumes[e.Name()] != nil {
			continue
		}
		if err := os.RemoveAll(filepath.Join(f.opts.Dir, "volumes", e.Name())); err != nil {
			return fmt.Errorf("remove data of a volume that is gone: %w", err)
		}
	}
	return nil
}

// close releases the files. The fabric must not be used afterwards.
func (f *fabric) close() error {
	errs := []error{f.record.close()}
	for _, v := range f.volumes {
		errs = append(errs, v.close())
	}
	return errors.Join(errs...)
}

func (v *volume) path(dir string) string { return filepath.Join(dir, "volumes", v.Handle) }

func (v *volume) isShare() bool { return v.Driver != DriverDisk }

// open makes the volume's data if there is none, and opens it.
func (v *volume) open(dir string) error {
	path := v.path(dir)
	if v.isShare() {
		if err := os.Mkdir(path, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make directory of volume %s: %w", v.Handle, describeDisk(dir, err))
		}
		if err := os.Chmod(path, 0o777); err != nil { // the umask took some
			return fmt.Errorf("open directory of volume %s to all: %w", v.Handle, err)
		}
		root, err := os.OpenRoot(path)
		if err != nil {
			return fmt.Errorf("open directory of volume %s: %w", v.Handle, err)
		}
		v.share = root
		return nil
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open file of volume %s: %w", v.Handle, describeDisk(dir, err))
	}
	if err := file.Truncate(v.Bytes); err != nil {
		return errors.Join(fmt.Errorf("size file of volume %s: %w", v.Handle, describeDisk(dir, err)), file.Close())
	}
	v.data = file
	return nil
}

func (v *volume) close() error {
	if v.share != nil {
		return v.share.Close()
	}
	if v.data != nil {
		return v.data.Close()
	}
	return nil
}

// snapshot is the fabric's state now, lists in a fixed order.
func (f *fabric) snapshot() state {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := state{NextEpoch: f.nextEpoch, NextSequence: f.nextSequence}
	s.Faults, s.NextFault = f.faults.list(), f.faults.next
	for _, v := range f.volumes {
		v.gate.RLock()
		rec := v.Volume
		for _, a := range v.holders {
			rec.Attachments = append(rec.Attachments, a)
		}
		v.gate.RUnlock()
		slices.SortFunc(rec.Attachments, func(a, b Attachment) int { return cmp.Compare(a.Epoch, b.Epoch) })
		s.Volumes = append(s.Volumes, rec)
	}
	for _, n := range f.nodes {
		s.Nodes = append(s.Nodes, Node{Name: n.name, Zone: n.zone, MaxVolumes: n.maxVolumes,
			Incarnation: *n.incarnation.Load(), Cut: n.cut.Load()})
	}
	slices.SortFunc(s.Volumes, func(a, b Volume) int { return cmp.Compare(a.Sequence, b.Sequence) })
	slices.SortFunc(s.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return s
}

// save puts the state on the disk; when it returns nil, what the caller changed is there.
func (f *fabric) save() error {
	if err := f.file.save(f.snapshot); err != nil {
		return describeDisk(f.opts.Dir, err)
	}
	return nil
}

// drain returns when all I/O that was admitted before it was called is over.
func (f *fabric) drain() {
	f.mu.Lock()
	all := make([]*volume, 0, len(f.volumes))
	for _, v := range f.volumes {
		all = append(all, v)
	}
	f.mu.Unlock()
	for _, v := range all {
		v.gate.Lock()
		v.gate.Unlock() //nolint:staticcheck // passing through is the point
	}
}
