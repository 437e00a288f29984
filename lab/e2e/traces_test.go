package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"belay.dev/belay/internal/testing/process"
	"belay.dev/belay/internal/testing/wait"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labtest"
)

// TestTraces attaches a volume and moves it, with traces on in all programs and a real collector. The attach is one trace, from the pod
// that needs the volume to the mount on the node; the detach is one of its own in each program, with a link to it.
func TestTraces(t *testing.T) {
	labtest.Needs(t)
	spans := startOTelCollector(t)
	scene := labtest.Open(t, labtest.Steady(cluster.Options{Name: "e2e-traces", Nodes: 2, NodeKind: cluster.NodeKindBelay, Plane: cluster.PlaneBelay}))
	if _, err := scene.Place(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := spans.traceOf(t, "belay-controller", "attach", 1, func(tr trace) bool { return tr.String() == wantAttach })
	t.Logf("the attach:\n%s", first)
	if diff := cmp.Diff(wantAttach, first.String()); diff != "" {
		t.Fatalf("the trace of the attach (-want +got):\n%s", diff)
	}
	first.checkTimes(t)
	first.checkAttributes(t)

	if _, err := scene.Drain(t.Context(), "drain"); err != nil {
		t.Fatal(err)
	}
	second := spans.traceOf(t, "belay-controller", "attach", 2, trace.hasWaited)
	t.Logf("the attach after the drain:\n%s", second)
	if waited := second.waited(); waited == nil || waited.attribute("belay.reason") == "" {
		t.Errorf("the trace does not show what the volume waited for: %+v", waited)
	}
	for _, want := range []struct{ service, name string }{
		{"belay-controller", "detach"}, {"belay-attacher", "detach by driver"}, {"belay-node", "unpublish volume"}, {"belay-node", "unstage volume"},
	} {
		trace := spans.traceOf(t, want.service, want.name, 1, func(tr trace) bool { return want.service == "belay-controller" || len(tr.spans) == 3 })
		root := trace.spans[0]
		if len(root.Links) != 1 || root.Links[0].TraceID != first.spans[0].TraceID || root.Links[0].SpanID != first.spans[0].SpanID || root.ParentSpanID != "" {
			t.Errorf("%s of %s has the parent %q and the links %v, want a link to the attach", want.name, want.service, root.ParentSpanID, root.Links)
		}
		if want.service != "belay-controller" && len(trace.spans) != 3 { // the call, and the driver's side of it
			t.Errorf("%s of %s:\n%s", want.name, want.service, trace)
		}
	}

	// A busy machine lets time pass between two steps. It does not do so in each attach.
	const attempts = 20
	for n, shown := 2, first; shown.unexplained(t) > 0.5; n++ {
		if n == attempts {
			t.Fatalf("the spans of %d attaches do not show where the time went", n-1)
		}
		if n > 2 {
			if _, err := scene.Drain(t.Context(), fmt.Sprint("drain-", n)); err != nil {
				t.Fatal(err)
			}
		}
		shown = spans.traceOf(t, "belay-controller", "attach", n, trace.hasWaited)
	}
}

const wantAttach = `belay-controller: attach
  belay-controller: create VolumeAttachment
  belay-attacher: add finalizers
  belay-attacher: attach by driver
    belay-attacher: csi.v1.Controller/ControllerPublishVolume
      labdisk-fabric: csi.v1.Controller/ControllerPublishVolume
  belay-attacher: record volume as attached
  belay-controller: report volume as attached
  belay-node: wait for attach
  belay-node: stage volume
    belay-node: csi.v1.Node/NodeStageVolume
      labdisk-node: csi.v1.Node/NodeStageVolume
  belay-node: publish volume
    belay-node: csi.v1.Node/NodePublishVolume
      labdisk-node: csi.v1.Node/NodePublishVolume
`

// span is a span as the collector has it.
type span struct {
	service string

	TraceID      string `json:"traceId"`
	SpanID       string `json:"spanId"`
	ParentSpanID string `json:"parentSpanId"`
	Name         string `json:"name"`
	Start        string `json:"startTimeUnixNano"`
	End          string `json:"endTimeUnixNano"`
	Status       struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"status"`
	Links []struct {
		TraceID string `json:"traceId"`
		SpanID  string `json:"spanId"`
	} `json:"links"`
	Attributes attributes `json:"attributes"`
}

type attributes []struct {
	Key   string `json:"key"`
	Value struct {
		StringValue string `json:"stringValue"`
	} `json:"value"`
}

func (a attributes) get(key string) string {
	for _, one := range a {
		if one.Key == key {
			return one.Value.StringValue
		}
	}
	return ""
}

func (s *span) attribute(key string) string { return s.Attributes.get(key) }

func unixNano(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

func (s *span) took() time.Duration { return time.Duration(unixNano(s.End) - unixNano(s.Start)) }

// otelCollector is a running collector that appends what it receives to a file.
type otelCollector struct{ file string }

// startOTelCollector starts hack/otelcol, and has the lab's programs send their traces to it.
func startOTelCollector(t *testing.T) otelCollector {
	t.Helper()
	program := os.Getenv("BELAY_OTELCOL")
	if program == "" {
		t.Skip("NOT RUN: traces need a collector; `make test-long` builds it and names it in BELAY_OTELCOL")
	}
	dir, address := t.TempDir(), process.FreeAddress()
	config := filepath.Join(dir, "config.yaml")
	c := otelCollector{file: filepath.Join(dir, "traces.jsonl")}
	if err := os.WriteFile(config, fmt.Appendf(nil, `
receivers: {otlp: {protocols: {grpc: {endpoint: %q}}}}
exporters: {jsonfile: {path: %q}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {traces: {receivers: [otlp], exporters: [jsonfile]}}
`, address, c.file), 0o600); err != nil {
		t.Fatal(err)
	}
	process.Start(t, exec.Command(program, "--config", "file:"+config))
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+address)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "100") // milliseconds
	return c
}

func (c otelCollector) read(t *testing.T) []*span {
	t.Helper()
	content, err := os.ReadFile(c.file)
	if err != nil {
		return nil // nothing received yet
	}
	var all []*span
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var batch struct {
			ResourceSpans []struct {
				Resource   struct{ Attributes attributes }
				ScopeSpans []struct{ Spans []*span }
			}
		}
		if json.Unmarshal(lines.Bytes(), &batch) != nil {
			break // a line that is being written
		}
		for _, resource := range batch.ResourceSpans {
			for _, scope := range resource.ScopeSpans {
				for _, one := range scope.Spans {
					one.service = resource.Resource.Attributes.get("service.name")
					all = append(all, one)
				}
			}
		}
	}
	return all
}

// trace is the spans of a trace in the order of a tree: each below its parent, by time.
type trace struct {
	spans []*span
	depth map[*span]int
}

// traceOf waits for the nth trace with such a root, until it is complete and no further spans of it arrive. It returns what it has found when
// that takes too long.
func (c otelCollector) traceOf(t *testing.T, service, name string, nth int, complete func(trace) bool) trace {
	t.Helper()
	last := 0
	var found trace
	for deadline := time.Now().Add(wait.Timeout); time.Now().Before(deadline); time.Sleep(2 * time.Second) { // longer than the programs and the collector hold spans back
		all := c.read(t)
		roots := slices.DeleteFunc(slices.Clone(all), func(s *span) bool { return s.ParentSpanID != "" || s.service != service || s.Name != name })
		slices.SortFunc(roots, byStart)
		if len(roots) < nth {
			continue
		}
		found = trace{depth: map[*span]int{}}
		found.add(all, roots[nth-1], 0)
		total := 0
		for _, s := range all {
			if s.TraceID == roots[nth-1].TraceID {
				total++
			}
		}
		if total == len(found.spans) && total == last && complete(found) {
			return found
		}
		last = total
	}
	if len(found.spans) == 0 {
		t.Fatalf("there is no trace %d of %s: %s; there are:\n%s", nth, service, name, summary(c.read(t)))
	}
	return found
}

func summary(all []*span) string {
	var out strings.Builder
	for _, s := range all {
		fmt.Fprintf(&out, "%s %s<-%s %s: %s %v\n", s.TraceID, s.SpanID, s.ParentSpanID, s.service, s.Name, s.took())
	}
	return out.String()
}

func byStart(a, b *span) int { return strings.Compare(a.Start, b.Start) }

func (tr *trace) add(all []*span, s *span, depth int) {
	tr.spans, tr.depth[s] = append(tr.spans, s), depth
	var children []*span
	for _, child := range all {
		if child.TraceID == s.TraceID && child.ParentSpanID == s.SpanID {
			children = append(children, child)
		}
	}
	// The node waits from the beginning; its spans stand last, by their end.
	slices.SortFunc(children, func(a, b *span) int {
		if node := strings.Compare(rank(a), rank(b)); node != 0 {
			return node
		}
		return byStart(a, b)
	})
	for _, child := range children {
		tr.add(all, child, depth+1)
	}
}

func rank(s *span) string {
	if s.service == "belay-node" {
		return "node"
	}
	return "control plane"
}

// String is the tree without what differs from run to run.
func (tr trace) String() string {
	var out strings.Builder
	for _, s := range tr.spans {
		fmt.Fprintf(&out, "%s%s: %s\n", strings.Repeat("  ", tr.depth[s]), s.service, s.Name)
	}
	return out.String()
}

// timed is the tree with the times of the spans, from the beginning of the root.
func (tr trace) timed() string {
	var out strings.Builder
	for _, s := range tr.spans {
		from := time.Duration(unixNano(s.Start) - unixNano(tr.spans[0].Start))
		fmt.Fprintf(&out, "%9.1f ms %8.1f ms  %s%s: %s\n", from.Seconds()*1000, s.took().Seconds()*1000, strings.Repeat("  ", tr.depth[s]), s.service, s.Name)
	}
	return out.String()
}

func (tr trace) named(service, name string) *span {
	for _, s := range tr.spans {
		if s.service == service && s.Name == name {
			return s
		}
	}
	return nil
}

// checkTimes checks that the steps follow each other, and that those of the control plane lie within the attach.
func (tr trace) checkTimes(t *testing.T) {
	t.Helper()
	t.Logf("begins at, takes:\n%s", tr.timed())
	root := tr.spans[0]
	var before *span
	for _, s := range tr.spans {
		switch {
		case s.Status.Code == 2:
			t.Errorf("%s: %s failed: %s", s.service, s.Name, s.Status.Message)
		case tr.depth[s] != 1:
		case s.service == "belay-node":
		default:
			// The controller may see what another process has done before that process has the answer to its request.
			if s.Start < root.Start || s.Start > root.End || s.service == root.service && s.End > root.End {
				t.Errorf("%s: %s lies outside of the attach", s.service, s.Name)
			}
			if before != nil && s.Start < before.Start {
				t.Errorf("%s begins before %s", s.Name, before.Name)
			}
			before = s
		}
	}
	called := tr.named("labdisk-fabric", "csi.v1.Controller/ControllerPublishVolume")
	calls := tr.named("belay-attacher", "csi.v1.Controller/ControllerPublishVolume")
	if called.Start < calls.Start || called.Start > calls.End { // it ends after the reply was sent
		t.Error("the driver's span does not begin within the call")
	}
	wait, stage, publish := tr.named("belay-node", "wait for attach"), tr.named("belay-node", "stage volume"), tr.named("belay-node", "publish volume")
	if recorded := tr.named("belay-attacher", "record volume as attached"); wait.End < recorded.Start || stage.Start < wait.End || publish.Start < stage.End {
		t.Error("the steps of the node overlap")
	}
}

// waited is the span of the wait for the volume, which an attach has that follows a detach.
func (tr trace) waited() *span {
	return tr.named("belay-controller", "wait until the volume may be attached")
}

func (tr trace) hasWaited() bool { return tr.waited() != nil }

// unexplained is the part of an attach, from the moment that it was allowed, in which no step of the control plane ran.
func (tr trace) unexplained(t *testing.T) float64 {
	t.Helper()
	root := tr.spans[0]
	begun := unixNano(root.Start)
	if s := tr.waited(); s != nil {
		begun = unixNano(s.End)
	}
	covered, between := begun, time.Duration(0)
	for _, s := range tr.spans {
		if tr.depth[s] == 1 && s.service != "belay-node" {
			between += time.Duration(max(0, unixNano(s.Start)-covered))
			covered = max(covered, min(unixNano(s.End), unixNano(root.End)))
		}
	}
	between += time.Duration(unixNano(root.End) - covered)
	took := time.Duration(unixNano(root.End) - begun)
	t.Logf("the attach took %v, of which %v lay between the steps", took, between)
	return between.Seconds() / took.Seconds()
}

// checkAttributes checks that the spans name their objects, the same ones in all programs.
func (tr trace) checkAttributes(t *testing.T) {
	t.Helper()
	root := tr.spans[0]
	for _, key := range []string{"k8s.persistentvolume.name", "k8s.node.name", "k8s.pod.name", "k8s.pod.uid", "k8s.namespace.name", "belay.driver", "belay.volume.handle", "belay.attachment"} {
		if root.attribute(key) == "" {
			t.Errorf("the attach has no attribute %s", key)
		}
		for _, other := range []*span{tr.named("belay-attacher", "attach by driver"), tr.named("belay-node", "stage volume")} {
			if value := other.attribute(key); value != root.attribute(key) && (value != "" || !strings.Contains(key, "pod") && key != "k8s.namespace.name") {
				t.Errorf("%s of %s: %s = %q, want %q", other.Name, other.service, key, value, root.attribute(key))
			}
		}
	}
	if call := tr.named("belay-attacher", "csi.v1.Controller/ControllerPublishVolume"); call.attribute("rpc.response.status_code") != "OK" || call.attribute("rpc.system.name") != "grpc" {
		t.Errorf("the call has the attributes %v", call.Attributes)
	}
}
