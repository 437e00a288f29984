package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BelayRemediation asks for the fence of a node that NodeHealthCheck of medik8s, or another component with its contract, finds unhealthy. It is one more
// trigger of a NodeFence: what happens is in that, and this says how it stands. docs/nodehealthcheck.md has the contract.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=brem
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.metadata.annotations.remediation\.medik8s\.io/node-name`
// +kubebuilder:printcolumn:name="Processing",type=string,JSONPath=`.status.conditions[?(@.type=="Processing")].status`
// +kubebuilder:printcolumn:name="Succeeded",type=string,JSONPath=`.status.conditions[?(@.type=="Succeeded")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Succeeded")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type BelayRemediation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec BelayRemediationSpec `json:"spec,omitempty"`
	// +optional
	Status BelayRemediationStatus `json:"status,omitempty"`
}

// BelayRemediationList is a list of BelayRemediations.
//
// +kubebuilder:object:root=true
type BelayRemediationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BelayRemediation `json:"items"`
}

// BelayRemediationSpec is empty: how a node is fenced is in its FenceSource, and in the flags of the controller.
type BelayRemediationSpec struct{}

// BelayRemediationStatus is derived from the NodeFence.
type BelayRemediationStatus struct {
	// Conditions are Processing, Succeeded and PermanentNodeDeletionExpected. Succeeded is True once nothing of the boot is left on the node, and False where
	// belay cannot fence it.
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// BelayRemediationTemplate is what a NodeHealthCheck names to have belay remediate its nodes.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,shortName=bremt
type BelayRemediationTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec BelayRemediationTemplateSpec `json:"spec"`
}

// BelayRemediationTemplateList is a list of BelayRemediationTemplates.
//
// +kubebuilder:object:root=true
type BelayRemediationTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BelayRemediationTemplate `json:"items"`
}

// BelayRemediationTemplateSpec has the template.
type BelayRemediationTemplateSpec struct {
	// Template is what each BelayRemediation is made from.
	Template BelayRemediationTemplateResource `json:"template"`
}

// BelayRemediationTemplateResource has the spec.
type BelayRemediationTemplateResource struct {
	// Spec is copied into each BelayRemediation.
	Spec BelayRemediationSpec `json:"spec"`
}
