package nodevolume

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var oneGi, oneAndHalf, twoGi = Size{1 << 30, "1Gi"}, Size{3 << 29, "1536Mi"}, Size{2 << 30, "2Gi"}

// claimOf is a claim for which the user asked for 2 GiB.
func claimOf(given, allocated Size, says Resizing) ClaimSize {
	return ClaimSize{Capacity: given, Requested: twoGi, Allocated: allocated, Resizing: says}
}

func onEveryNode(c ClaimSize) ClaimSize { c.EveryNode = true; return c }

// TestExpansionPlan is kubelet's table: checkForRecoveryFromExpansion tells old resizers apart, runPreCheck says whose turn
// it is and whether the claim has its size, and the callers which size that is.
func TestExpansionPlan(t *testing.T) {
	tests := map[string]struct {
		claim          ClaimSize
		capacity, here Size
		plan           Plan
		size           Size
	}{
		"as it was":                             {claimOf(oneGi, Size{}, Untracked), oneGi, oneGi, NothingToDo, Size{}},
		"the claim's size is not known":         {ClaimSize{}, twoGi, oneGi, NothingToDo, Size{}},
		"grown, old resizer":                    {claimOf(oneGi, Size{}, Untracked), twoGi, oneGi, CallDriverThenWriteClaim, twoGi},
		"grown, old resizer, claim knows":       {claimOf(twoGi, Size{}, Untracked), twoGi, oneGi, CallDriver, twoGi},
		"node is next":                          {claimOf(oneGi, twoGi, NodeIsNext), twoGi, oneGi, CallDriverThenWriteClaim, twoGi},
		"node is next, of less than there is":   {claimOf(oneGi, oneAndHalf, NodeIsNext), twoGi, oneGi, CallDriverThenWriteClaim, oneAndHalf},
		"done here, not written":                {claimOf(oneGi, twoGi, NodeIsNext), twoGi, twoGi, CallDriverThenWriteClaim, twoGi},
		"the claim has the size, and says next": {claimOf(twoGi, twoGi, NodeIsNext), twoGi, oneGi, CallDriverThenWriteClaim, twoGi},
		"all have the size, and it says next":   {claimOf(twoGi, twoGi, NodeIsNext), twoGi, twoGi, CallDriverThenWriteClaim, twoGi},
		"it says next, and not of which size":   {claimOf(twoGi, Size{}, NodeIsNext), twoGi, twoGi, CallDriverThenWriteClaim, twoGi},
		"controller's turn, or infeasible":      {claimOf(oneGi, twoGi, OtherIsNext), twoGi, oneGi, WaitForController, Size{}},
		"the same on every node":                {onEveryNode(claimOf(twoGi, twoGi, OtherIsNext)), twoGi, oneGi, WaitForController, Size{}},
		"the controller is about to say so":     {claimOf(oneGi, twoGi, NotReported), twoGi, oneGi, WaitForController, Size{}},
		"done by the controller":                {claimOf(twoGi, twoGi, NotReported), twoGi, oneGi, WrittenByController, Size{}},
		"done on another node":                  {onEveryNode(claimOf(twoGi, twoGi, NotReported)), twoGi, oneGi, CallDriver, twoGi},
		"done on another node and here":         {onEveryNode(claimOf(twoGi, twoGi, NotReported)), twoGi, twoGi, NothingToDo, Size{}},
		"shared, driver gave more than was due": {onEveryNode(claimOf(oneAndHalf, oneAndHalf, NotReported)), twoGi, twoGi, WrittenByController, Size{}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			plan, size := planOf(test.claim, test.capacity, test.here)
			if plan != test.plan || size != test.size {
				t.Errorf("plan %d of %q, want %d of %q", plan, size.Text, test.plan, test.size.Text)
			}
		})
	}
}

// TestClaimWrites is kubelet's expandOnPlugin and legacyCallNodeExpandOnPlugin: what they write before the call, after
// it, and when it failed.
func TestClaimWrites(t *testing.T) {
	fewer := func(c ClaimSize) ClaimSize { c.Requested = oneAndHalf; return c }
	tracked, old := claimOf(oneGi, twoGi, NodeIsNext), claimOf(oneGi, Size{}, Untracked)
	elsewhere := onEveryNode(claimOf(twoGi, twoGi, NotReported))
	type writes struct {
		Before, After                             ClaimWrite
		Silent, ForNow, InUse, ForGood, NoSupport ClaimWrite
	}
	again := Expansion{Current: oneGi, capacity: twoGi, refusal: RefusedForNow}
	tests := map[string]struct {
		expansion Expansion
		claim     ClaimSize
		want      writes
	}{
		"tracked": {
			Expansion{Current: oneGi, capacity: twoGi}, tracked,
			writes{MarkInProgress, WriteSize, NoClaimWrite, MarkFailed, MarkFailed, MarkInfeasible, MarkFailed},
		},
		"tracked, refused before":           {again, tracked, writes{MarkInProgress, WriteSize, NoClaimWrite, MarkFailed, MarkFailed, MarkInfeasible, MarkFailed}},
		"tracked, and the user asks again":  {Expansion{Current: oneGi, capacity: twoGi}, fewer(tracked), writes{MarkInProgress, WriteSize, NoClaimWrite, MarkFailed, MarkFailed, MarkInfeasible, MarkFailed}},
		"refused before, and the user, too": {again, fewer(tracked), writes{MarkInProgress, WriteSize, NoClaimWrite, MarkInfeasible, MarkInfeasible, MarkInfeasible, MarkInfeasible}},
		"old resizer":                       {Expansion{Current: oneGi, capacity: twoGi}, old, writes{After: WriteSize}},
		"old resizer, claim knows":          {Expansion{Current: oneGi, capacity: twoGi}, claimOf(twoGi, Size{}, Untracked), writes{}},
		"old resizer, refused before":       {again, fewer(old), writes{After: WriteSize}},
		"done on another node": {
			Expansion{Current: oneGi, capacity: twoGi}, elsewhere, writes{ForNow: MarkFailed, InUse: MarkFailed, ForGood: MarkInfeasible},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			a := test.expansion.Begin(test.claim)
			if !a.CallsDriver() {
				t.Fatal("the driver is not called")
			}
			got := writes{
				a.Before(), a.After(), a.AfterRefusal(NotRefused), a.AfterRefusal(RefusedForNow), a.AfterRefusal(RefusedInUse),
				a.AfterRefusal(RefusedForGood), a.AfterRefusal(NotSupported),
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestExpansionRefusals: whether it is tried again, and whether a pod that waits for it starts all the same.
func TestExpansionRefusals(t *testing.T) {
	tests := map[string]struct {
		claim                     ClaimSize
		refusal                   Refusal
		again, through, dueBefore bool // dueBefore another pod comes
		dueAfter                  bool
	}{
		"no answer":                               {claimOf(oneGi, twoGi, NodeIsNext), NotRefused, true, false, true, true},
		"for now":                                 {claimOf(oneGi, twoGi, NodeIsNext), RefusedForNow, true, false, true, true},
		"for good: the claim is read again":       {claimOf(oneGi, twoGi, NodeIsNext), RefusedForGood, true, false, true, true},
		"in use: not before another pod comes":    {claimOf(oneGi, twoGi, NodeIsNext), RefusedInUse, false, true, false, true},
		"in use, old resizer":                     {claimOf(oneGi, Size{}, Untracked), RefusedInUse, false, true, false, true},
		"not supported, and the claim expects it": {claimOf(oneGi, twoGi, NodeIsNext), NotSupported, true, false, true, true},
		"not supported, old resizer":              {claimOf(oneGi, Size{}, Untracked), NotSupported, false, true, false, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var e Expansion
			e.Update(test.claim, twoGi, podA)
			if !e.Due() || !e.Waits(podA) || e.Waits(podB) {
				t.Fatalf("due %v, A waits %v, B waits %v", e.Due(), e.Waits(podA), e.Waits(podB))
			}
			a := e.Begin(test.claim)
			again := e.Refused(a, test.refusal)
			through := e.Release()
			if again != test.again || slices.Contains(through, podA) != test.through || e.Waits(podA) == test.through {
				t.Errorf("again %v, let through %v, still waits %v", again, through, e.Waits(podA))
			}
			if e.Due() != test.dueBefore {
				t.Errorf("due %v", e.Due())
			}
			e.PodAdded()
			if e.Due() != test.dueAfter {
				t.Errorf("due %v when another pod comes", e.Due())
			}
		})
	}
	t.Run("in use, and another pod came during the call", func(t *testing.T) {
		var e Expansion
		claim := claimOf(oneGi, twoGi, NodeIsNext)
		e.Update(claim, twoGi, podA)
		e.PodAdded()
		a := e.Begin(claim)
		e.PodAdded()
		e.Update(claim, twoGi, podB)
		if again := e.Refused(a, RefusedInUse); !again || !e.Due() || !e.Waits(podB) {
			t.Errorf("again %v, due %v, the new pod waits %v", again, e.Due(), e.Waits(podB))
		}
		if again := e.Refused(e.Begin(claim), RefusedInUse); again || e.Due() {
			t.Errorf("refused for both: again %v, due %v", again, e.Due())
		}
	})
	t.Run("not supported, done on another node", func(t *testing.T) {
		e := Expansion{Current: oneGi, capacity: twoGi}
		a := e.Begin(onEveryNode(claimOf(twoGi, twoGi, NotReported)))
		if again := e.Refused(a, NotSupported); again || e.Due() || e.Current != twoGi {
			t.Errorf("again %v, due %v, here %s", again, e.Due(), e.Current.Text)
		}
	})
}

// What the driver is asked for, and which pods wait, as the claim makes progress.
func TestExpansionLifecycle(t *testing.T) {
	var e Expansion
	state := func() string {
		return fmt.Sprintf("due %v here %s waiting %d failures %d", e.Due(), e.Current.Text, len(e.waiting), e.Failure.Count)
	}
	now := func(want string) {
		t.Helper()
		e.Release()
		if got := state(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	e.Update(ClaimSize{}, oneGi, podA)
	now("due false here  waiting 0 failures 0")
	e.Update(claimOf(oneGi, Size{}, Untracked), oneGi, podA)
	now("due false here 1Gi waiting 0 failures 0")
	if !e.NeedsRead(claimOf(oneGi, Size{}, Untracked)) || e.NeedsRead(ClaimSize{Capacity: oneGi}) || e.NeedsRead(ClaimSize{Requested: twoGi}) {
		t.Error("the volume is read again when the claim says its size and names a larger one, and only then")
	}
	e.Failure = Failure{Count: 3}
	e.Update(claimOf(oneGi, twoGi, OtherIsNext), twoGi, podB)
	now("due false here 1Gi waiting 0 failures 3") // the pod gets what there is
	e.Update(claimOf(oneGi, twoGi, NodeIsNext), twoGi, podB)
	now("due true here 1Gi waiting 1 failures 0") // none of before holds it back
	e.Failure = Failure{Count: 1}
	e.Update(claimOf(oneGi, twoGi, NodeIsNext), twoGi)
	now("due true here 1Gi waiting 1 failures 1")
	a := e.Begin(claimOf(oneGi, twoGi, NodeIsNext))
	e.Confirmed(a)
	if through := e.Release(); !slices.Equal(through, []PublishKey{podB}) {
		t.Errorf("let through %v", through)
	}
	now("due false here 2Gi waiting 0 failures 0")
	if a = e.Begin(claimOf(twoGi, twoGi, NotReported)); a.CallsDriver() {
		t.Error("called again")
	}
	e.Update(claimOf(oneGi, twoGi, NodeIsNext), twoGi, podA) // written back by another client
	now("due true here 2Gi waiting 1 failures 0")
	a = e.Begin(claimOf(twoGi, twoGi, NotReported))
	if through := e.Release(); a.CallsDriver() || !slices.Equal(through, []PublishKey{podA}) {
		t.Errorf("the controller wrote it meanwhile: called %v, let through %v", a.CallsDriver(), through)
	}
	now("due false here 2Gi waiting 0 failures 0")
}

// TestClaimWrittenByAnotherClient while the driver is called: the call counts if the claim wants the same.
func TestClaimWrittenByAnotherClient(t *testing.T) {
	for name, test := range map[string]struct {
		after ClaimSize
		want  bool
	}{
		"the same":                {claimOf(oneGi, twoGi, NodeIsNext), true},
		"another size":            {claimOf(oneGi, oneAndHalf, NodeIsNext), false},
		"the controller's turn":   {claimOf(oneGi, twoGi, OtherIsNext), false},
		"its size was written":    {claimOf(twoGi, twoGi, NotReported), false},
		"on another node as well": {onEveryNode(claimOf(twoGi, twoGi, NotReported)), false},
	} {
		t.Run(name, func(t *testing.T) {
			e := Expansion{Current: oneGi, capacity: twoGi}
			a := e.Begin(claimOf(oneGi, twoGi, NodeIsNext))
			if got := a.StillApplies(test.after); got != test.want {
				t.Errorf("continues: %v", got)
			}
		})
	}
	t.Run("the user's wish counts as it is by then", func(t *testing.T) {
		e := Expansion{Current: oneGi, capacity: twoGi, refusal: RefusedForNow}
		a := e.Begin(claimOf(oneGi, twoGi, NodeIsNext))
		after := claimOf(oneGi, twoGi, NodeIsNext)
		after.Requested = oneAndHalf
		if !a.StillApplies(after) || a.AfterRefusal(RefusedForNow) != MarkInfeasible {
			t.Error("not handed back to the controller")
		}
	})
}

// TestExpansionState from one read, or attempt, to the next.
func TestExpansionState(t *testing.T) {
	if (ClaimSize{}).Behind(twoGi) {
		t.Error("a claim without a size is behind")
	}
	t.Run("the size that the controller gave it", func(t *testing.T) {
		e := Expansion{Current: oneGi}
		e.Update(claimOf(twoGi, twoGi, NotReported), twoGi)
		if e.Current != twoGi || e.Due() {
			t.Errorf("here %s, due %v", e.Current.Text, e.Due())
		}
	})
	t.Run("a final error, whatever came after", func(t *testing.T) {
		e := Expansion{Current: oneGi, capacity: twoGi}
		claim := claimOf(oneGi, twoGi, NodeIsNext)
		e.Refused(e.Begin(claim), RefusedForNow)
		e.Refused(e.Begin(claim), NotRefused)
		claim.Requested = oneAndHalf
		if got := e.Begin(claim).AfterRefusal(RefusedForNow); got != MarkInfeasible {
			t.Errorf("write %d, want %d", got, MarkInfeasible)
		}
	})
	t.Run("a larger size was read during the call", func(t *testing.T) {
		var e Expansion
		e.Update(claimOf(oneGi, oneAndHalf, NodeIsNext), oneAndHalf, podA)
		a := e.Begin(claimOf(oneGi, oneAndHalf, NodeIsNext))
		e.Update(claimOf(oneGi, twoGi, NodeIsNext), twoGi, podB)
		e.Confirmed(a)
		if released := e.Release(); !e.Due() || !e.Waits(podB) || len(released) > 0 || e.Current != oneAndHalf {
			t.Errorf("due %v, released %v, here %s", e.Due(), released, e.Current.Text)
		}
		e.Confirmed(e.Begin(claimOf(oneGi, twoGi, NodeIsNext)))
		if released := e.Release(); e.Due() || len(released) != 2 || e.Current != twoGi {
			t.Errorf("then due %v, released %v, here %s", e.Due(), released, e.Current.Text)
		}
	})
	t.Run("a due expansion is looked at though no size is new", func(t *testing.T) {
		e := Expansion{Current: twoGi}
		claim := claimOf(oneGi, twoGi, NodeIsNext)
		e.Update(claim, twoGi, podA)
		if !e.Due() || !e.NeedsRead(claim) {
			t.Errorf("due %v, outgrown %v", e.Due(), e.NeedsRead(claim))
		}
	})
	t.Run("a pod does not wait for a claim that has its size", func(t *testing.T) {
		e := Expansion{Current: oneGi}
		e.Update(claimOf(oneGi, twoGi, NodeIsNext), twoGi, podA)
		e.Update(onEveryNode(claimOf(twoGi, twoGi, NotReported)), twoGi, podA)
		if !e.Due() || e.Waits(podA) {
			t.Errorf("due %v, waits %v", e.Due(), e.Waits(podA))
		}
	})
}
