// Package alerts runs the unit tests of the alert rules.
package alerts

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// unitTests is a test file of promtool, as far as it is checked here.
type unitTests struct {
	Tests []struct {
		Name  string `json:"name"`
		Input []struct {
			Series string `json:"series"`
		} `json:"input_series"`
		Alerts []struct {
			Name     string           `json:"alertname"`
			Expected []map[string]any `json:"exp_alerts"`
		} `json:"alert_rule_test"`
	} `json:"tests"`
}

// TestEveryAlertIsTested: a test in which it fires, and one in which it has series and does not.
func TestEveryAlertIsTested(t *testing.T) {
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, file := range testFiles(t) {
		var tests unitTests
		parse(t, file, &tests)
		for _, test := range tests.Tests {
			for _, alert := range test.Alerts {
				switch {
				case len(alert.Expected) > 0:
					fires[alert.Name] = true
				case len(test.Input) > 0:
					quiet[alert.Name] = true
				}
			}
		}
	}
	names := alertNames(t)
	for _, name := range names {
		if !fires[name] {
			t.Errorf("no test in which %s fires", name)
		}
		if !quiet[name] {
			t.Errorf("no test in which %s has series and is quiet", name)
		}
	}
	for name := range fires {
		if !slices.Contains(names, name) {
			t.Errorf("%s is tested, and there is no such alert", name)
		}
	}
}

// TestAlerts checks the rules and runs their tests with promtool.
func TestAlerts(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("NOT RUN: needs promtool in PATH, as `make test` has it (Debian's package prometheus)")
	}
	for _, args := range [][]string{
		{"check", "rules", "--lint-fatal", "belay.rules.yaml"},
		append([]string{"test", "rules"}, testFiles(t)...),
	} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

func testFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("tests/*.test.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no test files: %v", err)
	}
	return files
}

func alertNames(t *testing.T) (names []string) {
	t.Helper()
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert string `json:"alert"`
			} `json:"rules"`
		} `json:"groups"`
	}
	parse(t, "belay.rules.yaml", &rules)
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			names = append(names, rule.Alert)
		}
	}
	if len(names) == 0 {
		t.Fatal("no alerts")
	}
	return names
}

func parse(t *testing.T, file string, into any) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(raw, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}
