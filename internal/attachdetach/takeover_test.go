package attachdetach

import (
	"context"
	"errors"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// leaseReader answers with the time at which the Lease was renewed, or with an error.
type leaseReader struct {
	client.Reader

	renewed time.Time
	err     error
}

func (r leaseReader) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if !r.renewed.IsZero() {
		obj.(*coordinationv1.Lease).Spec.RenewTime = &metav1.MicroTime{Time: r.renewed}
	}
	return r.err
}

// TestRecordsCount: for ten minutes after a leader, not if they are dated where no leader was, and an error is no answer.
func TestRecordsCount(t *testing.T) {
	now := ownClock{}.Now()
	for name, test := range map[string]struct {
		reader leaseReader
		count  bool
		fails  bool
	}{
		"fresh":         {reader: leaseReader{renewed: now.Add(-9 * time.Minute)}, count: true},
		"old":           {reader: leaseReader{renewed: now.Add(-11 * time.Minute)}},
		"far ahead":     {reader: leaseReader{renewed: now.Add(time.Hour)}},
		"never renewed": {},
		"none":          {reader: leaseReader{err: apierrors.NewNotFound(schema.GroupResource{}, "x")}},
		"unreadable":    {reader: leaseReader{err: errors.New("timeout")}, fails: true},
	} {
		r := records{live: test.reader, clock: ownClock{}, key: client.ObjectKey{Name: "x"}}
		if count, err := r.complete(t.Context()); count != test.count || (err != nil) != test.fails {
			t.Errorf("%s: %v, %v", name, count, err)
		}
	}
}
