package fencing

import (
	"time"

	"belay.dev/belay/internal/decision"
)

// Question asks the fencer for the power state.
type Question struct {
	Nonce string
	// Asked is when it was stored, on the clock of the actor. The fencer does not answer old ones.
	Asked time.Time
}

// Service is what the fencer does for one fence.
type Service uint8

const (
	// ServeNothing: all that was asked is answered, or must not be answered.
	ServeNothing Service = iota
	// ServeStatus: ask the switch for the power state and the identity.
	ServeStatus
	// ServeOff: switch off, then ask.
	ServeOff
	// ServeRefusal: answer that the command was not sent, because the node shows a sign of life, is of the control plane, or its owner wants it left
	// alone.
	ServeRefusal
	// ServeRead: read Node and lease from the API server, and decide again.
	ServeRead
	// ServeLate: report that a command or a question is too old by this process's clock, so that nothing is sent.
	ServeLate
)

// Requested is what a NodeFence asks of the fencer, and what the fencer knows itself. It trusts nothing that another process could have got
// wrong: before it switches off, it reads the node too.
type Requested struct {
	Fence    Fence
	Question Question
	// Answered reports whether there is an answer to a nonce, in the record or being made by this process.
	Answered func(nonce string) bool
	// Sent reports whether an earlier process may have sent the command of a nonce; then it asks for the state instead.
	Sent func(nonce string) bool
	// Exists, Now, Renewal and ReadAt are as in Observed, read by the fencer.
	Exists  Knowledge
	Now     Boot
	Renewal string
	ReadAt  time.Time
	// OptedOut and Maintenance are as in Observed: the owner may have set them after the command was stored. ControlPlane is set for a node of the
	// control plane, which no command is for.
	OptedOut, Maintenance, ControlPlane bool
	Source                              Source
}

// live reports whether the node was read a moment ago.
func (r *Requested) live(now time.Time) bool {
	return r.Exists != Unknown && !r.ReadAt.IsZero() && !now.Before(r.ReadAt) && now.Sub(r.ReadAt) <= LiveFor
}

// overtaken reports whether the node gave a sign of life since the command was stored, could not give one because its Node was deleted, or is to be
// left alone. A node of another machine says nothing.
func (r *Requested) overtaken() bool {
	since := r.Now.Since(r.Fence.Boot)
	spared := r.OptedOut || r.Maintenance || r.ControlPlane || r.Fence.Deleting
	return spared || r.Renewal != r.Fence.Intent.Renewal || r.Exists != Yes || since != SameBoot && since != OtherMachine
}

// Overtaken reports whether the node, as it was read last, gave a sign of life since the command was stored, or is to be left alone.
func Overtaken(r Requested) bool { return r.overtaken() }

// questionFor is how long after it was stored a question is answered, by a clock that may differ from the actor's.
const questionFor = time.Minute

// Serve decides what the fencer does next. A source that is not bound to the boot is never used: its answer would be about another machine.
func Serve(now time.Time, r Requested) Service {
	intent := r.Fence.Intent
	commanded := intent.Nonce != "" && r.Open(now) == intent.Nonce
	_, late := r.Late(now)
	switch {
	case !r.Source.bound(r.Fence.Boot):
		return ServeNothing
	case commanded && r.Sent(intent.Nonce):
		return ServeStatus
	case commanded && !r.live(now):
		return ServeRead
	case commanded && r.overtaken():
		return ServeRefusal
	case commanded:
		return ServeOff
	case r.Asked(now):
		return ServeStatus
	case late:
		return ServeLate
	}
	return ServeNothing
}

// Open returns the nonce that an answer of the switch has: that of the command, or else of the question.
func (r *Requested) Open(now time.Time) string {
	if intent := r.Fence.Intent; r.Fence.Phase == Fencing && intent.open(now) && !r.Answered(intent.Nonce) {
		return intent.Nonce
	}
	return r.Question.Nonce
}

// Asked reports whether the question is to be answered. It is also while a command is not sent yet: what the switch says can make that needless.
func (r *Requested) Asked(now time.Time) bool {
	return r.Question.Nonce != "" && now.Sub(r.Question.Asked) < questionFor && !r.Answered(r.Question.Nonce)
}

// Late returns the nonce of the command, or else of the question, that this process has not served and that is too old by its clock: it did
// not run, or its clock is ahead of the actor's.
func (r *Requested) Late(now time.Time) (nonce string, late bool) {
	intent, question := r.Fence.Intent, r.Question
	switch {
	case r.Fence.Phase != Fencing && r.Fence.Phase != Tainting: // what was asked for before that is not waited for any more
	case r.Fence.Phase == Fencing && r.Fence.offSent() && !intent.open(now) && !r.Answered(intent.Nonce) && !r.Sent(intent.Nonce):
		return intent.Nonce, true
	case question.Nonce != "" && now.Sub(question.Asked) >= questionFor && !r.Answered(question.Nonce):
		return question.Nonce, true
	}
	return "", false
}

// MaySwitchOff decides whether a fencer that is asked to switch the machine of a boot off finds its node silent itself, and whether its brakes allow it.
// The fleet is what it has heard itself: who can write a NodeFence may name any node, at any time. Asked is set when a person has asked for this command, as an
// admission policy has made sure. It is one command, so the brake on how many belay sends by itself does not hold it back; a doubt in what is heard does.
func MaySwitchOff(now time.Time, b Brakes, fleet Fleet, boot Boot, n Node, asked bool) Suspicion {
	replaced := n.Boot.Since(boot) == OtherMachine // what its lease says is another machine's
	if !replaced && (!n.Heard || n.Silent < n.Limit) {
		return Suspicion{Reason: SilenceTooShort, After: max(n.Limit-n.Silent, 0)}
	}
	hold := b.hold
	if asked {
		hold = func(_ time.Time, fleet Counts, n Node) decision.Reason { return b.doubt(fleet, n) }
	}
	if reason := hold(now, fleet.Count(), n); reason != Settled {
		return Suspicion{Reason: reason, After: MaxTickGap}
	}
	return Suspicion{Suspected: true, Reason: Settled}
}
