package attacher

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc/metadata"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/publication"
)

// tracesEnabled reports whether the standard OpenTelemetry variables set an exporter or a collector endpoint.
// csi-attacher has no flag for traces.
func tracesEnabled() (bool, error) {
	switch exporter := os.Getenv("OTEL_TRACES_EXPORTER"); {
	case strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true"), exporter == "none":
		return false, nil
	case exporter != "" && exporter != "otlp":
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER=%s is not supported: use otlp or none", exporter)
	case exporter == "" && os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "":
		return false, nil
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if protocol := os.Getenv(name); protocol != "" && protocol != "grpc" {
			return false, fmt.Errorf("%s=%s is not supported: use grpc", name, protocol)
		}
	}
	return true, nil
}

// traceShutdownTimeout bounds how long a shutdown waits for the collector.
const traceShutdownTimeout = 2 * time.Second

// startTraces enables the export of traces if it is configured. Traces that the collector does not accept are dropped.
// send flushes at the end. The libraries read the other variables: OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
// OTEL_TRACES_SAMPLER, OTEL_BSP_* and OTEL_EXPORTER_OTLP_*.
func startTraces(ctx context.Context) (send func(), err error) {
	wanted, err := tracesEnabled()
	if !wanted {
		return func() {}, err
	}
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("create the trace exporter: %w", err)
	}
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "belay-attacher")), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("create the trace resource: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	otel.SetTracerProvider(provider)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.FromContext(ctx).Error(err, "Failed to send traces")
	}))
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceShutdownTimeout)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log.FromContext(ctx).Error(err, "Failed to send traces")
		}
	}, nil
}

// trace starts the span of one call, including the reading of its secrets, and returns the function that ends it. The
// span context is passed to the driver. csi-lib-utils' WithOtelTracing is not used, because it records the driver's
// error unredacted, possibly with secrets.
func trace(ctx context.Context, try attempt, driver string) (context.Context, func(error)) {
	ctx, span := otel.Tracer("belay.dev/belay/internal/attacher").Start(ctx, spanNames[try.verb])
	span.SetAttributes(attribute.String("driver", driver), attribute.String("volume", try.volume.handle),
		attribute.String("node", try.node), attribute.String("nodeID", try.nodeID))
	if try.attachment != nil {
		span.SetAttributes(attribute.String("attachment", try.attachment.Name))
	}
	parent := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, parent)
	var pairs []string
	for key, value := range parent {
		pairs = append(pairs, key, value)
	}
	ctx = metadata.AppendToOutgoingContext(ctx, pairs...)
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

// spanNames are the terms of the glossary.
var spanNames = map[publication.Verb]string{publication.Publish: "attach", publication.Unpublish: "detach"}
