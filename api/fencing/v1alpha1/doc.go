// Package v1alpha1 has the API of recovery: NodeFence, the record of one node that is being fenced.
//
// +kubebuilder:object:generate=true
// +groupName=fencing.belay.dev
package v1alpha1
