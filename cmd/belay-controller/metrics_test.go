package main

import (
	"strings"
	"testing"

	"belay.dev/belay/internal/testing/metrics"
	"belay.dev/belay/internal/testing/wait"
)

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
	// The duration of an attach is measured from a decision that sees it under way.
	wait.Until(t, "each attach is seen under way", func() bool {
		return strings.Contains(p.metric("volumes_blocked"), `volumes_blocked{reason="Attaching"} 3`+"\n")
	})
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
	docs, live := metrics.Documented(t, "../../docs/metrics/controller.md"), metrics.Parse(t, text)
	for name, family := range live {
		if family.Help == "" {
			t.Errorf("%s has no help", name)
		}
		if want, ok := docs[name]; !ok && metrics.Row(docs, name) == "" {
			t.Errorf("%s (%s) is not in docs/metrics/controller.md", name, family)
		} else if ok && want != family.String() {
			t.Errorf("%s is %q, docs/metrics/controller.md says %q", name, family, want)
		}
	}
	for name := range docs {
		if live[name].Type == "" && !seldom[name] && !strings.HasSuffix(name, "_*") {
			t.Errorf("docs/metrics/controller.md has %s, the process has not", name)
		}
	}
}
