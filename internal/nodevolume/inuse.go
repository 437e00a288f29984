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

// Write is a PATCH of node.status.volumesInUse. It carries UID and
// ResourceVersion and so can land only on the version that it was made from.
type Write struct {
	UID             string
	ResourceVersion string
	InUse           []string
}

// InUseList is what this agent believes about node.status.volumesInUse and wants
// of it. It is the only writer of the field, and what it must guard against is its own
// writes: a PATCH whose reply is lost may land at any later time. Until that is
// excluded, whatever that PATCH would change counts as Unknown. It is excluded
// once any newer version of the Node was seen, because the PATCH names the version that
// it changes; if a live read finds no newer one, the same PATCH is sent again.
//
// The zero value knows nothing.
type InUseList struct {
	known  bool
	newest NodeStatus
	// inUse and attached are newest's lists, for look-up.
	inUse, attached nameSet
	wants           map[string]bool
	// pending is the write that was sent and may still land; pendingInUse its list.
	pending      *Write
	pendingInUse nameSet
	// uncertain are names that an agent that died may be taking out by a write at pending's version.
	uncertain nameSet
	// inFlight: the reply to pending may still come.
	inFlight bool
	// mustRead: nothing may be written before the Node was read live.
	mustRead bool
	// change counts the changes of the belief; changes says which was the last one about a name, and started the one
	// about all.
	change, started int
	changes         map[string]int
}

// Start takes the first version of the Node, or the first after it was [InUseList.HistoryReset]. It
// must be read at quorum and not from a cache. An agent that died may have left a PATCH on its way that takes out
// volumes without a record; recorded says of which names there is one that such an agent heeded. Those without are
// taken out: nobody else will speak of them. Where nobody knows, or the volume is wanted, the name stays, and counts as
// Unknown until another version of the Node excludes the PATCH.
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
		case known == Unknown, wanted: // a record of what is wanted may be on its way to the disk
			left, doubted = append(left, name), append(doubted, name)
		case !spoken:
			l.Want(name, false)
		}
	}
	if len(doubted) > 0 || len(left) != len(l.inUse) {
		l.setPending(left)
		if slices.Equal(left, node.InUse) {
			// The same in other words: the API server makes no new version for a list that is equal.
			l.pending.InUse = slices.Sorted(slices.Values(slices.Concat(left, doubted)))
		}
	}
	l.uncertain = nameSetOf(doubted)
}

// Started says that the Node has been read at least once.
func (l *InUseList) Started() bool { return l.newest.ResourceVersion != "" }

// Observe takes another version of the Node, from a watch or a live read, and
// returns the names about which the belief changed. A version that is not newer
// than the newest changes nothing.
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

// Version is that of the newest known Node.
func (l *InUseList) Version() string { return l.newest.ResourceVersion }

// HistoryReset says that a Node that was read live can only come from a history in which
// what is known here never happened: etcd was put back to an earlier state. since is what
// Version said before the read began. No later version will be newer than the newest for a
// long time, so the list must be started again.
func (l *InUseList) HistoryReset(since string, node NodeStatus) bool {
	if !l.Started() {
		return false
	}
	return newer(since, node.ResourceVersion) || (!l.known && !newer(node.ResourceVersion, l.newest.ResourceVersion))
}

// ObserveLive takes the Node as read live, after which writing may go on.
func (l *InUseList) ObserveLive(node NodeStatus) (changed []string) {
	changed = l.Observe(node)
	l.mustRead = false
	return changed
}

// NodeDeleted says that the Node is gone: nothing is known of it until there is a newer version.
func (l *InUseList) NodeDeleted() (changed []string) {
	return l.update(func() { l.known = false })
}

// Want says whether the volume shall be listed. It reports whether that is news.
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

// Forget drops the wish about a volume.
func (l *InUseList) Forget(name string) {
	delete(l.wants, name)
	delete(l.changes, name)
}

// View is what may be believed about one volume.
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

// Next is the write to send now, if there is one. The caller sends it and then calls
// Applied or NotApplied. While a reply is awaited there is no next one: what is wanted
// meanwhile goes together into the write after it.
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

// Applied takes the Node of the write's own response.
func (l *InUseList) Applied(node NodeStatus) (changed []string) {
	return l.update(func() {
		l.inFlight, l.mustRead, l.pending = false, false, nil
		if newer(node.ResourceVersion, l.newest.ResourceVersion) {
			l.setNode(node)
		}
	})
}

// NotApplied says that the write was refused or its reply lost. Either way the
// Node must be read live: even a refusal for a stale version may come from an
// earlier copy of the same write that landed.
func (l *InUseList) NotApplied() { l.inFlight, l.mustRead = false, true }

// RequireRead says that the Node may be gone: it must be read live.
func (l *InUseList) RequireRead() { l.mustRead = true }

// NeedsRead says that the Node must be read live before anything can be written.
func (l *InUseList) NeedsRead() bool { return !l.known || l.mustRead }

func (l *InUseList) setNode(node NodeStatus) {
	l.known, l.newest = true, node
	l.inUse, l.attached = nameSetOf(node.InUse), nameSetOf(node.Attached)
}

func (l *InUseList) setPending(inUse []string) {
	l.pending = &Write{UID: l.newest.UID, ResourceVersion: l.newest.ResourceVersion, InUse: sortCompact(slices.Clone(inUse))}
	l.pendingInUse = nameSetOf(inUse)
}

// update returns the names about which what change does alters the belief.
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
			delete(l.changes, name) // of no concern to this agent
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

// nextList is the newest list with the wishes applied; what nobody spoke of stays.
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

// nameSet is a list for look-up. It is made anew for each list and never changed.
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

// Older says that a version of the Node precedes another one.
func Older(a, b string) bool { return newer(b, a) }

// newer compares two resourceVersions of one object: decimal numbers of any length
// without leading zeros (KEP-5504).
func newer(a, b string) bool {
	if len(a) != len(b) {
		return len(a) > len(b)
	}
	return a > b
}
