package kube

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
)

// TestStatementMade: a statement is as old as its expiry, as the API server recorded it. What else the same or another client wrote, and when,
// does not matter. Without a record the time is unknown.
func TestStatementMade(t *testing.T) {
	early, late := time.Unix(1000, 0), time.Unix(2000, 0)
	entry := func(at time.Time, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Time: &metav1.Time{Time: at}, FieldsV1: metav1.NewFieldsV1(fields)}
	}
	const whole, reason, status = `{"f:spec":{"f:statement":{".":{},"f:by":{},"f:expires":{}}}}`, `{"f:spec":{"f:statement":{"f:reason":{}}}}`, `{"f:status":{"f:phase":{}}}`
	for name, c := range map[string]struct {
		entries []metav1.ManagedFieldsEntry
		want    time.Time
	}{
		"no record":               {nil, time.Time{}},
		"no time":                 {[]metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(whole)}}, time.Time{}},
		"no fields":               {[]metav1.ManagedFieldsEntry{{Time: &metav1.Time{Time: early}}}, time.Time{}},
		"unreadable":              {[]metav1.ManagedFieldsEntry{entry(early, "[]")}, time.Time{}},
		"of the status":           {[]metav1.ManagedFieldsEntry{entry(late, status)}, time.Time{}},
		"of the reason":           {[]metav1.ManagedFieldsEntry{entry(late, reason)}, time.Time{}},
		"written":                 {[]metav1.ManagedFieldsEntry{entry(late, status), entry(early, whole), entry(late, reason)}, early},
		"the same by two clients": {[]metav1.ManagedFieldsEntry{entry(late, whole), entry(early, whole)}, early},
	} {
		f := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{ManagedFields: c.entries}}
		f.Spec.Statement = &fencingv1.Statement{By: "alice"}
		if got := FenceState(f).Statement.Made; !got.Equal(c.want) {
			t.Errorf("%s: made at %v, want %v", name, got, c.want)
		}
	}
}
