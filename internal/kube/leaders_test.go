package kube

import (
	"errors"
	"math"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func roleOf(name string, rule rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}}, rule}}
}

func bindingOf(role string, subjects ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role}, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}
}

// TestLeaseOwners: the leases of a namespace count if one of its ServiceAccounts may write VolumeAttachments, all of them, in the cluster.
func TestLeaseOwners(t *testing.T) {
	csi := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "csi", Name: "attacher"}
	patch := rbacv1.PolicyRule{Verbs: []string{"get", "list", "watch", "patch"}, APIGroups: []string{"storage.k8s.io"}, Resources: []string{"csinodes", "volumeattachments"}}
	with := func(change func(*rbacv1.PolicyRule)) []runtime.Object {
		rule := *patch.DeepCopy()
		change(&rule)
		return []runtime.Object{roleOf("r", rule), bindingOf("r", csi)}
	}
	same := func(*rbacv1.PolicyRule) {}
	for name, tt := range map[string]struct {
		objects []runtime.Object
		want    bool
	}{
		"csi-attacher":          {with(same), true},
		"an older csi-attacher": {with(func(r *rbacv1.PolicyRule) { r.Verbs = []string{"update"} }), true},
		"all rights": {with(func(r *rbacv1.PolicyRule) {
			r.Verbs, r.APIGroups, r.Resources = []string{"*"}, []string{"*"}, []string{"*"}
		}), true},
		"reads only":        {with(func(r *rbacv1.PolicyRule) { r.Verbs = []string{"get", "list", "watch"} }), false},
		"their status only": {with(func(r *rbacv1.PolicyRule) { r.Resources = []string{"volumeattachments/status"} }), false},
		"one object":        {with(func(r *rbacv1.PolicyRule) { r.ResourceNames = []string{"a"} }), false},
		"another API":       {with(func(r *rbacv1.PolicyRule) { r.APIGroups = []string{"example.com"} }), false},
		"bound in a namespace": {[]runtime.Object{roleOf("r", patch), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "csi", Name: "b"}, Subjects: []rbacv1.Subject{csi}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "r"},
		}}, false},
		"bound without the role":           {[]runtime.Object{bindingOf("r", csi)}, false},
		"all accounts of the namespace":    {[]runtime.Object{roleOf("r", patch), bindingOf("r", rbacv1.Subject{Kind: rbacv1.GroupKind, Name: "system:serviceaccounts:csi"})}, true},
		"a person":                         {[]runtime.Object{roleOf("r", patch), bindingOf("r", rbacv1.Subject{Kind: rbacv1.UserKind, Name: "csi"})}, false},
		"an account of another namespace":  {[]runtime.Object{roleOf("r", patch), bindingOf("r", rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "other", Name: "csi"})}, false},
		"a second binding, another's role": {[]runtime.Object{roleOf("r", patch), bindingOf("r"), roleOf("s", rbacv1.PolicyRule{}), bindingOf("s", csi)}, false},
	} {
		owners, unread, err := ReadLeaseOwners(t.Context(), fake.NewClientset(tt.objects...))
		if err != nil || unread != "" || owners.Counts("csi") != tt.want {
			t.Errorf("%s: %v, want %v (%s, %v)", name, owners.Counts("csi"), tt.want, unread, err)
		}
	}
	for namespace, want := range map[string]bool{"kube-system": true, "belay-system": true, "kube-node-lease": false, "": false, "default": false} {
		if got := (LeaseOwners{}).Counts(namespace); got != want {
			t.Errorf("%q: %v", namespace, got)
		}
	}
}

// TestLeaseOwnersUnread: without the permission to read them, no further namespace counts, and the error names the resource.
func TestLeaseOwnersUnread(t *testing.T) {
	for _, resource := range []string{"clusterroles", "clusterrolebindings"} {
		clients := fake.NewClientset()
		clients.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}, "", errors.New("no"))
		})
		if owners, unread, err := ReadLeaseOwners(t.Context(), clients); unread != resource || !apierrors.IsForbidden(err) || owners.Counts("csi") {
			t.Errorf("%s: %s, %v", resource, unread, err)
		}
	}
}

// TestLeaseLasts: a lease that claims to last for decades counts for five minutes.
func TestLeaseLasts(t *testing.T) {
	for seconds, want := range map[int32]time.Duration{15: 15 * time.Second, 120: 2 * time.Minute, 301: 5 * time.Minute, math.MaxInt32: 5 * time.Minute, -1: 0} {
		if got := LeaseLasts(&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: &seconds}}); got != want {
			t.Errorf("%d s: %v, want %v", seconds, got, want)
		}
	}
	if got := LeaseLasts(&coordinationv1.Lease{}); got != 15*time.Second {
		t.Errorf("no duration: %v", got)
	}
}
