package labdisk

import (
	"slices"
	"strings"
	"syscall"
	"time"
)

// admission is what is asked of a volume: who wants to do I/O, and of which kind.
type admission struct {
	node        *node
	incarnation string
	epoch       uint64
	write       bool
}

// judge says why the I/O breaks the rules, or "". The gate is held.
func (v *volume) judge(a admission) string {
	switch {
	case a.node.cut.Load():
		return NodeCut
	case *a.node.incarnation.Load() != a.incarnation:
		return StaleIncarnation
	case v.Driver == DriverLocal:
		return ""
	}
	holder, ok := v.holders[a.node.name]
	switch {
	case !ok || holder.Epoch != a.epoch:
		return NotHolder
	case a.write && holder.ReadOnly:
		return ReadOnlyAttachment
	case a.write && len(v.holders) > 1 && v.exclusivelyHeld():
		return SeveralHolders
	}
	return ""
}

func (v *volume) exclusivelyHeld() bool {
	for _, a := range v.holders {
		if !a.Shared {
			return true
		}
	}
	return false
}

// admit runs one I/O on the volume under its gate if the rules allow it, and records a write that they do not. A strict
// fabric refuses what the rules forbid; a permissive one lets it land, unless the node is switched off or cut: that is no
// matter of rules but of a cable.
func (f *fabric) admit(v *volume, a admission, q *ioRequest, run func() *ioReply) *ioReply {
	v.gate.RLock()
	defer v.gate.RUnlock()
	if v.gone {
		return &ioReply{Errno: syscall.EIO}
	}
	if a.write {
		unrecorded, began := run, time.Now()
		run = func() *ioReply {
			reply := unrecorded()
			if reply.Errno == 0 {
				v.landed.add(a, began)
			}
			return reply
		}
	}
	reason := v.judge(a)
	if reason == "" {
		return run()
	}
	refuse := !f.opts.Permissive || reason == NodeCut || reason == StaleIncarnation
	if a.write {
		f.record.violation(Violation{Time: time.Now(), Reason: reason, Driver: v.Driver, Volume: v.Handle, Node: a.node.name,
			Epoch: a.epoch, Offset: q.Offset, Length: len(q.Data), Path: q.Path, Holders: v.holderNames(), Refused: refuse})
	}
	if refuse {
		return &ioReply{Errno: syscall.EIO}
	}
	return run()
}

// visible finds the volume for a node that looks it up by name: it is there while the node holds it, in permissive mode
// always. epoch is that of the attachment, 0 without one.
func (f *fabric) visible(s *session, handle string) (*volume, Attachment, bool) {
	f.mu.Lock()
	v := f.volumes[handle]
	f.mu.Unlock()
	if v == nil {
		return nil, Attachment{}, false
	}
	v.gate.RLock()
	defer v.gate.RUnlock()
	a, ok := v.holders[s.node.name]
	if s.node.cut.Load() || *s.node.incarnation.Load() != s.incarnation {
		return nil, Attachment{}, false
	}
	return v, a, ok || v.Driver == DriverLocal || f.opts.Permissive
}

// visibleAll lists the handles that the node of the session sees.
func (f *fabric) visibleAll(s *session) []string {
	f.mu.Lock()
	handles := make([]string, 0, len(f.volumes))
	for h := range f.volumes {
		handles = append(handles, h)
	}
	f.mu.Unlock()
	slices.SortFunc(handles, strings.Compare)
	return slices.DeleteFunc(handles, func(h string) bool {
		_, _, ok := f.visible(s, h)
		return !ok
	})
}
