package csi

import (
	"context"
	"time"

	"google.golang.org/grpc"
)

// Call is one call to a driver that has ended.
type Call struct {
	// Method is its full gRPC name, such as /csi.v1.Node/NodeStageVolume.
	Method string
	// Migrated: the call was for a volume of an in-tree plugin; see [WithMigrated].
	Migrated bool
	Err      error
	Took     time.Duration
}

type migratedKey struct{}

// WithMigrated marks the calls made with the context as calls for a volume whose PersistentVolume has an in-tree plugin.
func WithMigrated(ctx context.Context, migrated bool) context.Context {
	if !migrated {
		return ctx
	}
	return context.WithValue(ctx, migratedKey{}, true)
}

// observed calls observe for each call of a connection that ended.
func observed(observe func(Call)) grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, reply any,
		conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
	) error {
		began := time.Now()
		err := invoke(ctx, method, request, reply, conn, options...)
		migrated, _ := ctx.Value(migratedKey{}).(bool)
		observe(Call{Method: method, Migrated: migrated, Err: err, Took: time.Since(began)})
		return err
	})
}
