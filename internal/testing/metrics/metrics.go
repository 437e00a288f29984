// Package metrics reads the metrics of a program and the tables of docs/metrics in one form, so that a test can compare them.
package metrics

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	typeLine   = regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`)
	helpLine   = regexp.MustCompile(`(?m)^# HELP (\S+) (\S.*)$`)
	sampleLine = regexp.MustCompile(`(?m)^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? \S+$`)
	label      = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"`)
	row        = regexp.MustCompile("(?m)^\\| `([a-z0-9_*]+)` \\| (\\w+) \\|(.*?)\\| \\S.* \\|$")
)

// Family is a metric with the values of each of its labels.
type Family struct {
	Type, Help string
	Labels     map[string]map[string]bool
}

// String is the type and the names of the labels, as [Documented] has them: "counter driver,node".
func (f Family) String() string {
	labels := slices.DeleteFunc(slices.Sorted(maps.Keys(f.Labels)), func(l string) bool { return l == "le" || l == "quantile" })
	return strings.TrimSpace(f.Type + " " + strings.Join(labels, ","))
}

// Parse reads the text format of Prometheus.
func Parse(text string) map[string]Family {
	help := map[string]string{}
	for _, m := range helpLine.FindAllStringSubmatch(text, -1) {
		help[m[1]] = m[2]
	}
	found := map[string]Family{}
	for _, m := range typeLine.FindAllStringSubmatch(text, -1) {
		found[m[1]] = Family{Type: m[2], Help: help[m[1]], Labels: map[string]map[string]bool{}}
	}
	for _, m := range sampleLine.FindAllStringSubmatch(text, -1) {
		name := m[1]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, ok := strings.CutSuffix(name, suffix); ok && found[name].Type == "" && found[base].Type != "" {
				name = base
			}
		}
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			if found[name].Labels[l[1]] == nil {
				found[name].Labels[l[1]] = map[string]bool{}
			}
			found[name].Labels[l[1]][l[2]] = true
		}
	}
	return found
}

// Documented reads the tables of a page of docs/metrics: the type and the labels by the name of the metric, which may end
// with *.
func Documented(tb testing.TB, path string) map[string]string {
	tb.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return Tables(string(content))
}

// Tables is Documented for a part of a page.
func Tables(text string) map[string]string {
	found := map[string]string{}
	for _, m := range row.FindAllStringSubmatch(text, -1) {
		var labels []string
		for l := range strings.SplitSeq(m[3], ",") {
			if l = strings.Trim(strings.TrimSpace(l), "`"); l != "" {
				labels = append(labels, l)
			}
		}
		slices.Sort(labels)
		found[m[1]] = strings.TrimSpace(m[2] + " " + strings.Join(labels, ","))
	}
	return found
}

// Row is the row of a metric: its own, or the one for all that begin like it.
func Row(documented map[string]string, metric string) string {
	if own, ok := documented[metric]; ok {
		return own
	}
	prefix, _, _ := strings.Cut(metric, "_")
	return documented[prefix+"_*"]
}
