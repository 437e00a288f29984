// Package metrics reads the metrics of a program and the tables of docs/metrics in one form, so that a test can compare them.
package metrics

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

var row = regexp.MustCompile("(?m)^\\| `([a-z0-9_*]+)` \\| (\\w+) \\|(.*?)\\| \\S.* \\|$")

// Family is a metric with the values of each of its labels.
type Family struct {
	Type, Help string
	Labels     map[string]map[string]bool
}

// String is the type and the names of the labels, as [Documented] has them: "counter driver,node".
func (f Family) String() string {
	return strings.TrimSpace(f.Type + " " + strings.Join(slices.Sorted(maps.Keys(f.Labels)), ","))
}

// Parse reads the text format of Prometheus.
func Parse(tb testing.TB, text string) map[string]Family {
	tb.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		tb.Fatalf("parse metrics: %v", err)
	}
	found := map[string]Family{}
	for name, family := range families {
		f := Family{Type: strings.ToLower(family.GetType().String()), Help: family.GetHelp(), Labels: map[string]map[string]bool{}}
		for _, metric := range family.GetMetric() {
			for _, l := range metric.GetLabel() {
				if f.Labels[l.GetName()] == nil {
					f.Labels[l.GetName()] = map[string]bool{}
				}
				f.Labels[l.GetName()][l.GetValue()] = true
			}
		}
		found[name] = f
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
