package labdisk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"belay.dev/belay/lab/socket"
)

// FabricOptions configures RunFabric.
type FabricOptions struct {
	Dir    string // folder of the fabric: state, volumes, records
	Listen string // unix socket of the fabric
	CSIDir string // folder of the drivers' controller sockets: <driver>.sock
	// Drivers are the personalities to serve; default: all.
	Drivers []string
	// Permissive makes a storage that forbids nothing and records what it should have refused.
	Permissive bool
}

// RunFabric serves the fabric and the controller service of each personality until ctx ends.
func RunFabric(ctx context.Context, o FabricOptions) (err error) {
	if len(o.Drivers) == 0 {
		o.Drivers = Drivers()
	}
	if err := checkDrivers(o.Drivers); err != nil {
		return err
	}
	f, err := openFabric(fabricOptions{Dir: o.Dir, Permissive: o.Permissive})
	if err != nil {
		return err
	}
	traced, stopTraces := tracedServer(ctx, "labdisk-fabric")
	defer stopTraces()
	ctx, cancel := context.WithCancel(ctx) // also for servers that have begun when a later one cannot
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	for _, d := range o.Drivers {
		server := grpc.NewServer(append(traced, grpc.UnaryInterceptor(interceptor(f, d, "")))...)
		csi.RegisterIdentityServer(server, Identity{Driver: d, Zones: true})
		csi.RegisterControllerServer(server, &controller{driver: d, fabric: f})
		if err := serveGRPC(ctx, group, server, filepath.Join(o.CSIDir, d+".sock")); err != nil {
			return errors.Join(err, f.close())
		}
	}
	lis, err := socket.Listen(o.Listen)
	if err != nil {
		return errors.Join(err, f.close())
	}
	web := &http.Server{Handler: f.control(), ReadHeaderTimeout: 10 * time.Second}
	group.Go(func() error {
		if err := web.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve %s: %w", o.Listen, err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		return web.Close()
	})
	slog.Info("Fabric serves", "dir", o.Dir, "listen", o.Listen, "drivers", o.Drivers, "permissive", o.Permissive)
	// The files stay open: I/O connections that were taken over from HTTP may still be at work, and end with the process.
	return group.Wait()
}

func checkDrivers(drivers []string) error {
	for _, d := range drivers {
		if !slices.Contains(Drivers(), d) {
			return fmt.Errorf("driver %q is not known: there are %v", d, Drivers())
		}
	}
	return nil
}

// serveGRPC listens at the path and serves until ctx ends, in the group.
func serveGRPC(ctx context.Context, group *errgroup.Group, server *grpc.Server, path string) error {
	lis, err := socket.Listen(path)
	if err != nil {
		return err
	}
	group.Go(func() error {
		if err := server.Serve(lis); err != nil {
			return fmt.Errorf("serve %s: %w", path, err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		server.Stop()
		return nil
	})
	return nil
}
