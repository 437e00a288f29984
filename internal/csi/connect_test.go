package csi

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	corev1 "k8s.io/api/core/v1"
)

// life is one life of a driver's process: a server on a socket.
type life struct {
	csispec.UnimplementedIdentityServer
	csispec.UnimplementedControllerServer

	name         string
	capabilities []csispec.ControllerServiceCapability_RPC_Type
	probe        func(ctx context.Context, nth int) (bool, error) // nil: ready
	publish      func(ctx context.Context) error

	server *grpc.Server

	mu        sync.Mutex
	probes    int
	published int
}

var attaches = []csispec.ControllerServiceCapability_RPC_Type{csispec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}

func (l *life) GetPluginInfo(context.Context, *csispec.GetPluginInfoRequest) (*csispec.GetPluginInfoResponse, error) {
	return &csispec.GetPluginInfoResponse{Name: l.name}, nil
}

func (l *life) Probe(ctx context.Context, _ *csispec.ProbeRequest) (*csispec.ProbeResponse, error) {
	l.mu.Lock()
	l.probes++
	nth := l.probes
	l.mu.Unlock()
	if l.probe == nil {
		return &csispec.ProbeResponse{}, nil
	}
	ready, err := l.probe(ctx, nth)
	return &csispec.ProbeResponse{Ready: wrapperspb.Bool(ready)}, err
}

func (l *life) GetPluginCapabilities(context.Context, *csispec.GetPluginCapabilitiesRequest) (*csispec.GetPluginCapabilitiesResponse, error) {
	return &csispec.GetPluginCapabilitiesResponse{Capabilities: []*csispec.PluginCapability{{
		Type: &csispec.PluginCapability_Service_{Service: &csispec.PluginCapability_Service{Type: csispec.PluginCapability_Service_CONTROLLER_SERVICE}},
	}}}, nil
}

func (l *life) ControllerGetCapabilities(context.Context, *csispec.ControllerGetCapabilitiesRequest) (*csispec.ControllerGetCapabilitiesResponse, error) {
	reply := &csispec.ControllerGetCapabilitiesResponse{}
	for _, c := range l.capabilities {
		reply.Capabilities = append(reply.Capabilities, &csispec.ControllerServiceCapability{
			Type: &csispec.ControllerServiceCapability_Rpc{Rpc: &csispec.ControllerServiceCapability_RPC{Type: c}},
		})
	}
	return reply, nil
}

func (l *life) ControllerPublishVolume(ctx context.Context, _ *csispec.ControllerPublishVolumeRequest) (*csispec.ControllerPublishVolumeResponse, error) {
	l.mu.Lock()
	l.published++
	l.mu.Unlock()
	if l.publish != nil {
		return nil, l.publish(ctx)
	}
	return &csispec.ControllerPublishVolumeResponse{}, nil
}

func (l *life) received() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.published
}

// socket makes a path that is short enough for a socket.
func socket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "belay") //nolint:usetesting // t.TempDir() is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "csi.sock")
}

// begin serves on a socket until the life ends.
func begin(t *testing.T, l *life, path string) *life {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.server = grpc.NewServer()
	csispec.RegisterIdentityServer(l.server, l)
	csispec.RegisterControllerServer(l.server, l)
	go func() { _ = l.server.Serve(listener) }()
	t.Cleanup(l.server.Stop)
	return l
}

// meeting is a Driver that is followed.
type meeting struct {
	driver     *Driver
	controller *Controller
	back       chan struct{}
	ended      chan error
}

func meet(t *testing.T, path string, atMost time.Duration, permit func() error) *meeting {
	t.Helper()
	m := &meeting{back: make(chan struct{}, 9), ended: make(chan error, 1)}
	var err error
	if m.driver, err = Connect(t.Context(), path, nil, patience); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.driver.Close)
	if m.controller, err = m.driver.Controller(t.Context(), permit); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		m.ended <- m.driver.Follow(ctx, Absence{Back: func() { m.back <- struct{}{} }, AtMost: atMost})
		close(m.ended)
	}()
	t.Cleanup(func() { cancel(); <-m.ended })
	return m
}

func (m *meeting) publish(ctx context.Context) error {
	_, err := m.controller.Publish(ctx, PublishRequest{
		VolumeHandle: "v", NodeID: "n", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
	})
	return err
}

// patience is how long a test waits for what must happen, also on a machine that is busy with much else.
const patience = 2 * time.Minute

func within[T any](t *testing.T, what string, c <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-c:
	case <-time.After(patience):
		t.Fatalf("%s did not happen", what)
	}
	return got
}

// A driver that restarts loses the call that was in flight, and nothing else; no call
// is sent before the new process said who it is.
func TestDriverRestarts(t *testing.T) {
	path := socket(t)
	arrived := make(chan struct{})
	first := begin(t, &life{name: "d", capabilities: attaches, publish: func(ctx context.Context) error {
		close(arrived)
		<-ctx.Done()
		return ctx.Err()
	}}, path)
	m := meet(t, path, 0, nil)
	if !m.driver.Present() {
		t.Error("the driver is not present")
	}
	inFlight := make(chan error, 1)
	go func() { inFlight <- m.publish(t.Context()) }()
	within(t, "the call", arrived)
	first.server.Stop()
	if err := within(t, "the end of the call", inFlight); OutcomeOf(err) != Unknown || err == nil {
		t.Errorf("call in flight: %v, outcome %v, want Unknown", err, OutcomeOf(err))
	}
	for deadline := time.Now().Add(patience); m.controller.Present(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the driver is present without a connection")
		}
	}

	probed, ready := make(chan struct{}), make(chan struct{})
	second := begin(t, &life{name: "d", capabilities: attaches, probe: func(_ context.Context, nth int) (bool, error) {
		switch nth {
		case 1:
			return false, status.Error(codes.FailedPrecondition, "still starting") // no end, as at the start
		case 2:
			close(probed)
			<-ready
		}
		return nth > 2, nil
	}}, path)
	within(t, "the second probe", probed)
	if err := m.publish(t.Context()); OutcomeOf(err) != Unknown || !strings.Contains(err.Error(), "waiting for the CSI driver to reconnect") {
		t.Errorf("call to a driver that has not said who it is: %v", err)
	}
	close(ready)
	within(t, "the return", m.back)
	if err := m.publish(t.Context()); err != nil {
		t.Error(err)
	}
	if got := second.received(); got != 1 {
		t.Errorf("the new process received %d calls, want 1: none before it said who it is", got)
	}
	if !m.driver.Present() {
		t.Error("the driver is not present again")
	}
}

// A driver that comes back as another one, or not at all, is an end; it gets no call.
func TestDriverChanges(t *testing.T) {
	readOnly := append(slices.Clone(attaches), csispec.ControllerServiceCapability_RPC_PUBLISH_READONLY)
	hang := func(ctx context.Context, _ int) (bool, error) { <-ctx.Done(); return false, ctx.Err() }
	notReady := func(context.Context, int) (bool, error) { return false, nil }
	const soon = 1500 * time.Millisecond
	for name, test := range map[string]struct {
		next   *life
		atMost time.Duration
		want   error
	}{
		"another name":         {&life{name: "e", capabilities: attaches}, patience, ErrDriverChanged},
		"another capability":   {&life{name: "d", capabilities: readOnly}, patience, ErrDriverChanged},
		"not at all":           {nil, soon, errAbsent},
		"back, and not ready":  {&life{name: "d", capabilities: attaches, probe: notReady}, soon, errAbsent},
		"back, with no answer": {&life{name: "d", capabilities: attaches, probe: hang}, soon, errAbsent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := socket(t)
			first := begin(t, &life{name: "d", capabilities: attaches}, path)
			m := meet(t, path, test.atMost, nil)
			first.server.Stop()
			if test.next != nil {
				begin(t, test.next, path)
			}
			if err := within(t, "the end", m.ended); !errors.Is(err, test.want) {
				t.Errorf("ended with %v, want %v", err, test.want)
			}
			if err := m.publish(t.Context()); err == nil {
				t.Error("a call was sent")
			}
			if test.next != nil && test.next.received() != 0 {
				t.Error("a call was received")
			}
		})
	}
}

// A call that is not permitted is not sent, and its effect on the volume is unknown.
func TestPermissionIsAskedBeforeEachCall(t *testing.T) {
	path := socket(t)
	driver := begin(t, &life{name: "d", capabilities: attaches}, path)
	var refused error
	m := meet(t, path, 0, func() error { return refused })
	if err := m.publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused = errors.New("no lease")
	if err := m.publish(t.Context()); OutcomeOf(err) != Unknown || !strings.Contains(err.Error(), "no lease") {
		t.Errorf("got %v", err)
	}
	if got := driver.received(); got != 1 {
		t.Errorf("received %d calls", got)
	}
}
