package nodevolume

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"belay.dev/belay/internal/decision"
)

func nodeAt(version string, inUse ...string) NodeStatus {
	return NodeStatus{UID: "n", ResourceVersion: version, InUse: inUse}
}

func keepAll(string) Knowledge { return Yes }

// next is the write that the list wants to send now; nil if none.
func next(l *InUseList) []string {
	write, ok := l.Next()
	if !ok {
		return nil
	}
	if write.InUse == nil {
		return []string{}
	}
	return write.InUse
}

func TestWishesAreBatchedDuringAWrite(t *testing.T) {
	var l InUseList
	l.Start(nodeAt("9"), keepAll)
	l.Want("a", true)
	if diff := cmp.Diff([]string{"a"}, next(&l)); diff != "" {
		t.Fatalf("first write (-want +got):\n%s", diff)
	}
	l.Want("c", true)
	l.Want("b", true)
	if got := next(&l); got != nil {
		t.Fatalf("second write while the first is under way: %v", got)
	}
	l.Applied(nodeAt("10", "a"))
	if diff := cmp.Diff([]string{"a", "b", "c"}, next(&l)); diff != "" {
		t.Fatalf("second write (-want +got):\n%s", diff)
	}
}

func TestInUseListView(t *testing.T) {
	tests := map[string]struct {
		do   func(l *InUseList)
		want Node
		next []string
	}{
		"nothing read": {func(*InUseList) {}, Node{}, nil},
		"read":         {func(l *InUseList) { l.Start(nodeAt("9", "a"), keepAll) }, Node{InUse: Yes, Attached: No}, nil},
		"an older version comes late from a watch": {func(l *InUseList) {
			l.Start(nodeAt("10", "a"), keepAll)
			l.Observe(nodeAt("9"))
		}, Node{InUse: Yes, Attached: No}, nil},
		"a clear is in flight: it may have been carried out": {func(l *InUseList) {
			l.Start(nodeAt("9", "a"), keepAll)
			l.Want("a", false)
			l.Next()
		}, Node{InUse: Unknown, Attached: No}, nil},
		"a clear was lost: nothing is written before a live read": {func(l *InUseList) {
			l.Start(nodeAt("9", "a"), keepAll)
			l.Want("a", false)
			l.Next()
			l.NotApplied()
			l.Want("a", true)
		}, Node{InUse: Unknown, Attached: No}, nil},
		"a clear was lost and the Node has not moved: it may still be carried out, and is sent again though the volume is wanted": {func(l *InUseList) {
			l.Start(nodeAt("9", "a"), keepAll)
			l.Want("a", false)
			l.Next()
			l.NotApplied()
			l.Want("a", true)
			l.ObserveLive(nodeAt("9", "a"))
		}, Node{InUse: Unknown, Attached: No}, []string{}},
		"a clear was lost and the Node has moved on without it: it cannot land any more": {func(l *InUseList) {
			l.Start(nodeAt("9", "a"), keepAll)
			l.Want("a", false)
			l.Next()
			l.NotApplied()
			l.Want("a", true)
			l.ObserveLive(nodeAt("10", "a"))
		}, Node{InUse: Yes, Attached: No}, nil},
		"a clear was lost and had been carried out": {func(l *InUseList) {
			l.Start(nodeAt("9", "a"), keepAll)
			l.Want("a", false)
			l.Next()
			l.NotApplied()
			l.Want("a", true)
			l.Observe(nodeAt("10"))
		}, Node{InUse: No, Attached: No}, []string{"a"}},
		"an agent that died may have a clear in flight for what has no record": {func(l *InUseList) {
			l.Start(nodeAt("9", "a", "b"), func(name string) Knowledge { return decision.Known(name == "b") })
			l.Want("a", true)
		}, Node{InUse: Unknown, Attached: No}, []string{"b"}},
		"what has no record is taken out, also if the Node has moved on since the start": {func(l *InUseList) {
			l.Start(nodeAt("9", "a", "b"), func(name string) Knowledge { return decision.Known(name == "b") })
			l.Observe(nodeAt("10", "a", "b"))
		}, Node{InUse: Yes, Attached: No}, []string{"b"}},
		"what has no record and was wanted before the start stays": {func(l *InUseList) {
			l.Want("a", true)
			l.Start(nodeAt("9", "a", "b"), func(name string) Knowledge { return decision.Known(name == "b") })
			l.Observe(nodeAt("10", "a", "b"))
		}, Node{InUse: Yes, Attached: No}, nil},
		"what has no record and is wanted since the start stays": {func(l *InUseList) {
			l.Start(nodeAt("9", "a", "b"), func(name string) Knowledge { return decision.Known(name == "b") })
			l.Observe(nodeAt("10", "a", "b"))
			l.Want("a", true)
		}, Node{InUse: Yes, Attached: No}, nil},
		"what has a record is believed at once": {func(l *InUseList) {
			l.Start(nodeAt("9", "a", "b"), func(name string) Knowledge { return decision.Known(name == "a") })
		}, Node{InUse: Yes, Attached: No}, []string{"a"}},
		"the Node is gone": {func(l *InUseList) {
			l.Start(nodeAt("9", "a"), keepAll)
			l.NodeDeleted()
			l.Observe(nodeAt("9", "a"))
		}, Node{}, nil},
		"another Node of its name, which must be written again": {func(l *InUseList) {
			l.Start(nodeAt("9", "a"), keepAll)
			l.Want("a", true)
			l.NodeDeleted()
			l.Observe(NodeStatus{UID: "m", ResourceVersion: "12"})
		}, Node{InUse: No, Attached: No}, []string{"a"}},
		"names of others are left alone": {func(l *InUseList) {
			l.Start(nodeAt("9", "other"), keepAll)
			l.Want("a", true)
		}, Node{InUse: No, Attached: No}, []string{"a", "other"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var l InUseList
			test.do(&l)
			if diff := cmp.Diff(test.want, l.View("a"), cmpopts.IgnoreFields(Node{}, "Changes")); diff != "" {
				t.Errorf("belief about a (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.next, next(&l)); diff != "" {
				t.Errorf("next write (-want +got):\n%s", diff)
			}
		})
	}
}

// TestHistoryReset: etcd was restored from a backup, and the versions of the
// Node are lower than what is known.
func TestHistoryReset(t *testing.T) {
	tests := map[string]struct {
		do    func(l *InUseList)
		since string
		read  string
		want  bool
	}{
		"the first read":                 {func(*InUseList) {}, "", "5", false},
		"a newer one":                    {func(l *InUseList) { l.Start(nodeAt("9", "a"), keepAll) }, "9", "10", false},
		"the same one":                   {func(l *InUseList) { l.Start(nodeAt("9", "a"), keepAll) }, "9", "9", false},
		"an older one":                   {func(l *InUseList) { l.Start(nodeAt("9", "a"), keepAll) }, "9", "8", true},
		"a newer one was seen meanwhile": {func(l *InUseList) { l.Start(nodeAt("9"), keepAll); l.Observe(nodeAt("11")) }, "9", "10", false},
		"deleted, and back as it was":    {func(l *InUseList) { l.Start(nodeAt("9"), keepAll); l.NodeDeleted() }, "9", "9", true},
		"deleted, and recreated":         {func(l *InUseList) { l.Start(nodeAt("9"), keepAll); l.NodeDeleted() }, "9", "12", false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var l InUseList
			test.do(&l)
			if got := l.HistoryReset(test.since, nodeAt(test.read)); got != test.want {
				t.Errorf("turned back: %v, want %v", got, test.want)
			}
		})
	}
	var l InUseList
	l.Start(nodeAt("9", "a"), keepAll)
	l.Want("a", true)
	l.Want("b", true)
	l.Next()
	l.NotApplied()
	l.Start(nodeAt("5", "c"), keepAll)
	if diff := cmp.Diff([]string{"a", "b", "c"}, next(&l)); diff != "" {
		t.Errorf("first write of the new history (-want +got):\n%s", diff)
	}
	if write := *l.pending; write.ResourceVersion != "5" {
		t.Errorf("it is bound to version %s", write.ResourceVersion)
	}
}

func TestObserveReturnsChangedNames(t *testing.T) {
	var l InUseList
	l.Start(nodeAt("9", "a", "b"), keepAll)
	got := l.Observe(NodeStatus{UID: "n", ResourceVersion: "10", InUse: []string{"b", "c"}, Attached: []string{"b"}})
	if diff := cmp.Diff([]string{"a", "b", "c"}, got); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
	if got := l.Observe(nodeAt("11", "b", "c")); !cmp.Equal(got, []string{"b"}) {
		t.Errorf("changed: %v, want b alone", got)
	}
}
