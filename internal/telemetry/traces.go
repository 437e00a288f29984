package telemetry

import (
	"context"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"belay.dev/belay/internal/redact"
)

// traceparentLength is kube.TraceparentLength; this package imports the deciders alone.
const traceparentLength = 55

// spanContext parses a traceparent. It returns the zero value, which is not valid, for a malformed one: anyone who may write the object
// may set the annotation.
func spanContext(traceparent string) trace.SpanContext {
	if len(traceparent) != traceparentLength {
		return trace.SpanContext{}
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": traceparent})
	return trace.SpanContextFromContext(ctx)
}

// Traceparent returns a traceparent, or "" if it is malformed.
func Traceparent(value string) string {
	if !spanContext(value).IsValid() {
		return ""
	}
	return value
}

// The attributes of spans that the semantic conventions do not have.
const (
	attributeDriver     = attribute.Key("belay.driver")
	attributeHandle     = attribute.Key("belay.volume.handle")
	attributeAttachment = attribute.Key("belay.attachment")
	attributeNodeID     = attribute.Key("belay.node.id")
	attributeReason     = attribute.Key("belay.reason")
)

// maxKept bounds the spans that are kept open.
const maxKept = 10000

// Traces makes the spans of a program. A nil *Traces makes none, and costs nothing.
type Traces struct {
	tracer trace.Tracer

	mu sync.Mutex
	// kept holds the spans of operations that other events end, by a key of the caller's.
	kept map[string]Span
}

// NewTraces makes spans with the provider; nil makes none.
func NewTraces(provider trace.TracerProvider) *Traces {
	if provider == nil {
		return nil
	}
	return &Traces{
		tracer: provider.Tracer("belay.dev/belay", trace.WithSchemaURL(semconv.SchemaURL)),
		kept:   map[string]Span{},
	}
}

// SpanOptions describe a span. Empty fields are left out.
type SpanOptions struct {
	// Parent is the traceparent of the operation that waits for this one: both are in one trace. Without it the span of the context is the
	// parent.
	Parent string
	// Link is the traceparent of the operation that led to this one. The span begins a new trace, with a link to it.
	Link string
	Kind trace.SpanKind
	// Begin is the beginning of the span; the zero value is now.
	Begin time.Time

	Driver, Handle, PersistentVolume, Attachment, Node, NodeID, Reason string
	// Pod is the pod that the operation is for.
	PodNamespace, PodName, PodUID string
}

func (o *SpanOptions) attributes() []attribute.KeyValue {
	all := make([]attribute.KeyValue, 0, 8)
	for _, a := range []struct {
		key   attribute.Key
		value string
	}{
		{attributeDriver, o.Driver}, {attributeHandle, o.Handle}, {semconv.K8SPersistentvolumeNameKey, o.PersistentVolume},
		{attributeAttachment, o.Attachment}, {semconv.K8SNodeNameKey, o.Node}, {attributeNodeID, o.NodeID}, {attributeReason, o.Reason},
		{semconv.K8SNamespaceNameKey, o.PodNamespace}, {semconv.K8SPodNameKey, o.PodName}, {semconv.K8SPodUIDKey, o.PodUID},
	} {
		if a.value != "" {
			all = append(all, a.key.String(a.value))
		}
	}
	return all
}

// Start starts a span. A malformed Parent or Link counts as none.
func (t *Traces) Start(ctx context.Context, name string, o SpanOptions) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	options := []trace.SpanStartOption{trace.WithSpanKind(o.Kind), trace.WithAttributes(o.attributes()...)}
	if !o.Begin.IsZero() {
		options = append(options, trace.WithTimestamp(o.Begin))
	}
	if parent := spanContext(o.Parent); parent.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
	}
	if link := spanContext(o.Link); link.IsValid() {
		options = append(options, trace.WithNewRoot(), trace.WithLinks(trace.Link{SpanContext: link}))
	}
	ctx, span := t.tracer.Start(ctx, name, options...)
	return ctx, Span{span: span}
}

// StartCall starts the span of a CSI call, such as ControllerPublishVolume of csi.v1.Controller, below the span of the context; without
// one it starts none. The returned context carries the span to the driver. otelgrpc's client and csi-lib-utils' WithOtelTracing are not used, because they
// record the driver's error unredacted, possibly with secrets.
func (t *Traces) StartCall(ctx context.Context, service, method string) (context.Context, Span) {
	if t == nil || !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx, Span{}
	}
	method = service + "/" + method
	ctx, span := t.tracer.Start(ctx, method, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(semconv.RPCSystemNameGRPC, semconv.RPCMethod(method)))
	s := Span{span: span, call: true}
	if parent := s.Traceparent(); parent != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", parent)
	}
	return ctx, s
}

// Keep keeps a span open until Take. If a span of that key is kept already, it is ended, and if too many are, this one is.
func (t *Traces) Keep(key string, s Span) {
	if t == nil {
		return
	}
	t.mu.Lock()
	earlier, again := t.kept[key]
	full := !again && len(t.kept) >= maxKept
	if !full {
		t.kept[key] = s
	}
	t.mu.Unlock()
	earlier.EndAs("superseded by a later one")
	if full {
		s.EndAs("too many are in progress to measure this one")
	}
}

// Kept returns a span that is kept, or the zero Span.
func (t *Traces) Kept(key string) Span {
	if t == nil {
		return Span{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kept[key]
}

// Take returns a span that was kept, for the caller to end, or the zero Span.
func (t *Traces) Take(key string) Span {
	if t == nil {
		return Span{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.kept[key]
	delete(t.kept, key)
	return s
}

// endKept ends the spans that are still kept, so that they are exported.
func (t *Traces) endKept(why string) {
	t.mu.Lock()
	kept := t.kept
	t.kept = map[string]Span{}
	t.mu.Unlock()
	for _, s := range kept {
		s.EndAs(why)
	}
}

// Span is a span; the zero value is none.
type Span struct {
	span trace.Span
	call bool
}

// Traceparent returns the span's context in the form of the annotation; "" without a span. A span that is not sampled has one too, so
// that the other components do not sample theirs.
func (s Span) Traceparent() string {
	if s.span == nil {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), s.span.SpanContext()), carrier)
	return carrier["traceparent"]
}

// End ends the span with the result of its operation. What looks like a secret is taken out of the error.
func (s Span) End(err error) {
	if s.span == nil {
		return
	}
	if s.call {
		code := status.Code(err)
		name := rpcCode(code)
		s.span.SetAttributes(semconv.RPCResponseStatusCode(name))
		if err != nil {
			s.span.SetAttributes(semconv.ErrorTypeKey.String(name))
		}
	}
	if err != nil {
		s.span.SetStatus(codes.Error, shorten(redact.Secrets(err.Error())))
	}
	s.span.End()
}

// EndAs ends the span of an operation that ended in another way than it should have.
func (s Span) EndAs(why string) {
	if s.span == nil {
		return
	}
	s.span.SetStatus(codes.Error, shorten(why))
	s.span.End()
}

func shorten(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxAttributeLength)], "")
}
