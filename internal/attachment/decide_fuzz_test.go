package attachment

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"belay.dev/belay/internal/testing/fuzzinput"
)

// FuzzDecide makes a snapshot out of any bytes and checks what must hold of every decision. The rules of the oracle are written
// from the invariants S1 to S3, S6 and S9, not from the code.
func FuzzDecide(f *testing.F) {
	for _, seed := range fuzzinput.Seeds(1000, 160) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		s := snapshotFrom(fuzzinput.From(input))
		before := s.String()
		got := s.decide()
		if after := s.String(); after != before {
			t.Fatalf("the snapshot was changed from\n%s\nto\n%s", before, after)
		}
		if again := s.decide(); !reflect.DeepEqual(got, again) {
			t.Fatalf("the same snapshot gave\n%+v\nand\n%+v\nfor\n%s", got, again, s)
		}
		slices.Reverse(s.seen.Attachments)
		slices.Reverse(s.want.Wants)
		if again := s.decide(); !reflect.DeepEqual(got, again) {
			t.Fatalf("in another order the same snapshot gave\n%+v\nand\n%+v\nfor\n%s", got, again, s)
		}
		if broken := s.check(got); broken != "" {
			t.Fatalf("%s\nby %+v\nfor\n%s", broken, got, s)
		}
	})
}

type snapshot struct {
	now    time.Time
	want   Desired
	seen   Observed
	policy Policy
}

func (s *snapshot) decide() Decision { return Decide(s.now, s.want, s.seen, s.policy) }

func (s *snapshot) String() string {
	return fmt.Sprintf("now %v, policy %+v\nwant %+v\nseen %+v", s.now, s.policy, s.want, s.seen)
}

// fuzzNodes are the nodes of a snapshot; times are within minutes of t0.
var fuzzNodes = []NodeName{"a", "b", "c"}

func snapshotFrom(in *fuzzinput.Source) *snapshot {
	s := &snapshot{now: t0.Add(10 * time.Minute)}
	s.policy = Policy{
		OutOfService:   in.Bool(),
		UnmountTimeout: fuzzinput.Pick(in, 0, 6*time.Minute, time.Nanosecond),
		DeletedNode:    fuzzinput.Pick(in, DeletedNodeWait, DeletedNodeDetach),
	}
	s.want.Shared = knowledge(in)
	s.want.Orphan = in.Below(4) == 2
	s.seen.Nodes = map[NodeName]Node{}
	for _, name := range fuzzNodes {
		if in.Below(4) > 0 {
			s.seen.Nodes[name] = nodeFrom(in)
		}
		if in.Below(3) == 1 {
			s.want.Wants = append(s.want.Wants, Want{Node: name, PersistentVolume: fuzzinput.Pick(in, "pv", "pv-2"), Since: timeFrom(in)})
		}
		s.attach(in, name)
		if in.Below(6) == 1 {
			s.seen.Pending = append(s.seen.Pending, Pending{Node: name, Until: timeFrom(in)})
		}
	}
	if in.Below(4) == 1 {
		s.seen.Newest = timeFrom(in)
	}
	if s.want.Orphan {
		s.orphan()
	}
	return s
}

// orphan leaves one attachment and its node, of which nothing is reported, and no pods.
func (s *snapshot) orphan() {
	s.want.Wants, s.seen.Pending = nil, nil
	s.seen.Attachments = slices.DeleteFunc(s.seen.Attachments, func(a Attachment) bool { return a.Implied })
	if len(s.seen.Attachments) == 0 {
		s.seen.Nodes = nil
		return
	}
	a := &s.seen.Attachments[0]
	a.Computed = true
	n := s.seen.Nodes[a.Node]
	n.Reported, n.DetachRequested = false, time.Time{}
	s.seen.Attachments, s.seen.Nodes = s.seen.Attachments[:1], map[NodeName]Node{a.Node: n}
}

// attach adds what attaches the volume to one node: an object under the computed name, or none where there was one, and
// objects under other names.
func (s *snapshot) attach(in *fuzzinput.Source, name NodeName) {
	kind := in.Below(6)
	if kind == 0 {
		return
	}
	a := Attachment{Node: name, Computed: true, Confirmed: fuzzinput.Pick(in, Unknown, Yes), Created: timeFrom(in), DetachRequested: timeFrom(in), Machine: machineFrom(in)}
	if kind == 1 {
		a.Implied, a.Confirmed = true, Yes
		s.seen.Attachments = append(s.seen.Attachments, a)
		return
	}
	a.Ref = Ref{Name: "csi-" + string(name), UID: "uid-" + string(name), ResourceVersion: "7"}
	if kind == 2 {
		a.Computed, a.Name = false, "by-hand-"+string(name)
	}
	a.PersistentVolume, a.VolumeGone = fuzzinput.Pick(in, "pv", "pv-2", ""), in.Below(4) == 1
	a.Recreated, a.DeleteMayBeUnderway = in.Below(4) == 1, in.Below(4) == 1
	if a.Deleting = in.Below(3) == 1; a.Deleting {
		a.DeletingSince = timeFrom(in)
	}
	a.AttachError, a.DetachError = fuzzinput.Pick(in, "", "", "no"), fuzzinput.Pick(in, "", "", "no")
	s.seen.Attachments = append(s.seen.Attachments, a)
}

func nodeFrom(in *fuzzinput.Source) Node {
	n := Node{
		Exists: knowledge(in), Machine: machineFrom(in), Created: timeFrom(in), Managed: in.Below(5) > 0,
		Reported: in.Bool(), InUse: knowledge(in), QuietSince: timeFrom(in), QuietUntil: timeFrom(in),
		Healthy: knowledge(in), OutOfService: in.Below(3) == 1, Checked: in.Bool(), WriteMayBeUnderway: in.Below(4) == 1,
		NextKubeletCheck: timeFrom(in), DetachRequested: timeFrom(in),
	}
	if n.Exists != Yes { // there is no object to say so
		n.Reported, n.OutOfService, n.WriteMayBeUnderway = false, false, false
	}
	return n
}

func machineFrom(in *fuzzinput.Source) Machine {
	return Machine{
		NodeUID: fuzzinput.Pick(in, "uid-1", "uid-2", ""), BootID: fuzzinput.Pick(in, "boot-1", "boot-2", ""),
		SystemUUID: fuzzinput.Pick(in, "sys-1", "sys-2", ""), ProviderID: fuzzinput.Pick(in, "", "cloud-1", "cloud-2"),
	}
}

func knowledge(in *fuzzinput.Source) Knowledge { return fuzzinput.Pick(in, Unknown, No, Yes) }

// timeFrom is zero, or within twenty minutes of t0, ahead of the decision as well.
func timeFrom(in *fuzzinput.Source) time.Time {
	if b := in.Byte(); b%3 > 0 {
		return t0.Add(time.Duration(b) * 5 * time.Second)
	}
	return time.Time{}
}

// check returns the first rule that a decision breaks.
func (s *snapshot) check(d Decision) string {
	for _, rule := range []func(Decision) string{s.checkForm, s.checkExclusive, s.checkReports, s.checkKept, s.checkNoneForgotten} {
		if broken := rule(d); broken != "" {
			return broken
		}
	}
	for _, step := range d.Steps {
		var broken string
		switch x := step.(type) {
		case Detach:
			broken = s.checkDetach(x.Node, x.Attachment, nil)
		case ForceDetach:
			if broken = "S2: forced without an authority"; x.Authority != nil {
				broken = s.checkDetach(x.Node, x.Attachment, x.Authority)
			}
		case WithdrawReport:
			broken = s.checkWithdraw(x)
		case AnnotateAttachment:
			if a := s.attachment(x.Node, x.Attachment); a == nil || !a.Computed {
				broken = "S6: a note on an object that was not seen, or is another's"
			}
		}
		if broken != "" {
			return broken
		}
	}
	return ""
}

// checkForm: a reason that has an exit, a time to come.
func (s *snapshot) checkForm(d Decision) string {
	first := Settled
	for _, step := range d.Steps {
		if wait, ok := step.(Wait); ok {
			if first == Settled {
				first = wait.Reason
			}
			if exits[wait.Reason].By == "" {
				return fmt.Sprintf("nothing ends a wait for %q", wait.Reason)
			}
		}
	}
	switch {
	case d.Reason != first:
		return fmt.Sprintf("the reason is %q and the first wait is for %q", d.Reason, first)
	case !d.RecheckAt.IsZero() && !d.RecheckAt.After(s.now):
		return "it is to be looked at again at a time that has passed"
	}
	return ""
}

// checkExclusive is S1.
func (s *snapshot) checkExclusive(d Decision) string {
	if s.want.Shared == Yes {
		return ""
	}
	given := map[NodeName]bool{}
	for _, step := range d.Steps {
		report, reports := step.(Report)
		_, attaches := step.(Attach)
		switch {
		case attaches && s.heldBeside(step.OnNode()):
			return "S1: attached to " + string(step.OnNode()) + " while it is or may be elsewhere"
		case reports && s.heldBeside(report.Node) && !waits(d, report.Node):
			return "S1: reported to " + string(report.Node) + ", which does not use it yet, while it is or may be elsewhere"
		case attaches:
			given[step.OnNode()] = true
		}
	}
	if len(given) > 1 {
		return fmt.Sprintf("S1: given to %d nodes at once", len(given))
	}
	return ""
}

// heldBeside reports whether anything says that the volume is, or may be, at another node than this.
func (s *snapshot) heldBeside(node NodeName) bool {
	return slices.ContainsFunc(s.seen.Attachments, func(a Attachment) bool { return a.Node != node }) ||
		slices.ContainsFunc(s.seen.Pending, func(p Pending) bool { return p.Node != node && s.now.Before(p.Until) })
}

// waits reports whether the volume waits to be released by the node, which may use it.
func waits(d Decision, node NodeName) bool {
	return slices.ContainsFunc(d.Steps, func(step Step) bool {
		wait, ok := step.(Wait)
		return ok && wait.Node == node && exits[wait.Reason] == nodeChanges
	})
}

// checkReports is S9, and that an orphan is never reported.
func (s *snapshot) checkReports(d Decision) string {
	for _, step := range d.Steps {
		report, ok := step.(Report)
		if !ok {
			continue
		}
		node := s.seen.Nodes[report.Node]
		a := s.attachment(report.Node, report.Attachment)
		switch {
		case node.Exists != Yes || !node.Managed:
			return "reported on a node that is not there, or not the controller's"
		case report.NodeUID != node.Machine.NodeUID:
			return "S6: reported on another Node than was seen"
		case s.want.Orphan:
			return "an orphan is reported"
		case a == nil || a.Implied:
			return "S9: reported without an attachment"
		case a.Confirmed != Yes || a.Deleting:
			return "S9: reported by an attachment that is not confirmed, or being deleted"
		}
	}
	return ""
}

// checkKept: the only attachment of a volume is not taken from a machine whose pods want it.
func (s *snapshot) checkKept(d Decision) string {
	if len(s.seen.Attachments) != 1 {
		return ""
	}
	a := &s.seen.Attachments[0]
	node := s.seen.Nodes[a.Node]
	i := slices.IndexFunc(s.want.Wants, func(w Want) bool { return w.Node == a.Node })
	if i < 0 || a.VolumeGone && s.want.Wants[i].PersistentVolume != a.PersistentVolume || node.Machine.Replaces(a.Machine) {
		return ""
	}
	for _, step := range d.Steps {
		switch step.(type) {
		case Detach, ForceDetach:
			return "the only attachment is taken from " + string(a.Node) + ", which wants it"
		}
	}
	return ""
}

// checkNoneForgotten: of each node that wants the volume there is something to do or to wait for, or it has it.
func (s *snapshot) checkNoneForgotten(d Decision) string {
	for _, w := range s.want.Wants {
		has := slices.ContainsFunc(s.seen.Attachments, func(a Attachment) bool {
			return a.Node == w.Node && a.Computed && a.Confirmed == Yes && !a.Implied && s.seen.Nodes[w.Node].Reported
		})
		if !has && !slices.ContainsFunc(d.Steps, func(step Step) bool { return step.OnNode() == w.Node }) {
			return "nothing is done for " + string(w.Node) + ", which wants the volume, and no wait is returned for it"
		}
	}
	return ""
}

func (s *snapshot) attachment(node NodeName, ref Ref) *Attachment {
	for i := range s.seen.Attachments {
		if a := &s.seen.Attachments[i]; a.Node == node && a.Ref == ref {
			return a
		}
	}
	return nil
}

// checkDetach is S2, S3 and S6.
func (s *snapshot) checkDetach(name NodeName, ref Ref, by Authority) string {
	a, node := s.attachment(name, ref), s.seen.Nodes[name]
	if a == nil {
		return "S6: detached by an object that was not seen"
	}
	_, wanted := s.wanted(name)
	replaced := node.Machine.Replaces(a.Machine) || node.Another(a)
	switch {
	case !a.Computed || a.Deleting:
		return "detached although it is another's, or being deleted already"
	case node.Exists == Unknown:
		return "S2: detached from a node that could not be read"
	case by == nil && node.InUse == Unknown:
		return "S2: detached although it is not known whether it is in use"
	case by == nil && node.InUse == Yes && (node.Exists != Yes || !wanted || node.Reported || a.Implied):
		return "S2: detached while in use"
	case by == nil && node.Exists == Yes && replaced:
		return "S2: detached by the word of another machine"
	case by != nil && !s.allows(by, a, node, replaced):
		return "S2: forced by " + by.String() + ", which does not hold"
	case a.Implied && node.Exists == Yes && !node.Managed && !node.Reported:
		return "" // nothing is left to withdraw, and the Node is not the controller's
	case !node.Checked:
		return "S3: detached without an answer of the API server"
	case node.Reported && !s.want.Orphan, node.WriteMayBeUnderway && !s.want.Orphan:
		return "S3: detached while it is, or may be, reported"
	}
	return ""
}

func (s *snapshot) wanted(name NodeName) (Want, bool) {
	i := slices.IndexFunc(s.want.Wants, func(w Want) bool { return w.Node == name })
	if i < 0 {
		return Want{}, false
	}
	return s.want.Wants[i], true
}

// allows judges an authority by the policy and what was seen.
func (s *snapshot) allows(by Authority, a *Attachment, node Node, replaced bool) bool {
	switch by.(type) {
	case OutOfServiceTaint:
		return s.policy.OutOfService && node.Exists == Yes && node.OutOfService && node.Healthy == No && !replaced
	case Fenced:
		return false // no proof is given
	case DeletedNode:
		return s.policy.DeletedNode == DeletedNodeDetach && (node.Exists == No || replaced)
	default:
		_, wanted := s.wanted(a.Node)
		return s.policy.UnmountTimeout > 0 && !a.DetachRequested.IsZero() && !s.now.Before(a.DetachRequested.Add(s.policy.UnmountTimeout)) &&
			(node.Exists == No || replaced || node.Healthy == No) && (!wanted || replaced)
	}
}

// checkWithdraw: a report stays while the volume is in use and no policy takes it.
func (s *snapshot) checkWithdraw(step WithdrawReport) string {
	node := s.seen.Nodes[step.Node]
	switch {
	case s.want.Orphan:
		return "something is withdrawn for an orphan"
	case step.Expect != node.Facts():
		return "S2: a withdrawal is bound to other facts than were seen"
	case step.NodeUID != "" && step.NodeUID != node.Machine.NodeUID:
		return "S6: withdrawn from another Node than was seen"
	}
	return ""
}
