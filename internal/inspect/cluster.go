package inspect

import (
	"context"

	"belay.dev/belay/internal/diagnosis"
)

// Cluster reads all objects that volumes depend on. Without the right to read all namespaces it reads one.
func (r *Reader) Cluster(ctx context.Context, namespace string) *diagnosis.Snapshot {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	x := r.start()
	parallel(
		func() { x.attachments(ctx) },
		func() { x.leases(ctx, true) },
		func() { x.drivers(ctx) },
		func() { x.csiNodes(ctx) },
		func() { x.nodes(ctx) },
		func() { x.volumes(ctx) },
		func() { x.claims(ctx, namespace) },
		func() { x.pods(ctx, namespace) },
		func() { x.warnings(ctx, namespace) },
		func() { x.recovery(ctx, namespace != "") }, // the warnings of all namespaces have its events
		func() {
			if r.Sources {
				x.listSources(ctx)
			}
		},
	)
	parallel(x.provisioning(ctx, namespace, true)...)
	x.torn(ctx)
	return x.finish()
}
