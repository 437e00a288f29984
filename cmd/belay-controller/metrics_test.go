package main

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"belay.dev/belay/internal/testing/wait"
)

var (
	metricType   = regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`)
	metricHelp   = regexp.MustCompile(`(?m)^# HELP (\S+) \S`)
	metricSample = regexp.MustCompile(`(?m)^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? \S+$`)
	metricLabel  = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="(?:[^"\\]|\\.)*"`)
	metricRow    = regexp.MustCompile("(?m)^\\| `([a-z0-9_*]+)` \\| (\\w+) \\|(.*?)\\| \\S.* \\|$")
)

// scraped reads "type label,label" of each metric family.
func scraped(t *testing.T, text string) map[string]string {
	t.Helper()
	types, helped, labels := map[string]string{}, map[string]bool{}, map[string]map[string]bool{}
	for _, m := range metricType.FindAllStringSubmatch(text, -1) {
		types[m[1]] = m[2]
	}
	for _, m := range metricHelp.FindAllStringSubmatch(text, -1) {
		helped[m[1]] = true
	}
	for _, m := range metricSample.FindAllStringSubmatch(text, -1) {
		name := m[1]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base := strings.TrimSuffix(name, suffix); types[name] == "" && types[base] != "" {
				name = base
			}
		}
		if labels[name] == nil {
			labels[name] = map[string]bool{}
		}
		for _, l := range metricLabel.FindAllStringSubmatch(m[2], -1) {
			if l[1] != "le" && l[1] != "quantile" {
				labels[name][l[1]] = true
			}
		}
	}
	found := map[string]string{}
	for name, kind := range types {
		if !helped[name] {
			t.Errorf("%s has no help", name)
		}
		found[name] = kind + " " + strings.Join(slices.Sorted(maps.Keys(labels[name])), ",")
	}
	return found
}

// documented reads the tables of docs/metrics/controller.md in the same form.
func documented(t *testing.T) map[string]string {
	t.Helper()
	content, err := os.ReadFile("../../docs/metrics/controller.md")
	must(t, err)
	found := map[string]string{}
	for _, m := range metricRow.FindAllStringSubmatch(string(content), -1) {
		var labels []string
		for l := range strings.SplitSeq(m[3], ",") {
			if l = strings.Trim(strings.TrimSpace(l), "`"); l != "" {
				labels = append(labels, l)
			}
		}
		slices.Sort(labels)
		found[m[1]] = m[2] + " " + strings.Join(labels, ",")
	}
	return found
}

// seldom are documented metrics that a process without trouble does not show.
var seldom = map[string]bool{
	"leader_election_slowpath_total":          true, // a renewal that had to be repeated
	"controller_runtime_webhook_panics_total": true,
}

// The metrics of a live process and docs/metrics/controller.md list each other, with type and labels.
func TestMetricsAreDocumented(t *testing.T) {
	s := newSite(t, 3)
	p := start(t, "one")
	p.leads()
	for n := range 3 {
		s.pod(n)
		wait.Until(t, "it attaches", func() bool { return s.attachment(n) != nil })
	}
	s.attached(0)
	s.attached(1)
	wait.Until(t, "it reports", func() bool { return len(s.node().Status.VolumesAttached) == 2 })
	s.gone(1)
	wait.Until(t, "it detaches", func() bool { return s.attachment(1) == nil })

	var text string
	for _, part := range []string{
		`attachdetach_controller_total_volumes{plugin_name="kubernetes.io/csi:disk.test",state="actual_state_of_world"} 2` + "\n",
		`attachdetach_controller_total_volumes{plugin_name="kubernetes.io/csi:disk.test",state="desired_state_of_world"} 2` + "\n",
		`storage_count_attachable_volumes_in_use{node="` + s.name + `",volume_plugin="kubernetes.io/csi:disk.test"} 2` + "\n",
		`storage_operation_duration_seconds_count{migrated="false",operation_name="volume_attach",status="success",volume_plugin="kubernetes.io/csi:disk.test"} 2` + "\n",
		`volumes_blocked{reason="Attaching"} 1` + "\n",
		`operation_name="volume_detach"`,
	} {
		wait.Until(t, "the process says "+part, func() bool {
			_, text = p.ask(p.metrics, "/metrics")
			return strings.Contains(text, part)
		})
	}
	docs, live := documented(t), scraped(t, text)
	for name, is := range live {
		prefix, _, _ := strings.Cut(name, "_")
		if want, ok := docs[name]; !ok && docs[prefix+"_*"] == "" {
			t.Errorf("%s (%s) is not in docs/metrics/controller.md", name, is)
		} else if ok && want != is {
			t.Errorf("%s is %q, docs/metrics/controller.md says %q", name, is, want)
		}
	}
	for name := range docs {
		if live[name] == "" && !seldom[name] && !strings.HasSuffix(name, "_*") {
			t.Errorf("docs/metrics/controller.md has %s, the process has not", name)
		}
	}
}
