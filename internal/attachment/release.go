package attachment

import (
	"cmp"
	"time"

	"belay.dev/belay/internal/identity"
	"belay.dev/belay/internal/planted"
)

// release detaches an attachment that is not wanted where it is, as far as possible now.
func (p *plan) release(a *Attachment) {
	node := p.seen.Nodes[a.Node]
	_, waitedFor := p.wants[a.Node]
	wait := Wait{Node: a.Node, Attachment: a.Name, Wanted: waitedFor}
	switch {
	case !a.Computed:
		wait.Reason = ForeignAttachment
	case node.Exists == Unknown:
		wait.Reason = NodeUnknown
	case node.Exists == Yes && !node.Managed && a.Implied && !node.Reported && p.use(a) == Idle:
		p.do(Detach{Node: a.Node})
		return
	case node.Exists == Yes && !node.Managed:
		wait.Reason = NodeNotManaged
	case a.Deleting:
		p.awaitDetach(a, node, wait)
		return
	default:
		p.detach(a, node, wait)
		return
	}
	p.do(wait)
}

// awaitDetach waits for the attacher to detach the volume. If another client deleted the object while the volume is in use, the
// report stays.
func (p *plan) awaitDetach(a *Attachment, node Node, wait Wait) {
	wait.Reason, wait.Since = Detaching, a.DeletingSince
	if a.DetachError != "" {
		wait.Reason, wait.Detail = DetachFailed, a.DetachError
	} else {
		p.awaitAnswer(a, &wait, DetachUnanswered)
	}
	gone := node.goneFor(a)
	// The empty list of a recreated Node proves nothing yet (see use). Another machine, which took over the report and does not
	// list the volume, must not mount it because of the report.
	free := p.use(a) == Idle || gone || p.authority(a, node, gone, a.DetachRequested) != nil
	if node.Reported && free {
		p.do(WithdrawReport{Node: a.Node, NodeUID: node.Machine.NodeUID, Expect: node.Facts()})
	}
	p.do(wait)
}

// goneFor reports whether the machine that the volume was attached to has no Node object: there is none, or it represents another
// machine.
//
// Another machine that took over the Node object with its report may have mounted the volume because of it: while it lists the
// volume, it is not gone. One that the driver has another ID for has nothing to mount, whatever it lists.
func (n Node) goneFor(a *Attachment) bool {
	return n.Exists == No || n.Exists == Yes && n.Another(a) && (n.renamed(a) || !n.Reported || n.InUse != Yes)
}

// since is when a detach was first requested; now if it was not. A time in the future, from a clock that is ahead or a person's
// mistake, counts as now.
func (p *plan) since(requested time.Time) time.Time {
	latest := p.now
	if p.seen.Newest.After(latest) {
		latest = p.seen.Newest
	}
	if requested.IsZero() || requested.After(latest) {
		return latest
	}
	return requested
}

// detach withdraws, checks and deletes, in this order and only if each allows the next (S2, S3).
func (p *plan) detach(a *Attachment, node Node, wait Wait) {
	use, gone := p.use(a), node.goneFor(a)
	free := use == Idle || use == PreMount
	// The unmount timeout is for pods that left. It does not run while there are pods, unless they run on another machine than the
	// one that has the volume.
	if !wait.Wanted || gone && node.Exists == Yes {
		wait.Since = p.since(a.DetachRequested)
	}
	authority := p.authority(a, node, gone, wait.Since)
	switch {
	case !free && authority == nil:
		p.waitForUnmount(a, node, wait)
	case p.want.Orphan && !node.Checked:
		p.do(Check{Node: a.Node})
		p.waitDetaching(wait)
	case !p.want.Orphan && !planted.S3 && (node.Reported || !node.Checked || node.WriteMayBeUnderway):
		p.do(WithdrawReport{
			Node: a.Node, NodeUID: node.uid(), NewVersion: node.WriteMayBeUnderway, Expect: node.Facts(),
		})
		p.waitDetaching(wait)
	case free:
		p.do(Detach{Node: a.Node, Attachment: a.Ref})
	default:
		p.forceDetach(a, node, authority)
	}
}

func (p *plan) forceDetach(a *Attachment, node Node, authority Authority) {
	_, proven := authority.(Fenced)
	p.do(ForceDetach{
		Node: a.Node, Attachment: a.Ref, Authority: authority, Reason: p.waitReason(node, node.goneFor(a)), Runs: !proven && node.runs(a),
	})
}

func (p *plan) waitDetaching(wait Wait) {
	wait.Reason, wait.Since = Detaching, time.Time{}
	p.do(wait)
}

// waitForUnmount keeps an unwanted attachment whose volume is, or may be, in use. The time of the request is stored on the object
// so that it outlives this process.
func (p *plan) waitForUnmount(a *Attachment, node Node, wait Wait) {
	gone := node.goneFor(a)
	wait.Reason, wait.Overdue = p.waitReason(node, gone), p.policy.overdue(wait.Since)
	if gone && node.Reported && node.renamed(a) { // S9: what it was reported for is attached elsewhere
		p.do(WithdrawReport{Node: a.Node, NodeUID: node.Machine.NodeUID, Expect: node.Facts()})
	}
	if a.Confirmed != Yes {
		wait.Unconfirmed, wait.Detail = a.Created, a.AttachError
	}
	if p.reportable(a, node, gone) {
		p.report(a, node, wait.Since)
	} else {
		p.annotate(a, wait.Since, false)
	}
	if wait.At = p.policy.expiry(node, gone, wait.Since); !wait.At.IsZero() {
		wait.Forces = UnmountTimeout{}
		p.recheck(wait.At)
	}
	if node.keeps(a, p.policy.forces(p.now, node, gone, wait.Since)) {
		wait.Reason, wait.At, wait.Forces = NodeStillRuns, time.Time{}, nil
		wait.Detail = string(node.sign(a))
		p.recheck(p.now.Add(lifeRecheck))
	}
	if wait.Reason == NodeReturned && node.Healthy == Yes && !wait.Since.IsZero() && !node.Machine.unidentified(a.Machine) && !node.listSynced(a) {
		if p.now.Before(node.NextKubeletCheck) {
			wait.At = node.syncDue(a)
			p.recheck(node.NextKubeletCheck)
		} else {
			p.do(CheckKubelet{Node: a.Node, NodeUID: node.Machine.NodeUID})
		}
	}
	p.do(wait)
}

// reportable reports whether the volume should be reported to a node that may use it: a kubelet that does finds it reported, and so
// keeps it in its list. Another machine would mount it.
func (p *plan) reportable(a *Attachment, node Node, gone bool) bool {
	return node.Exists == Yes && !gone && !node.Reported && !a.Implied && a.Confirmed == Yes && !p.want.Orphan && node.vouched(a)
}

// waitReason is why nothing is detached from a node that uses the volume, or may use it.
func (p *plan) waitReason(node Node, gone bool) Reason {
	switch {
	case node.Exists == No:
		return NodeGone
	case gone:
		return NodeReplaced
	case node.InUse == Yes && p.policy.OutOfService && node.OutOfService && !p.policy.unproven(node):
		return OutOfServiceNodeReady
	case node.InUse == Yes:
		return StillInUse
	case node.InUse == No:
		return NodeReturned
	}
	return NodeUnknown
}

// updated returns the machine with the values that are now known. What identifies nothing replaces nothing that does.
func (m Machine) updated(now Machine) Machine {
	known := func(was, is string) string {
		if was != "" && identity.Of(is) == "" {
			return was
		}
		return is
	}
	return Machine{
		NodeUID:    cmp.Or(now.NodeUID, m.NodeUID),
		BootID:     known(m.BootID, now.BootID),
		SystemUUID: known(m.SystemUUID, now.SystemUUID),
		ProviderID: known(m.ProviderID, now.ProviderID),
	}
}

// uid is the UID of the Node object, empty without one.
func (n Node) uid() string {
	if n.Exists != Yes {
		return ""
	}
	return n.Machine.NodeUID
}
