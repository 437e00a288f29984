package nodevolume

import (
	"slices"
)

// NodeStatus is one version of the Node.
type NodeStatus struct {
	UID             string
	ResourceVersion string
	InUse           []string
	Attached        []string
}

// Write is a PATCH of node.status.volumesInUse. It carries UID and ResourceVersion, so it succeeds only on the version that it was
// made from.
type Write struct {
	UID             string
	ResourceVersion string
	InUse           []string
}

// InUseList keeps the known and the wanted state of node.status.volumesInUse. The agent is the only writer of the field, so what it
// must guard against are its own writes: a PATCH whose reply is lost may still be carried out. Until that is excluded, what the
// PATCH would change counts as Unknown. Any newer version of the Node excludes it, because the PATCH names the version that it
// changes; if a live read finds no newer version, the same PATCH is sent again.
//
// The zero value knows nothing.
type InUseList struct {
	known  bool
	newest NodeStatus
	// inUse and attached are the lists of newest, as sets.
	inUse, attached nameSet
	wants           map[string]bool
	// pending is the write that was sent and may still be carried out; pendingInUse is its list.
	pending      *Write
	pendingInUse nameSet
	// uncertain are names that an agent that crashed may be removing by a write at pending's version.
	uncertain nameSet
	// inFlight: the reply to pending has not arrived.
	inFlight bool
	// mustRead: the Node must be read from the API server before the next write.
	mustRead bool
	// change counts the changes of the known state; changes has the last one for each name, started the last one of all names.
	change, started int
	changes         map[string]int
}

// Start sets the first version of the Node, or the first after [InUseList.HistoryReset]. It must be read at quorum and not from a
// cache. An agent that crashed may have a PATCH in flight that removes volumes without a record; recorded reports for which names a
// record exists that such an agent respected. Names without one are removed, because nothing else would remove them. A name for
// which that is unknown, or whose volume is wanted, stays, and counts as Unknown until another version of the Node excludes the
// PATCH.
func (l *InUseList) Start(node NodeStatus, recorded func(name string) Knowledge) {
	l.pending, l.pendingInUse, l.uncertain, l.inFlight, l.mustRead = nil, nil, nil, false, false
	l.setNode(node)
	l.change++
	l.started = l.change
	var left, doubted []string
	for _, name := range sortCompact(slices.Clone(node.InUse)) {
		wanted, spoken := l.wants[name]
		switch known := recorded(name); {
		case known == Yes:
			left = append(left, name)
		case known == Unknown, wanted: // the record of a wanted volume may be about to be written
			left, doubted = append(left, name), append(doubted, name)
		case !spoken:
			l.Want(name, false)
		}
	}
	if len(doubted) > 0 || len(left) != len(l.inUse) {
		l.setPending(left)
		if slices.Equal(left, node.InUse) {
			// The same list in another order: the API server makes no new version for an equal list.
			l.pending.InUse = slices.Sorted(slices.Values(slices.Concat(left, doubted)))
		}
	}
	l.uncertain = nameSetOf(doubted)
}

// Started reports whether the Node has been read at least once.
func (l *InUseList) Started() bool { return l.newest.ResourceVersion != "" }

// Observe records another version of the Node, from a watch or a live read, and returns the names whose known state changed. A
// version that is not newer than the newest changes nothing.
func (l *InUseList) Observe(node NodeStatus) (changed []string) {
	if l.Started() && !newer(node.ResourceVersion, l.newest.ResourceVersion) {
		return nil
	}
	return l.update(func() {
		l.setNode(node)
		if l.pending != nil && newer(node.ResourceVersion, l.pending.ResourceVersion) {
			l.pending, l.mustRead = nil, false
		}
	})
}

// Version is the resourceVersion of the newest known Node.
func (l *InUseList) Version() string { return l.newest.ResourceVersion }

// HistoryReset reports whether a Node that was read from the API server comes from an earlier state of etcd that was restored.
// since is what Version returned before the read began. For a long time no later version will be newer than the newest, so the list
// must be started again.
func (l *InUseList) HistoryReset(since string, node NodeStatus) bool {
	if !l.Started() {
		return false
	}
	return newer(since, node.ResourceVersion) || (!l.known && !newer(node.ResourceVersion, l.newest.ResourceVersion))
}

// ObserveLive records the Node as read from the API server, after which writes may continue.
func (l *InUseList) ObserveLive(node NodeStatus) (changed []string) {
	changed = l.Observe(node)
	l.mustRead = false
	return changed
}

// NodeDeleted records that the Node is gone: its lists are unknown until there is a newer version.
func (l *InUseList) NodeDeleted() (changed []string) {
	return l.update(func() { l.known = false })
}

// Want sets whether the volume should be listed. It reports whether that is a change.
func (l *InUseList) Want(name string, listed bool) bool {
	if was, ok := l.wants[name]; ok && was == listed {
		return false
	}
	if l.wants == nil {
		l.wants = map[string]bool{}
	}
	l.wants[name] = listed
	return true
}

// Forget drops the wish for a volume.
func (l *InUseList) Forget(name string) {
	delete(l.wants, name)
	delete(l.changes, name)
}

// View is what is known about one volume.
func (l *InUseList) View(name string) Node {
	view := Node{Changes: max(l.started, l.changes[name])}
	if !l.known {
		return view
	}
	view.InUse, view.Attached = l.inUse.lists(name), l.attached.lists(name)
	if l.pending != nil && (l.pendingInUse.lists(name) != view.InUse || l.uncertain.lists(name) == Yes) {
		view.InUse = Unknown
	}
	return view
}

// Next returns the write to send now, if there is one. The caller sends it and then calls Applied or NotApplied. Until then there
// is no next one; later wishes go together into the write after it.
func (l *InUseList) Next() (Write, bool) {
	if !l.known || l.inFlight || l.mustRead {
		return Write{}, false
	}
	if l.pending == nil {
		want := l.nextList()
		if slices.Equal(want, slices.Sorted(slices.Values(l.newest.InUse))) {
			return Write{}, false
		}
		l.setPending(want)
	}
	l.inFlight = true
	return *l.pending, true
}

// Applied records the Node in the response to the write.
func (l *InUseList) Applied(node NodeStatus) (changed []string) {
	return l.update(func() {
		l.inFlight, l.mustRead, l.pending = false, false, nil
		if newer(node.ResourceVersion, l.newest.ResourceVersion) {
			l.setNode(node)
		}
	})
}

// NotApplied records that the write was refused or its reply lost. Either way the Node must be read from the API server: even a
// conflict may come from an earlier copy of the same write that was carried out.
func (l *InUseList) NotApplied() { l.inFlight, l.mustRead = false, true }

// RequireRead notes that the Node may be gone, so that it is read from the API server.
func (l *InUseList) RequireRead() { l.mustRead = true }

// NeedsRead reports whether the Node must be read from the API server before the next write.
func (l *InUseList) NeedsRead() bool { return !l.known || l.mustRead }

func (l *InUseList) setNode(node NodeStatus) {
	l.known, l.newest = true, node
	l.inUse, l.attached = nameSetOf(node.InUse), nameSetOf(node.Attached)
}

func (l *InUseList) setPending(inUse []string) {
	l.pending = &Write{UID: l.newest.UID, ResourceVersion: l.newest.ResourceVersion, InUse: sortCompact(slices.Clone(inUse))}
	l.pendingInUse = nameSetOf(inUse)
}

// update applies a change and returns the names whose known state it changed.
func (l *InUseList) update(change func()) (changed []string) {
	before := *l
	change()
	for _, name := range sortCompact(append(before.allNames(), l.allNames()...)) {
		if before.View(name) != l.View(name) {
			changed = append(changed, name)
		}
	}
	if len(changed) > 0 {
		l.change++
	}
	for _, name := range changed {
		if _, spoken := l.wants[name]; !spoken && l.View(name).InUse != Yes && l.View(name).Attached != Yes {
			delete(l.changes, name) // not one of this agent's volumes
			continue
		}
		if l.changes == nil {
			l.changes = map[string]int{}
		}
		l.changes[name] = l.change
	}
	return changed
}

func (l *InUseList) allNames() []string {
	all := slices.Concat(l.newest.InUse, l.newest.Attached)
	if l.pending != nil {
		all = append(all, l.pending.InUse...)
	}
	for name := range l.wants {
		all = append(all, name)
	}
	return all
}

// nextList is the newest list with the wishes applied; names without a wish stay.
func (l *InUseList) nextList() []string {
	out := make([]string, 0, len(l.newest.InUse)+len(l.wants))
	for _, name := range l.newest.InUse {
		if keep, spoken := l.wants[name]; keep || !spoken {
			out = append(out, name)
		}
	}
	for name, keep := range l.wants {
		if keep {
			out = append(out, name)
		}
	}
	return sortCompact(out)
}

// nameSet is a list as a set. It is never changed.
type nameSet map[string]struct{}

func nameSetOf(list []string) nameSet {
	out := make(nameSet, len(list))
	for _, name := range list {
		out[name] = struct{}{}
	}
	return out
}

func (n nameSet) lists(name string) Knowledge {
	if _, ok := n[name]; ok {
		return Yes
	}
	return No
}

func sortCompact(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// Older reports whether version a of the Node is older than b.
func Older(a, b string) bool { return newer(b, a) }

// newer compares two resourceVersions of one object: decimal numbers of any length without leading zeros (KEP-5504).
func newer(a, b string) bool {
	if len(a) != len(b) {
		return len(a) > len(b)
	}
	return a > b
}
