package nodes

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// A machine that is busy with much else may start containerd late: a node that no longer waits for it stays incomplete.
func TestContainerdMayBeginLate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	synctest.Test(t, func(t *testing.T) {
		begun := make(chan net.Listener, 1)
		time.AfterFunc(2*time.Minute, func() {
			listener, err := net.Listen("unix", path)
			if err != nil {
				t.Error(err)
			}
			begun <- listener
		})
		if err := awaitSocket(t.Context(), path); err != nil {
			t.Error(err)
		}
		if listener := <-begun; listener != nil {
			_ = listener.Close()
		}
	})
}

// The controllers write a new Node at the same time, and more often than one write is tried.
func TestAdoptNodeThroughConflicts(t *testing.T) {
	client := fake.NewClientset(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: uninitializedTaint, Effect: corev1.TaintEffectNoSchedule}, {Key: "another"}}},
	})
	nodes, writes := corev1.SchemeGroupVersion.WithResource("nodes"), 0
	client.PrependReactor("update", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		writes++
		if writes > 10 {
			return false, nil, nil
		}
		stored, err := client.Tracker().Get(nodes, "", "node-1")
		if err != nil {
			return true, nil, err
		}
		other := stored.(*corev1.Node).DeepCopy()
		other.Labels = map[string]string{"written": fmt.Sprint(writes)}
		if err := client.Tracker().Update(nodes, other, ""); err != nil {
			return true, nil, err
		}
		return true, nil, apierrors.NewConflict(nodes.GroupResource(), other.Name, nil)
	})
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	if err := AdoptNode(ctx, client, "node-1", loopbackIP); err != nil {
		t.Fatal(err)
	}
	node, err := client.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != "another" || !reachableAt(node, loopbackIP) || node.Labels["written"] != "10" {
		t.Errorf("the Node is %+v", node)
	}
}
