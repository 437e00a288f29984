package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of this package.
var GroupVersion = schema.GroupVersion{Group: "fencing.belay.dev", Version: "v1alpha1"}

// AddToScheme adds the types of this package to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &NodeFence{}, &NodeFenceList{}, &FenceSource{}, &FenceSourceList{},
		&BelayRemediation{}, &BelayRemediationList{}, &BelayRemediationTemplate{}, &BelayRemediationTemplateList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
