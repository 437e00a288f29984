package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/testing/process"
)

func TestIsAnswer(t *testing.T) {
	resource := schema.GroupResource{Resource: "volumeattachments"}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"none":            {nil, false},
		"no connection":   {errors.New("connection refused"), false},
		"timed out":       {context.DeadlineExceeded, false},
		"not found":       {fmt.Errorf("read: %w", apierrors.NewNotFound(resource, "x")), true},
		"conflict":        {apierrors.NewConflict(resource, "x", errors.New("changed")), true},
		"forbidden":       {apierrors.NewForbidden(resource, "x", errors.New("no")), true},
		"too many":        {apierrors.NewTooManyRequests("later", 1), true},
		"request timeout": {apierrors.NewTimeoutError("slow", 1), false},
		"server timeout":  {apierrors.NewServerTimeout(resource, "create", 1), false},
		"internal":        {apierrors.NewInternalError(errors.New("etcd")), false},
	} {
		if got := IsAnswer(c.err); got != c.want {
			t.Errorf("%s: %v is an answer: %v, want %v", name, c.err, got, c.want)
		}
	}
}

// Any answer will do; without one, the error names the server and the cause, and nothing else.
func TestReach(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	config := &rest.Config{Host: server.URL}
	if err := Reach(t.Context(), config); err != nil {
		t.Errorf("a refusal: %v", err)
	}
	server.Close()
	config.Host = "http://" + process.FreeAddress()
	err := Reach(t.Context(), config)
	if err == nil || !strings.HasPrefix(err.Error(), "cannot reach "+config.Host+": dial tcp") {
		t.Errorf("no answer: %v", err)
	}
}
