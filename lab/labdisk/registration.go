package labdisk

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"belay.dev/belay/lab/socket"
)

// registrar answers the kubelet's plugin watcher for one driver, as node-driver-registrar does.
type registrar struct {
	registration.UnimplementedRegistrationServer
	driver   string
	endpoint string
	refused  chan<- string
}

// registrationPause is the time from a refusal to the next socket.
const registrationPause = time.Second

// serveRegistration serves the registration socket in the group until ctx ends. If the kubelet refuses the driver the
// socket is recreated a little later, which makes the kubelet try again.
func serveRegistration(ctx context.Context, group *errgroup.Group, driver, endpoint, path string) error {
	lis, err := socket.Listen(path)
	if err != nil {
		return err
	}
	group.Go(func() error {
		for {
			refusal, err := registerOnce(ctx, lis, driver, endpoint)
			if err != nil || refusal == "" {
				return err
			}
			slog.Warn("Registration refused", "driver", driver, "err", refusal)
			timer := time.NewTimer(registrationPause)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return nil
			}
			if lis, err = socket.Listen(path); err != nil {
				return err
			}
		}
	})
	return nil
}

// registerOnce serves until ctx ends (no refusal then) or the driver is refused. It closes lis, which removes the socket.
func registerOnce(ctx context.Context, lis net.Listener, driver, endpoint string) (refusal string, err error) {
	refused := make(chan string, 1)
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, &registrar{driver: driver, endpoint: endpoint, refused: refused})
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	select {
	case refusal = <-refused:
		server.GracefulStop() // the kubelet gets its answer
	case <-ctx.Done():
		server.Stop()
	case err := <-served:
		return "", fmt.Errorf("serve registration of %s: %w", driver, err)
	}
	if err := <-served; err != nil {
		return "", fmt.Errorf("serve registration of %s: %w", driver, err)
	}
	return refusal, nil
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: r.driver, Endpoint: r.endpoint,
		SupportedVersions: []string{"1.0.0"}}, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if s.GetPluginRegistered() {
		slog.Info("Driver registered", "driver", r.driver)
	} else {
		select {
		case r.refused <- cmp.Or(s.GetError(), "no reason given"):
		default:
		}
	}
	return &registration.RegistrationStatusResponse{}, nil
}
