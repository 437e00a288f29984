package fencing

import (
	"slices"
	"testing"
	"time"
)

var (
	start = time.Date(2026, 11, 23, 3, 0, 0, 0, time.UTC)
	boot1 = Boot{Node: "node-1", NodeUID: "uid-1", ID: "boot-1", Machine: "4c4c4544-0001"}
	boot2 = Boot{Node: "node-1", NodeUID: "uid-1", ID: "boot-2", Machine: "4c4c4544-0001"}
	other = Boot{Node: "node-1", NodeUID: "uid-9", ID: "boot-9", Machine: "4c4c4544-0009"}
)

// stand is a fence, its node and its power switch, on which the steps of Decide are carried out as a shell would. Its switch obeys, and its
// API server stores; tests change that between two steps.
type stand struct {
	t     *testing.T
	now   time.Time
	fence Fence
	seen  Observed
	power Power
	// disobeys: a command to switch off is answered, and changes nothing.
	disobeys bool
	did      []Step
	news     News
}

func newStand(t *testing.T) *stand {
	t.Helper()
	return &stand{
		t: t, now: start, power: PowerOn,
		fence: Fence{UID: "fence-1", Boot: boot1, Epoch: 1, Phase: Suspected},
		seen: Observed{
			Exists: Yes, Now: boot1, Version: "7", Ready: No, Silent: true,
			Source: Source{Name: "ipmi", SaidOn: boot1, Machine: boot1.Machine},
			Pods:   []Pod{{Namespace: "default", Name: "db-0", UID: "pod-1"}},
			Attachments: []Attachment{{
				Name: "csi-1", UID: "va-1", Version: "5", Volume: Volume{"disk.example.com", "vol-1"},
			}},
		},
	}
}

// answer is what the switch says to a question that is asked now.
func (s *stand) answer() Answer { return Answer{Power: s.power, Asked: s.now, Machine: boot1.Machine} }

// do carries out one step.
func (s *stand) do(step Step) {
	s.did = append(s.did, step)
	f, seen := &s.fence, &s.seen
	switch step := step.(type) {
	case Enter:
		f.Phase, f.Evidence = step.Phase, step.Evidence
		if !step.Untainted.IsZero() {
			f.Untainted = step.Untainted
		}
		seen.Listed = false
	case Command:
		f.Intent = Intent{Nonce: "n", NotAfter: step.NotAfter, Renewal: step.Renewal}
		if !s.disobeys {
			s.power = PowerOff
		}
		seen.Source.Status = s.answer()
	case Ask:
		seen.Source.Status = s.answer()
	case ReadNode:
		seen.ReadAt = s.now
	case Isolate:
		seen.Isolated = true
	case Unisolate:
		seen.Isolated = false
	case Taint:
		seen.OutOfService, seen.TaintSeen = true, s.now
	case Untaint:
		seen.OutOfService, seen.TaintSeen = false, time.Time{}
	case DeletePod:
		seen.Pods = slices.DeleteFunc(seen.Pods, func(p Pod) bool { return p.UID == step.Pod.UID })
	case DeleteAttachment:
		seen.Attachments = nil
	case Unfence:
		for i := range seen.Attachments {
			seen.Attachments[i].Unfenced = seen.Attachments[i].Unfenced || seen.Attachments[i].UID == step.Attachment.UID
		}
	case List:
		seen.Listed = true
	case SilentAgain:
		seen.Renewed, seen.AliveSince, f.SilentAgain = false, time.Time{}, s.now
	case ProveVolumes:
		f.StorageProven = true
	}
}

// turn decides and carries out the first step. It reports whether there was one.
func (s *stand) turn() bool {
	s.t.Helper()
	s.seen.News = s.news.Since(s.now, s.fence, s.seen)
	d := Decide(s.now, s.fence, s.seen)
	if d.Proof.Class() != "" && d.Proof.Class() != StorageFenced {
		s.seen.Ended = true
	}
	if s.fence.Phase == Detaching && s.seen.OutOfService {
		s.seen.Attachments = nil // as the attach/detach controller does
	}
	if d.Reason != Settled {
		if _, ok := Exits[d.Reason]; !ok {
			s.t.Fatalf("the wait %s has no exit", d.Reason)
		}
	}
	if len(d.Steps) == 0 {
		return false
	}
	s.do(d.Steps[0])
	s.now = s.now.Add(100 * time.Millisecond)
	return true
}

// until takes turns until the fence is in a phase, and fails if there is nothing left to do before that.
func (s *stand) until(p Phase) {
	s.t.Helper()
	for range 200 {
		if s.fence.Phase == p {
			return
		}
		if !s.turn() {
			s.now = s.now.Add(time.Second)
		}
	}
	s.t.Fatalf("the fence never came to %s: it is %s, after %T, and waits for %s", p, s.fence.Phase, s.did, Decide(s.now, s.fence, s.seen).Reason)
}

// waits takes turns for a minute, and returns what the fence waits for at its end.
func (s *stand) waits() Decision {
	s.t.Helper()
	for end := s.now.Add(time.Minute); s.now.Before(end); s.now = s.now.Add(500 * time.Millisecond) {
		s.turn()
	}
	return Decide(s.now, s.fence, s.seen)
}

// count is how many steps of a kind were carried out.
func count[T Step](s *stand) (n int) {
	for _, step := range s.did {
		if _, ok := step.(T); ok {
			n++
		}
	}
	return n
}
