package telemetry

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	foreign        = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	foreignSkipped = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
)

// recorded returns Traces and what records their spans.
func recorded(t *testing.T, options ...sdktrace.TracerProviderOption) (*Traces, *tracetest.SpanRecorder) {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(append(options, sdktrace.WithSpanProcessor(recorder))...)
	t.Cleanup(func() { _ = provider.Shutdown(context.WithoutCancel(t.Context())) })
	return NewTraces(provider), recorder
}

// Without traces, an attach costs no allocation more.
func TestTracesCostNothingWhenOff(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	traces, stop := StartTraces(t.Context(), "test", "v1")
	if traces != nil {
		t.Fatalf("without the variables: %v", traces)
	}
	defer stop()
	ctx, failed := t.Context(), errors.New("failed")
	attach := func() {
		ctx, span := traces.Start(ctx, "attach", SpanOptions{Parent: foreign, Node: "node-1"})
		traces.Keep("attach", span)
		ctx, call := traces.StartCall(ctx, "csi.v1.Controller", "ControllerPublishVolume")
		if span.Traceparent() != "" || ctx.Err() != nil {
			t.Error("there is a span")
		}
		call.End(failed)
		traces.Kept("attach").EndAs("test")
		traces.Take("attach").End(nil)
	}
	least := testing.AllocsPerRun(100, attach)
	for range 9 { // it counts what goroutines of earlier tests allocate, too
		least = min(least, testing.AllocsPerRun(100, attach))
	}
	if least != 0 {
		t.Errorf("%v allocations", least)
	}
}

func TestNilProviderMakesNoTraces(t *testing.T) {
	provider, stop := StartTraceProvider(t.Context(), "test", "v1")
	defer stop()
	if provider != nil || NewTraces(provider) != nil {
		t.Errorf("provider %v", provider)
	}
}

// The annotation may hold anything.
func TestMalformedTraceparentIsIgnored(t *testing.T) {
	for _, value := range []string{
		"", "x", foreign + "-more", strings.Repeat("0", 55), strings.Repeat("x", 1<<20), strings.ToUpper(foreign), "ff" + foreign[2:],
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", foreign[:54], foreign[:54] + "\n",
	} {
		traces, recorder := recorded(t)
		if Traceparent(value) != "" {
			t.Errorf("%.60q counts as a traceparent", value)
		}
		_, span := traces.Start(t.Context(), "attach", SpanOptions{Parent: value, Link: value})
		span.End(nil)
		got := recorder.Ended()[0]
		if got.Parent().IsValid() || len(got.Links()) > 0 {
			t.Errorf("%.60q: parent %v, links %v", value, got.Parent(), got.Links())
		}
	}
	if Traceparent(foreign) != foreign {
		t.Error("a traceparent does not count as one")
	}
}

// Parent continues a trace. Link begins one, also below another span.
func TestParentAndLink(t *testing.T) {
	traces, recorder := recorded(t)
	ctx, child := traces.Start(t.Context(), "attach", SpanOptions{Parent: foreign})
	_, linked := traces.Start(ctx, "detach", SpanOptions{Link: foreign})
	linked.End(nil)
	child.End(nil)
	detach, attach := recorder.Ended()[0], recorder.Ended()[1]
	if !strings.Contains(foreign, attach.SpanContext().TraceID().String()) || !strings.Contains(foreign, attach.Parent().SpanID().String()) || !attach.Parent().IsRemote() {
		t.Errorf("the attach has the parent %v", attach.Parent())
	}
	if detach.Parent().IsValid() || detach.SpanContext().TraceID() == attach.SpanContext().TraceID() || len(detach.Links()) != 1 || !strings.Contains(foreign, detach.Links()[0].SpanContext.SpanID().String()) {
		t.Errorf("the detach has the parent %v and the links %v", detach.Parent(), detach.Links())
	}
}

// By default the flag of the annotation decides, because that is how the controller's decision reaches the other programs. The samplers
// without parentbased_ ignore it, and with it what a stranger wrote.
func TestSampledFlagOfTheAnnotation(t *testing.T) {
	for name, test := range map[string]struct {
		sampler, parent string
		want            bool
	}{
		"default, sampled":              {"", foreign, true},
		"default, not sampled":          {"", foreignSkipped, false},
		"own decision, sampled":         {"always_off", foreign, false},
		"own decision, not sampled":     {"always_on", foreignSkipped, true},
		"only what the parent sampled":  {"parentbased_always_off", foreign, true},
		"ratio, own decision, sampled":  {"traceidratio", foreign, false},
		"ratio of the parent's program": {"parentbased_traceidratio", foreign, true},
	} {
		t.Run(name, func(t *testing.T) {
			if test.sampler != "" {
				t.Setenv("OTEL_TRACES_SAMPLER", test.sampler)
				t.Setenv("OTEL_TRACES_SAMPLER_ARG", "0")
			}
			traces, _ := recorded(t)
			_, span := traces.Start(t.Context(), "attach", SpanOptions{Parent: test.parent})
			defer span.End(nil)
			if sampled := strings.HasSuffix(span.Traceparent(), "-01"); sampled != test.want {
				t.Errorf("sampled: %v, want %v", sampled, test.want)
			}
			if parent := span.Traceparent(); parent == "" || strings.HasSuffix(parent, "-01") != test.want {
				t.Errorf("passes on %q", parent)
			}
		})
	}
}

func TestSpansHaveNoSecrets(t *testing.T) {
	traces, recorder := recorded(t)
	ctx, span := traces.Start(t.Context(), "attach", SpanOptions{Handle: "vol-1", Node: "node-1", PodName: "web-0"})
	ctx, call := traces.StartCall(ctx, "csi.v1.Controller", "ControllerPublishVolume")
	sent, _ := metadata.FromOutgoingContext(ctx)
	err := status.Error(grpccodes.DeadlineExceeded, "login with password=hunter2hunter2 failed"+strings.Repeat(".", 1<<20))
	call.End(err)
	span.End(err)
	for _, got := range recorder.Ended() {
		if text := got.Status().Description; got.Status().Code != codes.Error || strings.Contains(text, "hunter2") || !strings.Contains(text, "failed") || len(text) > maxAttributeLength {
			t.Errorf("%s has the status %v %.100q", got.Name(), got.Status().Code, text)
		}
	}
	attributes := map[attribute.Key]string{}
	for _, got := range recorder.Ended() {
		for _, a := range got.Attributes() {
			attributes[a.Key] = a.Value.AsString()
		}
	}
	for key, want := range map[attribute.Key]string{
		"k8s.node.name": "node-1", "k8s.pod.name": "web-0", "belay.volume.handle": "vol-1", "rpc.system.name": "grpc",
		"rpc.method": "csi.v1.Controller/ControllerPublishVolume", "rpc.response.status_code": "DEADLINE_EXCEEDED", "error.type": "DEADLINE_EXCEEDED",
	} {
		if attributes[key] != want {
			t.Errorf("%s = %q, want %q", key, attributes[key], want)
		}
	}
	if got := recorder.Ended()[0].SpanContext().SpanID().String(); !strings.Contains(strings.Join(sent.Get("traceparent"), ""), got) {
		t.Errorf("the driver is sent %v, not the span %s", sent, got)
	}
}

// Calls about no volume that is mounted, such as those for statistics, make no traces.
func TestCallWithoutSpan(t *testing.T) {
	traces, recorder := recorded(t)
	ctx, call := traces.StartCall(t.Context(), "csi.v1.Node", "NodeGetVolumeStats")
	call.End(nil)
	if sent, _ := metadata.FromOutgoingContext(ctx); len(recorder.Started()) > 0 || len(sent) > 0 {
		t.Errorf("%d spans, sent %v", len(recorder.Started()), sent)
	}
}

func TestKeptSpansAreBounded(t *testing.T) {
	traces, recorder := recorded(t)
	start := func() Span { _, span := traces.Start(t.Context(), "attach", SpanOptions{}); return span }
	for i := range maxKept {
		traces.Keep(string(rune(i+1)), start())
	}
	traces.Keep("one too many", start())
	if len(recorder.Ended()) != 1 || len(traces.kept) != maxKept {
		t.Errorf("%d spans ended, %d kept", len(recorder.Ended()), len(traces.kept))
	}
	traces.Keep(string(rune(1)), start())
	if len(recorder.Ended()) != 2 || recorder.Ended()[1].Status().Code != codes.Error {
		t.Error("the earlier span of the key was not ended")
	}
	traces.endKept("stopped")
	if len(recorder.Ended()) != maxKept+2 || len(traces.kept) != 0 {
		t.Errorf("%d spans ended, %d kept", len(recorder.Ended()), len(traces.kept))
	}
}

// A collector that is away delays neither a span nor, for longer than its bound, the end of the program.
func TestCollectorAway(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
	t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "600000") // without its bound the end would take minutes
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600000")
	began := time.Now()
	traces, stop := StartTraces(t.Context(), "test", "v1")
	_, kept := traces.Start(t.Context(), "attach", SpanOptions{})
	traces.Keep("attach", kept)
	for range 10000 {
		_, span := traces.Start(t.Context(), "attach", SpanOptions{})
		span.End(nil)
	}
	// Spans that wait for the collector would take minutes: the queue is full a thousand times, and each export fails after seconds.
	if took := time.Since(began); took > time.Minute {
		t.Errorf("the spans took %v", took)
	}
	ended := time.Now()
	stop()
	if len(traces.kept) > 0 {
		t.Error("a span is still open")
	}
	if took := time.Since(ended); took > time.Minute {
		t.Errorf("the program would have ended after %v", took)
	}
}

func TestCodesOfCalls(t *testing.T) {
	for code, want := range map[grpccodes.Code]string{
		grpccodes.OK: "OK", grpccodes.NotFound: "NOT_FOUND", grpccodes.Unavailable: "UNAVAILABLE", grpccodes.ResourceExhausted: "RESOURCE_EXHAUSTED",
	} {
		if got := rpcCode(code); got != want {
			t.Errorf("%v is %s, want %s", code, got, want)
		}
	}
}
