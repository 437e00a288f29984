package csi

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// plugin is the process behind a registration socket.
type plugin struct {
	registration.UnimplementedRegistrationServer

	server *grpc.Server
	mu     sync.Mutex
	told   []string
}

func (p *plugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: "driver.test", SupportedVersions: []string{"1.0.0"}}, nil
}

func (p *plugin) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, s.GetError())
	return &registration.RegistrationStatusResponse{}, nil
}

func listenAs(t *testing.T, path string) *plugin {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	p := &plugin{server: grpc.NewServer()}
	registration.RegisterRegistrationServer(p.server, p)
	go func() { _ = p.server.Serve(listener) }()
	t.Cleanup(p.server.Stop)
	return p
}

// A plugin comes back while the earlier one was being registered at the driver's socket, which was going down. It must not get the
// status of the failed registration, after which node-driver-registrar exits.
func TestRegistrationStatusIsForItsPluginOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "reg.sock")
	before := listenAs(t, path)
	r, err := DialRegistration(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if got, err := r.Info(ctx); err != nil || got.Name != "driver.test" {
		t.Fatalf("%+v, %v", got, err)
	}
	before.server.Stop()
	after := listenAs(t, path)
	r.conn.WaitForStateChange(ctx, connectivity.Ready)
	if err := r.Notify(ctx, errors.New("its socket is gone")); err == nil {
		t.Error("the plugin was notified after it had exited")
	}
	after.mu.Lock()
	defer after.mu.Unlock()
	if len(after.told) > 0 {
		t.Errorf("the next one was notified of %q", after.told)
	}
}

// A socket that is there before its plugin listens is asked again.
func TestPluginThatListensLate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "reg.sock")
	r, err := DialRegistration(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	found := make(chan error, 1)
	go func() {
		_, err := r.Info(ctx)
		found <- err
	}()
	time.Sleep(50 * time.Millisecond) // so that the first attempt fails
	listenAs(t, path)
	if err := <-found; err != nil {
		t.Error(err)
	}
}

// answering is a driver's node service that says its id.
type answering struct{ spec.UnimplementedNodeServer }

func (answering) NodeGetInfo(context.Context, *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	return &spec.NodeGetInfoResponse{NodeId: "id"}, nil
}

// A driver that restarts at its socket must not get a failed registration because the connection that was kept had reached the
// socket before the driver listened.
func TestDriverThatRestartsIsRegistered(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	node, err := DialNode(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := node.Info(ctx); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Fatalf("nothing listens: %v", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	spec.RegisterNodeServer(server, answering{})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	if info, err := node.Info(ctx); err != nil || info.NodeID != "id" {
		t.Errorf("%+v, %v", info, err)
	}
}

// TestRetireWaitsForTheLastCall, at once if there is none.
func TestRetireWaitsForTheLastCall(t *testing.T) {
	closed := 0
	var running calls
	call := func(during func()) {
		_ = running.count(t.Context(), "", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			during()
			return nil
		})
	}
	call(func() {
		call(func() {
			running.whenIdle(func() { closed++ })
			if closed > 0 {
				t.Error("closed under two calls")
			}
		})
		if closed > 0 {
			t.Error("closed under a call")
		}
	})
	if closed == 0 {
		t.Error("not closed after the last call")
	}
	closed = 0
	(&calls{}).whenIdle(func() { closed++ })
	if closed != 1 {
		t.Error("not closed where there is no call")
	}
}
