package attacher

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"belay.dev/belay/internal/testing/metrics"
	"belay.dev/belay/internal/testing/process"
	"belay.dev/belay/internal/testing/wait"
)

// scrape reads a page of a running program, as soon as the program replies and the page contains the wanted text.
func scrape(t *testing.T, address, path string, wanted ...string) (text string) {
	t.Helper()
	wait.Until(t, fmt.Sprintf("%s%s contains %q", address, path, wanted), func() bool {
		var status int
		status, text = process.Get(t, address, path)
		return status == http.StatusOK && !slices.ContainsFunc(wanted, func(w string) bool { return !strings.Contains(text, w) })
	})
	return text
}

// migratedDriver is one to which in-tree volumes were migrated.
const migratedDriver = "ebs.csi.aws.com"

// cycle runs a program, lets it attach and detach a volume, with one failing call, and reads its metrics. The program
// leads, except where it stands in for a driver of a given name.
func cycle(t *testing.T, program, driver string) map[string]metrics.Family {
	t.Helper()
	w := newWorld(t)
	leads := driver == ""
	if !leads {
		w.driver.Name = driver
	}
	w.node("node1")
	w.volume("pv1")
	w.driver.SetAnswer(func(_ context.Context, _ call, nth int) (map[string]string, error) {
		if nth == 0 {
			return nil, status.Error(codes.Unavailable, "not yet")
		}
		return nil, nil
	})
	address := process.FreeAddress()
	p := process.Start(t, exec.Command(program, append(slices.Clone(patientTimes), "--kubeconfig", shippedKubeconfig(t), "--csi-address", w.driver.Address, "--http-endpoint", address,
		fmt.Sprintf("--leader-election=%t", leads), "--leader-election-namespace", shippedNamespace, "--retry-interval-start=50ms")...))
	va := w.attachment("pv1", "node1")
	w.until(va, "attached", isAttached)
	w.delete(va)
	w.until(va, "gone", isGone)
	text := scrape(t, address, "/metrics", "ControllerUnpublishVolume")
	if leads && scrape(t, address, "/healthz/leader-election") != "ok" {
		t.Error("the leader is not healthy")
	}
	p.Stop(syscall.SIGTERM) // an interrupt is not heeded by what a shell began in the background
	found := metrics.Parse(t, strings.ReplaceAll(text, w.driver.Name, "DRIVER"))
	if len(found) < 30 {
		t.Fatalf("unexpected metrics of %s: %s", program, text)
	}
	return found
}

// seldom are documented metrics that a process without trouble does not show.
var seldom = []string{"leader_election_slowpath_total"}

// What csi-attacher measures belay-attacher measures too, by the same names, types, labels, values
// of labels (at least) and buckets, but for what docs/metrics/attacher.md calls none; and what belay-attacher measures
// docs/metrics/attacher.md describes, both ways.
func TestMetricsOfBothPrograms(t *testing.T) {
	upstream, belay, docs := cycle(t, upstreamPath(t), ""), cycle(t, programPath(t), ""), metrics.Documented(t, "../../docs/metrics/attacher.md")
	measuresAll(t, upstream, belay, docs)
	for name, got := range belay {
		if row := metrics.Row(docs, name); row != got.String() && row != "all" {
			t.Errorf("%s is %q, docs/metrics/attacher.md says %q", name, got, row)
		}
	}
	for name, row := range docs {
		if _, ok := belay[name]; !ok && row != "none" && !strings.HasSuffix(name, "_*") && !slices.Contains(seldom, name) {
			t.Errorf("docs/metrics/attacher.md has %s, belay-attacher has not", name)
		}
	}
}

func TestMetricsOfBothProgramsForAMigratedDriver(t *testing.T) {
	upstream, belay := cycle(t, upstreamPath(t), migratedDriver), cycle(t, programPath(t), migratedDriver)
	measuresAll(t, upstream, belay, metrics.Documented(t, "../../docs/metrics/attacher.md"))
	if calls := belay["csi_sidecar_operations_seconds"]; !calls.Labels["migrated"]["false"] {
		t.Errorf("calls have the labels %v", calls.Labels)
	}
}

// measuresAll compares what upstream measures with what belay does.
func measuresAll(t *testing.T, upstream, belay map[string]metrics.Family, docs map[string]string) {
	t.Helper()
	for name, want := range upstream {
		got, ok := belay[name]
		if row := metrics.Row(docs, name); !ok && row != "none" {
			t.Errorf("csi-attacher has %s (%v), belay-attacher and docs/metrics/attacher.md have not", name, want)
		}
		if !ok || strings.HasPrefix(name, "go_") || name == "registered_metrics_total" { // of what is linked
			continue
		}
		if got.String() != want.String() {
			t.Errorf("%s is %q, csi-attacher's %q", name, got, want)
		}
		for label, values := range want.Labels {
			for value := range values {
				if !got.Labels[label][value] {
					t.Errorf("csi-attacher has %s{%s=%q}, belay-attacher has %v", name, label, value, got.Labels[label])
				}
			}
		}
	}
}
