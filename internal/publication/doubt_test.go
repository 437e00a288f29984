package publication

import (
	"testing"
	"time"
)

// A list ends the doubt about a sole publish where it has shown the volume at the node and then no longer, after an unpublish that followed.
func TestListedEndsDoubt(t *testing.T) {
	at := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }
	list := func(s int, ids ...string) Listing {
		return Listing{Began: at(s), Volumes: map[string]*Entry{"h": {NodeIDs: ids}}, Nodes: map[string]bool{"a": true, "b": true}}
	}
	unpublish := func(c Call, s int) Call { return c.Begin(Unpublish, "a", "", false).BegunAt(at(s)).Confirm(at(s)) }
	doubted := func(sole bool) Call {
		return unpublish(Call{}.Begin(Publish, "a", "", false).Fail(at(0), "no answer", true).DoubtUntil(at(300), sole), 1)
	}
	listed := func(c Call, l Listing) Call { c, _ = c.Listed(l, "h"); return c }
	shown := listed(doubted(true), list(10, "a"))
	for name, tt := range map[string]struct {
		call Call
		list Listing
		over bool
	}{
		"shown, unpublished, and no longer":       {unpublish(shown, 20), list(30), true},
		"shown, unpublished, and at another node": {unpublish(shown, 20), list(30, "b"), true},
		"never shown":                               {unpublish(doubted(true), 20), list(30), false},
		"shown, and not unpublished since":          {shown, list(30), false},
		"the list began before the unpublish ended": {unpublish(shown, 20), list(15), false},
		"still shown":                               {unpublish(shown, 20), list(30, "a"), false},
		"shown by an ID of another form":            {unpublish(shown, 20), list(30, "A"), false},
		"the volume is unknown to the list":         {unpublish(shown, 20), Listing{Began: at(30)}, false},
		"not the only publish":                      {unpublish(listed(doubted(false), list(10, "a")), 20), list(30), false},
		"a second publish without an answer": {
			unpublish(shown.Begin(Publish, "a", "", false).Fail(at(15), "no answer", true).DoubtUntil(at(315), true), 20), list(30), false,
		},
		"a call is in flight":              {shown.Begin(Unpublish, "a", "", false), list(30), false},
		"a call for another node ID since": {unpublish(shown, 20).BeginElsewhere("b", "").Confirm(at(21)), list(30), false},
	} {
		if over := listed(tt.call, tt.list).latestDoubt() == nil; over != tt.over {
			t.Errorf("%s: over: %v, want %v", name, over, tt.over)
		}
	}
	a := Attachment{UID: "u", Deleting: true, Finalizer: true, RecordedNodeID: "a", NodeID: "a", Call: shown}
	if until, inDoubt := a.inDoubt(Unpublish, "a"); !inDoubt || !until.IsZero() {
		t.Errorf("what the list shows is not unpublished at once: %v, %v", until, inDoubt)
	}
}

// An attempt that ended before anything was sent takes nothing from what an earlier publish left in doubt.
func TestRefusedAttemptKeepsDoubt(t *testing.T) {
	doubted := Call{}.Begin(Publish, "a", "", false).Fail(noon, "no answer", true).DoubtUntil(noon.Add(5*time.Minute), false)
	unpublished := doubted.Begin(Unpublish, "a", "", false).BegunAt(noon).Confirm(noon.Add(time.Minute))
	if left := unpublished.Refuse(Publish, "a", "").Fail(noon.Add(2*time.Minute), "no secret", false).publishedTo(); len(left) != 1 {
		t.Errorf("may be published to %q, want to a, where the publish may take effect", left)
	}
}
