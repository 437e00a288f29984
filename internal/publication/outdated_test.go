package publication

import (
	"slices"
	"testing"
	"time"
)

// The controller's cache of CSINodes was behind, and it recorded as the same machine an ID that the node no longer has (internal/attachment
// recordsSameMachine). The machine of that ID is another Node's now. An outdated SameMachine is no place to unpublish (currentNodeIDs), so no
// attachment may rest on it either. S5: the finalizer stays until the volume was unpublished from the recorded ID, or the record is right again.
func TestNoAttachmentRestsOnAnOutdatedSameMachine(t *testing.T) {
	outdated := with(at(attached("a"), "id"), func(a *Attachment) { a.SameMachine = "other" })
	other := at(attached("b"), "other")
	for name, tt := range map[string]struct {
		ends, stays Attachment
		id          string
	}{
		"the one with the record ends first": {outdated, other, "id"},
		"the other one ends first":           {other, outdated, "other"},
	} {
		t.Run(name, func(t *testing.T) {
			unpublishes := func(steps []Step) bool {
				return slices.ContainsFunc(steps, func(s Step) bool { call, ok := s.(CallDriver); return ok && call.NodeID == tt.id })
			}
			ends := deleting(tt.ends)
			ends.Created = noon.Add(-time.Hour)
			steps := Decide(noon, Observed{Attachments: []Attachment{ends, tt.stays}}, policy).Steps
			released := slices.Contains(steps, Step(RemoveFinalizer{target{ends.UID}}))
			// The other one ends later: does it unpublish that place?
			later := Decide(noon, Observed{Attachments: []Attachment{deleting(tt.stays)}}, policy).Steps
			if released && !unpublishes(later) {
				t.Errorf("S5: released by %v, and nothing unpublishes %q: the other one does %v", steps, tt.id, later)
			}
		})
	}
}
