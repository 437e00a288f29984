package kubectl

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
)

// printed is a table as a terminal of the width shows it.
func printed(t *testing.T, width int, print func(*plugin) error) []string {
	t.Helper()
	var out bytes.Buffer
	p := &plugin{}
	p.Out, p.style = &out, style{width: width}
	if err := print(p); err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

// checkTable: each line fits, and has these words whole; the columns are these.
func checkTable(t *testing.T, width int, lines []string, columns string, words ...string) {
	t.Helper()
	if got := strings.Join(strings.Fields(lines[0]), " "); got != columns {
		t.Errorf("%d columns: %s, want %s", width, got, columns)
	}
	for _, line := range lines {
		if utf8.RuneCountInString(line) > width {
			t.Errorf("%d columns: a line has %d:\n%s", width, utf8.RuneCountInString(line), line)
		}
	}
	for _, word := range words {
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, word) }) {
			t.Errorf("%d columns: %q is not whole:\n%s", width, word, strings.Join(lines, "\n"))
		}
	}
}

// TestTablesFit: at each width the lines of stuck and map fit, the names of what waits and why are whole, and what a narrow terminal lacks are the least
// important columns.
func TestTablesFit(t *testing.T) {
	const volume = "pvc-0c1a57a0-1b2c-4d3e-9f60-718293a4b5c6"
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	since := now.Add(-7 * time.Minute)
	list := &diagnosis.StuckList{Time: now, Items: []diagnosis.Finding{{
		Subject: diagnosis.Ref{Resource: diagnosis.Pods, Namespace: "payments", Name: "postgres-main-0"}, Verdict: diagnosis.Unsafe, Reason: explain.NodeNotReady, Since: &since,
		Volume:  &diagnosis.Volume{PersistentVolume: volume, WantedOn: "worker-eu-1b"},
		Holders: []diagnosis.Holder{{Node: diagnosis.NodeState{Name: "worker-eu-1a"}, Attached: true, Pods: []diagnosis.PodState{{Namespace: "payments", Name: "postgres-main-1"}}}},
	}, {
		Subject: diagnosis.Ref{Resource: diagnosis.Claims, Namespace: "payments", Name: "data"}, Verdict: diagnosis.Blocked, Reason: explain.ProvisioningFailed, Since: &since,
	}}}
	for width, columns := range map[int]string{
		80:  "SINCE VERDICT OBJECT REASON",
		120: "SINCE VERDICT OBJECT VOLUME HOLDER REASON",
		200: "SINCE VERDICT OBJECT VOLUME NODE HOLDER REASON",
	} {
		lines := printed(t, width, func(p *plugin) error { return p.stuckTable(list, "") })
		words := []string{"NodeNotReady", "ProvisioningFailed", "pvc/data -n payments", "pod/postgres-main-0 -n payments"}
		switch width {
		case 200:
			words = append(words, volume, "worker-eu-1a (postgres-main-1)", "worker-eu-1b")
		}
		checkTable(t, width, lines, columns, words...)
	}
	limit := int32(25)
	m := &diagnosis.NodeMap{Items: []diagnosis.NodeVolumes{{
		Node:    diagnosis.NodeState{Name: "ip-10-0-13-147.eu-central-1", State: diagnosis.NodeUnreachable},
		Drivers: []diagnosis.DriverSlots{{Driver: "ebs.csi.aws.com", Attached: 24, Used: 24, Uncounted: 1, Limit: &limit, InUse: 24, Reported: 24}},
	}}}
	for width, columns := range map[int]string{
		80:  "NODE STATE DRIVER ATTACHED SLOTS",
		120: "NODE STATE DRIVER ATTACHED SLOTS ATTACHING DETACHING IN USE REPORTED",
		200: "NODE STATE DRIVER ATTACHED SLOTS ATTACHING DETACHING IN USE REPORTED",
	} {
		lines := printed(t, width, func(p *plugin) error { return p.mapTable(m, "") })
		words := []string{"ebs.csi.aws.com", "24+1/25", "Unreachable"}
		if width == 200 {
			words = append(words, "ip-10-0-13-147.eu-central-1")
		}
		checkTable(t, width, lines, columns, words...)
	}
}
