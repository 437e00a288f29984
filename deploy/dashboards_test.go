package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"belay.dev/belay/internal/testing/dashboards"
)

// TestQueriesOfDashboardsAreParsed gives each query, with values in the place of the variables, to promtool.
func TestQueriesOfDashboardsAreParsed(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("NOT RUN: needs promtool in PATH, as `make test` has it (Debian's package prometheus)")
	}
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []rule
	boards, err := dashboards.Read("dashboards")
	if err != nil {
		t.Fatal(err)
	}
	for _, board := range boards {
		values := map[string]string{"__rate_interval": "5m"}
		for _, v := range board.Templating.List {
			values[v.Name] = "x"
		}
		for _, panel := range board.Panels {
			for _, target := range panel.Targets {
				expr, err := dashboards.Fill(target.Expr, values)
				if err != nil {
					t.Errorf("%s, %s: %v", board.Title, panel.Title, err)
				}
				rules = append(rules, rule{fmt.Sprintf("query:number_%d", len(rules)), expr})
			}
		}
	}
	raw, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "queries", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yaml") // JSON is YAML
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", "--lint=none", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
	t.Logf("%d queries", len(rules))
}

// TestPanelsAreReadable: each panel has a title, a unit and queries, and no two panels of a dashboard have the same title.
func TestPanelsAreReadable(t *testing.T) {
	boards, err := dashboards.Read("dashboards")
	if err != nil {
		t.Fatal(err)
	}
	for _, board := range boards {
		var titles []string
		for _, panel := range board.Panels {
			if panel.Type == "row" {
				continue
			}
			if panel.Title == "" || panel.FieldConfig.Defaults.Unit == "" || len(panel.Targets) == 0 {
				t.Errorf("%s: panel %q has no title, no unit or no query", board.Title, panel.Title)
			}
			if slices.Contains(titles, panel.Title) {
				t.Errorf("%s: two panels %q", board.Title, panel.Title)
			}
			titles = append(titles, panel.Title)
			for _, target := range panel.Targets {
				if panel.Type == "timeseries" && target.Legend == "" {
					t.Errorf("%s: panel %q has a query without a legend", board.Title, panel.Title)
				}
			}
		}
	}
}
