package main

import (
	"context"

	"github.com/go-logr/logr"

	"belay.dev/belay/internal/containers"
)

// logSilent logs that the container runtime does not respond. This is not fatal, because the runtime may start later.
func logSilent(ctx context.Context, log logr.Logger, runtime *containers.CRI, endpoint string) {
	if err := runtime.Check(ctx); err != nil && ctx.Err() == nil {
		log.Error(err, "Container runtime does not respond, keeping the volumes of deleted and terminated pods mounted", "endpoint", endpoint)
	}
}
