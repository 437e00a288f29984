package kube

import (
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
