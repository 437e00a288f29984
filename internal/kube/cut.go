package kube

import "strings"

// Clients with few rights write most names and texts that belay reads, and the API server does not limit all of them: a claim's volumeName, a
// pod's claimName and a lease's holderIdentity may be as long as a whole object (k/k v1.36.3 pkg/apis/core/validation/validation.go
// ValidatePersistentVolumeClaimSpec and validatePersistentClaimVolumeSource, pkg/apis/coordination/validation/validation.go ValidateLeaseSpec).
// Name and Text are the one limit, and every cache, snapshot, log and archive applies it to what enters it. Volume handles and the entries of a
// Node's lists pass uncut: what belay detaches depends on them. The message of a VolumeAttachment's errors also passes uncut, because the
// attacher compares it with what it would write: the API server limits it to 1 KiB (pkg/apis/storage/validation/validation.go
// maxVolumeErrorMessageSize).
const (
	// MaxName is the length of the longest name of an object, in bytes (RFC 1123 subdomain).
	MaxName = 253
	// MaxText is the length of the longest text of another component that is kept, in bytes.
	MaxText = 4 << 10
	// NoName replaces a name that is longer than MaxName. No object has this name, because names have no spaces.
	NoName = "(longer than a name)"

	ellipsis = "..."
)

// Name returns a name that refers to an object, or NoName if it is too long to be one. Two names that are too long are one name, and neither
// refers to anything.
func Name[S ~string](name S) S {
	if len(name) > MaxName {
		return NoName
	}
	return name
}

// Text returns a text that another component wrote, such as an error, without what exceeds MaxText.
func Text(text string) string {
	if len(text) <= MaxText {
		return text
	}
	kept := strings.ToValidUTF8(text[:MaxText-len(ellipsis)], "") // half a character at the end
	return strings.Clone(kept) + ellipsis                         // else the whole text stays in memory
}
