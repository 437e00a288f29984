package csi

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"belay.dev/belay/internal/testing/wait"
)

// A plugin comes back while the earlier one was being registered at the driver's socket, which was going down. It must not get the
// status of the failed registration, after which node-driver-registrar exits.
func TestRegistrationStatusIsForItsPluginOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "reg.sock")
	before := process(t, path, "driver.test")
	r, err := DialRegistration(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Timeout)
	defer cancel()
	if got, err := r.Info(ctx); err != nil || got.Name != "driver.test" {
		t.Fatalf("%+v, %v", got, err)
	}
	before.Stop()
	after := process(t, path, "driver.test")
	r.conn.WaitForStateChange(ctx, connectivity.Ready)
	if err := r.Notify(ctx, errors.New("its socket is gone")); err == nil {
		t.Error("the plugin was notified after it had exited")
	}
	select {
	case status := <-after.Registrations:
		t.Errorf("the next one was notified of %+v", status)
	default:
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
	ctx, cancel := context.WithTimeout(t.Context(), wait.Timeout)
	defer cancel()
	found := make(chan error, 1)
	go func() {
		_, err := r.Info(ctx)
		found <- err
	}()
	time.Sleep(50 * time.Millisecond) // so that the first attempt fails
	process(t, path, "driver.test")
	if err := <-found; err != nil {
		t.Error(err)
	}
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
	ctx, cancel := context.WithTimeout(t.Context(), wait.Timeout)
	defer cancel()
	if _, err := node.Info(ctx); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Fatalf("nothing listens: %v", err)
	}
	process(t, path, "driver.test")
	waitLongToConnect(t)
	if info, err := node.Info(ctx); err != nil || info.NodeID != "node" {
		t.Errorf("%+v, %v", info, err)
	}
}

// waitLongToConnect lets Info wait as long as a busy machine needs.
func waitLongToConnect(t *testing.T) {
	t.Helper()
	shipped := connectTimeout
	connectTimeout = wait.Timeout
	t.Cleanup(func() { connectTimeout = shipped })
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
