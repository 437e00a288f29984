package preflight

import (
	"context"
	"fmt"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// watched are the resources that belay-controller watches, by API group.
var watched = map[string][]string{
	corev1.GroupName:    {"nodes", "pods", "persistentvolumes", "persistentvolumeclaims"},
	storagev1.GroupName: {"volumeattachments", "csidrivers"},
}

// MissingRights returns which permissions are missing that belay-controller needs to fill its caches, as "list nodes". Every user
// may review its own permissions.
func MissingRights(ctx context.Context, clients kubernetes.Interface) ([]string, error) {
	var missing []string
	for group, resources := range watched {
		for _, resource := range resources {
			for _, verb := range []string{"list", "watch"} {
				review, err := clients.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
					Spec: authorizationv1.SelfSubjectAccessReviewSpec{
						ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource},
					},
				}, metav1.CreateOptions{})
				if err != nil {
					return nil, fmt.Errorf("review the permission to %s %s: %w", verb, resource, err)
				}
				if !review.Status.Allowed {
					missing = append(missing, verb+" "+resource)
				}
			}
		}
	}
	slices.Sort(missing)
	return missing, nil
}
