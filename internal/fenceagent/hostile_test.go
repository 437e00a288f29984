package fenceagent

import (
	"strings"
	"testing"
)

// A Secret with two values of which one begins with the other, as an account's token and its password: the shorter one is taken out first,
// in the random order of a map, and the rest of the longer one stays in the text, which is stored in the NodeFence and logged.
func TestHostileRedactionOfOverlappingSecrets(t *testing.T) {
	for range 20 {
		a, err := New(t.Context(), agentIn(t, ""), nil, "", map[string][]byte{"ip": []byte("hunter"), "password": []byte("hunter-2-long")})
		if err != nil {
			t.Fatal(err)
		}
		if text := a.redact("login with hunter-2-long failed"); strings.Contains(text, "2-long") {
			t.Fatalf("%q has a part of a secret", text)
		}
	}
}
