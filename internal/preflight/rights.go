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

// Watched are the resources that the attach/detach controller watches.
func Watched() []authorizationv1.ResourceAttributes {
	return []authorizationv1.ResourceAttributes{
		{Group: corev1.GroupName, Resource: "nodes"}, {Group: corev1.GroupName, Resource: "pods"},
		{Group: corev1.GroupName, Resource: "persistentvolumes"}, {Group: corev1.GroupName, Resource: "persistentvolumeclaims"},
		{Group: storagev1.GroupName, Resource: "volumeattachments"}, {Group: storagev1.GroupName, Resource: "csidrivers"},
	}
}

// MissingRights returns which permissions are missing that a program needs to fill its caches with the resources that it watches, as
// "list nodes". Every user may review its own permissions.
func MissingRights(ctx context.Context, clients kubernetes.Interface, watched []authorizationv1.ResourceAttributes) ([]string, error) {
	var missing []string
	for _, attributes := range watched {
		for _, verb := range []string{"list", "watch"} {
			attributes.Verb = verb
			review, err := clients.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &attributes},
			}, metav1.CreateOptions{})
			if err != nil {
				return nil, fmt.Errorf("review the permission to %s %s: %w", verb, attributes.Resource, err)
			}
			if !review.Status.Allowed {
				missing = append(missing, verb+" "+attributes.Resource)
			}
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing), nil
}
