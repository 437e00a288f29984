package kube

import (
	"strings"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
)

// A time Seen of the far future, as of a clock that was wrong once, counts without an end: no reader ends it, and no attacher writes it again. PendingCallOf has a
// bound for the same.
func TestHostileElsewhereOfTheFuture(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	va := &storagev1.VolumeAttachment{}
	va.Annotations = map[string]string{PublishedElsewhereAnnotation: Elsewhere{NodeID: "id-2", Since: now, Seen: now.AddDate(10, 0, 0)}.Encode()}
	if e, ok := ElsewhereOf(va, now); ok {
		t.Errorf("seen in ten years: %+v", e)
	}
}

// What others write is bounded before it enters an event: names are as long as names may be, and a time that is long ago or in the future does not count.
func TestHostileElsewhereIsBounded(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		e    Elsewhere
		want bool
	}{
		"a node ID and a name":     {Elsewhere{NodeID: strings.Repeat("i", MaxNodeID), Node: strings.Repeat("n", MaxName), Since: now, Seen: now}, true},
		"a long node ID":           {Elsewhere{NodeID: strings.Repeat("i", MaxNodeID+1), Since: now, Seen: now}, false},
		"a long name":              {Elsewhere{NodeID: "i", Node: strings.Repeat("n", MaxName+1), Since: now, Seen: now}, false},
		"long ago":                 {Elsewhere{NodeID: "i", Since: now, Seen: now.Add(-elsewhereCounts - time.Second)}, false},
		"it will begin in an hour": {Elsewhere{NodeID: "i", Since: now.Add(time.Hour), Seen: now}, false},
	} {
		va := &storagev1.VolumeAttachment{}
		va.Annotations = map[string]string{PublishedElsewhereAnnotation: tt.e.Encode()}
		if _, ok := ElsewhereOf(va, now); ok != tt.want {
			t.Errorf("%s: counts: %v, want %v", name, ok, tt.want)
		}
	}
}
