package fencing

import (
	"fmt"
	"testing"
	"time"
)

// TestLife: a boot is known to run while its own power switch says so, to a question of this process.
func TestLife(t *testing.T) {
	s := newStand(t)
	s.fence.Phase, s.seen.Source.Status = Fencing, s.answer()
	life := func() Life { return Decide(s.now, s.fence, s.seen).Life }
	if l := life(); !l.Of(boot1) || l.Sign() != SaysOn || l.Of(boot2) || l.Of(other) || l.Of(Boot{Node: "node-1"}) {
		t.Errorf("after On: %+v", l)
	}
	again, elsewhere, copied := boot1, boot1, boot1
	again.NodeUID, elsewhere.Node, copied.Machine = "uid-2", "node-2", other.Machine
	if l := life(); !l.Of(again) || l.Of(elsewhere) || l.Of(copied) {
		t.Error("it is not the machine that runs, under this name and any Node object")
	}
	if l := life(); !l.At(s.now.Add(LifeFor-1)).Of(boot1) || l.At(s.now.Add(LifeFor)).Of(boot1) {
		t.Errorf("it does not end after %v", LifeFor)
	}
	for name, change := range map[string]func(*stand){
		"Off":                   func(s *stand) { s.seen.Source.Status.Power = PowerOff },
		"no answer":             func(s *stand) { s.seen.Source.Status.Power = PowerUnknown },
		"an old answer":         func(s *stand) { s.now = s.now.Add(FreshFor + 1) },
		"another machine's":     func(s *stand) { s.seen.Source.Status.Machine = "4c4c4544-0009" },
		"not bound to the boot": func(s *stand) { s.seen.Source.SaidOn = boot2 },
		"not asked":             func(s *stand) { s.seen.Source.Status = Answer{} },
	} {
		s := newStand(t)
		s.fence.Phase, s.seen.Source.Status = Fencing, s.answer()
		change(s)
		if l := Decide(s.now, s.fence, s.seen).Life; l != (Life{}) {
			t.Errorf("%s: %+v", name, l)
		}
	}
}

// TestLifeByLease: a node runs whose lease was renewed while this process listened, and for its limit.
func TestLifeByLease(t *testing.T) {
	var s Silences
	p := Default
	if s.Life(start, p, boot1).Of(boot1) {
		t.Error("a node that was never heard runs")
	}
	s.Renewed(start, "node-1", "a", p.LeaseDuration)
	s.Renewed(start.Add(time.Second), "node-1", "a", p.LeaseDuration)
	if s.Life(start.Add(time.Second), p, boot1).Of(boot1) {
		t.Error("a lease that was only read shows that the node runs")
	}
	renewed := start.Add(2 * time.Second)
	s.Renewed(renewed, "node-1", "b", p.LeaseDuration)
	if l := s.Life(renewed, p, boot1); !l.Of(boot1) || l.Sign() != Renews || l.Of(boot2) || l.At(renewed.Add(p.Silence)).Of(boot1) {
		t.Errorf("after a renewal: %+v", l)
	}
	s.Tick(renewed)
	s.Tick(renewed.Add(time.Minute)) // this process did not run: that it heard nothing since says nothing, and is no sign of life either
	if s.Life(renewed.Add(time.Minute), p, boot1).Of(boot1) {
		t.Error("a gap of this process shows that the node runs")
	}
	if s.Life(renewed, p, Boot{Node: "node-1", ID: "boot-1"}) != (Life{}) {
		t.Error("a Node that does not identify its machine shows that one runs")
	}
}

// deletedStand is a fence that began because the Node was deleted.
func deletedStand(t *testing.T) *stand {
	t.Helper()
	s := newStand(t)
	s.fence.NodeDeleted = true
	s.seen.Exists, s.seen.Now, s.seen.Ready, s.seen.Silent, s.seen.Version = No, Boot{}, Unknown, false, ""
	return s
}

// TestNodeDeletedMachineOff: the volumes of a machine that is off move, without a taint and without a command, and the fence ends.
func TestNodeDeletedMachineOff(t *testing.T) {
	s := deletedStand(t)
	s.power = PowerOff
	began := s.now
	s.until(Released)
	if count[Command](s)+count[Taint](s)+count[Isolate](s) != 0 || count[DeletePod](s) != 1 || count[DeleteAttachment](s) != 1 {
		t.Errorf("steps: %T", s.did)
	}
	if moved := s.fence.Untainted.Sub(began); moved > 5*time.Second {
		t.Errorf("moved after %v", moved)
	}
}

// TestNodeDeletedMachineOn: a machine that runs is asked now and then, and never switched off because a person deleted its Node.
func TestNodeDeletedMachineOn(t *testing.T) {
	s := deletedStand(t)
	d := s.waits()
	if d.Reason != NodeDeletedMachineOn || count[Command](s)+count[DeletePod](s)+count[DeleteAttachment](s) != 0 {
		t.Fatalf("waits for %s after %T", d.Reason, s.did)
	}
	if n := count[Ask](s); n < 5 || n > 8 {
		t.Errorf("asked %d times in a minute", n)
	}
	if !s.alive() {
		t.Error("between two questions it is not known to run")
	}
	s.power = PowerOff
	s.until(Released)
	if count[Command](s) != 0 || count[DeleteAttachment](s) != 1 {
		t.Errorf("after Off: %T", s.did)
	}
}

// TestNodeDeletedNothingLeft: a fence whose Node was deleted ends when no pod and no VolumeAttachment is left that is not being deleted, whatever its switch
// says. It does not while a command may still be carried out, nor after volumes were taken one by one.
func TestNodeDeletedNothingLeft(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*stand)
		ends   bool
	}{
		"a pod and a VolumeAttachment": {func(*stand) {}, false},
		"a pod":                        {func(s *stand) { s.seen.Attachments = nil }, false},
		"a VolumeAttachment":           {func(s *stand) { s.seen.Pods = nil }, false},
		"both are being deleted":       {func(s *stand) { s.seen.Pods[0].Leaving, s.seen.Attachments[0].Deleting = true, true }, true},
		"nothing":                      {func(s *stand) { s.seen.Pods, s.seen.Attachments = nil, nil }, true},
		"nothing, and no switch":       {func(s *stand) { s.seen.Pods, s.seen.Attachments, s.seen.Source = nil, nil, Source{} }, true},
		"nothing, and the Node was deleted during the fence": {func(s *stand) { s.seen.Pods, s.seen.Attachments, s.fence.NodeDeleted = nil, nil, false }, true},
		"nothing, and volumes were taken":                    {func(s *stand) { s.seen.Pods, s.seen.Attachments, s.fence.StorageProven = nil, nil, true }, false},
		"nothing, and there is a Node": {func(s *stand) {
			s.seen.Pods, s.seen.Attachments, s.seen.Source, s.fence.NodeDeleted = nil, nil, Source{}, false
			s.seen.Exists, s.seen.Now, s.seen.Silent = Yes, boot1, true
		}, false},
	} {
		s := deletedStand(t)
		c.change(s)
		s.waits()
		if (s.fence.Phase == Cancelled) != c.ends || count[DeletePod](s)+count[DeleteAttachment](s)+count[Command](s) != 0 {
			t.Errorf("%s: %s after %T", name, s.fence.Phase, s.did)
		}
	}
}

// alive reports whether the latest answer still shows that the boot runs, at any moment until the next one.
func (s *stand) alive() bool {
	at := s.seen.Source.Status.Asked
	return Decide(at, s.fence, s.seen).Life.At(at.Add(AskDeletedEvery + FreshFor)).Of(boot1)
}

// TestNodeDeletedAndBack: a kubelet that registers again cancels the fence; a machine that was restarted too.
func TestNodeDeletedAndBack(t *testing.T) {
	for name, back := range map[string]Boot{"the same boot": boot1, "another boot": boot2} {
		s := deletedStand(t)
		s.waits()
		back.NodeUID = "uid-2"
		s.seen.Exists, s.seen.Now, s.seen.Ready, s.seen.Renewed, s.seen.Version = Yes, back, Yes, true, "8"
		s.until(Cancelled)
		if count[DeletePod](s)+count[DeleteAttachment](s)+count[Taint](s) != 0 {
			t.Errorf("%s: %T", name, s.did)
		}
	}
}

// TestMovedWithoutNode: a fence whose Node was deleted does not wait for a machine that never comes back, nor for its switch.
func TestMovedWithoutNode(t *testing.T) {
	s := newStand(t)
	s.until(Moved)
	s.seen.Exists, s.seen.Now, s.seen.OutOfService, s.seen.Isolated = No, Boot{}, false, false
	s.until(Released)
}

// TestSuspectDeleted: a deleted Node with VolumeAttachments is suspected at once, within the brakes, if its boot is known.
func TestSuspectDeleted(t *testing.T) {
	lost := Node{Boot: boot1, Deleted: true, ReadAt: start}
	well := func(name string) Node {
		return Node{Boot: Boot{Node: name, NodeUID: name, ID: name, Machine: name}, Heard: true, Limit: time.Minute}
	}
	fleet := Fleet{Nodes: []Node{lost, well("a"), well("b"), well("c"), well("d")}}
	for name, c := range map[string]struct {
		node  Node
		fleet Fleet
		want  any
	}{
		"one":          {lost, fleet, Settled},
		"not complete": {Node{Boot: Boot{Node: "node-1", ID: "boot-1"}, Deleted: true, ReadAt: start}, fleet, NodeIdentityUnknown},
		"not read":     {Node{Boot: boot1, Deleted: true}, fleet, NotReadLive},
		"many":         {lost, Fleet{Nodes: []Node{lost, lost, lost, well("a")}}, TooManySilent},
		"in flight":    {lost, Fleet{Nodes: fleet.Nodes, InFlight: 2}, TooManyInFlight},
	} {
		if s := Suspect(start, Default, DefaultBrakes(), c.fleet.Count(), c.node); s.Reason != c.want || s.Suspected != (c.want == Settled) {
			t.Errorf("%s: %+v, want %v", name, s, c.want)
		}
	}
}

// TestSuspectBesideDeleted: Nodes that are not there hold back no fence of one that is, however many VolumeAttachments name. Silent ones that are there hold
// back theirs.
func TestSuspectBesideDeleted(t *testing.T) {
	node := func(i int, silent time.Duration) Node {
		name := fmt.Sprint("n", i)
		n := Node{Boot: Boot{Node: name, NodeUID: name, ID: name, Machine: name}, Heard: true, Limit: time.Minute, Silent: silent, ReadAt: start}
		if silent > 0 {
			n.Ready = No
		}
		return n
	}
	ghosts := func(i int) Node { return Node{Boot: node(i, 0).Boot, Deleted: true, ReadAt: start} }
	for name, c := range map[string]struct {
		deleted, silent, well int
		lost, gone            any
	}{
		"one of each":        {1, 1, 5, Settled, Settled},
		"many are not there": {20, 1, 5, Settled, TooManySilent},
		"many are silent":    {1, 4, 5, TooManySilent, TooManySilent},
		"half are silent":    {0, 3, 3, TooManySilent, TooManySilent},
		"none is heard":      {5, 1, 0, DetectorCutOff, DetectorCutOff},
	} {
		fleet := Fleet{}
		for i := range c.deleted + c.silent + c.well {
			switch {
			case i < c.deleted:
				fleet.Nodes = append(fleet.Nodes, ghosts(i))
			case i < c.deleted+c.silent:
				fleet.Nodes = append(fleet.Nodes, node(i, time.Hour))
			default:
				fleet.Nodes = append(fleet.Nodes, node(i, 0))
			}
		}
		if s := Suspect(start, Default, DefaultBrakes(), fleet.Count(), fleet.Nodes[c.deleted]); s.Reason != c.lost {
			t.Errorf("%s: a node that is there: %+v, want %v", name, s, c.lost)
		}
		if s := Suspect(start, Default, DefaultBrakes(), fleet.Count(), ghosts(0)); s.Reason != c.gone {
			t.Errorf("%s: a deleted one: %+v, want %v", name, s, c.gone)
		}
	}
}

// TestEndpoint: an answer is a sign of life of the kubelet whose key was seen while the node lived. Another machine at its address is none, and is
// no silence either: the kubelet may have a new certificate. What is unknown counts as a sign of life.
func TestEndpoint(t *testing.T) {
	for _, c := range []struct {
		answered        Knowledge
		key, remembered string
		want            Knowledge
	}{
		{Yes, "a", "a", Yes},
		{Yes, "b", "a", Unknown},
		{Yes, "", "a", Unknown},
		{Yes, "b", "", Yes},
		{Yes, "", "", Yes},
		{No, "", "a", No},
		{No, "", "", No},
		{Unknown, "", "a", Unknown},
	} {
		if got := Endpoint(c.answered, c.key, c.remembered); got != c.want {
			t.Errorf("%v with key %q, remembered %q: %v, want %v", c.answered, c.key, c.remembered, got, c.want)
		}
	}
}
