package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
)

// handlers are the handlers of the HTTP endpoints.
type handlers struct {
	// ready returns why the process is not ready, or nil.
	ready func() error
	// metrics are served at /metrics; nil disables it.
	metrics prometheus.Gatherer
}

func (h handlers) mux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := h.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	if h.metrics != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(h.metrics, promhttp.HandlerOpts{}))
	}
	return mux
}

// listen opens both addresses, which may be the same, and returns the function that serves them until ctx is done.
func (o options) listen(ctx context.Context, h handlers) (serve func(context.Context) error, err error) {
	probes := h
	probes.metrics = nil
	at := map[string]handlers{o.healthAddress: probes}
	at[o.metricsAddress] = h
	var servers []func(context.Context) error
	var listeners []net.Listener
	for address, h := range at {
		if address == "" || address == "0" {
			continue
		}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			for _, open := range listeners {
				_ = open.Close()
			}
			return nil, fmt.Errorf("listen for probes and metrics: %w", err)
		}
		listeners = append(listeners, listener)
		servers = append(servers, func(ctx context.Context) error { return answer(ctx, listener, h.mux()) })
	}
	return func(ctx context.Context) error {
		serving, ctx := errgroup.WithContext(ctx)
		for _, server := range servers {
			serving.Go(func() error { return server(ctx) })
		}
		return serving.Wait()
	}, nil
}

func answer(ctx context.Context, listener net.Listener, mux *http.ServeMux) error {
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve probes and metrics at %s: %w", listener.Addr(), err)
	}
	return nil
}
