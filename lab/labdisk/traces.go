package labdisk

import (
	"context"
	"strings"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"belay.dev/belay/internal/telemetry"
)

// tracedServer returns the options of a CSI server that has a span for each call about a volume, below that of its caller. Without the
// OTEL_* variables there are none.
func tracedServer(ctx context.Context, service string) (options []grpc.ServerOption, stop func()) {
	provider, stop := telemetry.StartTraceProvider(ctx, service, "")
	if provider == nil {
		return nil, stop
	}
	handler := otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(provider), otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithFilter(func(call *stats.RPCTagInfo) bool { return strings.HasSuffix(call.FullMethodName, "Volume") }),
	)
	return []grpc.ServerOption{grpc.StatsHandler(handler)}, stop
}
