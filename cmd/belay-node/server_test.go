package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"

	"belay.dev/belay/internal/testing/process"
)

func TestEndpoints(t *testing.T) {
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "eggs_total", Help: "Eggs."})
	registry := prometheus.NewRegistry()
	registry.MustRegister(counter)
	missing := errors.New("node n has not been read")
	for name, c := range map[string]struct {
		handlers handlers
		path     string
		code     int
		says     string
	}{
		"alive":               {handlers{ready: func() error { return missing }}, "/healthz", http.StatusOK, "ok"},
		"not ready":           {handlers{ready: func() error { return missing }}, "/readyz", http.StatusServiceUnavailable, missing.Error()},
		"ready":               {handlers{ready: func() error { return nil }}, "/readyz", http.StatusOK, "ok"},
		"metrics":             {handlers{metrics: registry}, "/metrics", http.StatusOK, "eggs_total 0"},
		"probes without them": {handlers{}, "/metrics", http.StatusNotFound, ""},
		"the libraries'":      {handlers{metrics: legacyregistry.DefaultGatherer}, "/metrics", http.StatusOK, "process_resident_memory_bytes"},
	} {
		answer := httptest.NewRecorder()
		c.handlers.mux().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, c.path, nil))
		if answer.Code != c.code || !strings.Contains(answer.Body.String(), c.says) {
			t.Errorf("%s: %d %q, want %d %q", name, answer.Code, answer.Body, c.code, c.says)
		}
	}
}

// Both addresses may be one; each may be off; one that is taken ends the program.
func TestAddresses(t *testing.T) {
	h := handlers{ready: func() error { return nil }, metrics: prometheus.NewRegistry()}
	one, other := process.FreeAddress(), process.FreeAddress()
	for name, c := range map[string]struct {
		o            options
		health, have map[string]int // status by path
	}{
		"two":  {o: options{healthAddress: one, metricsAddress: other}, health: map[string]int{"/healthz": 200, "/metrics": 404}, have: map[string]int{"/metrics": 200, "/readyz": 200}},
		"same": {o: options{healthAddress: one, metricsAddress: one}, health: map[string]int{"/healthz": 200, "/metrics": 200}},
		"off":  {o: options{healthAddress: one, metricsAddress: "0"}, health: map[string]int{"/healthz": 200, "/metrics": 404}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			served := make(chan error, 1)
			serve, err := c.o.listen(ctx, h)
			if err != nil {
				t.Fatal(err)
			}
			go func() { served <- serve(ctx) }()
			for path, code := range c.health {
				wantCode(t, c.o.healthAddress, path, code)
			}
			for path, code := range c.have {
				wantCode(t, c.o.metricsAddress, path, code)
			}
			cancel()
			if err := <-served; err != nil {
				t.Error(err)
			}
		})
	}
	taken, err := net.Listen("tcp", one)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if _, err := (options{healthAddress: "0", metricsAddress: one}).listen(t.Context(), h); err == nil {
		t.Error("no error although the address is taken")
	}
}

func wantCode(t *testing.T, address, path string, code int) {
	t.Helper()
	if status, _ := process.Get(t, address, path); status != code {
		t.Errorf("%s%s: %d, want %d", address, path, status, code)
	}
}
