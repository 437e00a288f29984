package csi

import (
	"context"
	"fmt"
	"time"

	"github.com/kubernetes-csi/csi-lib-utils/connection"
	"github.com/kubernetes-csi/csi-lib-utils/metrics"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"google.golang.org/grpc"
)

// Connect connects to a driver's socket and waits until the driver is ready, for
// ever if need be; probeTimeout bounds one Probe. When the connection is lost
// later the process ends with 1, as csi-attacher does: the driver behind the
// socket may be another one after that, so everything is asked anew.
func Connect(ctx context.Context, address string, manager metrics.CSIMetricsManager, probeTimeout time.Duration) (*grpc.ClientConn, error) {
	conn, err := connection.Connect(ctx, address, manager, connection.OnConnectionLoss(connection.ExitOnConnectionLoss()))
	if err != nil {
		return nil, fmt.Errorf("connect to the CSI driver at %s: %w", address, err)
	}
	if err := rpc.ProbeForever(ctx, conn, probeTimeout); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("wait for the CSI driver at %s to become ready: %w", address, err)
	}
	return conn, nil
}
