package kube

import corev1 "k8s.io/api/core/v1"

// Clients with few rights write most names and texts that belay reads, and the API server does not limit all of them: a claim's volumeName, a
// pod's claimName and a lease's holderIdentity may be as long as a whole object (k/k v1.36.3 pkg/apis/core/validation/validation.go
// ValidatePersistentVolumeClaimSpec and validatePersistentClaimVolumeSource, pkg/apis/coordination/validation/validation.go ValidateLeaseSpec).
// Name and decision.Text are the one limit, and every cache, snapshot, log and archive applies it to what enters it. Volume handles and the entries of a
// Node's lists pass uncut: what belay detaches depends on them. The message of a VolumeAttachment's errors also passes uncut, because the
// attacher compares it with what it would write: the API server limits it to 1 KiB (pkg/apis/storage/validation/validation.go
// maxVolumeErrorMessageSize).
const (
	// MaxName is the length of the longest name of an object, in bytes (RFC 1123 subdomain).
	MaxName = 253
	// NoName replaces a name that is longer than MaxName. No object has this name, because names have no spaces.
	NoName = "(longer than a name)"
)

// Name returns a name that refers to an object, or NoName if it is too long to be one. Two names that are too long are one name, and neither
// refers to anything.
func Name[S ~string](name S) S {
	if len(name) > MaxName {
		return NoName
	}
	return name
}

// CutPod applies Name to the names of other objects in a pod's spec. It changes the pod.
func CutPod(pod *corev1.Pod) {
	pod.Spec.NodeName = Name(pod.Spec.NodeName)
	for i := range pod.Spec.Volumes {
		if claim := pod.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			claim.ClaimName = Name(claim.ClaimName)
		}
	}
}
