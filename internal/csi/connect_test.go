package csi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/wait"
)

var attaches = []csispec.ControllerServiceCapability_RPC_Type{csispec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}

// No test is about the end of a call that a driver answers from memory.
func TestMain(m *testing.M) {
	ShortTimeout = wait.Timeout
	os.Exit(m.Run())
}

// process is a driver's process: it serves the socket until it is stopped.
func process(t *testing.T, socket, name string, change ...func(*csidriver.Driver)) *csidriver.Driver {
	t.Helper()
	d := csidriver.New(t, name)
	d.Address, d.ControllerServices = socket, attaches
	for _, f := range change {
		f(d)
	}
	d.Start()
	return d
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
	if m.driver, err = Connect(t.Context(), path, nil, wait.Timeout); err != nil {
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

// A driver that restarts loses the call that was in flight, and nothing else; no call
// is sent before the new process said who it is.
func TestDriverRestarts(t *testing.T) {
	path := filepath.Join(csidriver.SocketDir(t), "csi.sock")
	arrived := make(chan struct{})
	first := process(t, path, "d", func(d *csidriver.Driver) {
		d.Answer = func(ctx context.Context, _ csidriver.Call, _ int) (map[string]string, error) {
			close(arrived)
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	m := meet(t, path, 0, nil)
	if !m.driver.Present() {
		t.Error("the driver is not present")
	}
	inFlight := make(chan error, 1)
	go func() { inFlight <- m.publish(t.Context()) }()
	wait.For(t, "the call", arrived)
	first.Stop()
	if err := wait.For(t, "the end of the call", inFlight); OutcomeOf(err) != Unknown || err == nil {
		t.Errorf("call in flight: %v, outcome %v, want Unknown", err, OutcomeOf(err))
	}
	wait.Until(t, "the driver is absent without a connection", func() bool { return !m.controller.Present() })

	probed, ready := make(chan struct{}), make(chan struct{})
	second := process(t, path, "d", func(d *csidriver.Driver) {
		d.OnProbe = func(_ context.Context, nth int) (bool, error) {
			switch nth {
			case 1:
				return false, status.Error(codes.FailedPrecondition, "still starting") // no end, as at the start
			case 2:
				close(probed)
				<-ready
			}
			return nth > 2, nil
		}
	})
	wait.For(t, "the second probe", probed)
	if err := m.publish(t.Context()); OutcomeOf(err) != Unknown || !strings.Contains(err.Error(), "waiting for the CSI driver to reconnect") {
		t.Errorf("call to a driver that has not said who it is: %v", err)
	}
	close(ready)
	wait.For(t, "the return", m.back)
	if err := m.publish(t.Context()); err != nil {
		t.Error(err)
	}
	if got := len(second.Calls()); got != 1 {
		t.Errorf("the new process received %d calls, want 1: none before it said who it is", got)
	}
	if !m.driver.Present() {
		t.Error("the driver is not present again")
	}
}

// A driver that comes back as another one, or not at all, is an end; it gets no call.
func TestDriverChanges(t *testing.T) {
	type change = func(*csidriver.Driver)
	readOnly := func(d *csidriver.Driver) {
		d.ControllerServices = append(slices.Clone(attaches), csispec.ControllerServiceCapability_RPC_PUBLISH_READONLY)
	}
	probe := func(f func(ctx context.Context, nth int) (bool, error)) change {
		return func(d *csidriver.Driver) { d.OnProbe = f }
	}
	hang := func(ctx context.Context, _ int) (bool, error) { <-ctx.Done(); return false, ctx.Err() }
	notReady := func(context.Context, int) (bool, error) { return false, nil }
	const soon = 1500 * time.Millisecond
	for name, test := range map[string]struct {
		next   change // nil if there is no next one
		atMost time.Duration
		want   error
	}{
		"another name":         {func(d *csidriver.Driver) { d.Name = "e" }, wait.Timeout, ErrDriverChanged},
		"another capability":   {readOnly, wait.Timeout, ErrDriverChanged},
		"not at all":           {nil, soon, errAbsent},
		"back, and not ready":  {probe(notReady), soon, errAbsent},
		"back, with no answer": {probe(hang), soon, errAbsent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(csidriver.SocketDir(t), "csi.sock")
			first := process(t, path, "d")
			m := meet(t, path, test.atMost, nil)
			first.Stop()
			next := csidriver.New(t, "d") // which serves nothing
			if test.next != nil {
				next = process(t, path, "d", test.next)
			}
			if err := wait.For(t, "the end", m.ended); !errors.Is(err, test.want) {
				t.Errorf("ended with %v, want %v", err, test.want)
			}
			if err := m.publish(t.Context()); err == nil {
				t.Error("a call was sent")
			}
			if len(next.Calls()) != 0 {
				t.Error("a call was received")
			}
		})
	}
}

// A call that is not permitted is not sent, and its effect on the volume is unknown.
func TestPermissionIsAskedBeforeEachCall(t *testing.T) {
	path := filepath.Join(csidriver.SocketDir(t), "csi.sock")
	driver := process(t, path, "d")
	var refused error
	m := meet(t, path, 0, func() error { return refused })
	if err := m.publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused = errors.New("no lease")
	if err := m.publish(t.Context()); OutcomeOf(err) != Unknown || !strings.Contains(err.Error(), "no lease") {
		t.Errorf("got %v", err)
	}
	if got := len(driver.Calls()); got != 1 {
		t.Errorf("received %d calls", got)
	}
}
