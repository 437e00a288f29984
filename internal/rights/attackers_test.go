package rights

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestAttackersHaveFewRights: with more rights than the attackers have, the other tests of the package would show nothing.
func TestAttackersHaveFewRights(t *testing.T) {
	node, err := client.New(kubelet(t, "few-rights"), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "few-rights-other"}}
	create(t, other)
	if err := node.Patch(t.Context(), other, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"a":"b"}}}`))); !apierrors.IsForbidden(err) {
		t.Errorf("a kubelet wrote to the Node of another: %v", err)
	}
	own := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "few-rights"}}
	if err := node.Patch(t.Context(), own, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"a":"b"}}}`))); err != nil {
		t.Errorf("a kubelet could not write to its own Node: %v", err)
	}
	edit, err := client.New(tenant(t, "few-rights"), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := edit.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "few-rights", Name: "a"}}); err != nil {
		t.Errorf("a tenant could not write in its own namespace: %v", err)
	}
	if err := edit.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}}); !apierrors.IsForbidden(err) {
		t.Errorf("a tenant wrote in another namespace: %v", err)
	}
	if err := edit.Get(t.Context(), client.ObjectKey{Name: "few-rights"}, &corev1.Node{}); !apierrors.IsForbidden(err) {
		t.Errorf("a tenant read a Node: %v", err)
	}
}
