package fenceagent

import (
	"strings"
	"testing"
)

// An agent that is chatty gives a value of the Secret beside the identity. What is returned is stored in the status of the FenceSource: everybody who may
// read it sees the password. Before, the whole answer was redacted.
func TestHostileSecretInsideAnIdentity(t *testing.T) {
	a, err := New(t.Context(), agentIn(t, "echo 'Identity: 4C4C4544-0042 (admin:s3cret!)'"), nil, "", map[string][]byte{"password": []byte("s3cret!")})
	if err != nil {
		t.Fatal(err)
	}
	if id, err := a.Identity(t.Context()); strings.Contains(id, "s3cret!") {
		t.Errorf("%q (%v)", id, err)
	}
}
