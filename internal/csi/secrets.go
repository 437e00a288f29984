package csi

// Secrets are the credentials of one request. They live as long as the request
// and print as [REDACTED].
type Secrets map[string]string

// String never shows a secret.
func (Secrets) String() string { return "[REDACTED]" }

// GoString never shows a secret.
func (Secrets) GoString() string { return "[REDACTED]" }
