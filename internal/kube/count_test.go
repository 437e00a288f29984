package kube

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
)

func TestWritesAreCounted(t *testing.T) {
	tests := []struct {
		method, path string
		fail         bool
		want         string // "" for not counted
	}{
		{http.MethodPatch, "/api/v1/nodes/n/status", false, "nodes/status PATCH 200"},
		{http.MethodPost, "/apis/storage.k8s.io/v1/volumeattachments", false, "volumeattachments POST 200"},
		{http.MethodDelete, "/apis/storage.k8s.io/v1/volumeattachments/csi-1", true, "volumeattachments DELETE 0"},
		{http.MethodPost, "/api/v1/namespaces/default/events", false, "events POST 200"},
		{http.MethodPatch, "/apis/events.k8s.io/v1/namespaces/default/events/e", false, "events PATCH 200"},
		{http.MethodGet, "/api/v1/nodes/n", false, ""},
		{http.MethodPost, "/odd", false, "other POST 200"},
	}
	for _, tt := range tests {
		var got []string
		c := counter{
			count: func(resource, verb string, code int) { got = append(got, fmt.Sprint(resource, " ", verb, " ", code)) },
			next: roundTripper(func(*http.Request) (*http.Response, error) {
				if tt.fail {
					return nil, errors.New("no answer")
				}
				return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
			}),
		}
		request, err := http.NewRequestWithContext(t.Context(), tt.method, "http://api"+tt.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := c.RoundTrip(request)
		if answer != nil {
			_ = answer.Body.Close()
		}
		if (err != nil) != tt.fail {
			t.Errorf("%s %s: error %v", tt.method, tt.path, err)
		}
		var want []string
		if tt.want != "" {
			want = []string{tt.want}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s %s: counted %v, want %v", tt.method, tt.path, got, want)
		}
	}
}
