package publication

import (
	"slices"
	"testing"
)

// What is known of an exclusive volume at another node follows the latest list, whatever becomes of the calls for the attachment.
func TestElsewhereFollowsTheList(t *testing.T) {
	found := func(a Attachment) ExpectedAttachment {
		a.Drift = PublishedElsewhere
		return claimed(a)
	}
	failing := with(deleting(attached("a")), func(a *Attachment) {
		a.Call, a.DetachError = Call{Verb: Unpublish, NodeID: "id-a", Sent: true, Failures: 3, Ended: noon}, "no"
	})
	hanging := with(deleting(attached("a")), func(a *Attachment) { a.Call = Call{Verb: Unpublish, NodeID: "id-a", Sent: true, InFlight: true} })
	renamed := with(attached("a"), func(a *Attachment) { a.NodeID = "id-c" })
	tests := map[string]struct {
		claim    ExpectedAttachment
		list     []string
		want     string
		resolved bool
	}{
		"still there":                              {claim: found(attached("a")), list: []string{"id-a", "id-b"}, want: "id-b"},
		"at two others, in another order":          {claim: found(attached("a")), list: []string{"id-c", "id-b", "id-a"}, want: "id-b"},
		"at a third node":                          {claim: found(attached("a")), list: []string{"id-a", "id-c"}, want: "id-c"},
		"here only":                                {claim: found(attached("a")), list: []string{"id-a"}, resolved: true},
		"nowhere":                                  {claim: found(attached("a")), resolved: true},
		"S1: not here, and at an unknown node":     {claim: found(attached("a")), list: []string{"what"}},
		"the detach fails, still there":            {claim: found(failing), list: []string{"id-a", "id-b"}, want: "id-b"},
		"the detach fails, here only":              {claim: found(failing), list: []string{"id-a"}, resolved: true},
		"the detach hangs, here only":              {claim: found(hanging), list: []string{"id-a"}, resolved: true},
		"at the new ID of its own node":            {claim: found(renamed), list: []string{"id-c"}, resolved: true},
		"at the new ID of its own node, and there": {claim: found(renamed), list: []string{"id-c", "id-b"}, want: "id-b"},
		"for several nodes":                        {claim: sharing(found(attached("a"))), list: []string{"id-a", "id-b"}, resolved: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			list := listing(noon.Add(1), tt.list...)
			if got := tt.claim.Elsewhere(list, "id-b"); got != tt.want {
				t.Errorf("elsewhere at %q, want %q", got, tt.want)
			}
			claims := []ExpectedAttachment{tt.claim}
			if got := slices.Contains(NewComparison(1).Compare(noon, list, claims).Resolved, tt.claim.UID); got != tt.resolved {
				t.Errorf("resolved: %v", got)
			}
		})
	}
	c := found(attached("a"))
	if list := (Listing{Volumes: map[string]*Entry{}}); c.Elsewhere(list, "id-b") != "" || c.nowhereElse(list) {
		t.Error("a list that was read before the volume was asked for says something")
	}
}
