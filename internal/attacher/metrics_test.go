package attacher

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"belay.dev/belay/internal/testing/process"
	"belay.dev/belay/internal/testing/wait"
)

var (
	metricType   = regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`)
	metricSample = regexp.MustCompile(`(?m)^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? \S+$`)
	metricLabel  = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"`)
	metricRow    = regexp.MustCompile("(?m)^\\| `([a-z0-9_*]+)` \\| (\\w+) \\|(.*?)\\| \\S.* \\|$")
)

// scrape reads a page of a running program, as soon as the program replies and the page contains what is wanted.
func scrape(t *testing.T, address, path string, wanted ...string) (text string) {
	t.Helper()
	wait.Until(t, fmt.Sprintf("%s%s contains %q", address, path, wanted), func() bool {
		status := 0
		status, text = process.Get(t, address, path)
		return status == http.StatusOK && !slices.ContainsFunc(wanted, func(w string) bool { return !strings.Contains(text, w) })
	})
	return text
}

// family is one metric: its type, the names of its labels, and the values of each.
type family struct {
	kind   string
	labels map[string]map[string]bool
}

func (f family) String() string {
	labels := slices.DeleteFunc(slices.Sorted(maps.Keys(f.labels)), func(l string) bool { return l == "le" || l == "quantile" })
	return strings.TrimSpace(f.kind + " " + strings.Join(labels, ","))
}

func families(text string) map[string]family {
	found := map[string]family{}
	for _, m := range metricType.FindAllStringSubmatch(text, -1) {
		found[m[1]] = family{kind: m[2], labels: map[string]map[string]bool{}}
	}
	for _, m := range metricSample.FindAllStringSubmatch(text, -1) {
		name := m[1]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, ok := strings.CutSuffix(name, suffix); ok && found[name].kind == "" && found[base].kind != "" {
				name = base
			}
		}
		for _, l := range metricLabel.FindAllStringSubmatch(m[2], -1) {
			if found[name].labels[l[1]] == nil {
				found[name].labels[l[1]] = map[string]bool{}
			}
			found[name].labels[l[1]][l[2]] = true
		}
	}
	return found
}

// migratedDriver is one to which in-tree volumes were migrated.
const migratedDriver = "ebs.csi.aws.com"

// cycle runs a program, lets it attach and detach a volume, one of the calls with an error, and
// reads its metrics. It leads, but where it stands in for a driver of a given name.
func cycle(t *testing.T, program, driver string) map[string]family {
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
	p := process.Start(t, exec.Command(program, "--kubeconfig", shippedKubeconfig(t), "--csi-address", w.driver.Address, "--http-endpoint", address,
		fmt.Sprintf("--leader-election=%t", leads), "--leader-election-namespace", shippedNamespace, "--retry-interval-start=50ms"))
	va := w.attachment("pv1", "node1")
	w.until(va, "attached", isAttached)
	w.delete(va)
	w.until(va, "gone", isGone)
	text := scrape(t, address, "/metrics", "ControllerUnpublishVolume")
	if leads && scrape(t, address, "/healthz/leader-election") != "ok" {
		t.Error("the leader is not healthy")
	}
	p.Stop(syscall.SIGTERM) // an interrupt is not heeded by what a shell began in the background
	found := families(strings.ReplaceAll(text, w.driver.Name, "DRIVER"))
	if len(found) < 30 {
		t.Fatalf("unexpected metrics of %s: %s", program, text)
	}
	return found
}

// documentedMetrics reads the tables of docs/metrics/attacher.md: "type label,label", or "none" for
// what only csi-attacher has. Names may end with *.
func documentedMetrics(t *testing.T) map[string]string {
	t.Helper()
	content, err := os.ReadFile("../../docs/metrics/attacher.md")
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
		found[m[1]] = strings.TrimSpace(m[2] + " " + strings.Join(labels, ","))
	}
	return found
}

// rowOf finds the row of a metric: its own, or one for all that begin so.
func rowOf(docs map[string]string, metric string) string {
	if row, ok := docs[metric]; ok {
		return row
	}
	prefix, _, _ := strings.Cut(metric, "_")
	return docs[prefix+"_*"]
}

// seldom are documented metrics that a process without trouble does not show.
var seldom = []string{"leader_election_slowpath_total"}

// What csi-attacher measures belay-attacher measures too, by the same names, types, labels, values
// of labels (at least) and buckets, but for what docs/metrics/attacher.md calls none; and what belay-attacher measures
// docs/metrics/attacher.md describes, both ways.
func TestMetricsOfBothPrograms(t *testing.T) {
	upstream, belay, docs := cycle(t, upstreamPath(t), ""), cycle(t, programPath(t), ""), documentedMetrics(t)
	measuresAll(t, upstream, belay, docs)
	for name, got := range belay {
		if row := rowOf(docs, name); row != got.String() && row != "all" {
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
	measuresAll(t, upstream, belay, documentedMetrics(t))
	if calls := belay["csi_sidecar_operations_seconds"]; !calls.labels["migrated"]["false"] {
		t.Errorf("calls have the labels %v", calls.labels)
	}
}

// measuresAll compares what upstream measures with what belay does.
func measuresAll(t *testing.T, upstream, belay map[string]family, docs map[string]string) {
	t.Helper()
	for name, want := range upstream {
		got, ok := belay[name]
		if row := rowOf(docs, name); !ok && row != "none" {
			t.Errorf("csi-attacher has %s (%v), belay-attacher and docs/metrics/attacher.md have not", name, want)
		}
		if !ok || strings.HasPrefix(name, "go_") || name == "registered_metrics_total" { // of what is linked
			continue
		}
		if got.String() != want.String() {
			t.Errorf("%s is %q, csi-attacher's %q", name, got, want)
		}
		for label, values := range want.labels {
			for value := range values {
				if !got.labels[label][value] {
					t.Errorf("csi-attacher has %s{%s=%q}, belay-attacher has %v", name, label, value, got.labels[label])
				}
			}
		}
	}
}
