package attachment

import (
	"cmp"
	"slices"
	"time"
)

// Decide says what to do next for one volume. Whoever takes the steps binds each
// write to the versions that the steps carry, and decides again after each answer.
func Decide(now time.Time, want Desired, seen Observed, policy Policy) Decision {
	p := plan{now: now, want: want, seen: seen, policy: policy, exclusive: want.Shared != Yes}
	p.wants = make(map[NodeName]Want, len(want.Wants))
	for _, w := range want.Wants {
		p.wants[w.Node] = w
	}
	p.attachments = slices.SortedFunc(slices.Values(seen.Attachments), func(a, b Attachment) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name))
	})
	p.chooseKeeper()
	for _, a := range p.attachments {
		if p.stays(a) {
			p.keep(a)
		} else {
			p.release(a)
		}
	}
	p.withdrawStrays()
	p.attachMissing()
	return Decision{Steps: p.steps, Reason: p.reason()}
}

// plan gathers the steps of one decision.
type plan struct {
	now         time.Time
	want        Desired
	seen        Observed
	policy      Policy
	exclusive   bool
	wants       map[NodeName]Want
	attachments []Attachment
	keeper      string // name of the one attachment that an exclusive volume keeps
	steps       []Step
}

func (p *plan) do(s Step) { p.steps = append(p.steps, s) }

func (p *plan) reason() Reason {
	for _, s := range p.steps {
		if h, ok := s.(Hold); ok {
			return h.Reason
		}
	}
	return Settled
}

// wanted tells whether pods want the volume at the attachment's node by way of this
// very object. One that names a vanished PersistentVolume is made anew when pods
// come by another: the attacher could not read it.
func (p *plan) wanted(a Attachment) bool {
	w, ok := p.wants[a.Node]
	return ok && a.Computed && (!a.VolumeGone || w.PersistentVolume == a.PersistentVolume)
}

// chooseKeeper picks, of several attachments of an exclusive volume, the one that
// stays: what cannot be taken away without harm before what can, then the oldest.
// Several can only come from other writers or a late write of a leader before us.
func (p *plan) chooseKeeper() {
	rank := func(a Attachment) int {
		node := p.seen.Nodes[a.Node]
		switch {
		case node.InUse == Yes && !node.onlyClaims(a):
			return 0
		case node.Reported:
			return 1
		case a.Confirmed == Yes:
			return 2
		}
		return 3
	}
	var best *Attachment
	for i, a := range p.attachments {
		if a.Deleting || !p.wanted(a) {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(rank(a), rank(*best)), a.Created.Compare(best.Created)) < 0 {
			best = &p.attachments[i]
		}
	}
	if best != nil {
		p.keeper = best.Name
	}
}

func (p *plan) stays(a Attachment) bool {
	return !a.Deleting && p.wanted(a) && (!p.exclusive || a.Name == p.keeper)
}

// keep looks after an attachment that is wanted where it is.
func (p *plan) keep(a Attachment) {
	node := p.seen.Nodes[a.Node]
	hold := Hold{Node: a.Node, Attachment: a.Name, Wanted: true}
	switch {
	case node.Exists == Unknown:
		hold.Reason = NodeUnknown
	case node.Exists == No:
		hold.Reason = NodeGone
	case !node.Managed:
		hold.Reason = NodeNotManaged
	case a.Confirmed != Yes:
		p.keepUnconfirmed(a, node)
		return
	default:
		p.keepConfirmed(a, node)
		return
	}
	p.do(hold)
}

func (p *plan) keepUnconfirmed(a Attachment, node Node) {
	p.note(a, time.Time{}, false)
	if node.Reported && node.InUse == No { // S9
		p.do(WithdrawReport{Node: a.Node, NodeUID: node.Machine.NodeUID})
	}
	hold := Hold{Node: a.Node, Attachment: a.Name, Reason: Attaching, Wanted: true}
	if a.AttachError != "" {
		hold.Reason, hold.Detail = AttachFailed, a.AttachError
	}
	p.do(hold)
}

func (p *plan) keepConfirmed(a Attachment, node Node) {
	if node.Reported {
		p.note(a, time.Time{}, false)
		return
	}
	// The report lets kubelet mount. It waits like the attach itself if somebody put
	// the volume on two nodes (S1).
	if blockers := p.blockers(a.Node); p.exclusive && len(blockers) > 0 {
		p.note(a, time.Time{}, false)
		p.do(refused(a.Node, blockers))
		return
	}
	p.report(a, node, time.Time{})
}

// report reports a confirmed attachment. If a delete of its version may be on its
// way, the object gets a new version first, so that the delete fails.
func (p *plan) report(a Attachment, node Node, requested time.Time) {
	// That the node lists the volume says nothing here: it does so before the first attach.
	again := !a.DetachRequested.IsZero() || !requested.IsZero() || node.Checked
	p.note(a, requested, a.DeleteMayBeUnderway)
	p.do(Report{Node: a.Node, NodeUID: node.Machine.NodeUID, Attachment: a.Ref, Again: again})
}

// note brings belay's annotations up to date, if they are not.
func (p *plan) note(a Attachment, requested time.Time, newVersion bool) {
	n := Note{Node: a.Node, Attachment: a.Ref, DetachRequested: requested, Machine: a.Machine}
	node := p.seen.Nodes[a.Node]
	vouches := node.InUse == Yes && node.returnedAfter(a)
	restarted := a.Machine.NodeUID != "" && a.Machine.NodeUID == node.Machine.NodeUID
	if node.Exists == Yes && (vouches || restarted) {
		// A Node that came back and says itself that it uses the volume can be trusted
		// from here on: it will also say when it no longer does. And a record of an
		// earlier boot would let a later Node pass for a machine restarted since.
		n.Machine = n.Machine.updated(node.Machine)
	}
	if newVersion {
		n.CalledOff = p.now
	}
	if newVersion || !requested.Equal(a.DetachRequested) || n.Machine != a.Machine {
		p.do(n)
	}
}

// release brings an attachment that nobody wants where it is towards its end.
func (p *plan) release(a Attachment) {
	node := p.seen.Nodes[a.Node]
	_, waitedFor := p.wants[a.Node]
	hold := Hold{Node: a.Node, Attachment: a.Name, Wanted: waitedFor}
	switch {
	case !a.Computed:
		hold.Reason = ForeignAttachment
	case node.Exists == Unknown:
		hold.Reason = NodeUnknown
	case node.Exists == Yes && !node.Managed:
		hold.Reason = NodeNotManaged
	case a.Deleting:
		hold.Reason = Detaching
		if a.DetachError != "" {
			hold.Reason, hold.Detail = DetachFailed, a.DetachError
		}
		if node.Reported && p.MayWithdraw(node) {
			p.do(WithdrawReport{Node: a.Node, NodeUID: node.Machine.NodeUID})
		}
	default:
		p.detach(a, node, hold)
		return
	}
	p.do(hold)
}

// MayWithdraw tells whether a node's report may be withdrawn: never what the newest
// known Node lists in use, unless a policy forces it. A restarting kubelet takes a
// volume that is not reported for one that needs no attach, and then leaves it out
// of its in-use list although it is still mounted. Where nothing is reported there
// is nothing to withdraw, and asking is always allowed.
func (p Policy) MayWithdraw(node Node) bool {
	return !node.Reported || node.InUse == No || p.forces(node) != nil
}

// MayWithdraw applies the policy of this plan.
func (p *plan) MayWithdraw(node Node) bool { return p.policy.MayWithdraw(node) }

// forces returns what allows a detach from the node although it may use the volume.
func (p Policy) forces(node Node) Authority {
	if p.OutOfService && node.Exists == Yes && node.OutOfService {
		return OutOfServiceTaint{}
	}
	return nil
}

// detach withdraws, checks, and deletes, in this order and only if each allows the
// next (S2, S3).
func (p *plan) detach(a Attachment, node Node, hold Hold) {
	use := node.useOf(a)
	if hold.Wanted && use == Yes && node.onlyClaims(a) {
		use = No
	}
	authority := p.policy.forces(node)
	if use != No && authority == nil {
		p.wait(a, node, hold)
		return
	}
	switch {
	case node.Reported || !node.Checked || node.WriteMayBeUnderway:
		p.do(WithdrawReport{Node: a.Node, NodeUID: node.uid(), NewVersion: node.WriteMayBeUnderway})
		hold.Reason = Detaching
		p.do(hold)
	case use == No:
		p.do(Detach{Node: a.Node, Attachment: a.Ref})
	default:
		p.do(ForceDetach{Node: a.Node, Attachment: a.Ref, Authority: authority})
	}
}

// wait keeps an unwanted attachment whose volume is, or may be, in use. The time of
// the request is stored on the object so that it outlives us.
func (p *plan) wait(a Attachment, node Node, hold Hold) {
	requested := a.DetachRequested
	if requested.IsZero() {
		requested = p.now
	}
	switch {
	case node.Exists == No:
		hold.Reason = NodeGone
	case node.InUse == Yes:
		hold.Reason = StillInUse
	case node.InUse == No:
		hold.Reason = NodeReturned
	default:
		hold.Reason = NodeUnknown
	}
	if node.Exists == Yes && !node.Reported && a.Confirmed == Yes {
		// Whoever may use the volume finds it reported, and so keeps it on its list.
		p.report(a, node, requested)
	} else {
		p.note(a, requested, false)
	}
	p.do(hold)
}

// updated is the machine with what is known of its present.
func (m Machine) updated(now Machine) Machine {
	return Machine{
		NodeUID:    cmp.Or(now.NodeUID, m.NodeUID),
		BootID:     cmp.Or(now.BootID, m.BootID),
		SystemUUID: cmp.Or(now.SystemUUID, m.SystemUUID),
	}
}

// uid is that of the Node object, if there is one.
func (n Node) uid() string {
	if n.Exists != Yes {
		return ""
	}
	return n.Machine.NodeUID
}

// useOf tells whether the node uses the volume of the attachment. A Node object
// that came back under its name for a machine that was not restarted does not know
// yet what it has mounted: that it lists nothing says nothing, and if it is gone
// again, that it listed nothing said nothing.
func (n Node) useOf(a Attachment) Knowledge {
	if n.InUse == No && n.returnedAfter(a) {
		return Unknown
	}
	return n.InUse
}

// onlyClaims tells, of a node whose pods wait for the volume, that an entry in its
// in-use list is no more than the claim that kubelet makes before it may mount: the
// volume is not reported to it, and the report of what is in use is never withdrawn.
func (n Node) onlyClaims(a Attachment) bool {
	return !n.Reported && !n.returnedAfter(a)
}

// returnedAfter tells whether the Node object was made anew after the attachment
// was, for what may be the same run of the same machine.
func (n Node) returnedAfter(a Attachment) bool {
	recorded, current := a.Machine, n.Machine
	switch recorded.NodeUID {
	case "":
		// Made by another controller: the times, in whole seconds, have to do.
		if !n.Created.After(a.Created) {
			return false
		}
	case current.NodeUID:
		return false
	}
	restarted := recorded.BootID != "" && current.BootID != "" && recorded.BootID != current.BootID
	replaced := recorded.SystemUUID != "" && current.SystemUUID != "" && recorded.SystemUUID != current.SystemUUID
	return !restarted && !replaced
}

// withdrawStrays withdraws reports that no attachment stands behind (S9). They come
// from an attachment that somebody deleted and from other controllers.
func (p *plan) withdrawStrays() {
	for _, name := range p.nodeNames() {
		node := p.seen.Nodes[name]
		if !node.Reported || !node.Managed || p.hasAttachment(name) {
			continue
		}
		if p.MayWithdraw(node) {
			p.do(WithdrawReport{Node: name, NodeUID: node.Machine.NodeUID})
		} else if _, ok := p.wants[name]; !ok {
			p.do(Hold{Node: name, Reason: StillInUse})
		}
	}
}

func (p *plan) nodeNames() []NodeName {
	names := make([]NodeName, 0, len(p.seen.Nodes))
	for name := range p.seen.Nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (p *plan) hasAttachment(node NodeName) bool {
	return slices.ContainsFunc(p.attachments, func(a Attachment) bool { return a.Node == node })
}

// attachMissing attaches the volume where it is wanted and nothing is there yet.
func (p *plan) attachMissing() {
	wants := slices.SortedFunc(slices.Values(p.want.Wants), func(a, b Want) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Node, b.Node))
	})
	var given NodeName
	for _, w := range wants {
		node := p.seen.Nodes[w.Node]
		hold := Hold{Node: w.Node, Wanted: true}
		switch blockers := p.blockers(w.Node); {
		case p.hasComputed(w.Node):
			continue
		case node.Exists == Unknown:
			hold.Reason = NodeUnknown
		case node.Exists == No:
			hold.Reason = NodeGone
		case !node.Managed:
			hold.Reason = NodeNotManaged
		case p.exclusive && len(blockers) > 0: // S1
			hold = refused(w.Node, blockers)
		case p.exclusive && given != "":
			hold = refused(w.Node, []Blocker{{Node: given, Kind: ByTurn}})
		case node.Reported && p.MayWithdraw(node):
			continue // being withdrawn; attached when that is answered
		default:
			p.do(Attach{Node: w.Node, PersistentVolume: w.PersistentVolume, Machine: node.Machine})
			given = w.Node
			continue
		}
		p.do(hold)
	}
}

func (p *plan) hasComputed(node NodeName) bool {
	return slices.ContainsFunc(p.attachments, func(a Attachment) bool { return a.Computed && a.Node == node })
}

func refused(node NodeName, blockers []Blocker) Hold {
	hold := Hold{Node: node, Reason: OtherWriterDetaching, Wanted: true, Blockers: blockers}
	for _, b := range blockers {
		if b.Kind != ByDeletion {
			hold.Reason = OtherWriterAttached
		}
	}
	return hold
}

// blockers lists what says that the volume is, or may be, somewhere else than at
// the node (S1). An object that may be confirmed, failed or never begun counts like
// one that is confirmed: only its absence says that the volume is not there.
func (p *plan) blockers(node NodeName) []Blocker {
	var found []Blocker
	for _, a := range p.attachments {
		switch {
		case !a.Computed:
			found = append(found, Blocker{Node: a.Node, Kind: ByForeigner})
		case a.Node == node:
		case a.Deleting:
			found = append(found, Blocker{Node: a.Node, Kind: ByDeletion})
		default:
			found = append(found, Blocker{Node: a.Node, Kind: ByAttachment})
		}
	}
	for _, name := range p.nodeNames() {
		other := p.seen.Nodes[name]
		// A node that a policy calls dead never clears its lists. Its attachment, if
		// there is one, counts all the same.
		if name == node || p.hasAttachment(name) || p.policy.forces(other) != nil && !other.Reported {
			continue
		}
		// Kubelet claims a volume in its in-use list before it may mount it. Where pods
		// wait and nothing is reported to them the entry is no more than that claim: if
		// it counted, pods on two nodes would block each other for ever.
		_, claims := p.wants[name]
		switch {
		case other.InUse == Yes && (other.Reported || !claims):
			found = append(found, Blocker{Node: name, Kind: ByUse})
		case other.Reported:
			found = append(found, Blocker{Node: name, Kind: ByReport})
		}
	}
	return found
}
