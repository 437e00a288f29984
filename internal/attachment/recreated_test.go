package attachment

import (
	"slices"
	"testing"
	"time"
)

// recorded is the attachment after belay has written what it decided to record.
func recorded(a Attachment, steps []Step) Attachment {
	for _, s := range steps {
		if n, ok := s.(AnnotateAttachment); ok {
			a.Machine, a.DetachRequested = n.Machine, n.DetachRequested
		}
	}
	return a
}

// releases reports whether the volume is taken from the node, or its report is.
func releases(steps []Step) bool {
	return slices.ContainsFunc(steps, func(s Step) bool {
		switch s.(type) {
		case WithdrawReport, Detach, ForceDetach:
			return true
		}
		return false
	})
}

// TestListOfARecreatedNode (S2): the Node was recreated in the boot that has the volume mounted, lists the volume, and is reported it. Its
// kubelet had restarted before that report, and so leaves the volume off its list as soon as no pod wants it, while it is mounted
// (MayBeSameRun). Nothing that the Node listed before counts for that empty list.
func TestListOfARecreatedNode(t *testing.T) {
	listed := node("a", reborn, reported, inUse, healthy)
	unlisted := node("a", reborn, reported, healthy)
	a := attached("a")
	d := Decide(t0, wantAt("a"), onA(a, listed), policy)
	a = recorded(a, d.Steps)
	d = Decide(t0, Desired{}, onA(a, listed), policy)
	a = recorded(a, d.Steps)
	if d = Decide(t0, Desired{}, onA(a, unlisted), policy); releases(d.Steps) {
		t.Fatalf("taken from a machine that may have it mounted: %v", d.Steps)
	}
	if got := unlisted.use(&a, false); got != MayUse {
		t.Errorf("the Node %v, want %v", got, MayUse)
	}
}

// TestAnotherBootOfARecreatedNode: what was recorded from the list of a recreated Node tells another boot of the same machine: that has
// nothing mounted. A later Node object of the boot that listed the volume is no other boot.
func TestAnotherBootOfARecreatedNode(t *testing.T) {
	first := node("a", reborn, rebooted, reported, inUse, healthy) // of a boot that was not recorded, and of a machine that is not known
	first.Machine.SystemUUID = ""
	a := attached("a", waiting)
	d := Decide(t0, Desired{}, onA(a, first), policy)
	a = recorded(a, d.Steps)
	later := node("a", reborn, reborn, rebooted, healthy)
	if run, use := later.runSince(&a), later.use(&a, false); run != MayBeSameRun || use != MayUse {
		t.Errorf("a later Node of the boot that listed the volume: %v and %v, want %v and %v", run, use, MayBeSameRun, MayUse)
	}
	next := node("a", reborn, reborn, rebooted, rebooted, healthy)
	if run, use := next.runSince(&a), next.use(&a, false); run != Restarted || use != Idle {
		t.Errorf("another boot of the machine: %v and %v, want %v and %v", run, use, Restarted, Idle)
	}
}

// TestAnotherBootThatNothingIdentifies (S2): a later Node has another boot ID, and nothing says that it is the same machine. That it is quiet says
// nothing about the machine that the volume was attached to. The volume is detached as from a machine whose Node was deleted.
func TestAnotherBootThatNothingIdentifies(t *testing.T) {
	a, n := attached("a", waiting), node("a", unnamed, healthy, quiet)
	for name, c := range map[string]struct {
		policy Policy
		after  time.Duration
		forced bool
	}{
		"no policy":          {Policy{}, 24 * time.Hour, false},
		"before the timeout": {sixMinutes, SyncWindow, false},
		"the timeout":        {sixMinutes, sixMinutes.UnmountTimeout, true},
		"the deleted Node":   {Policy{DeletedNode: DeletedNodeDetach}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := n
			n.Checked = true
			d := Decide(t0.Add(c.after), Desired{}, onA(a, n), c.policy)
			forced := slices.ContainsFunc(d.Steps, func(s Step) bool { _, ok := s.(ForceDetach); return ok })
			if forced != c.forced || !forced && d.Reason != NodeReplaced {
				t.Errorf("%v", d.Steps)
			}
		})
	}
	n.InUse, n.Reported = Yes, true // it was given the volume for a pod of its own
	if d := Decide(t0, Desired{}, onA(a, n), policy); recorded(a, d.Steps).Machine.BootID != n.Machine.BootID {
		t.Errorf("its boot is not recorded: %v", d.Steps)
	}
}

// TestRemovedAttachmentOfARecreatedNode (S2): the VolumeAttachment of what a recreated Node may have mounted is removed by another client. The one
// that belay creates in its place does not take the present Node object for the one under which the volume was attached.
func TestRemovedAttachmentOfARecreatedNode(t *testing.T) {
	for name, c := range map[string]struct {
		node  Node
		doubt bool
		want  string
	}{
		"recreated":                     {node("a", reborn, reported, inUse, healthy), false, InDoubt},
		"the same":                      {node("a", reported, inUse, healthy), false, "uid-a"},
		"the same, after a new leader":  {node("a", reported, inUse, healthy), true, InDoubt},
		"recreated and restarted since": {node("a", reborn, rebooted, reported, inUse, healthy), false, "uid-a-2"},
	} {
		t.Run(name, func(t *testing.T) {
			a := implied("a")
			a.InDoubt = c.doubt
			for _, s := range Decide(t0, wantAt("a"), onA(a, c.node), policy).Steps {
				if s, ok := s.(Attach); ok {
					if s.Machine.NodeUID != c.want {
						t.Errorf("records the Node %q, want %q", s.Machine.NodeUID, c.want)
					}
					return
				}
			}
			t.Error("not attached again")
		})
	}
}
