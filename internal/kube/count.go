package kube

import (
	"net/http"
	"strings"

	"k8s.io/client-go/rest"
)

// CountWrites calls count for each write that a client of the config sends: resource and subresource ("nodes/status"), HTTP verb,
// and status, 0 without an answer.
func CountWrites(config *rest.Config, count func(resource, verb string, code int)) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return counter{count: count, next: next}
	})
	return config
}

type counter struct {
	count func(resource, verb string, code int)
	next  http.RoundTripper
}

// RoundTrip passes the request on and counts it.
func (c counter) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := c.next.RoundTrip(r)
	if r.Method != http.MethodGet {
		code := 0
		if answer != nil {
			code = answer.StatusCode
		}
		c.count(resourceOf(r.URL.Path), r.Method, code)
	}
	return answer, err
}

// resourceOf reads "resource[/subresource]" from the path of a request:
// /api/v1/... or /apis/group/version/..., then maybe namespaces/name, then
// resource[/name[/subresource]].
func resourceOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		parts = parts[3:]
	default:
		return "other"
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	if len(parts) > 2 {
		return parts[0] + "/" + parts[2]
	}
	return parts[0]
}
