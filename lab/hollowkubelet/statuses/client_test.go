package statuses

import (
	"errors"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	nodeutil "k8s.io/component-helpers/node/util"
)

// TestStatusThatIsNotWrittenIsNotCounted: of a status that kubelet computes three times until it is written, one counts, and Written is called once.
func TestStatusThatIsNotWrittenIsNotCounted(t *testing.T) {
	var count atomic.Int64
	was := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "hollow-0000"}}
	client := fake.NewClientset(was)
	refused := 2
	client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		refused--
		return refused >= 0, nil, errors.New("too busy")
	})
	written := 0
	with := Client{Interface: client, Count: &count, Written: func() { written++ }}
	is := was.DeepCopy()
	is.Status.Phase = corev1.NodeRunning
	for i := range 3 {
		if written > 0 {
			t.Errorf("a status counts as written after %d attempts that failed", i)
		}
		count.Add(1) // computed
		if _, _, err := nodeutil.PatchNodeStatus(with.CoreV1(), types.NodeName(was.Name), was, is); (err == nil) != (i == 2) {
			t.Fatalf("attempt %d ended with %v", i+1, err)
		}
	}
	if got := count.Load(); got != 1 || written != 1 {
		t.Errorf("%d statuses were counted and %d written, want 1", got, written)
	}
}
