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
	if want.Unattached {
		p.decideUnattached()
	} else {
		p.decideAttached()
	}
	return Decision{Steps: p.steps, Reason: p.reason(), RecheckAt: p.recheckAt}
}

func (p *plan) decideAttached() {
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
	recheckAt   time.Time
}

func (p *plan) do(s Step) { p.steps = append(p.steps, s) }

// recheck asks for another decision at a time, if it is still to come.
func (p *plan) recheck(at time.Time) {
	if at.After(p.now) && (p.recheckAt.IsZero() || at.Before(p.recheckAt)) {
		p.recheckAt = at
	}
}

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
	switch reason := node.unfit(); {
	case reason == NodeNotManaged:
		p.do(Hold{Node: a.Node, Attachment: a.Name, Reason: reason, Wanted: true})
	case reason != "":
		p.note(a, time.Time{}, false)
		p.do(Hold{Node: a.Node, Attachment: a.Name, Reason: reason, Wanted: true})
	case a.Confirmed != Yes && !faultS9:
		p.keepUnconfirmed(a, node)
	default:
		p.keepConfirmed(a, node)
	}
}

func (p *plan) keepUnconfirmed(a Attachment, node Node) {
	p.note(a, time.Time{}, false)
	if node.Reported && node.InUse == No { // S9
		p.do(WithdrawReport{Node: a.Node, NodeUID: node.Machine.NodeUID})
	}
	hold := Hold{Node: a.Node, Attachment: a.Name, Reason: Attaching, Wanted: true}
	switch {
	case a.AttachError != "":
		hold.Reason, hold.Detail = AttachFailed, a.AttachError
	case p.unanswered(a.Created):
		hold.Reason = AttachUnanswered
	}
	p.do(hold)
}

// unanswered tells whether the attacher has been silent for too long since it was
// asked, and else when it will have been.
func (p *plan) unanswered(asked time.Time) bool {
	if asked.IsZero() {
		return false
	}
	at := asked.Add(AnswerTimeout)
	p.recheck(at)
	return !p.now.Before(at)
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
		} else if p.unanswered(a.DeletingSince) {
			hold.Reason = DetachUnanswered
		}
		if node.Reported && p.mayWithdraw(node, a.DetachRequested) {
			p.do(WithdrawReport{Node: a.Node, NodeUID: node.Machine.NodeUID, DetachRequested: a.DetachRequested})
		}
	default:
		p.detach(a, node, hold)
		return
	}
	p.do(hold)
}

// mayWithdraw applies the policy of this plan.
func (p *plan) mayWithdraw(node Node, requested time.Time) bool {
	return p.policy.MayWithdraw(p.now, node, requested)
}

// since is when a detach was first asked for: now, if it was not yet. A time to come,
// from a clock that is ahead or a hand that slipped, counts as now.
func (p *plan) since(requested time.Time) time.Time {
	if requested.IsZero() || requested.After(p.now) {
		return p.now
	}
	return requested
}

// detach withdraws, checks, and deletes, in this order and only if each allows the
// next (S2, S3).
func (p *plan) detach(a Attachment, node Node, hold Hold) {
	use := node.useOf(a)
	if hold.Wanted && use == Yes && node.onlyClaims(a) {
		use = No
	}
	// The unmount timeout is for pods that left: its clock stands while some are here.
	var requested time.Time
	if !hold.Wanted {
		requested = p.since(a.DetachRequested)
	}
	authority := p.policy.forces(p.now, node, requested)
	if use != No && authority == nil {
		p.wait(a, node, hold, requested)
		return
	}
	switch {
	case !faultS3 && (node.Reported || !node.Checked || node.WriteMayBeUnderway):
		p.do(WithdrawReport{
			Node: a.Node, NodeUID: node.uid(), NewVersion: node.WriteMayBeUnderway, DetachRequested: a.DetachRequested,
		})
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
func (p *plan) wait(a Attachment, node Node, hold Hold, requested time.Time) {
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
	p.recheck(p.policy.expiry(node, requested))
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
// again, that it listed nothing said nothing. One that was seen to list the volume,
// and then no longer, has let it go.
func (n Node) useOf(a Attachment) Knowledge {
	if n.InUse == No && n.returnedAfter(a) && !n.LetGo {
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
		if node.Exists != Yes || !node.Managed {
			continue
		}
		_, wanted := p.wants[name]
		switch {
		case p.hasAttachment(name): // which keeps the time itself
			p.noteNode(name, node, time.Time{})
		case !wanted && node.Reported:
			p.retire(name, node)
		case node.Reported && p.mayWithdraw(node, time.Time{}):
			p.do(WithdrawReport{Node: name, NodeUID: node.Machine.NodeUID})
		default:
			p.noteNode(name, node, time.Time{})
		}
	}
}

// retire withdraws a report that nothing stands behind but the node's own word, once
// the node no longer uses the volume. Until then the request is kept on the Node.
func (p *plan) retire(name NodeName, node Node) {
	if p.mayWithdraw(node, p.since(node.DetachRequested)) {
		withdraw := WithdrawReport{Node: name, NodeUID: node.Machine.NodeUID, DetachRequested: node.DetachRequested}
		if node.InUse != No {
			withdraw.Authority = p.policy.forces(p.now, node, node.DetachRequested)
		}
		p.do(withdraw)
		return
	}
	p.waitOnNode(name, node)
}

// waitOnNode is wait for what has no VolumeAttachment: the time of the request is
// stored on the Node.
func (p *plan) waitOnNode(name NodeName, node Node) {
	requested := p.since(node.DetachRequested)
	p.noteNode(name, node, requested)
	p.recheck(p.policy.expiry(node, requested))
	p.do(Hold{Node: name, Reason: node.inUseReason()})
}

// inUseReason is why nothing is taken from a node that uses the volume, or may use it.
func (n Node) inUseReason() Reason {
	switch {
	case n.Exists == No:
		return NodeGone
	case n.InUse == Yes:
		return StillInUse
	}
	return NodeReturned
}

// noteNode stores on the Node since when a detach waits that has no VolumeAttachment
// to store it on, if it does not stand there.
func (p *plan) noteNode(name NodeName, node Node, requested time.Time) {
	if !requested.Equal(node.DetachRequested) {
		p.do(NoteNode{Node: name, NodeUID: node.Machine.NodeUID, DetachRequested: requested})
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
	wants := p.wantsByAge()
	var given NodeName
	for _, w := range wants {
		node := p.seen.Nodes[w.Node]
		hold := Hold{Node: w.Node, Reason: node.unfit(), Wanted: true}
		switch blockers := p.blockers(w.Node); {
		case p.hasComputed(w.Node):
			continue
		case hold.Reason != "":
		case p.exclusive && len(blockers) > 0: // S1
			hold = refused(w.Node, blockers)
		case p.exclusive && given != "":
			hold = refused(w.Node, []Blocker{{Node: given, Kind: ByTurn}})
		case node.Reported && p.mayWithdraw(node, time.Time{}):
			continue // being withdrawn; attached when that is answered
		default:
			p.do(Attach{Node: w.Node, PersistentVolume: w.PersistentVolume, Machine: node.Machine})
			given = w.Node
			continue
		}
		p.do(hold)
	}
}

func (p *plan) wantsByAge() []Want {
	return slices.SortedFunc(slices.Values(p.want.Wants), func(a, b Want) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Node, b.Node))
	})
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
		case a.Node == node, faultS1 && a.Confirmed != Yes:
		case a.Deleting:
			found = append(found, Blocker{Node: a.Node, Kind: ByDeletion})
		default:
			found = append(found, Blocker{Node: a.Node, Kind: ByAttachment})
		}
	}
	for _, name := range p.nodeNames() {
		other := p.seen.Nodes[name]
		if name == node || p.hasAttachment(name) || p.ignores(other) {
			continue
		}
		switch {
		case p.mayUse(name, other):
			found = append(found, Blocker{Node: name, Kind: ByUse})
		case other.Reported:
			found = append(found, Blocker{Node: name, Kind: ByReport})
		}
	}
	return found
}

// ignores tells whether what a node without an attachment lists no longer counts: a
// node that a policy calls dead never clears its lists.
func (p *plan) ignores(node Node) bool {
	if p.want.Unattached {
		if node.InUse != No {
			p.recheck(p.policy.expiry(node, node.DetachRequested))
		}
		return !node.Reported && p.policy.forces(p.now, node, node.DetachRequested) != nil
	}
	return p.policy.givesUp(p.now, node)
}

// mayUse tells whether a node without an attachment uses the volume, or may use it.
//
// Kubelet claims a volume in its in-use list before it may mount it. Where pods wait
// and nothing is reported to them the entry is no more than that claim: if it counted,
// pods on two nodes would block each other for ever. The list of a Node that is gone,
// or came back, is no such claim: what was reported to it went with its object.
func (p *plan) mayUse(name NodeName, node Node) bool {
	_, wanted := p.wants[name]
	claims := wanted && !node.Reported
	switch {
	case !p.want.Unattached:
		return node.InUse == Yes && !claims
	case node.Exists == Yes:
		return node.InUse == Unknown || node.InUse == Yes && !claims
	}
	return node.InUse == Yes
}
