package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/testing/dashboards"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

// TestDashboards scrapes a lab with a Prometheus while volumes move, wait, fail and hang, and nodes are lost: each query of each
// dashboard has data then. BELAY_DASHBOARDS=FILE keeps the results, which hack/dashboards/picture draws.
func TestDashboards(t *testing.T) {
	needsFencing(t)
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("NOT RUN: needs prometheus in PATH, as `make test-long` has it (Debian's package prometheus)")
	}
	boards, err := dashboards.Read("../../deploy/dashboards")
	if err != nil {
		t.Fatal(err)
	}
	s := openSite(t, cluster.Options{
		Name: "e2e-dashboards", Nodes: 4, NodeKind: cluster.NodeKindBelay, Plane: cluster.PlaneBelay,
		NodeArgs: []string{"--volume-stats-agg-period=4s"}, AttacherArgs: []string{"--reconcile-sync=10s", "--timeout=5s"},
	})
	began := time.Now()
	prometheus := startPrometheus(t, program, s.Scene.Cluster.Dir(), s.Scene.Cluster.Status().Metrics)
	situations(s, prometheus)

	values := map[string]string{"__rate_interval": "15s"}
	labtest.Until(t, 2*time.Minute, "data for each query", func() error {
		var problems []string
		for _, board := range boards {
			for _, v := range board.Templating.List {
				if err := choose(t.Context(), prometheus, v, values); err != nil {
					problems = append(problems, board.Title+": "+err.Error())
				}
			}
		}
		results, empty := ask(t, prometheus, boards, values, began)
		keep(t, results)
		if problems = append(problems, empty...); len(problems) > 0 {
			return fmt.Errorf("%d problems:\n%s", len(problems), strings.Join(problems, "\n"))
		}
		queries := 0
		for _, r := range results {
			queries += r.queries
		}
		t.Logf("%d queries of %d dashboards have data", queries, len(boards))
		return nil
	})
}

// situations makes what the panels show, and waits until it was scraped.
func situations(s *site, p *prometheusServer) {
	t := s.T
	writer := s.WriterNode()
	var others []string
	for i := range s.Scene.Cluster.Options().Nodes {
		if name := fmt.Sprintf("node-%d", i+1); name != writer {
			others = append(others, name)
		}
	}
	stuckOf := func(name string) *labtest.Stuck {
		return &labtest.Stuck{T: t, Scene: s.Scene, Name: name, Began: time.Now()}
	}

	// A volume is held on a node, and wanted where the writer is. Its unmount hangs, until the call times out.
	held := stuckOf("held")
	held.Hold(others[0], scenario.StorageClass)
	held.Create("waiter", writer)
	lift := held.Fault(labdisk.Fault{Method: "NodeUnstageVolume", Node: others[0], Effect: labdisk.EffectHang})
	held.Remove("holder")
	held.Called("NodeUnstageVolume", others[0], false)

	// Another one cannot be attached, because the node is full, then because the driver fails, then hangs; then it cannot be staged.
	failing := stuckOf("failing")
	failing.Claim(scenario.StorageClass)
	full := failing.Fault(labdisk.Fault{Effect: labdisk.EffectLimit, Limit: 0})
	failing.Create("holder", others[0])
	p.sees(t, `attacher_held_back{scope="node"} > 0`)
	fails := failing.Fault(labdisk.Fault{Method: "ControllerPublishVolume", Effect: labdisk.EffectError, Code: "Internal", Message: "no path to the storage"})
	full()
	p.sees(t, `csi_sidecar_operations_seconds_count{grpc_status_code="Internal"} > 0`)
	hangs := failing.Fault(labdisk.Fault{Method: "ControllerPublishVolume", Effect: labdisk.EffectHang})
	fails()
	p.sees(t, "attacher_calls_hanging > 0")
	stages := failing.Fault(labdisk.Fault{Method: "NodeStageVolume", Effect: labdisk.EffectError, Code: "Internal", Message: "the disk has no device"})
	hangs()
	p.sees(t, `csi_operations_seconds_count{grpc_status_code="Internal"} > 1`)
	stages()
	labtest.UntilPod(t, s.Scene, failing.Pod("holder"), "runs", func(pod *corev1.Pod) bool {
		return pod != nil && pod.Status.Phase == corev1.PodRunning
	})
	lift()
	held.Arrives()

	// A node with a volume is lost and fenced; then another one, which is opted out of recovery.
	lost := stuckOf("lost")
	lost.Hold(others[2], scenario.StorageClass)
	if err := s.Scene.Cluster.PowerOff(others[2]); err != nil {
		t.Fatal(err)
	}
	s.Reaches(others[2], fencing.Moved)
	optOut(s, others[1])
	misdirect(s, others[1])
	if err := s.Scene.Cluster.PowerOff(others[1]); err != nil {
		t.Fatal(err)
	}
}

func optOut(s *site, node string) {
	s.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		n := s.Node(node)
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, "fencing.belay.dev/opt-out", "true")
		_, err := s.Scene.Client.CoreV1().Nodes().Update(s.Context(), n, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
}

// misdirect names another port than that of the node's BMC.
func misdirect(s *site, node string) {
	s.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		source := &fencingv1.FenceSource{}
		if err := s.API.Get(s.Context(), client.ObjectKey{Name: node}, source); err != nil {
			return err
		}
		source.Spec.Levels[0].Feeds[0].Options["ipport"] = "9"
		return s.API.Update(s.Context(), source)
	})
	if err != nil {
		s.Fatal(err)
	}
}

// choose sets a variable as a person would: to all, or to the writer's claim, or to the first value.
func choose(ctx context.Context, p *prometheusServer, v dashboards.Variable, values map[string]string) error {
	if v.Type != "query" {
		return nil
	}
	series, label, err := v.Values()
	if err != nil {
		return err
	}
	if series, err = dashboards.Fill(series, values); err != nil {
		return err
	}
	found, err := p.labels(ctx, series, label)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("variable %s has no values", v.Name)
	}
	values[v.Name] = cmp.Or(v.AllValue, found[0])
	if _, claim, _ := strings.Cut(scenario.ClaimKey, "/"); slices.Contains(found, claim) {
		values[v.Name] = claim
	}
	return nil
}

// result is a panel with what its queries returned.
type result struct {
	Board, Title, Type, Unit string
	Log                      bool
	Position                 dashboards.Position
	Lines                    []line
	queries                  int
}

type line struct {
	Name   string
	Points [][2]float64
}

// ask runs all queries over the time since the lab began, and lists those without a single number.
func ask(t *testing.T, p *prometheusServer, boards []dashboards.Board, values map[string]string, began time.Time) (results []result, empty []string) {
	t.Helper()
	for _, board := range boards {
		for _, panel := range board.Panels {
			r := result{Board: board.UID, Title: panel.Title, Type: panel.Type, Unit: panel.FieldConfig.Defaults.Unit, Position: panel.GridPos, queries: len(panel.Targets)}
			r.Log = panel.FieldConfig.Defaults.Custom.Scale.Type == "log"
			for _, target := range panel.Targets {
				expr, err := dashboards.Fill(target.Expr, values)
				if err != nil {
					empty = append(empty, board.Title+": "+err.Error())
					continue
				}
				// What stands in for missing series would hide that they are missing.
				strict, err := p.query(t.Context(), strings.TrimSuffix(expr, " or vector(0)"), target.Legend, began)
				if err != nil {
					t.Fatalf("%s, %s: %v", board.Title, panel.Title, err)
				}
				if len(strict) == 0 {
					empty = append(empty, board.Title+": "+panel.Title+": "+expr)
				}
				lines, err := p.query(t.Context(), expr, target.Legend, began)
				if err != nil {
					t.Fatalf("%s, %s: %v", board.Title, panel.Title, err)
				}
				r.Lines = append(r.Lines, lines...)
			}
			results = append(results, r)
		}
	}
	return results, empty
}

func keep(t *testing.T, results []result) {
	t.Helper()
	file := os.Getenv("BELAY_DASHBOARDS")
	if file == "" {
		return
	}
	raw, err := json.Marshal(results)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// scrapeJobs are the programs whose metrics the dashboards show, by the names of the lab's components.
func scrapeJobs(metrics map[string]string) map[string]map[string]string {
	jobs := map[string]map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		instance := name
		var job string
		switch {
		case name == "attach-controller":
			job = "belay-controller"
		case name == "attacher":
			job = "belay-attacher"
		case strings.HasPrefix(name, "belay-recovery-"):
			job = "belay-recovery"
		case strings.HasPrefix(name, "node-"):
			job = "belay-node"
			instance, _, _ = strings.Cut(name, "/")
		default:
			continue
		}
		if jobs[job] == nil {
			jobs[job] = map[string]string{}
		}
		jobs[job][instance] = metrics[name]
	}
	return jobs
}
