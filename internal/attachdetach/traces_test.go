package attachdetach

import (
	"context"
	"slices"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/telemetry"
)

// spanNamed returns an ended span, or nil.
func spanNamed(recorder *tracetest.SpanRecorder, name string) sdktrace.ReadOnlySpan {
	all := recorder.Ended()
	if i := slices.IndexFunc(all, func(s sdktrace.ReadOnlySpan) bool { return s.Name() == name }); i >= 0 {
		return all[i]
	}
	return nil
}

// The VolumeAttachment carries the context of the attach, whose span lasts until the volume is reported. A detach is a trace of its own,
// with a link, and lasts until the object is gone.
func TestTraceOfAttachAndDetach(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	t.Cleanup(func() { _ = provider.Shutdown(context.WithoutCancel(t.Context())) })
	l := newLab(t)
	l.options.Traces = telemetry.NewTraces(provider)
	l.node("a")
	l.volume("v")
	l.run()

	l.pod("p", "a", "v")
	l.awaitReported("v", "a")
	l.await("the span of the attach", func() bool { return spanNamed(recorder, "attach") != nil })
	attach := spanNamed(recorder, "attach")
	traceparent := "00-" + attach.SpanContext().TraceID().String() + "-" + attach.SpanContext().SpanID().String() + "-01"
	if got := l.read("v", "a").Annotations[kube.TraceparentAnnotation]; got != traceparent {
		t.Errorf("the annotation is %q, want %q", got, traceparent)
	}
	if attach.Parent().IsValid() || attach.Status().Code == codes.Error {
		t.Errorf("the attach has the parent %v and the status %v", attach.Parent(), attach.Status())
	}
	for _, name := range []string{"create VolumeAttachment", "report volume as attached"} {
		if child := spanNamed(recorder, name); child == nil || child.Parent().SpanID() != attach.SpanContext().SpanID() {
			t.Errorf("there is no %q below the attach", name)
		}
	}

	l.gone("p")
	l.awaitDetached("v", "a")
	l.await("the span of the detach", func() bool { return spanNamed(recorder, "detach") != nil })
	detach := spanNamed(recorder, "detach")
	if len(detach.Links()) != 1 || detach.Links()[0].SpanContext.SpanID() != attach.SpanContext().SpanID() || detach.Parent().IsValid() {
		t.Errorf("the detach has the parent %v and the links %v", detach.Parent(), detach.Links())
	}
}
