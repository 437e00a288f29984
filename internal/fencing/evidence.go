package fencing

import (
	"slices"
	"time"
)

// Class is what a piece of evidence says.
type Class string

// The classes. What is not here is no evidence: a node that is not Ready, a lease that ran out, no answer to a ping, a command that was
// sent, time that passed.
const (
	// PoweredOff (class A): the machine cannot run, as its own power switch says now.
	PoweredOff Class = "PoweredOff"
	// StorageFenced (class B): the driver of a volume cuts the machine off before it confirms the unpublish, as an administrator declared.
	// It is about single volumes, and permits nothing but to detach them (holes 10 and 11).
	StorageFenced Class = "StorageFenced"
	// Restarted (class D): the same machine runs another boot, so the one before has ended.
	Restarted Class = "Restarted"
	// Stated (class E): a person says so, of this machine, for a limited time.
	Stated Class = "Stated"
)

const (
	// FreshFor is how long an answer authorizes anything, counted from the question, without what the switch took to answer it (hole 4). Answers
	// that were stored authorize nothing.
	FreshFor = 5 * time.Second
	// LevelWithin bounds what the switches of one level take to give identity and state, and to be switched off before that. Of a BMC that does not answer,
	// ipmitool 1.8.19 says so after 20.9 s, and Debian's fence_ipmilan 4.12.1 after 22.8 s (measured with a port that drops all packets).
	LevelWithin = 30 * time.Second
	// MaxLevels is the most levels of a power switch, as the CRD of a FenceSource allows.
	MaxLevels = 4
	// answerSlack is what storing an answer takes, beside asking.
	answerSlack = 5 * time.Second
)

// Power is the answer of one switch.
type Power uint8

// The values of Power. Suspended, saved, migrating and missing machines, and errors, are PowerUnknown.
const (
	PowerUnknown Power = iota
	PowerOn
	PowerOff
)

// Answer is what a source said. Its times are of this process: an Answer that was stored has none, and authorizes nothing.
type Answer struct {
	// Power is PowerOff only if all feeds of the machine are off.
	Power Power
	// Asked is when the question was stored for the fencer, before it was sent.
	Asked time.Time
	// Took is how long the fencer asked until it had the state, on its own clock: the state was read at the end of that.
	Took time.Duration
	// Machine is the system UUID of the hardware that answered, in the form of the Node's.
	Machine string
	// Raw is the text of the answer without secrets.
	Raw string
}

// took is Took as far as it can be true.
func (a Answer) took() time.Duration { return min(max(a.Took, 0), MaxLevels*LevelWithin) }

// given is when the state had been read at the earliest: if the fencer began to ask as soon as the question was stored.
func (a Answer) given() time.Time { return a.Asked.Add(a.took()) }

// fresh reports whether the question was asked by this process, and the answer is not old.
func (a Answer) fresh(now time.Time) bool {
	return !a.Asked.IsZero() && !now.Before(a.Asked) && now.Sub(a.given()) <= FreshFor
}

// Source is what a process knows about the power switch of a node, or the switches of a machine with several feeds.
type Source struct {
	// Name is how the source is configured. It is empty for a node without one.
	Name string
	// Shared is set when another node is configured with the same address and plug, or has the same system UUID: one of the two
	// configurations is wrong, and neither is switched (hole 6).
	Shared bool
	// SaidOn is the boot during which the source last said On while the node renewed its lease, and Machine the hardware that said it.
	// Only that binds a source to a node (hole 6).
	SaidOn Boot
	// Machine is the system UUID that the hardware gave then.
	Machine string
	// Locked is set when logins failed as often as allowed for this version of the Secret (hole 19).
	Locked bool
	// Status is the latest answer, to a question or to a command.
	Status Answer
	// Held is set while the fencer does not send the command that is stored (MaySwitchOff).
	Held bool
	// Running is set while a question or a command of this process waits for its answer.
	Running bool
	// Levels is how many levels are asked, one after the other.
	Levels int
}

// AnswerWithin is how long the fencer may take to answer a question, or a command that it sends.
func (s Source) AnswerWithin() time.Duration {
	return time.Duration(min(max(s.Levels, 1), MaxLevels))*LevelWithin + answerSlack
}

// bound reports whether the source is known to switch the machine that runs this boot.
func (s Source) bound(b Boot) bool {
	return s.Name != "" && !s.Shared && b.Complete() && s.SaidOn == b && s.Machine == b.Machine
}

// answers reports whether the source may be asked about this boot: others give no answer, however long one waits.
func (s Source) answers(b Boot) bool { return s.bound(b) && !s.Locked }

// off reports whether the machine of this boot was off when asked just now.
func (s Source) off(now time.Time, b Boot) bool {
	return s.bound(b) && s.Status.fresh(now) && s.Status.Power == PowerOff && s.Status.Machine == b.Machine
}

// mute reports whether nothing is to be learned from the source now: it is not known to switch the machine, must not be asked, or did not
// give the power state when this process last asked.
func (s Source) mute(b Boot) bool {
	return !s.bound(b) || s.Locked || !s.Status.Asked.IsZero() && s.Status.Power == PowerUnknown
}

// settled reports whether the state of the machine was known when it was asked for after a time.
func (s Source) settled(after time.Time) bool {
	return s.Status.Power != PowerUnknown && s.Status.Asked.After(after)
}

// saysOn reports whether the machine was on when asked after a time.
func (s Source) saysOn(after time.Time) bool {
	return s.Status.Power == PowerOn && s.Status.Asked.After(after)
}

// allows reports whether the source leaves the word to a person about this boot: it is not known to switch its machine, must not be asked,
// or did not say On when it was asked after a time. A switch without power, as after a loss of AC, must not keep a person from being heard.
func (s Source) allows(b Boot, after time.Time) bool {
	return !s.bound(b) || s.Locked || s.Status.Asked.After(after) && !s.contradicts(b)
}

// contradicts reports whether the latest answer is that the machine of this boot is on. A switch that was wired to another machine says
// nothing about this one.
func (s Source) contradicts(b Boot) bool {
	return s.Status.Power == PowerOn && s.Status.Machine == b.Machine
}

// Statement is what a person says about a machine: that it is off, or destroyed.
type Statement struct {
	By      string
	Reason  string
	Machine string
	// Made is when it was written, by the clock of the API server; zero if that is unknown.
	Made    time.Time
	Expires time.Time
	// Guarded is set when the admission policy was in force as it was written, and is now: nothing else says that By wrote it, with the
	// permission to confirm.
	Guarded bool
}

// StatementFor is for how long after it was made a statement may count: a machine that was off yesterday may run today. The minute is for
// clocks that differ.
const StatementFor, statementSlack = 24 * time.Hour, time.Minute

// Limited reports whether the statement counts for a day after it was made, at most. Another one is no evidence, and neither is one that was made
// at an unknown time, or later than now: a client that writes an object can also write when its fields were set (metadata.managedFields).
func (s *Statement) Limited(now time.Time) bool {
	return !s.Made.After(now.Add(statementSlack)) && s.Expires.Sub(s.Made) <= StatementFor+statementSlack
}

// holds reports whether the statement is about this boot's machine, and still in force.
func (s *Statement) holds(now time.Time, b Boot) bool {
	return s != nil && s.Guarded && s.Limited(now) && s.By != "" && s.Reason != "" && b.Machine != "" && s.Machine == b.Machine && now.Before(s.Expires)
}

// Volume names one volume of one driver.
type Volume struct{ Driver, Handle string }

// Proof says that a boot has ended, or cannot write to some volumes. Only this package makes one; the zero value proves nothing.
type Proof struct {
	boot    Boot
	class   Class
	volumes []Volume // of StorageFenced
	until   time.Time
}

// Class is the evidence behind the proof.
func (p Proof) Class() Class { return p.class }

// Boot is the boot that the proof is about.
func (p Proof) Boot() Boot { return p.boot }

// Equal reports whether two proofs say the same, for however long.
func (p Proof) Equal(q Proof) bool {
	return p.boot == q.boot && p.class == q.class && slices.Equal(p.volumes, q.volumes)
}

// At returns the proof if it still counts, on the clock of the process that made it, and the zero value otherwise.
func (p Proof) At(now time.Time) Proof {
	if !now.Before(p.until) {
		return Proof{}
	}
	return p
}

// Holds reports whether the proof says that a boot cannot write to a volume, or will not be able to once the driver has confirmed the
// unpublish. A boot with an unknown field is never covered. It takes no time, because that of a decision is the API server's: see At.
func (p Proof) Holds(b Boot, v Volume) bool {
	if p.class == "" || !b.Complete() || b != p.boot {
		return false
	}
	return p.class != StorageFenced || slices.Contains(p.volumes, v)
}
