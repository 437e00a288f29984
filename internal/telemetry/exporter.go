package telemetry

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	grpccodes "google.golang.org/grpc/codes"
	"k8s.io/klog/v2"
)

// traceShutdownTimeout bounds how long a shutdown waits for the collector.
const traceShutdownTimeout = 2 * time.Second

// maxAttributeLength bounds the texts in spans, unless OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT does: a volume handle may have 128 KiB.
const maxAttributeLength = 4096

// tracesEnabled reports whether the standard OpenTelemetry variables set an exporter or a collector endpoint. A value that is not supported
// is an error that names its variable.
func tracesEnabled() (bool, error) {
	switch exporter := strings.ToLower(os.Getenv("OTEL_TRACES_EXPORTER")); {
	case strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true"), exporter == "none":
		return false, nil
	case exporter != "" && exporter != "otlp":
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER=%s is not supported: use otlp or none", exporter)
	case exporter == "" && os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "":
		return false, nil
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if protocol := os.Getenv(name); protocol != "" {
			if !strings.EqualFold(protocol, "grpc") {
				return false, fmt.Errorf("%s=%s is not supported: use grpc", name, protocol)
			}
			break // the variable of traces takes precedence
		}
	}
	return true, nil
}

// StartTraces enables traces if the standard variables do, and returns nil Traces otherwise, also if a variable has a value that is not
// supported: that is logged, and keeps no program from its work. The spans go to the collector in the
// background: one that is away or slow delays nothing, and what its queue has no room for is dropped. stop ends the spans that are kept
// and flushes, for at most two seconds. The libraries read the other variables: OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
// OTEL_TRACES_SAMPLER, OTEL_BSP_* and OTEL_EXPORTER_OTLP_*.
func StartTraces(ctx context.Context, service, version string) (traces *Traces, stop func()) {
	provider, flush := StartTraceProvider(ctx, service, version)
	if provider == nil {
		return nil, flush
	}
	traces = NewTraces(provider)
	return traces, func() {
		traces.endKept(service + " stopped")
		flush()
	}
}

// StartTraceProvider is StartTraces for a caller that makes its spans with OpenTelemetry itself; the provider is nil if traces are off.
func StartTraceProvider(ctx context.Context, service, version string) (_ trace.TracerProvider, stop func()) {
	log := klog.FromContext(ctx)
	wanted, err := tracesEnabled()
	if err != nil {
		log.Error(err, "Continuing without traces") // a cluster may set such variables for all its pods
	}
	if !wanted {
		return nil, func() {}
	}
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		log.Error(err, "Continuing without traces: the OTEL_EXPORTER_OTLP_* variables make no exporter")
		return nil, func() {}
	}
	about, err := resource.New(ctx, resource.WithAttributes(semconv.ServiceName(service), semconv.ServiceVersion(version)), resource.WithFromEnv())
	if err != nil { // with what could be read
		log.Error(err, "Ignoring what could not be read of OTEL_RESOURCE_ATTRIBUTES")
	}
	limits := sdktrace.NewSpanLimits()
	if limits.AttributeValueLengthLimit < 0 {
		limits.AttributeValueLengthLimit = maxAttributeLength
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about), sdktrace.WithRawSpanLimits(limits))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Error(err, "Failed to send traces") }))
	return provider, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceShutdownTimeout)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log.Error(err, "Failed to send traces")
		}
	}
}

// rpcCode returns the name of a code in the semantic conventions, such as DEADLINE_EXCEEDED.
func rpcCode(code grpccodes.Code) string {
	var name strings.Builder
	for i, letter := range code.String() {
		if i > 0 && letter >= 'A' && letter <= 'Z' && code != grpccodes.OK {
			name.WriteByte('_')
		}
		name.WriteRune(letter)
	}
	return strings.ToUpper(name.String())
}
