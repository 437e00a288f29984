package fenceagent

import (
	"strings"
	"testing"
)

// A Secret with two values of which one begins with the other, as an account's token and its password: the shorter one is taken out first,
// in the random order of a map, and the rest of the longer one stays in the text, which is stored in the NodeFence and logged.
func TestHostileRedactionOfOverlappingSecrets(t *testing.T) {
	for _, secrets := range [][]string{{"hunter", "hunter-2-long"}, {"hunter-2-long", "hunter"}} {
		a := &Agent{secrets: secrets}
		if text := a.redact("login with hunter-2-long failed"); strings.Contains(text, "2-long") {
			t.Errorf("%q has a part of a secret", text)
		}
	}
}
