package attachdetach

import (
	"testing"

	"belay.dev/belay/internal/attachment"
)

// TestListedBeforeAttachedIsInDoubt (S2): what a machine listed in use while it was its predecessor's is attached to it in doubt, and only under
// the Node object that listed it, and only once.
func TestListedBeforeAttachedIsInDoubt(t *testing.T) {
	listing := attachment.Node{Exists: attachment.Yes, InUse: attachment.Yes, Machine: attachment.Machine{NodeUID: "1"}}
	idle := listing
	idle.InUse = attachment.No
	forced := attachment.ForceDetach{Node: "n", Reason: attachment.NodeReplaced}
	returned := attachment.ForceDetach{Node: "n", Reason: attachment.NodeReturned}
	again := attachment.Attach{Node: "n", Machine: attachment.Machine{NodeUID: "1"}}
	for name, c := range map[string]struct {
		do   func(*doubts)
		next attachment.Attach
		want string
	}{
		"it listed the volume":        {func(d *doubts) { d.add("v", forced, listing) }, again, attachment.InDoubt},
		"it did not":                  {func(d *doubts) { d.add("v", forced, idle) }, again, "1"},
		"the machine was the same":    {func(d *doubts) { d.add("v", returned, listing) }, again, "1"},
		"another volume":              {func(d *doubts) { d.add("w", forced, listing) }, again, "1"},
		"another Node object":         {func(d *doubts) { d.add("v", forced, listing) }, attachment.Attach{Node: "n", Machine: attachment.Machine{NodeUID: "2"}}, "2"},
		"the Node was deleted":        {func(d *doubts) { d.add("v", forced, listing); d.forget("n") }, again, "1"},
		"it was attached since":       {func(d *doubts) { d.add("v", forced, listing); d.end("v", "n") }, again, "1"},
		"another one was, on another": {func(d *doubts) { d.add("v", forced, listing); d.end("w", "n"); d.end("v", "m") }, again, attachment.InDoubt},
	} {
		t.Run(name, func(t *testing.T) {
			d := &doubts{}
			c.do(d)
			if got := d.uid("v", c.next); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
