package fenceagent

import (
	"testing"

	"belay.dev/belay/internal/fencing"
)

// The answer is cut to 1 KiB, which is what is stored, before it is read. An agent whose library warns before it answers (urllib3's
// InsecureRequestWarning by logging, a deprecation of the SNMP library, a banner of an SSH server) never gives a power state: the switch counts as
// silent, and after three times as locked. And an answer that contradicts itself after 1 KiB is taken for a clear one (hole 8).
// Expected: what is read is the whole answer (64 KiB are kept), what is stored is cut.
func TestHostileLongAnswers(t *testing.T) {
	const warnings = `i=0; while [ $i -lt 40 ]; do echo "WARNING: the certificate of 192.0.2.1 is not verified"; i=$((i+1)); done; `
	if got, _, err := newAgent(t, warnings+"echo 'Status: OFF'; exit 2").Status(t.Context()); got != fencing.PowerOff {
		t.Errorf("warnings before the answer: %v, %.120v", got, err)
	}
	if got, _, _ := newAgent(t, "echo 'Status: OFF'; "+warnings+"echo 'Status: ON'; exit 2").Status(t.Context()); got != fencing.PowerUnknown {
		t.Errorf("Off and On: %v", got)
	}
}
