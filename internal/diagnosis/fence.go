package diagnosis

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// Recovery is what recovery's events are reported by, and what its leases are named after.
const Recovery = "belay-recovery"

// fence is a NodeFence that is not over.
type fence struct {
	fencing.Fence

	object *fencingv1.NodeFence
	// reason is why it waits, and missing for what.
	reason  decision.Reason
	missing string
	// since is when the wait began, as far as the record shows.
	since time.Time
}

// lostReasons are the waits for a node that does not work, which recovery ends: what its fence waits for is then the answer.
var lostReasons = map[decision.Reason]bool{
	explain.NodeNotReady: true, explain.NodeSilent: true, explain.NodeOutOfService: true, explain.PodOnLostNode: true, explain.PodNodeNotReady: true,
	attachment.NodeGone: true, attachment.NodeReplaced: true, attachment.OutOfServiceNodeReady: true,
}

// fenceOf returns the fence of a node, nil without one that is not over.
func (x *state) fenceOf(node string) *fence {
	object := x.fences[node]
	if node == "" || object == nil || kube.FenceFinished(object) {
		return nil
	}
	return x.read(object)
}

// node is the name of the node.
func (f *fence) node() string { return f.object.Spec.NodeName }

// read returns a fence that is not over.
func (x *state) read(object *fencingv1.NodeFence) *fence {
	f := &fence{Fence: kube.FenceState(object), object: object}
	if len(object.Status.Missing) > 0 {
		f.missing = x.foreign(strings.Join(object.Status.Missing, "; "))
		f.reason = explain.FenceWaitReason(object.Status.Missing[0])
	}
	if f.reason == "" {
		f.reason = map[fencing.Phase]decision.Reason{
			fencing.Evicting: fencing.AwaitingPods, fencing.Detaching: fencing.AwaitingDetach, fencing.Moved: fencing.AwaitingBoot,
			fencing.Releasing: fencing.SettlingAfterTaint, fencing.Released: fencing.SettlingAfterTaint, fencing.Cancelled: fencing.SettlingAfterTaint,
		}[f.Phase]
	}
	switch {
	case meta.IsStatusConditionTrue(object.Status.Conditions, kube.ConditionContradicted):
		f.reason = fencing.Contradicted
	case f.reason == "":
		f.reason = fencing.AwaitingSource
	}
	if f.missing == "" {
		f.missing, _ = explain.FenceWait(f.reason)
	}
	f.since = x.waitSince(f)
	return f
}

// waitSince is when the present wait of a fence began, as far as the record shows; zero if that is unknown.
func (x *state) waitSince(f *fence) time.Time {
	began := f.object.CreationTimestamp.Time
	if at := conditionSince(f.object, kube.ConditionProven); !at.IsZero() {
		began = at
	}
	released := conditionSince(f.object, kube.ConditionVolumesReleased)
	switch sent := f.Intent.Nonce != ""; {
	case f.reason == fencing.Contradicted:
		return conditionSince(f.object, kube.ConditionContradicted)
	case f.reason == fencing.IntentOpen && sent:
		return f.Intent.NotAfter.Add(-fencing.IntentFor)
	case f.Phase == fencing.Releasing || f.Phase == fencing.Released || f.Phase == fencing.Cancelled:
		return x.endsSince(f)
	case (f.reason == fencing.AwaitingBoot || f.reason == fencing.AwaitingRelease) && !released.IsZero():
		return released
	case f.reason == fencing.AwaitingSource && sent && x.Now.After(f.Intent.NotAfter) && f.Intent.NotAfter.After(began):
		return f.Intent.NotAfter // what the switch was asked before that does not count
	}
	return began
}

// endsSince is when recovery began to release a node, as far as the record shows. The proof may be days older: the machine was off. It is zero
// if the Node is not Ready again, and no client has deleted the NodeFence.
func (x *state) endsSince(f *fence) time.Time {
	if !f.Untainted.IsZero() {
		return f.Untainted
	}
	var since time.Time
	if n := x.node(f.node()); n.State == NodeReady && n.Since != nil {
		since = *n.Since
	}
	if at := f.object.DeletionTimestamp; at != nil && at.After(since) {
		since = at.Time
	}
	if !since.IsZero() && f.Intent.Nonce != "" && x.Now.After(f.Intent.NotAfter) && f.Intent.NotAfter.After(since) {
		since = f.Intent.NotAfter // it waits for the end of the command first
	}
	return since
}

// conditionSince is since when a condition of a NodeFence has been True; zero if it is not.
func conditionSince(f *fencingv1.NodeFence, name string) time.Time {
	if c := meta.FindStatusCondition(f.Status.Conditions, name); c != nil && c.Status == metav1.ConditionTrue {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// takes reports whether the fence explains that a volume of the driver is not attached to the boot that the Node shows: this boot is proven to
// have ended, or the storage refuses it.
func (x *state) takes(f *fence, driver string) bool {
	if f == nil || f.reason == fencing.Contradicted {
		return false
	}
	of := x.drivers[driver]
	return x.beingFenced(f.node()) && (f.Proven() || f.StorageProven && of != nil && kube.CutsAtUnpublish(of))
}

// beingFenced reports whether recovery fences the boot that a Node shows, which may count as Ready for a while after it fell silent.
func (x *state) beingFenced(name string) bool {
	f, node := x.fenceOf(name), x.nodes[name]
	return f != nil && !f.ends() && node != nil && kube.BootOf(node).Since(f.Boot) == fencing.SameBoot
}

// ends reports whether the fence releases the node: its machine may run again.
func (f *fence) ends() bool {
	return slices.Contains([]fencing.Phase{fencing.Releasing, fencing.Released, fencing.Cancelled}, f.Phase) ||
		f.reason == fencing.AwaitingRelease || f.reason == fencing.AwaitingUnmount
}

// takenByFence describes a volume that the fenced boot still lists.
func (x *state) takenByFence(key attachment.VolumeKey, v *Volume, node string) Finding {
	h, fence := x.holder(key, node), x.fenceOf(node)
	found := x.ofFence(fence, wait{since: fence.since}, x.situation(v, &h))
	found.Subject, found.Volume, found.Holders, found.Verdict = Ref{Resource: Nodes, Name: node}, v, []Holder{h}, x.fenceVerdict(fence)
	found.Summary = explain.TakenByFence(node) + ": " + found.Summary
	return found
}

// contradictedFences are the nodes of which recovery has evidence that contradicts itself. Neither has to have a pod that waits.
func (x *state) contradictedFences() (found []Finding) {
	for _, object := range x.Fences {
		if kube.FenceFinished(object) {
			continue
		}
		f, node := x.read(object), object.Spec.NodeName
		if f.reason != fencing.Contradicted {
			continue
		}
		attached := 0
		for _, va := range x.Attachments {
			if va.Spec.NodeName == node {
				attached++
			}
		}
		found = append(found, x.fenced(f, x.node(node), attached))
	}
	return found
}

// soon are the waits that end by themselves within seconds, unless a part of recovery does not run.
var soon = map[decision.Reason]bool{
	fencing.AwaitingSource: true, fencing.IntentOpen: true, fencing.SilenceTooShort: true, fencing.NodeUnknown: true, fencing.NotReadLive: true,
	fencing.AwaitingPods: true, fencing.AwaitingDetach: true, fencing.SettlingAfterTaint: true,
}

// verdict grades a fence by what the fence itself waits for: until something is proven, the machine may write.
func (x *state) fenceVerdict(f *fence) Verdict {
	switch {
	case f.reason == fencing.Contradicted:
		return Unsafe
	case soon[f.reason] && f.since.IsZero() && x.recoveryRuns(roleActor) != decision.No, soon[f.reason] && !f.since.IsZero() && x.Now.Sub(f.since) < unmountUsual:
		return InProgress
	case f.Proven() && f.reason == fencing.AwaitingBoot:
		return Clear
	case f.Proven():
		return Blocked
	}
	return Unsafe
}

// fencedNode is the node of a wait that a fence may end, empty for another wait.
func fencedNode(w wait, s explain.Situation) string {
	switch {
	case !lostReasons[w.reason]:
		return ""
	case w.reason == explain.PodNodeNotReady && s.Node == "":
		return s.Wanted
	}
	return s.Node
}

// ofFence makes the finding about a wait that the fence of the node ends.
func (x *state) ofFence(f *fence, w wait, s explain.Situation) Finding {
	of := x.situationOf(f)
	s.Node, s.Detail, s.Ends = of.Node, of.Detail, of.Ends
	found := Finding{
		Verdict: worse(x.fenceVerdict(f), InProgress), Reason: f.reason, Since: timePointer(w.since), Summary: x.fenceSummary(f, s),
		Next: x.fenceSteps(f), Runbook: explain.Runbook(f.reason),
	}
	if other := x.notShown(f); other != "" {
		found.Summary = other + "; " + found.Summary
	}
	if at := x.unanswered(f); !at.IsZero() {
		found.Facts = []Fact{unansweredFact(at)}
	}
	return found
}

// fenceSummary is one sentence about a fence, with why the FenceSource of its node is no help where it waits for one.
func (x *state) fenceSummary(f *fence, s explain.Situation) string {
	text := explain.FenceSummary(f.reason, s)
	if f.reason == fencing.NoEvidence {
		text += after("; ", x.sourceOf(f.node()).unusable())
	}
	return text
}

// fenceSteps are what a person can do about a fence. A statement is no help while evidence is being confirmed: it is not looked at then.
func (x *state) fenceSteps(f *fence) []explain.Step {
	reason, node := f.reason, explain.ShellWord(f.node())
	if !x.unanswered(f).IsZero() {
		reason = fencing.SourceSilent
	}
	steps := explain.FenceNext(reason, node)
	if source := x.sourceOf(f.node()); reason == fencing.NoEvidence && source != nil { // it exists, and is not used
		steps = slices.Concat(steps[:1], source.next(f.node()), []explain.Step{explain.BoundLater(source.Bound != nil)}, steps[2:])
	}
	if i := f.Intent; reason == fencing.AwaitingBoot && i.Nonce != "" && i.NotAfter.After(x.Now) {
		steps = append([]explain.Step{explain.NotBefore(i.NotAfter)}, steps...)
	}
	if f.reason == fencing.Contradicted && f.Evidence == fencing.Stated {
		by, why := "", ""
		if s := f.Statement; s != nil {
			by, why = x.foreign(s.By), x.foreign(s.Reason)
		}
		steps = append([]explain.Step{explain.WrongStatement(by, why)}, steps[1:]...)
	}
	if f.Phase == fencing.Tainting {
		steps = slices.DeleteFunc(steps, func(s explain.Step) bool { return s.Command == "kubectl belay fence "+node })
	}
	for i := range steps {
		steps[i].Text, steps[i].Command = x.forMachine(f.Boot, steps[i].Text), x.forMachine(f.Boot, steps[i].Command)
	}
	if other := x.notShown(f); other != "" {
		steps = append([]explain.Step{explain.MeansMachine(x.foreign(f.Boot.Machine))}, steps...)
	}
	return steps
}

// fenced describes a node that is being fenced.
func (x *state) fenced(f *fence, n NodeState, attached int) Finding {
	found := x.ofFence(f, wait{since: f.since}, explain.Situation{})
	found.Subject, found.Verdict, found.Clock = Ref{Resource: Nodes, Name: n.Name}, x.fenceVerdict(f), x.fenceClock(n.Name)
	found.Summary += fmt.Sprintf("; %s; volumes attached to it: %d%s%s", n.is("the node"), attached, x.attachedTo(n.Name), x.doneBy(f))
	if r := f.object.Spec.Request; r != nil {
		found.Summary = explain.RequestedBy(x.foreign(r.By), x.foreign(r.Reason)) + ": " + found.Summary
	}
	return found
}

func unansweredFact(at time.Time) Fact {
	return Fact{Component: "recovery", Message: "the fencer has not answered a question", At: &at}
}

// answerLate is how long the answer to a question may take. An agent ends before that.
const answerLate = 15 * time.Second

// unanswered is when a question was asked that the fencer should have answered; zero if there is none.
func (x *state) unanswered(f *fence) time.Time {
	q := f.object.Status.Question
	if q == nil || f.Proven() || q.Time.IsZero() || x.Now.Sub(q.Time.Time) < answerLate {
		return time.Time{}
	}
	for i := range f.object.Status.Evidence {
		if f.object.Status.Evidence[i].Nonce == q.Nonce {
			return time.Time{}
		}
	}
	return q.Time.Time
}

// fenceClock is what recovery does by itself about a node, and when.
func (x *state) fenceClock(node string) []string { return x.clockOfFence(x.fenceOf(node), node) }

func (x *state) clockOfFence(f *fence, node string) []string {
	if f != nil {
		text := explain.FenceClock(f.reason)
		if f.reason == fencing.IntentOpen {
			text += "; " + explain.FenceEnds(f.Phase)
		}
		return []string{text}
	}
	if r, _ := x.heldBack(node); r != "" {
		return []string{explain.HeldClock(r, node)}
	}
	return nil
}

// recoveryFacts is what recovery said last about a node that it does not fence, and what it did before.
func (x *state) recoveryFacts(node string) []Fact {
	if r, e := x.heldBack(node); r != "" {
		facts := []Fact{{Component: "recovery", Message: string(r) + ": " + x.foreign(e.Message), At: timePointer(eventTime(e))}}
		if nodes := x.countedSilent(); r == fencing.TooManySilent && nodes != "" {
			facts = append(facts, Fact{Component: "recovery", Message: explain.TooManyAre(nodes)})
		}
		return facts
	}
	object := x.fences[node]
	if object == nil || !kube.FenceFinished(object) {
		return nil
	}
	phase := fencing.Phase(object.Status.Phase)
	text := explain.FencePhase(phase, "", kube.FenceState(object).Commanded())
	if c := meta.FindStatusCondition(object.Status.Conditions, kube.ConditionEnded); c != nil && phase == fencing.Cancelled {
		text = explain.FenceCancelled(explain.FenceCauseOf(c.Message), kube.FenceState(object).Commanded())
	}
	text = string(phase) + ": " + text + after("; it was ", x.provenBy(object))
	return []Fact{{Component: "recovery", Message: text, At: timePointer(conditionSince(object, kube.ConditionEnded))}}
}

// recoveryKnows reports whether recovery is installed and has something to say about a node that it does not fence.
func (x *state) recoveryKnows(node string) bool {
	return node != "" && slices.Contains(x.Whole, Fences) && (len(x.recoveryFacts(node)) > 0 || x.recoveryRuns(roleDetector) == decision.Yes)
}

// The parts of recovery.
const (
	roleDetector = "detector"
	roleFencer   = "fencer"
	roleActor    = "actor"
)

// RecoveryRoles are the parts of recovery.
func RecoveryRoles() []string { return []string{roleDetector, roleFencer, roleActor} }

// RecoveryRuns is whether a process holds the lease of a part of recovery. Whether the actor runs in belay-controller, no lease shows.
func (s *Snapshot) RecoveryRuns(role string) decision.Knowledge {
	return (&state{Snapshot: s}).recoveryRuns(role)
}

// recoveryRuns is RecoveryRuns.
func (x *state) recoveryRuns(role string) decision.Knowledge {
	controller := false
	for _, lease := range x.Leases {
		if lease.Namespace != metav1.NamespaceSystem || !x.held(lease) {
			continue
		}
		if lease.Name == Recovery || lease.Name == Recovery+"-"+role {
			return decision.Yes
		}
		controller = controller || lease.Name == ownLease
	}
	if controller && role == roleActor || slices.ContainsFunc(x.Unread, func(u Unread) bool {
		return u.Resource == Leases && u.Name == "" && u.Namespace != corev1.NamespaceNodeLease
	}) {
		return decision.Unknown
	}
	return decision.No
}
