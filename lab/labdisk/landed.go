package labdisk

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// landed counts the writes that reached a volume, since the fabric was started.
type landed struct {
	mu sync.Mutex
	by map[writerKey]*Writes
}

type writerKey struct {
	node  string
	epoch uint64
}

// add counts one that has just ended. The gate of the volume is held, so that no later change of its holders seems earlier.
func (l *landed) add(a admission, began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := writerKey{a.node.name, a.epoch}
	w := l.by[key]
	if w == nil {
		if l.by == nil {
			l.by = map[writerKey]*Writes{}
		}
		w = &Writes{Node: key.node, Epoch: key.epoch, First: began}
		l.by[key] = w
	}
	w.Count++
	w.Last = time.Now()
}

// of lists them for a volume.
func (l *landed) of(volume string) []Writes {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]Writes, 0, len(l.by))
	for _, w := range l.by {
		copied := *w
		copied.Volume = volume
		all = append(all, copied)
	}
	return all
}

// writes lists what reached the volumes, by the time of the first write.
func (f *fabric) writes() []Writes {
	f.mu.Lock()
	volumes := make([]*volume, 0, len(f.volumes))
	for _, v := range f.volumes {
		volumes = append(volumes, v)
	}
	f.mu.Unlock()
	all := []Writes{}
	for _, v := range volumes {
		all = append(all, v.landed.of(v.Handle)...)
	}
	slices.SortFunc(all, func(a, b Writes) int { return cmp.Or(a.First.Compare(b.First), cmp.Compare(a.Epoch, b.Epoch)) })
	return all
}
