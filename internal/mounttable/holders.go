package mounttable

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Holder is another mount of a volume, besides the mounts that are about to be unmounted.
type Holder struct {
	// Process is one of those that see the mount; its PID is 0 if the mount is in the caller's own namespace.
	Process
	// Namespace is the mount namespace as /proc/pid/ns/mnt names it.
	Namespace string
	// Path is the mount point, as the process sees it.
	Path string
	// Device: the process has the device open, under Path.
	Device bool
}

func (h Holder) String() string {
	var words strings.Builder
	if h.PID == 0 {
		fmt.Fprintf(&words, "it is mounted at %s too", h.Path)
		return words.String()
	}
	fmt.Fprintf(&words, "process %d (%s) has it ", h.PID, h.Command)
	if h.Device {
		fmt.Fprintf(&words, "open as %s", h.Path)
	} else {
		fmt.Fprintf(&words, "mounted at %s in mount namespace %s", h.Path, h.Namespace)
	}
	if h.Cgroup != "" {
		fmt.Fprintf(&words, ", control group %s", h.Cgroup)
	}
	return words.String()
}

// Volume is what is about to be taken from this machine.
type Volume struct {
	// Paths are the mount points that are about to be unmounted, or symbolic links to what a driver mounted elsewhere. Other mounts of
	// what is there are searched for.
	Paths []string
	// Device is a block device, as major:minor, whose file system must not be mounted either; empty for none.
	Device string
	// OtherNamespacesOnly ignores other mounts in the caller's own mount namespace.
	OtherNamespacesOnly bool
}

// Holders returns the mounts of a volume, or of a part of it, that remain when its own are gone. The error names what could not be
// read and may therefore be another holder.
//
// A mount in another namespace goes with one of ours if it is a propagated copy: it is on a mount that receives from the one that
// ours is on, at the same place. A container's own mount of a volume is on the container's root, which receives nothing; whether
// the mount itself receives (HostToContainer) is irrelevant. A copy stays if something is mounted below it that does not go as well:
// the kernel passes over it, and unmounts ours (propagate_mount_busy in torvalds/linux v6.18 fs/pnode.c).
func (t *Table) Holders(v Volume) ([]Holder, error) {
	volume, err := t.at(v.Paths)
	if err != nil {
		return nil, err
	}
	if v.Device != "" {
		volume = append(volume, entry{device: v.Device, root: "/"})
	}
	if len(volume) == 0 {
		return nil, nil
	}
	isPart := func(e entry) bool { return slices.ContainsFunc(volume, e.partOf) }
	var holders []Holder
	var ours []entry
	for _, e := range t.own {
		if !isPart(e) {
			continue
		}
		ours = append(ours, e)
		if !v.OtherNamespacesOnly && !slices.ContainsFunc(volume, func(our entry) bool { return our.point == e.point }) {
			holders = append(holders, Holder{Path: e.point})
		}
	}
	for _, n := range t.others {
		for _, e := range n.entries {
			if _, same := find(t.own, e.id); same {
				continue // a namespace that could not be identified, and is ours
			}
			if isPart(e) && !t.goes(ours, e, n) {
				holders = append(holders, Holder{Process: n.process, Namespace: n.name, Path: e.point})
			}
		}
	}
	return holders, errors.Join(t.unread...)
}

// Mounted reports whether something is mounted on the path in the caller's own namespace.
func (t *Table) Mounted(path string) bool {
	return slices.ContainsFunc(t.own, func(e entry) bool { return e.point == path })
}

// goes reports whether e, of another namespace, is unmounted with one of ours: it is a propagated copy, and so is all that is mounted
// below it.
func (t *Table) goes(ours []entry, e entry, n namespace) bool {
	if !slices.ContainsFunc(ours, func(our entry) bool { return t.isPropagatedCopy(our, e, n) }) {
		return false
	}
	return !slices.ContainsFunc(n.entries, func(child entry) bool { return child.parent == e.id && child.id != e.id && !t.goes(t.own, child, n) })
}

// isPropagatedCopy reports whether e, of another namespace, is our mount as it was propagated there.
func (t *Table) isPropagatedCopy(our, e entry, n namespace) bool {
	ourParent, ok := find(t.own, our.parent)
	if !ok || ourParent.shared == 0 || our.device != e.device || our.root != e.root {
		return false
	}
	parent, ok := find(n.entries, e.parent)
	if !ok || parent.device != ourParent.device || placeOn(parent, e) != placeOn(ourParent, our) {
		return false
	}
	return t.receives(parent, ourParent.shared)
}

func find(entries []entry, id int) (entry, bool) {
	i := slices.IndexFunc(entries, func(e entry) bool { return e.id == id })
	if i < 0 {
		return entry{}, false
	}
	return entries[i], true
}

// placeOn is where e is mounted, as a path in its parent's file system.
func placeOn(parent, e entry) string {
	return path.Join(parent.root, strings.TrimPrefix(e.point, strings.TrimSuffix(parent.point, "/")))
}

// receives reports whether an unmount on a mount of the peer group propagates to m: m is a peer, or a slave of the group or of one
// of its slaves.
func (t *Table) receives(m entry, group int) bool {
	if m.shared == group {
		return true
	}
	for range 16 { // deeper than any real nesting
		switch m.master {
		case 0:
			return false
		case group:
			return true
		}
		above, ok := t.ofGroup(m.master)
		if !ok {
			return false
		}
		m = above
	}
	return false
}

func (t *Table) ofGroup(group int) (entry, bool) {
	in := func(e entry) bool { return e.shared == group }
	if i := slices.IndexFunc(t.own, in); i >= 0 {
		return t.own[i], true
	}
	for _, n := range t.others {
		if i := slices.IndexFunc(n.entries, in); i >= 0 {
			return n.entries[i], true
		}
	}
	return entry{}, false
}
