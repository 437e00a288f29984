package labdisk

import (
	"context"
	"fmt"
	"strings"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"belay.dev/belay/internal/telemetry"
)

// tracedServer returns the options of a CSI server that has a span for each call about a volume, below that of its caller. Without the
// OTEL_* variables there are none.
func tracedServer(ctx context.Context, service string) (options []grpc.ServerOption, stop func(), err error) {
	provider, stop, err := telemetry.StartTraceProvider(ctx, service, "")
	if err != nil {
		return nil, nil, fmt.Errorf("start traces: %w", err)
	}
	if provider == nil {
		return nil, stop, nil
	}
	handler := otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(provider), otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithFilter(func(call *stats.RPCTagInfo) bool { return strings.HasSuffix(call.FullMethodName, "Volume") }),
	)
	return []grpc.ServerOption{grpc.StatsHandler(handler)}, stop, nil
}
