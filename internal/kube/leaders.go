package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/ptr"
)

// OwnNamespace is where belay's manifests put its programs.
const OwnNamespace = "belay-system"

// AttacherLease is what csi-attacher and belay-attacher name their lease, followed by the driver.
const AttacherLease = "external-attacher-leader-"

// LeadsVolumes reports whether a lease of this name says which attacher or attach/detach controller leads.
func LeadsVolumes(name string) bool {
	return AttachesVolumes(name) || strings.HasPrefix(name, AttacherLease)
}

// LeaseOwners are the namespaces whose leases count. A user with the role edit in a namespace can write leases there under any name (k/k
// v1.36.3 plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go:188), and can act as each ServiceAccount of the namespace (policy.go:159,
// 161). Where one of those may write VolumeAttachments, a lease is the word of those who can attach and detach anyway. Such are the namespaces
// of the drivers and of belay-controller, also while no pod of theirs runs. In any other namespace a lease says nothing: neither that a leader
// runs nor that it does not. The zero value counts kube-system and OwnNamespace.
type LeaseOwners struct{ namespaces map[string]bool }

// Counts reports whether the leases of a namespace count.
func (o LeaseOwners) Counts(namespace string) bool {
	return namespace == metav1.NamespaceSystem || namespace == OwnNamespace || o.namespaces[namespace]
}

// ReadLeaseOwners reads who may write VolumeAttachments. With an error it names the resource that could not be read.
func ReadLeaseOwners(ctx context.Context, clients kubernetes.Interface) (owners LeaseOwners, unread string, err error) {
	roles := clients.RbacV1()
	writers := map[string]bool{}
	err = eachOf(ctx, roles.ClusterRoles().List, func(role *rbacv1.ClusterRole) {
		writers[role.Name] = slices.ContainsFunc(role.Rules, writesAttachments)
	})
	if err != nil {
		return LeaseOwners{}, "clusterroles", fmt.Errorf("list clusterroles: %w", err)
	}
	namespaces := map[string]bool{}
	err = eachOf(ctx, roles.ClusterRoleBindings().List, func(binding *rbacv1.ClusterRoleBinding) {
		for i := range binding.Subjects {
			if namespace := accountsOf(&binding.Subjects[i]); namespace != "" && writers[binding.RoleRef.Name] {
				namespaces[namespace] = true
			}
		}
	})
	if err != nil {
		return LeaseOwners{}, "clusterrolebindings", fmt.Errorf("list clusterrolebindings: %w", err)
	}
	return LeaseOwners{namespaces}, "", nil
}

// accountsOf returns the namespace of the ServiceAccounts that a subject is, "" for another one. A group of all ServiceAccounts or users
// is no namespace's.
func accountsOf(s *rbacv1.Subject) string {
	switch s.Kind {
	case rbacv1.ServiceAccountKind:
		return s.Namespace
	case rbacv1.GroupKind:
		if namespace, ok := strings.CutPrefix(s.Name, "system:serviceaccounts:"); ok {
			return namespace
		}
	}
	return ""
}

// writesAttachments reports whether the rule allows what each attacher and attach/detach controller does: to patch or update any
// VolumeAttachment.
func writesAttachments(rule rbacv1.PolicyRule) bool {
	has := func(allowed []string, words ...string) bool {
		return slices.ContainsFunc(allowed, func(word string) bool { return word == "*" || slices.Contains(words, word) })
	}
	return len(rule.ResourceNames) == 0 && has(rule.Verbs, "patch", "update") && has(rule.APIGroups, storagev1.GroupName) && has(rule.Resources, "volumeattachments")
}

// eachOf calls use with all objects of a list.
func eachOf[L runtime.Object, T any](ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), use func(*T)) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) })
	return pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		if object, ok := any(o).(*T); ok {
			use(object)
		}
		return nil
	})
}

// maxLease limits for how long a lease counts after a renewal. The drivers of docs/adopt-attacher.md take two minutes at most.
const maxLease = 5 * time.Minute

// LeaseLasts returns for how long a lease of leader election counts after its holder has renewed it: what it says, or the 15 s that are the
// default of all components, and maxLease at most.
func LeaseLasts(lease *coordinationv1.Lease) time.Duration {
	return min(max(time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 15))*time.Second, 0), maxLease)
}
