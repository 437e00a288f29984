package house

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/testing/dashboards"
)

// runbookBase is where the pages of the repository are read; the chart puts its value prometheusRule.runbookBaseURL in its place.
const runbookBase = "https://belay.dev/belay/"

// alerts is a rule file of Prometheus, as far as it is checked here.
type alerts struct {
	Groups []struct {
		Name  string      `json:"name"`
		Rules []alertRule `json:"rules"`
	} `json:"groups"`
}

type alertRule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// TestAlertsAreComplete: each rule has what a person who is woken up by it needs, and refers to metrics and pages that exist.
func TestAlertsAreComplete(t *testing.T) {
	var file alerts
	if err := yaml.UnmarshalStrict([]byte(read(t, filepath.Join(root, "deploy", "alerts", "belay.rules.yaml"))), &file); err != nil {
		t.Fatal(err)
	}
	metrics := documentedMetrics(t)
	explained := read(t, filepath.Join(root, "docs", "alerts.md"))
	names := map[string]bool{}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			if names[rule.Alert] {
				t.Errorf("two rules are named %s", rule.Alert)
			}
			names[rule.Alert] = true
			for _, problem := range ruleProblems(rule, metrics) {
				t.Errorf("%s: %s", rule.Alert, problem)
			}
			if !strings.Contains(explained, "| `"+rule.Alert+"` |") {
				t.Errorf("docs/alerts.md does not explain the alert %s", rule.Alert)
			}
		}
	}
	if len(names) < 10 {
		t.Errorf("only %d rules were found", len(names))
	}
}

// TestDashboardsUseDocumentedMetrics: each metric of a query, and of a variable, is one that a program exports.
func TestDashboardsUseDocumentedMetrics(t *testing.T) {
	boards, err := dashboards.Read(filepath.Join(root, "deploy", "dashboards"))
	if err != nil {
		t.Fatal(err)
	}
	metrics := documentedMetrics(t)
	check := func(board, expr string) {
		for _, name := range metricsIn(expr) {
			library := strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "go_")
			if !library && !metrics[name] && !metrics[histogramOf(name)] {
				t.Errorf("%s: no page documents the metric %s", board, name)
			}
		}
	}
	for _, board := range boards {
		for _, v := range board.Templating.List {
			if v.Type != "query" {
				continue
			}
			series, _, err := v.Values()
			if err != nil {
				t.Errorf("%s: %v", board.Title, err)
			}
			check(board.Title, series)
		}
		for _, panel := range board.Panels {
			for _, target := range panel.Targets {
				check(board.Title, target.Expr)
			}
		}
	}
}

// ruleProblems are what is wrong with a rule.
func ruleProblems(rule alertRule, metrics map[string]bool) (problems []string) {
	for _, name := range []string{"summary", "description", "runbook_url"} {
		if rule.Annotations[name] == "" {
			problems = append(problems, "it has no annotation "+name)
		}
	}
	if !slices.Contains([]string{"critical", "warning", "info"}, rule.Labels["severity"]) {
		problems = append(problems, "its severity is not critical, warning or info")
	}
	if rule.For == "" {
		problems = append(problems, "it does not say for how long")
	}
	used := metricsIn(rule.Expr)
	if len(used) == 0 {
		problems = append(problems, "its expression has no metric")
	}
	for _, name := range used {
		if !metrics[name] && !metrics[histogramOf(name)] {
			problems = append(problems, "no page documents the metric "+name)
		}
	}
	for _, link := range runbooksOf(rule) {
		page, ok := strings.CutPrefix(link, runbookBase)
		if !ok {
			problems = append(problems, "its runbook is not below "+runbookBase+": "+link)
			continue
		}
		if err := follow(filepath.Join(root, "README.md"), page); err != nil {
			problems = append(problems, err.Error())
		}
	}
	return problems
}

// runbooksOf are the links that the annotation may have: one for each reason that the metric can have.
func runbooksOf(rule alertRule) (links []string) {
	const reason = "{{ $labels.reason | toLower }}"
	link := rule.Annotations["runbook_url"]
	if !strings.Contains(link, reason) {
		return []string{link}
	}
	var only *regexp.Regexp
	if match := regexp.MustCompile(`reason=~"([^"]+)"`).FindStringSubmatch(rule.Expr); match != nil {
		only = regexp.MustCompile("^(" + match[1] + ")$")
		for name := range strings.SplitSeq(match[1], "|") {
			links = append(links, strings.ReplaceAll(link, reason, strings.ToLower(name)))
		}
	}
	for _, r := range reasonsOfMetrics() {
		if only == nil || only.MatchString(string(r)) {
			links = append(links, strings.ReplaceAll(link, reason, explain.Anchor(r)))
		}
	}
	return links
}

// reasonsOfMetrics are the values that the label reason of a program's metric may have.
func reasonsOfMetrics() (all []decision.Reason) {
	for _, reasons := range reasonsByPage() {
		all = append(all, reasons...)
	}
	return all
}

var (
	quoted     = regexp.MustCompile(`"[^"]*"`)
	selector   = regexp.MustCompile(`\{[^}]*\}`)
	duration   = regexp.MustCompile(`\[[^\]]*\]|\boffset +\w+`)
	grouping   = regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right) *\([^)]*\)`)
	identifier = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*( *\()?`)
	suffix     = regexp.MustCompile(`_(count|sum|bucket)$`)
)

// metricsIn are the names of metrics in an expression of PromQL: the identifiers that are no label, function or operator.
func metricsIn(expr string) (names []string) {
	expr = quoted.ReplaceAllString(expr, "")
	for _, not := range []*regexp.Regexp{selector, duration, grouping} {
		expr = not.ReplaceAllString(expr, " ")
	}
	for _, name := range identifier.FindAllString(expr, -1) {
		function := strings.HasSuffix(name, "(") && !strings.Contains(" and or unless ", " "+strings.TrimRight(name, " (")+" ")
		name = strings.TrimRight(name, " (")
		if !function && !slices.Contains([]string{"and", "or", "unless", "bool", "offset", "sum", "max", "min", "count"}, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func histogramOf(name string) string { return suffix.ReplaceAllString(name, "") }

var metricRow = regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| ")

// documentedMetrics are the metrics of the programs, which tests compare with what the programs export, and those of other
// components that docs/alerts.md lists.
func documentedMetrics(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	pages := []string{filepath.Join(root, "docs", "alerts.md"), filepath.Join(root, "docs", "metrics", "recovery.md")}
	for page := range reasonsByPage() {
		pages = append(pages, filepath.Join(root, "docs", "metrics", page))
	}
	for _, page := range pages {
		for _, match := range metricRow.FindAllStringSubmatch(read(t, page), -1) {
			found[match[1]] = true
		}
	}
	return found
}

// TestProblemsOfAlertsAreFound shows that the checks can fail.
func TestProblemsOfAlertsAreFound(t *testing.T) {
	metrics := map[string]bool{"a_total": true, "b_seconds": true}
	good := func() alertRule {
		return alertRule{
			Alert: "A", For: "5m", Labels: map[string]string{"severity": "warning"},
			Expr:        `sum by (x, reason) (rate(a_total{code=~"4..",unknown="c_total"}[5m])) > 0 unless on (x) time() - b_seconds_count > 3`,
			Annotations: map[string]string{"summary": "s", "description": "d", "runbook_url": runbookBase + "docs/runbooks/README.md#{{ $labels.reason | toLower }}"},
		}
	}
	for name, tc := range map[string]struct {
		change func(*alertRule)
		want   int
	}{
		"good":              {func(*alertRule) {}, 0},
		"no summary":        {func(r *alertRule) { r.Annotations["summary"] = "" }, 1},
		"no severity":       {func(r *alertRule) { r.Labels["severity"] = "urgent" }, 1},
		"no time":           {func(r *alertRule) { r.For = "" }, 1},
		"unknown metric":    {func(r *alertRule) { r.Expr = "c_total > 0 and b_seconds > 1" }, 1},
		"no metric":         {func(r *alertRule) { r.Expr = "vector(1)" }, 1},
		"a page is missing": {func(r *alertRule) { r.Annotations["runbook_url"] = runbookBase + "docs/nothing.md" }, 1},
		"another place":     {func(r *alertRule) { r.Annotations["runbook_url"] = "docs/metrics.md" }, 1},
		"a heading is":      {func(r *alertRule) { r.Annotations["runbook_url"] = runbookBase + "docs/metrics.md#nothing" }, 1},
		"an unknown reason": {func(r *alertRule) { r.Expr = `a_total{reason=~"Attaching|Nothing"} > 0` }, 1},
		"all of the reasons": {func(r *alertRule) {
			r.Annotations["runbook_url"] = runbookBase + "docs/none.md#{{ $labels.reason | toLower }}"
		}, len(reasonsOfMetrics())},
	} {
		t.Run(name, func(t *testing.T) {
			rule := good()
			tc.change(&rule)
			if got := ruleProblems(rule, metrics); len(got) != tc.want {
				t.Errorf("got %d problems, want %d: %q", len(got), tc.want, got)
			}
		})
	}
	if got := metricsIn(good().Expr); !slices.Equal(got, []string{"a_total", "b_seconds_count"}) {
		t.Errorf("metrics = %q", got)
	}
}
