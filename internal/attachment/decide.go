package attachment

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/planted"
)

// Decide returns what to do next for one volume. The caller binds each write to the versions in the steps, and decides again after
// each response.
func Decide(now time.Time, want Desired, seen Observed, policy Policy) Decision {
	p := newPlan(now, want, seen, policy)
	p.chooseKeeper()
	for _, a := range p.attachments {
		switch {
		case p.recordsSameMachine(a):
		case p.isKept(a):
			p.keep(a)
		case a.Implied && p.wanted(a):
			// Its VolumeAttachment was removed: attachMissing creates it again.
		default:
			p.release(a)
		}
	}
	p.withdrawOrphanReports()
	p.attachMissing()
	return Decision{Steps: p.steps, Reason: p.explain(), RecheckAt: p.recheckAt}
}

// plan collects the steps of one decision.
type plan struct {
	now         time.Time
	want        Desired
	seen        Observed
	policy      Policy
	exclusive   bool
	wants       map[NodeName]Want
	attachments []*Attachment         // by node and name
	at          map[NodeName]bool     // nodes with an attachment, and whether one is Implied
	holders     map[NodeName]*Blocker // of an exclusive volume: the nodes that have it, or may have it
	keeper      string                // the id of the one attachment that an exclusive volume keeps
	steps       []Step
	recheckAt   time.Time
}

func newPlan(now time.Time, want Desired, seen Observed, policy Policy) *plan {
	p := &plan{now: now, want: want, seen: seen, policy: policy, exclusive: want.Shared != Yes}
	p.wants = make(map[NodeName]Want, len(want.Wants))
	for _, w := range want.Wants {
		p.wants[w.Node] = w
	}
	p.attachments = make([]*Attachment, len(seen.Attachments))
	p.at = make(map[NodeName]bool, len(seen.Attachments))
	for i := range seen.Attachments {
		p.attachments[i] = &seen.Attachments[i]
	}
	slices.SortFunc(p.attachments, func(a, b *Attachment) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name))
	})
	for _, a := range p.attachments {
		p.at[a.Node] = p.at[a.Node] || a.Implied
	}
	if p.exclusive {
		p.findHolders()
	}
	return p
}

func (p *plan) do(s Step) { p.steps = append(p.steps, s) }

// recheck requests another decision at a time, if that is in the future.
func (p *plan) recheck(at time.Time) {
	if at.After(p.now) {
		p.recheckAt = decision.Earlier(p.recheckAt, at)
	}
}

// explain adds to each wait for another node why that node keeps the volume, and returns the first reason of all.
func (p *plan) explain() Reason {
	first, at := Settled, map[NodeName]Cause{}
	for i, step := range p.steps {
		switch s := step.(type) {
		case Detach:
			at[s.Node] = Cause{Reason: Detaching}
		case ForceDetach:
			at[s.Node] = Cause{Reason: Detaching}
		case Wait:
			s.Recovery = p.recovery(s.Node)
			p.steps[i] = s
			if first == Settled {
				first = s.Reason
			}
			if p.exclusive && !ForHolder(s.Reason) && at[s.Node].Reason == "" {
				at[s.Node] = s.Cause()
			}
		}
	}
	p.explainBlockers(at)
	return first
}

// explainBlockers adds to each wait for another node what keeps the volume there.
func (p *plan) explainBlockers(at map[NodeName]Cause) {
	for _, s := range p.steps {
		if wait, ok := s.(Wait); ok {
			for i := range wait.Blockers {
				b := &wait.Blockers[i]
				if cause, waits := at[b.Node]; waits {
					b.Cause = cause
				}
				b.Cause.Recovery = p.recovery(b.Node)
				if !b.endsByHealth() {
					continue
				}
				b.Ready = p.seen.Nodes[b.Node].Healthy
				if b.Ready == No && b.Cause.Forces == nil {
					b.Cause.Forces = p.policy.whenUnwanted(b.Cause.Reason)
				}
			}
		}
	}
}

// recovery is what recovery does for a node that is not Ready: a person who did the same beside it would be in its way.
func (p *plan) recovery(name NodeName) Recovery {
	switch node := p.seen.Nodes[name]; {
	case node.Healthy != No || node.Exists != Yes:
		return ""
	case node.Isolated, node.TaintedByFence:
		return FenceUnderWay
	case p.policy.FencesProve:
		return FenceExpected
	}
	return ""
}

// endsByHealth reports whether the node's health decides how the volume leaves it: by pods that terminate, or by an unmount.
func (b *Blocker) endsByHealth() bool {
	switch b.Cause.Reason {
	case "", Attaching, AttachUnanswered, AttachFailed:
		return b.Kind == ByAttachment || b.Kind == ByUse
	case StillInUse, NodeReturned:
		return !b.Cause.Since.IsZero()
	default:
		return false
	}
}

// wanted reports whether pods want the volume at the attachment's node through this object. One that names a vanished
// PersistentVolume is recreated when pods use another one, because the attacher could not read it; so is one to another machine.
func (p *plan) wanted(a *Attachment) bool {
	w, ok := p.wants[a.Node]
	node := p.seen.Nodes[a.Node]
	return ok && a.Computed && (!a.VolumeGone || w.PersistentVolume == a.PersistentVolume) &&
		(node.Exists != Yes || node.runSince(a) != Replaced)
}

// use returns how the attachment's node uses the volume.
func (p *plan) use(a *Attachment) Use {
	_, wanted := p.wants[a.Node]
	return p.seen.Nodes[a.Node].use(a, wanted)
}

// id identifies an attachment, Implied ones included.
func (a *Attachment) id() string { return string(a.Node) + "/" + a.Name }

// chooseKeeper selects which of several attachments of an exclusive volume stays: first those that cannot be removed without harm,
// then the oldest. There are several only because of other writers or a late write of an earlier leader.
func (p *plan) chooseKeeper() {
	rank := func(a *Attachment) int {
		switch use := p.use(a); {
		case use == Using || use == MayUse && p.seen.Nodes[a.Node].Exists == Yes:
			return 0
		case p.seen.Nodes[a.Node].Reported:
			return 1
		case a.Confirmed == Yes:
			return 2
		}
		return 3
	}
	var best *Attachment
	for _, a := range p.attachments {
		if !p.exclusive || a.Deleting || !p.wanted(a) || a.Implied {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(rank(a), rank(best)), a.Created.Compare(best.Created)) < 0 {
			best = a
		}
	}
	if best != nil {
		p.keeper = best.id()
	}
}

// isKept reports whether the attachment stays. A pod elsewhere that makes the volume exclusive does not take it from the pods here.
func (p *plan) isKept(a *Attachment) bool {
	if a.Deleting || !p.wanted(a) || a.Implied {
		return false
	}
	return !p.exclusive || a.id() == p.keeper || p.want.SharedAttached == Yes && a.Confirmed == Yes
}

// keep handles an attachment that is wanted where it is.
func (p *plan) keep(a *Attachment) {
	node := p.seen.Nodes[a.Node]
	switch reason := node.whyUnattachable(); {
	case reason == NodeNotManaged:
		p.do(Wait{Node: a.Node, Attachment: a.Name, Reason: reason, Wanted: true})
	case reason != "":
		p.annotate(a, time.Time{}, false)
		p.do(Wait{Node: a.Node, Attachment: a.Name, Reason: reason, Wanted: true, Forces: p.policy.whenUnwanted(reason)})
	case a.Confirmed != Yes && !planted.S9:
		p.keepUnconfirmed(a, node)
	default:
		p.keepConfirmed(a, node)
	}
}

func (p *plan) keepUnconfirmed(a *Attachment, node Node) {
	p.annotate(a, time.Time{}, false)
	if node.Reported && node.InUse == No { // S9
		p.do(WithdrawReport{Node: a.Node, NodeUID: node.Machine.NodeUID, Expect: node.Facts()})
	}
	wait := Wait{Node: a.Node, Attachment: a.Name, Reason: Attaching, Wanted: true, Since: a.Created}
	switch {
	case a.AttachError != "":
		wait.Reason, wait.Detail = AttachFailed, a.AttachError
	default:
		p.awaitAnswer(a, &wait, AttachUnanswered)
	}
	p.do(wait)
}

// awaitAnswer changes the reason of a wait if the attacher has not answered for too long, or requests another decision for when
// that will be so.
func (p *plan) awaitAnswer(a *Attachment, wait *Wait, unanswered Reason) {
	if wait.Since.IsZero() {
		return
	}
	if at := wait.Since.Add(AnswerTimeout); p.now.Before(at) {
		p.recheck(at)
		return
	}
	if wait.Reason = unanswered; p.now.Before(a.PendingUntil) && !a.PendingUntil.After(p.now.Add(MaxPending)) {
		wait.Detail = a.Pending
	}
}

func (p *plan) keepConfirmed(a *Attachment, node Node) {
	if node.Reported {
		p.annotate(a, time.Time{}, false)
		return
	}
	// The report lets kubelet mount. Like the attach itself it waits if another writer put the volume on two nodes (S1).
	if blockers := p.blockers(a.Node); len(blockers) > 0 {
		p.annotate(a, time.Time{}, false)
		p.do(waitForHolder(a.Node, blockers))
		return
	}
	p.report(a, node, time.Time{})
}

// report reports a confirmed attachment. If a delete of its version may be in flight, the object gets a new version first, so that
// the delete fails.
func (p *plan) report(a *Attachment, node Node, requested time.Time) {
	// That the node lists the volume in use is irrelevant here: it does so before the first attach.
	report := Report{Node: a.Node, NodeUID: node.Machine.NodeUID, Attachment: a.Ref}
	report.Repeated = !a.DetachRequested.IsZero() || !requested.IsZero() || node.Checked
	p.annotate(a, requested, a.DeleteMayBeUnderway)
	p.do(report)
}

// annotate updates belay's annotations.
func (p *plan) annotate(a *Attachment, requested time.Time, newVersion bool) {
	node := p.seen.Nodes[a.Node]
	if a.Implied {
		p.annotateNode(a.Node, node, requested)
		return
	}
	n := AnnotateAttachment{Node: a.Node, Attachment: a.Ref, DetachRequested: requested, Machine: a.Machine}
	switch run := node.runSince(a); {
	case node.Exists != Yes:
	case run == SameObject && a.Machine.NodeUID != "", run == Restarted:
		n.Machine = n.Machine.updated(node.Machine)
	case run == MayBeSameRun && node.InUse == Yes && node.Reported:
		// The machine has the volume, and a record of an earlier boot would make a later Node look like a restarted machine. The Node
		// object stays another one: see SyncWindow.
		is := node.Machine
		if !planted.Listing {
			is.NodeUID = ""
		}
		n.Machine = n.Machine.updated(is)
	}
	if newVersion {
		n.CalledOff = p.now
	}
	if newVersion || !requested.Equal(a.DetachRequested) || n.Machine != a.Machine {
		p.do(n)
	}
}

// annotateNode stores on the Node since when a detach waits that has no VolumeAttachment to store it on.
func (p *plan) annotateNode(name NodeName, node Node, requested time.Time) {
	if node.Exists == Yes && !requested.Equal(node.DetachRequested) {
		p.do(AnnotateNode{Node: name, NodeUID: node.Machine.NodeUID, DetachRequested: requested})
	}
}

// withdrawOrphanReports withdraws reports of volumes without an attachment (S9). They come from other writers: a person, or the
// node itself, which may also list the volume in use and would be believed by the next leader.
func (p *plan) withdrawOrphanReports() {
	for _, name := range slices.Sorted(maps.Keys(p.seen.Nodes)) {
		node := p.seen.Nodes[name]
		implied, attached := p.at[name]
		_, wanted := p.wants[name]
		switch {
		case implied || node.Exists != Yes || !node.Managed:
		case !attached && node.Reported && (node.InUse == No || !wanted):
			p.do(WithdrawReport{Node: name, NodeUID: node.Machine.NodeUID, Expect: node.Facts()})
		default:
			p.annotateNode(name, node, time.Time{})
		}
	}
}

// attachMissing attaches the volume where it is wanted and has no attachment.
func (p *plan) attachMissing() {
	computed := make(map[NodeName]bool, len(p.attachments))
	for _, a := range p.attachments {
		computed[a.Node] = computed[a.Node] || a.Computed && !a.Implied
	}
	missing := slices.DeleteFunc(slices.Clone(p.want.Wants), func(w Want) bool { return computed[w.Node] })
	slices.SortFunc(missing, func(a, b Want) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Node, b.Node))
	})
	var given NodeName
	for _, w := range missing {
		if p.attachAt(w, given) {
			given = w.Node
		}
	}
}

// attachAt attaches the volume to one node unless it must wait, and reports whether it is that node's turn.
func (p *plan) attachAt(w Want, given NodeName) bool {
	node := p.seen.Nodes[w.Node]
	wait := Wait{Node: w.Node, Reason: node.whyUnattachable(), Wanted: true}
	if wait.Reason == "" && node.keepsOldMount() {
		wait.Reason = NodeIsolated
	}
	switch blockers := p.blockers(w.Node); {
	case wait.Reason != "":
	case len(blockers) > 0: // S1
		wait = waitForHolder(w.Node, blockers)
	case p.exclusive && given != "":
		wait = waitForHolder(w.Node, []Blocker{{Node: given, Kind: ByNewAttachment}})
	case node.Reported && node.InUse == No:
		if p.at[w.Node] { // its VolumeAttachment was removed; withdrawOrphanReports skips Implied attachments
			p.do(WithdrawReport{Node: w.Node, NodeUID: node.Machine.NodeUID, Expect: node.Facts()})
		}
		return false // attached once the withdrawal is answered
	default:
		p.do(Attach{Node: w.Node, PersistentVolume: w.PersistentVolume, Machine: p.machineFor(w.Node, node)})
		return true
	}
	p.do(wait)
	return false
}

// machineFor is what a new attachment records of the node. Where the VolumeAttachment of what an earlier Node object may have mounted was
// removed, the present object stays in doubt.
func (p *plan) machineFor(name NodeName, node Node) Machine {
	m := node.Machine
	for _, a := range p.attachments {
		if a.Node == name && a.Implied && node.mayBeLater(a) {
			m.NodeUID = InDoubt
		}
	}
	return m
}

func waitForHolder(node NodeName, blockers []Blocker) Wait {
	wait := Wait{Node: node, Reason: OtherWriterDetaching, Wanted: true, Blockers: blockers}
	for _, b := range blockers {
		if b.Kind != ByDeletion {
			wait.Reason = OtherWriterAttached
		}
	}
	return wait
}

// findHolders lists the nodes where the volume is or may be (S1). An object that is unconfirmed, failed or not begun counts like a
// confirmed one: only its absence means that the volume is not there.
func (p *plan) findHolders() {
	p.holders = map[NodeName]*Blocker{}
	for _, a := range p.attachments {
		kind := ByAttachment
		switch {
		case !a.Computed:
			kind = ByForeignAttachment
		case planted.S1 && a.Confirmed != Yes:
			continue
		case a.Deleting:
			kind = ByDeletion
		case a.Implied:
			kind = ByUse
		}
		if p.holders[a.Node] == nil || kind == ByForeignAttachment {
			p.holders[a.Node] = &Blocker{Node: a.Node, Kind: kind}
		}
		if kind == ByAttachment {
			p.holders[a.Node].Cause.Since = a.Created
		}
	}
	for _, c := range p.seen.Pending {
		if p.holders[c.Node] == nil && p.now.Before(c.Until) {
			p.holders[c.Node] = &Blocker{Node: c.Node, Kind: ByCreate}
			p.recheck(c.Until)
		}
	}
}

// blockers returns what keeps an exclusive volume from the node: the holders elsewhere, and an attachment under a name that belay
// does not use, wherever it is.
func (p *plan) blockers(node NodeName) []Blocker {
	var found []Blocker
	for _, name := range slices.Sorted(maps.Keys(p.holders)) {
		if b := p.holders[name]; name != node || b.Kind == ByForeignAttachment {
			found = append(found, *b)
		}
	}
	return found
}

// whyUnattachable is why nothing can be attached to the node now, empty if it can.
func (n Node) whyUnattachable() Reason {
	switch {
	case n.Exists == Unknown:
		return NodeUnknown
	case n.Exists == No:
		return NodeGone
	case !n.Managed:
		return NodeNotManaged
	}
	return ""
}

// keepsOldMount reports whether the volume was taken from the boot while that may have it mounted. A publish would end the cut of the storage, and
// the old mount would write what it still holds in memory. The isolation alone does not keep away a pod that tolerates all taints.
func (n Node) keepsOldMount() bool {
	cut := slices.ContainsFunc(n.Proofs, func(proof fencing.Proof) bool { return proof.Class() == fencing.StorageFenced })
	return n.InUse == Yes && (n.Isolated || cut)
}

// AllowsSeveralNodes reports whether a volume with these access modes may be attached to
// several nodes at once: one mode that allows it is enough. An empty list, which the API
// server does not admit, is not known, and so exclusive; upstream takes it for shared (k/k
// pkg/volume/util.IsMultiAttachAllowed).
func AllowsSeveralNodes[M ~string](modes []M) bool {
	return slices.Contains(modes, "ReadWriteMany") || slices.Contains(modes, "ReadOnlyMany")
}
