package kubectl

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/testing/apiserver"
)

// broken answers requests for one resource as a failing API server does, and passes the others on.
type broken struct {
	http.RoundTripper
	resource string
	fail     func(*http.Request) (*http.Response, error)
}

func (b broken) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.Contains(r.URL.Path+"/", "/"+b.resource+"/") {
		return b.fail(r)
	}
	return b.RoundTripper.RoundTrip(r)
}

func status(code int, reason string) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": %q, "code": %d, "message": "injected"}`, reason, code)
		answer := w.Result()
		answer.Request = r
		return answer, nil
	}
}

// through is a kubeconfig for an API server that fails.
func through(t *testing.T, b broken) string {
	t.Helper()
	config := server.Config()
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	b.RoundTripper = transport
	target, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(&httputil.ReverseProxy{
		Transport: b, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	})
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
	})
	return apiserver.Kubeconfig(t, &rest.Config{Host: front.URL})
}

// TestFailingAPIServer: whatever the API server answers for one resource, the output says so, and a pod that waits is never clear.
func TestFailingAPIServer(t *testing.T) {
	server.Start(t)
	namespaces(t, "failing")
	create(t, node("fa", "v-failing"))
	create(t, node("fb"))
	held(t, "failing", "v-failing", "fa", "fb")
	failures := map[string]func(*http.Request) (*http.Response, error){
		"403": status(http.StatusForbidden, "Forbidden"), "404": status(http.StatusNotFound, "NotFound"), "410": status(http.StatusGone, "Expired"), //nolint:bodyclose // the proxy closes them
		"500": status(http.StatusInternalServerError, "InternalError"), "empty": status(http.StatusOK, ""), //nolint:bodyclose // the proxy closes them
		"cut": func(*http.Request) (*http.Response, error) { return nil, http.ErrServerClosed },
	}
	t.Run("each", func(t *testing.T) { failEach(t, failures) }) // ends before the objects go
}

func failEach(t *testing.T, failures map[string]func(*http.Request) (*http.Response, error)) {
	t.Helper()
	for name, fail := range failures {
		for _, resource := range []string{"pods", "persistentvolumeclaims", "persistentvolumes", "volumeattachments", "nodes", "csinodes", "csidrivers", "leases", "events"} {
			if name == "cut" && resource != "volumeattachments" && resource != "pods" {
				continue // each is retried for ten seconds
			}
			t.Run(name+"/"+resource, func(t *testing.T) {
				t.Parallel()
				kubeconfig := through(t, broken{resource: resource, fail: fail})
				got := run(t, kubeconfig, "explain", "pod/failing-waiter", "-n", "failing", "--request-timeout", "2m")
				if got.status == StatusClear && !strings.HasPrefix(got.out, "IN PROGRESS") {
					t.Errorf("exit status 0:\n%s%s", got.out, got.err)
				}
				if strings.Contains(got.out, "CLEAR") {
					t.Errorf("a pod that waits is clear:\n%s%s", got.out, got.err)
				}
				if told := resource == "csinodes" || name == "404" && resource != "volumeattachments"; !told && !strings.Contains(got.out+got.err, resource) {
					t.Errorf("the output does not say that %s could not be read:\n%s%s", resource, got.out, got.err)
				}
			})
		}
	}
}

// TestHangingAPIServer: the command ends at --request-timeout, and says what did not answer.
func TestHangingAPIServer(t *testing.T) {
	server.Start(t)
	namespaces(t, "hanging")
	create(t, node("ha", "v-hanging"))
	create(t, node("hb"))
	held(t, "hanging", "v-hanging", "ha", "hb")
	kubeconfig := through(t, broken{resource: "leases", fail: func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}})
	var got answer
	for timeout := 5 * time.Second; ; timeout *= 2 { // which is that of each request: on a busy machine others may need more
		got = run(t, kubeconfig, "explain", "pod/hanging-waiter", "-n", "hanging", "--request-timeout", timeout.String())
		if got.status != StatusError || timeout > 30*time.Second {
			break
		}
	}
	if got.status != StatusBlocked || !strings.Contains(got.out, "list leases: ") {
		t.Errorf("exit status %d, want 2 and that the leases did not answer:\n%s%s", got.status, got.out, got.err)
	}
}
