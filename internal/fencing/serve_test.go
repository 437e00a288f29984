package fencing

import (
	"testing"
	"time"
)

// TestServe: the fencer reads the node itself before it switches off, sends each command once and in time, and only to the node's own switch.
func TestServe(t *testing.T) {
	const off, question = "off-1", "question-1"
	for name, test := range map[string]struct {
		change func(*Requested)
		want   Service
	}{
		"a command":                  {func(*Requested) {}, ServeOff},
		"a switch of no one":         {func(r *Requested) { r.Source.SaidOn = Boot{} }, ServeNothing},
		"a switch of two nodes":      {func(r *Requested) { r.Source.Shared = true }, ServeNothing},
		"the node was not read":      {func(r *Requested) { r.ReadAt = time.Time{} }, ServeRead},
		"the node was read long ago": {func(r *Requested) { r.ReadAt = start.Add(-LiveFor - 1) }, ServeRead},
		"the node was read later":    {func(r *Requested) { r.ReadAt = start.Add(1) }, ServeRead},
		"the node cannot be read":    {func(r *Requested) { r.Exists = Unknown }, ServeRead},
		"the lease was renewed":      {func(r *Requested) { r.Renewal = "later" }, ServeRefusal},
		"the machine was restarted":  {func(r *Requested) { r.Now = boot2 }, ServeRefusal},
		"the boot is unknown":        {func(r *Requested) { r.Now.ID = "" }, ServeRefusal},
		"another machine":            {func(r *Requested) { r.Now = other }, ServeOff},
		"the Node is gone":           {func(r *Requested) { r.Exists, r.Now = No, Boot{} }, ServeRefusal},
		"the fence is deleted":       {func(r *Requested) { r.Fence.Deleting = true }, ServeRefusal},
		"an earlier process sent it": {func(r *Requested) { r.Sent = func(nonce string) bool { return nonce == off } }, ServeStatus},
		"the command is too old":     {func(r *Requested) { r.Fence.Intent.NotAfter = start }, ServeLate},
		"it is too old, and was sent": {func(r *Requested) {
			r.Fence.Intent.NotAfter, r.Sent = start, func(nonce string) bool { return nonce == off }
		}, ServeNothing},
		"it is too old, and answered": {func(r *Requested) {
			r.Fence.Intent.NotAfter, r.Answered = start, func(nonce string) bool { return nonce == off }
		}, ServeNothing},
		"it is too old, and a question is not": {func(r *Requested) {
			r.Fence.Intent.NotAfter, r.Question = start, Question{question, start}
		}, ServeStatus},
		"the owner opted out":       {func(r *Requested) { r.OptedOut = true }, ServeRefusal},
		"a maintenance is declared": {func(r *Requested) { r.Maintenance = true }, ServeRefusal},
		"the fence is past Fencing": {func(r *Requested) { r.Fence.Phase = Tainting }, ServeNothing},
		"the command is answered":   {func(r *Requested) { r.Answered = func(nonce string) bool { return nonce == off } }, ServeNothing},
		"a question":                {func(r *Requested) { r.Fence.Phase, r.Question = Moved, Question{question, start} }, ServeStatus},
		"an old question": {func(r *Requested) {
			r.Fence.Phase, r.Question = Tainting, Question{question, start.Add(-questionFor)}
		}, ServeLate},
		"an old question that is not waited for": {func(r *Requested) {
			r.Fence.Phase, r.Question = Moved, Question{question, start.Add(-questionFor)}
		}, ServeNothing},
	} {
		r := Requested{
			Fence:    Fence{Boot: boot1, Phase: Fencing, Intent: Intent{Nonce: off, NotAfter: start.Add(IntentFor), Renewal: "then"}},
			Answered: func(string) bool { return false }, Sent: func(string) bool { return false },
			Exists: Yes, Now: boot1, Renewal: "then", ReadAt: start,
			Source: Source{Name: "ipmi", SaidOn: boot1, Machine: boot1.Machine},
		}
		test.change(&r)
		if got := Serve(start, r); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

// TestHeldCommand: a fence whose command the fencer holds says so, and asks for the state meanwhile.
func TestHeldCommand(t *testing.T) {
	for held, want := range map[bool]string{false: "NotOff", true: "SwitchOffHeld"} {
		s := newStand(t)
		s.fence.Phase, s.seen.Isolated = Fencing, true
		s.fence.Intent = Intent{Nonce: "n", NotAfter: s.now.Add(IntentFor)}
		s.seen.Source.Status = Answer{Power: PowerOn, Asked: s.now.Add(-time.Minute), Machine: s.fence.Boot.Machine}
		s.seen.Source.Held = held
		d := Decide(s.now, s.fence, s.seen)
		if len(d.Steps) != 1 || d.Steps[0] != Step(Ask{}) || string(d.Reason) != want {
			t.Errorf("held %v: %+v, want a question and %s", held, d, want)
		}
	}
}
