package nodevolume

import (
	"slices"
	"testing"
)

// An agent that starts twice with a torn record must not write duplicate or empty names. slices.Compact in sortCompact clears the
// tail of the list that Start still uses.
func TestStartWritesAnEmptyName(t *testing.T) {
	listed := []string{"v"}
	for restart := range 4 { // each time killed after its first write
		var l InUseList
		l.Start(NodeStatus{UID: "n", ResourceVersion: "1000", InUse: listed}, func(string) Knowledge { return Unknown })
		write, due := l.Next()
		if !due {
			t.Fatal("no write")
		}
		listed = write.InUse
		if slices.Contains(listed, "") || len(listed) > 2 {
			t.Errorf("restart %d: the agent writes %q", restart, listed)
		}
	}
	// A running agent removes duplicates, and keeps a name without a wish.
	var l InUseList
	l.Start(NodeStatus{UID: "n", ResourceVersion: "1000", InUse: listed}, func(string) Knowledge { return Yes })
	l.Want("v", false)
	write, _ := l.Next()
	if slices.Contains(write.InUse, "") {
		t.Errorf("in the end it says %q", write.InUse)
	}
}

// The driver does not stage, so this unpublish is the last call; the pod is wanted, and may be running on the mount of an
// unconfirmed record.
func TestLastUnpublishSearchesForUsers(t *testing.T) {
	key := PublishKey{PodUID: "a", SpecName: "pv"}
	d := Decide(now, Desired{Pods: []Pod{{Key: key, Demand: Wanted, Publish: Uncertain, PublishedLabel: "x"}}}, Observed{
		Node: Node{InUse: Yes, Attached: Yes}, AttachRequired: Yes, RecordedInUse: true, Driver: Driver{Registered: true, Stages: No},
	})
	if _, looks := d.Next.(LookForUsers); !looks {
		t.Errorf("%T %+v, without a search for users", d.Next, d.Next)
	}
}
