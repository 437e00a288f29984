// Package csidriver is a CSI driver for tests: identity, controller, node and registration service on Unix sockets. It does
// what a real driver does, on a mount table in memory, unless a test has it do something else, and it records its calls.
package csidriver

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"belay.dev/belay/internal/testing/wait"
)

// Call is a call about a volume.
type Call struct {
	Method  string // without its service: Publish, Unpublish, Stage, Unstage, Expand, Stats
	Volume  string
	Node    string // the node ID in a controller's call
	Request any
	Secrets map[string]string
	Socket  string // through which it came
	At      time.Time
}

// Driver is a scripted CSI driver. The lock guards its exported fields once a client is connected. No function among them
// is called under the lock.
type Driver struct {
	csispec.UnimplementedIdentityServer
	csispec.UnimplementedControllerServer
	csispec.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer
	sync.Mutex

	Name string
	// Address is the path of the socket that Start serves.
	Address string
	// HandlePrefix is what Made leaves out of volume handles.
	HandlePrefix string

	// What the driver answers before it is asked for a volume. Nil means at once and without an error.
	OnProbe            func(ctx context.Context, nth int) (ready bool, err error)
	OnGetPluginInfo    func(ctx context.Context) (name string, err error)
	OnGetCapabilities  func(ctx context.Context) error // of the controller
	OnNodeGetInfo      func(ctx context.Context) (*csispec.NodeGetInfoResponse, error)
	OnNotify           func() error // of the registration's status
	ControllerServices []csispec.ControllerServiceCapability_RPC_Type
	NodeServices       []csispec.NodeServiceCapability_RPC_Type
	NodeInfo           *csispec.NodeGetInfoResponse
	Plugin             *registration.PluginInfo
	// Registrations are the statuses that the driver was notified of.
	Registrations chan *registration.RegistrationStatus

	// Answer answers ControllerPublishVolume and ControllerUnpublishVolume; nth counts all calls from 0.
	Answer func(ctx context.Context, c Call, nth int) (publishContext map[string]string, err error)
	// List answers ListVolumes.
	List func(ctx context.Context, r *csispec.ListVolumesRequest) (*csispec.ListVolumesResponse, error)
	// Lists counts the calls of ListVolumes.
	Lists int
	// Overlaps counts the controller's calls that came while another one for the volume was in flight.
	Overlaps int

	// Before runs before each of the node's calls and may fail it; attempt counts from 1 by method and volume.
	Before func(method, volume string, attempt int) error
	// After runs when the call has done its work and may replace the reply by an error.
	After func(method, volume string, attempt int) error
	// Stats answers NodeGetVolumeStats.
	Stats func(context.Context, *csispec.NodeGetVolumeStatsRequest) (*csispec.NodeGetVolumeStatsResponse, error)
	// Mounts is the mount table: volumes by path. Staged are the staging paths by volume.
	Mounts, Staged map[string]string

	tb       testing.TB
	calls    []Call
	attempts map[string]int
	probes   int
	between  Interceptor
	inFlight map[string][]context.Context // of the controller's calls, by volume
	servers  map[string]*server           // by path of the socket
}

// server is one socket of a driver.
type server struct {
	*grpc.Server
	net.Listener
}

// New is a driver that serves nothing yet. If the test fails, its calls are logged.
func New(tb testing.TB, name string) *Driver {
	tb.Helper()
	d := &Driver{
		Name: name, tb: tb, Mounts: map[string]string{}, Staged: map[string]string{},
		Registrations: make(chan *registration.RegistrationStatus, 100),
		NodeInfo:      &csispec.NodeGetInfoResponse{NodeId: "node"},
	}
	tb.Cleanup(func() {
		if calls := d.Made(); tb.Failed() && len(calls) > 0 {
			tb.Logf("calls that driver %s received: %q", name, calls[max(0, len(calls)-100):])
		}
	})
	return d
}

// SocketDir is a temporary folder whose path is short enough for that of a socket in it.
func SocketDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "csi") //nolint:usetesting // tb.TempDir is too long
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	return dir
}

// Start serves the socket at Address.
func (d *Driver) Start() { d.Listen(d.Address) }

// Stop ends what Start began: connections break, and the socket's file is removed.
func (d *Driver) Stop() { d.Close(d.Address) }

type socketKey struct{}

// Listen serves one more socket until the end of the test. A process that has a socket of its own is known by it. What the driver was
// notified of before is forgotten: one registration may be notified twice, and the second status is none of the next life.
func (d *Driver) Listen(socket string) {
	d.tb.Helper()
	for forgotten := false; !forgotten; {
		select {
		case <-d.Registrations:
		default:
			forgotten = true
		}
	}
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		d.tb.Error(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		d.tb.Error(err)
		return
	}
	s := &server{Listener: listener, Server: grpc.NewServer(grpc.UnaryInterceptor(
		func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			do := func() (any, error) { return handle(context.WithValue(ctx, socketKey{}, socket), request) }
			d.Lock()
			between := d.between
			d.Unlock()
			if between == nil {
				return do()
			}
			return between(path.Base(info.FullMethod), request, do)
		}))}
	csispec.RegisterIdentityServer(s, d)
	csispec.RegisterControllerServer(s, d)
	csispec.RegisterNodeServer(s, d)
	registration.RegisterRegistrationServer(s, d)
	d.Lock()
	if d.servers == nil {
		d.servers = map[string]*server{}
	}
	d.servers[socket] = s
	d.Unlock()
	go func() { _ = s.Serve(listener) }()
	d.tb.Cleanup(s.stop)
}

// Close ends a socket that Listen serves.
func (d *Driver) Close(socket string) {
	d.Lock()
	s := d.servers[socket]
	d.Unlock()
	if s != nil {
		s.stop()
	}
}

// stop removes the socket's file also where the server has not begun to serve it.
func (s *server) stop() {
	s.Server.Stop()
	_ = s.Listener.Close()
}

// Connect is a connection to the driver within the process, for tests in fake time. It has no interceptor.
func (d *Driver) Connect(tb testing.TB) *grpc.ClientConn {
	tb.Helper()
	methods := map[string]grpc.MethodDesc{}
	for _, service := range []grpc.ServiceDesc{csispec.Identity_ServiceDesc, csispec.Controller_ServiceDesc, csispec.Node_ServiceDesc} {
		for _, method := range service.Methods {
			methods["/"+service.ServiceName+"/"+method.MethodName] = method
		}
	}
	conn, err := grpc.NewClient("passthrough:///in-process", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(
		func(ctx context.Context, method string, request, reply any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
			copied := func(to any) error { proto.Merge(to.(proto.Message), request.(proto.Message)); return nil }
			answer, err := methods[method].Handler(d, ctx, copied, nil)
			if hidden, ok := reply.(interface{ Reply() any }); ok { // from the connection's log
				reply = hidden.Reply()
			}
			if err == nil {
				proto.Merge(reply.(proto.Message), answer.(proto.Message))
			}
			return err
		}))
	if err != nil {
		tb.Fatal(err)
	}
	return conn
}

// Interceptor stands between a client and the driver. It knows a call by its gRPC method; do is what the driver would do.
type Interceptor func(call string, request any, do func() (any, error)) (any, error)

// Intercept puts an interceptor in place, or removes it with nil.
func (d *Driver) Intercept(between Interceptor) {
	d.Lock()
	defer d.Unlock()
	d.between = between
}

// SetAnswer sets Answer.
func (d *Driver) SetAnswer(answer func(ctx context.Context, c Call, nth int) (map[string]string, error)) {
	d.Lock()
	defer d.Unlock()
	d.Answer = answer
}

// SetList sets List.
func (d *Driver) SetList(list func(ctx context.Context, r *csispec.ListVolumesRequest) (*csispec.ListVolumesResponse, error)) {
	d.Lock()
	defer d.Unlock()
	d.List = list
}

// SetBefore sets Before.
func (d *Driver) SetBefore(before func(method, volume string, attempt int) error) {
	d.Lock()
	defer d.Unlock()
	d.Before = before
}

// SetAfter sets After.
func (d *Driver) SetAfter(after func(method, volume string, attempt int) error) {
	d.Lock()
	defer d.Unlock()
	d.After = after
}

// LoseMounts empties the mount table, as a reboot does.
func (d *Driver) LoseMounts() {
	d.Lock()
	defer d.Unlock()
	clear(d.Mounts)
}

// ForgetCalls begins a new record of calls.
func (d *Driver) ForgetCalls() {
	d.Lock()
	defer d.Unlock()
	d.calls = nil
	clear(d.attempts)
}

// Calls are the calls so far.
func (d *Driver) Calls() []Call {
	d.Lock()
	defer d.Unlock()
	return slices.Clone(d.calls)
}

// WaitCalls waits for n calls and returns all that were made so far.
func (d *Driver) WaitCalls(n int) []Call {
	d.tb.Helper()
	wait.Until(d.tb, fmt.Sprintf("driver %s has received %d calls", d.Name, n), func() bool { return len(d.Calls()) >= n })
	return d.Calls()
}

// WaitLists waits for n more calls of ListVolumes; n-1 of them have been answered then.
func (d *Driver) WaitLists(n int) {
	d.tb.Helper()
	lists := func() int { d.Lock(); defer d.Unlock(); return d.Lists }
	want := lists() + n
	wait.Until(d.tb, fmt.Sprintf("driver %s has received %d calls of ListVolumes", d.Name, want), func() bool { return lists() >= want })
}

// Made are the calls so far as text: "Stage volume", and "Publish node" for a controller's.
func (d *Driver) Made() (made []string) {
	for _, c := range d.Calls() {
		made = append(made, c.Method+" "+cmp.Or(c.Node, strings.TrimPrefix(c.Volume, d.HandlePrefix)))
	}
	return made
}

// Count is how often a method was called for a volume, without its HandlePrefix; for any volume if that is empty.
func (d *Driver) Count(method, volume string) (n int) {
	for _, c := range d.Calls() {
		if c.Method == method && (volume == "" || strings.TrimPrefix(c.Volume, d.HandlePrefix) == volume) {
			n++
		}
	}
	return n
}

// LastRequest is the last request of a type.
func LastRequest[R any](d *Driver) (last R) {
	d.tb.Helper()
	for _, c := range slices.Backward(d.Calls()) {
		if r, ok := c.Request.(R); ok {
			return r
		}
	}
	d.tb.Fatalf("driver %s received no %T", d.Name, last)
	return last
}

// MountPoints are the paths in the mount table.
func (d *Driver) MountPoints() ([]string, error) {
	d.Lock()
	defer d.Unlock()
	points := make([]string, 0, len(d.Mounts))
	for point := range d.Mounts {
		points = append(points, point)
	}
	return points, nil
}

// Registered waits until the driver is notified of its registration.
func (d *Driver) Registered() *registration.RegistrationStatus {
	d.tb.Helper()
	return wait.For(d.tb, "driver "+d.Name+" to be notified of its registration", d.Registrations)
}

// WantRegistered waits until the driver is notified that it is registered, or of an error that contains the text.
func (d *Driver) WantRegistered(failure string) {
	d.tb.Helper()
	status := d.Registered()
	switch {
	case failure == "" && !status.PluginRegistered:
		d.tb.Errorf("driver %s is not registered: %s", d.Name, status.Error)
	case failure != "" && (status.PluginRegistered || !strings.Contains(status.Error, failure)):
		d.tb.Errorf("driver %s was notified of %+v, want the error %q", d.Name, status, failure)
	}
}
