package deploy

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestUnitRestartsWithoutLimit: a start that fails because of a missing file, a full disk or a held lock must be tried again without
// an administrator.
func TestUnitRestartsWithoutLimit(t *testing.T) {
	raw, err := os.ReadFile("belay-node/belay-node.service")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string][]string{}
	section := ""
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = line
		}
		sections[section] = append(sections[section], line)
	}
	for section, setting := range map[string]string{"[Unit]": "StartLimitIntervalSec=0", "[Service]": "Restart=always"} {
		if !slices.Contains(sections[section], setting) {
			t.Errorf("%s has no %s", section, setting)
		}
	}
	if strings.Contains(string(raw), "mount --bind") {
		t.Error("mount --bind hides what is mounted below the root: --rbind")
	}
}
