package csi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Registration is the service behind a socket in kubelet's plugins_registry.
type Registration struct {
	conn   *grpc.ClientConn
	client registration.RegistrationClient
}

// errPluginGone ends calls to a plugin whose process has ended.
var errPluginGone = errors.New("the plugin has exited")

// DialRegistration connects to a registration socket in the background, and only once: after a lost connection another plugin
// listens there, which must not get the registration status of the first one.
func DialRegistration(path string) (*Registration, error) {
	var connected atomic.Bool
	conn, err := dialUnix(path, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		if connected.Load() {
			return nil, errPluginGone
		}
		made, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err == nil {
			connected.Store(true)
		}
		return made, err
	}))
	if err != nil {
		return nil, err
	}
	return &Registration{conn: conn, client: registration.NewRegistrationClient(conn)}, nil
}

// Close ends the connection.
func (r *Registration) Close() error { return r.conn.Close() }

// Plugin is the information that a plugin returns.
type Plugin struct {
	// IsCSI: the plugin is a CSI driver.
	IsCSI bool
	Type  string
	Name  string
	// Endpoint is the driver's own socket; empty means the registration socket.
	Endpoint string
	Versions []string
}

// Info calls GetInfo, once the socket exists.
func (r *Registration) Info(ctx context.Context) (Plugin, error) {
	reply, err := r.client.GetInfo(ctx, &registration.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return Plugin{}, fmt.Errorf("GetInfo: %w", err)
	}
	return Plugin{
		IsCSI: reply.GetType() == registration.CSIPlugin, Type: reply.GetType(), Name: reply.GetName(),
		Endpoint: reply.GetEndpoint(), Versions: reply.GetSupportedVersions(),
	}, nil
}

// Notify calls NotifyRegistrationStatus; problem is nil when the plugin was registered.
func (r *Registration) Notify(ctx context.Context, problem error) error {
	status := &registration.RegistrationStatus{PluginRegistered: problem == nil}
	if problem != nil {
		status.Error = problem.Error()
	}
	if _, err := r.client.NotifyRegistrationStatus(ctx, status); err != nil {
		return fmt.Errorf("NotifyRegistrationStatus: %w", err)
	}
	return nil
}
