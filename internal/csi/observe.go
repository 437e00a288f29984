package csi

import (
	"context"
	"time"

	"google.golang.org/grpc"
)

// Call is one call to a driver that has ended.
type Call struct {
	// Method is gRPC's full name of it, such as /csi.v1.Node/NodeStageVolume.
	Method string
	// Migrated: it was for a volume of an in-tree kind; see [WithMigrated].
	Migrated bool
	Err      error
	Took     time.Duration
}

type migratedKey struct{}

// WithMigrated says of the calls made with the context that they are for a volume whose
// PersistentVolume names an in-tree plugin.
func WithMigrated(ctx context.Context, migrated bool) context.Context {
	if !migrated {
		return ctx
	}
	return context.WithValue(ctx, migratedKey{}, true)
}

// observed has a connection tell of each call that ended.
func observed(tell func(Call)) grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, reply any,
		conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
	) error {
		began := time.Now()
		err := invoke(ctx, method, request, reply, conn, options...)
		migrated, _ := ctx.Value(migratedKey{}).(bool)
		tell(Call{Method: method, Migrated: migrated, Err: err, Took: time.Since(began)})
		return err
	})
}
