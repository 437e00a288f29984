package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestQuickFiguresAreRefused: `make bench-tick ARGS=--quick` writes docs/performance/tick.json, and "the figures mean little".
func TestQuickFiguresAreRefused(t *testing.T) {
	folder := stored(t, true)
	quick := tick()
	quick.Quick = true
	raw, err := json.Marshal(quick)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(folder, "tick.json"), raw, 0o600))
	made, err := render(folder)
	if err == nil && !strings.Contains(string(made["performance.md"]), "small sizes") {
		t.Error("figures of --quick are on the page, which does not say so")
	}
}

// TestFailedRunsAreReported: where a run failed, as with a lost record, the first table and the picture say so beside the time of the others.
func TestFailedRunsAreReported(t *testing.T) {
	d := &data{recovery: recovery()} // one of four runs of each series: "a record is lost"
	d.recovery.Series[0].Failures, d.recovery.Series[1].Failures = 1, 1
	d.curves = &figures{}
	text, err := d.felt()
	must(t, err)
	if !strings.Contains(text, "fail") && !strings.Contains(text, "3 of 4") {
		t.Errorf("the first table does not tell that a run of four has lost a record:\n%s", text)
	}
	picture, err := deadNode(d.recovery)
	must(t, err)
	if !strings.Contains(string(picture), "fail") && !strings.Contains(string(picture), "3 of 4") {
		t.Error("the picture does not tell that a run of four has lost a record")
	}
}
