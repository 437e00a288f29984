package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"belay.dev/belay/lab/hollowkubelet/statuses"
	"belay.dev/belay/lab/socket"
)

// fleet is all kubelets of the process.
type fleet struct {
	kubeconfig, config, dir string
	nodes                   int

	// started and ticks are those of statuses.State.
	started, ticks atomic.Int64
}

func (f *fleet) run(ctx context.Context) error {
	// With a real OS interface kubelet removes logs by names that are relative to the working directory.
	empty := filepath.Join(f.dir, "empty")
	if err := os.MkdirAll(empty, 0o755); err != nil {
		return fmt.Errorf("make the kubelets' folder: %w", err)
	}
	if err := os.Chdir(empty); err != nil {
		return fmt.Errorf("enter the kubelets' folder: %w", err)
	}
	go func() {
		for i := range f.nodes {
			if err := f.start(ctx, fmt.Sprintf("hollow-%04d", i)); err != nil {
				klog.Fatalf("starting kubelet %d of %d: %v", i+1, f.nodes, err)
			}
			f.started.Add(1)
		}
	}()
	return f.serve()
}

// serve answers until the process ends.
func (f *fleet) serve() error {
	listener, err := socket.Listen(filepath.Join(f.dir, statuses.Socket))
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(statuses.State{Started: f.started.Load(), Ticks: f.ticks.Load()}) //nolint:errchkjson // a client that went away needs no answer
	})}
	return fmt.Errorf("serve the kubelets' state: %w", server.Serve(listener))
}
