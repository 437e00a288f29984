package field

import (
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/testing/wait"
)

// member may get and list pods, claims and events of the namespaces of situations, and nothing else.
const member = "field-member"

// notNamed are the situations whose cause no event names that a member may read, with what is answered in its place.
var notNamed = map[string]string{
	"attacher-down":          "AttachUnanswered", // the lease of the attacher is in another namespace
	"no-csidriver":           "AttachUnanswered", // as is whether there is an attacher
	"local-node-gone":        "VolumeTopologyConflict",
	"multi-node-lost":        "OtherWriterAttached", // the event names the pod, and not its node
	"node-affinity-nodename": "VolumeUnsupported",   // kubelet says that the node affinity excludes the node
	"own-node-notready":      "Incomplete",
	"pod-term-unmount":       "PodTerminating",
	"va-being-deleted":       "Detaching", // why it is not detached is in the VolumeAttachment
}

// TestFewRights: a member of a namespace gets the same cause wherever an event of the pod or of its claims names it.
func TestFewRights(t *testing.T) {
	r, plugin := rig(t)
	situations, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(r.lab.RESTConfig())
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: member}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods", "persistentvolumeclaims", "events"}, Verbs: []string{"get", "list"}},
	}}
	if _, err := client.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, s := range situations {
		if strings.HasPrefix(s.Ask[0], "pv/") {
			continue // it has no namespace
		}
		binding := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: member}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: member},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: member}},
		}
		if _, err := client.RbacV1().RoleBindings(s.Namespace()).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	wait.Until(t, "the API server knows the rights", func() bool {
		return slices.IndexFunc(situations, func(s *Situation) bool { return !strings.HasPrefix(s.Ask[0], "pv/") && !allowed(t, client, s) }) < 0
	})
	for _, s := range situations {
		if strings.HasPrefix(s.Ask[0], "pv/") {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			var all, few diagnosis.Explanation
			r.read(t, plugin, &all, s.Questions()[0]...)
			r.read(t, plugin, &few, append(s.Questions()[0], "--as="+member)...)
			want := string(all.Reason)
			if other := notNamed[s.Name]; other != "" {
				want = other
			}
			if string(few.Reason) != want {
				t.Errorf("a member gets %s: %s; want %s, as others get %s: %s", few.Reason, few.Summary, want, all.Reason, all.Summary)
			}
		})
	}
}

// allowed reports whether a member may list the pods of a situation.
func allowed(t *testing.T, client kubernetes.Interface, s *Situation) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: member, ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: s.Namespace(), Verb: "list", Resource: "pods"},
	}}
	answer, err := client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
	return err == nil && answer.Status.Allowed
}
