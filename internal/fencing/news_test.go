package fencing

import (
	"testing"
	"time"
)

// TestFenceWithoutNewsAsksSeldom: a machine ignores its command, or its switch says nothing, for weeks. Each question is two writes and a login. In its first hour a fence
// asks as before; after that no more often than the switch of a deleted Node, and it commands as much more seldom. What it waits for does not change with each question.
func TestFenceWithoutNewsAsksSeldom(t *testing.T) {
	for name, power := range map[string]Power{"On": PowerOn, "no answer": PowerUnknown} {
		s := newStand(t)
		s.power, s.disobeys = power, true
		for range 59 {
			s.waits()
		}
		if asks, commands := count[Ask](s), count[Command](s); asks < 3000 || commands < 110 {
			t.Errorf("%s: in its first hour the fence asked %d times and commanded %d times", name, asks, commands)
		}
		for range 2 {
			s.waits()
		}
		asks, commands := count[Ask](s), count[Command](s)
		for range 60 {
			want := NotOff
			if power == PowerUnknown {
				want = SourceSilent
			}
			if d := s.waits(); d.Reason != want && len(d.Steps) == 0 {
				t.Errorf("%s: waits for %s", name, d.Reason)
			}
			running := s.seen
			running.Source.Running = true
			if d := Decide(s.now, s.fence, running); d.Reason != want {
				t.Errorf("%s: while the switch is asked it waits for %s", name, d.Reason)
			}
		}
		asks, commands = count[Ask](s)-asks, count[Command](s)-commands
		if most := int(time.Hour / AskDeletedEvery); asks+commands > most || commands > 12 || commands < 10 || asks < most/2 {
			t.Errorf("%s: in its second hour the fence asked %d times and commanded %d times", name, asks, commands)
		}
	}
}

// TestNewsBringsThePaceBack (hole 4): an Off authorizes for FreshFor, so a machine that is off finally is asked as before, whenever that is.
func TestNewsBringsThePaceBack(t *testing.T) {
	s := newStand(t)
	s.power, s.disobeys = PowerUnknown, true
	for range 90 {
		s.waits()
	}
	s.power = PowerOff
	began := s.now
	s.until(Moved)
	if took := s.now.Sub(began); took > AskDeletedEvery+FreshFor {
		t.Errorf("the machine is off, and the fence has moved its volumes after %v", took)
	}
	for change, news := range map[string]func(*stand){
		"renews its lease": func(s *stand) { s.seen.Renewed, s.seen.Silent, s.seen.AliveSince = true, false, s.now },
		"another address":  func(s *stand) { s.seen.Source.Machine = other.Machine; s.turn(); s.seen.Source.Machine = boot1.Machine },
		"a statement":      func(s *stand) { s.fence.Statement = &Statement{Expires: s.now.Add(time.Hour)} },
	} {
		s := newStand(t)
		s.power, s.disobeys = PowerUnknown, true
		for range 90 {
			s.waits()
		}
		news(s)
		before := count[Ask](s) + count[Command](s)
		if s.waits(); count[Ask](s)+count[Command](s)-before < 40 {
			t.Errorf("%s: asked %d times in a minute", change, count[Ask](s)+count[Command](s)-before)
		}
	}
	s = newStand(t)
	s.fence.Phase, s.fence.Evidence, s.fence.Intent = Releasing, Restarted, Intent{Nonce: "n", NotAfter: s.now}
	s.seen.Now, s.seen.Attachments, s.seen.Isolated, s.seen.Silent, s.power = boot2, nil, true, false, PowerOff
	for range 90 {
		s.waits()
	}
	before := count[Ask](s)
	if s.waits(); count[Ask](s)-before < 40 {
		t.Errorf("a switch that says Off was asked %d times in a minute", count[Ask](s)-before)
	}
}
