package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

func start(t *testing.T, handler http.HandlerFunc) (*Proxy, *httptest.Server) {
	t.Helper()
	server := httptest.NewServer(handler)
	p, err := Start(t.Context(), &rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return p, server
}

func send(t *testing.T, p *Proxy, method, path, body string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, p.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return string(answer), err
}

func TestStopClock(t *testing.T) {
	p, _ := start(t, func(http.ResponseWriter, *http.Request) {})
	at := time.Date(2026, time.January, 2, 12, 0, 0, 0, time.UTC)
	p.StopClock(at)
	response, err := http.Get(p.URL() + "/api/v1/pods")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if dates := response.Header.Values("Date"); len(dates) != 1 || dates[0] != at.Format(http.TimeFormat) {
		t.Errorf("the answer is dated %v, want %v", dates, at)
	}
}

func TestRequestsAreRead(t *testing.T) {
	for path, want := range map[string]string{
		"GET /api/v1/pods":                                                 "list pods",
		"GET /api/v1/pods?watch=true":                                      "watch pods",
		"GET /api/v1/nodes/n":                                              "get nodes",
		"PATCH /api/v1/nodes/n/status":                                     "patch nodes/status",
		"POST /apis/storage.k8s.io/v1/volumeattachments":                   "create volumeattachments",
		"DELETE /apis/storage.k8s.io/v1/volumeattachments/csi-x":           "delete volumeattachments",
		"PUT /apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l": "update leases",
		"POST /api/v1/namespaces/default/events":                           "create events",
	} {
		method, target, _ := strings.Cut(path, " ")
		r, err := read(httptest.NewRequest(method, target, strings.NewReader("body")))
		if err != nil {
			t.Fatal(err)
		}
		if r.Right() != want {
			t.Errorf("%s is read as %q, want %q", path, r.Right(), want)
		}
		if r.IsWrite() != (string(r.Body) == "body") {
			t.Errorf("%s: write %v with body %q", path, r.IsWrite(), r.Body)
		}
	}
}

func TestHeldBackWatchIsDelayed(t *testing.T) {
	p, _ := start(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s\n", r.URL.Path)
	})
	// What is held back does not come early. What is not comes at all, although the lag is an hour.
	for lag, paths := range map[time.Duration][]string{
		200 * time.Millisecond: {"/api/v1/pods?watch=true", "/api/v1/pods"}, time.Hour: {"/api/v1/pods/x", "/api/v1/nodes?watch=true"},
	} {
		p.HoldBack("pods", lag)
		for _, path := range paths {
			began := time.Now()
			answer, err := send(t, p, http.MethodGet, path, "")
			if err != nil || !strings.HasPrefix(path, strings.TrimSpace(answer)) {
				t.Fatalf("%s: %q, %v", path, answer, err)
			}
			if took := time.Since(began); lag < time.Hour && took < lag {
				t.Errorf("%s took %v, want at least %v", path, took, lag)
			}
		}
	}
}

func TestDelayKeepsOrderAndEndsWithReader(t *testing.T) {
	reader, writer := io.Pipe()
	late := delay(reader, func() time.Duration { return 20 * time.Millisecond })
	go func() {
		for i := range 50 {
			fmt.Fprintf(writer, "%02d", i)
		}
		writer.Close()
	}()
	all, err := io.ReadAll(late)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		if got := string(all[2*i : 2*i+2]); got != fmt.Sprintf("%02d", i) {
			t.Fatalf("piece %d is %q", i, got)
		}
	}
	if err := late.Close(); err != nil {
		t.Error(err)
	}
}

func TestInterceptorCutsBeforeAndAfter(t *testing.T) {
	for moment, reaches := range map[Moment]bool{Before: false, After: true} {
		t.Run(string(moment), func(t *testing.T) {
			var reached atomic.Int32
			p, _ := start(t, func(w http.ResponseWriter, r *http.Request) {
				reached.Add(1)
				_ = json.NewEncoder(w).Encode("done")
			})
			p.Intercept(func(m Moment, r Request) bool { return m != moment || r.Right() != "patch nodes/status" })
			if answer, err := send(t, p, http.MethodPatch, "/api/v1/nodes/n/status", "{}"); err == nil {
				t.Errorf("got the answer %q", answer)
			}
			if got := reached.Load() > 0; got != reaches {
				t.Errorf("reached the server: %v, want %v", got, reaches)
			}
			if got := len(p.Writes()) > 0; got != reaches {
				t.Errorf("writes: %+v", p.Writes())
			}
			if _, err := send(t, p, http.MethodPatch, "/api/v1/nodes/n", "{}"); err != nil {
				t.Errorf("another request: %v", err)
			}
		})
	}
}

func TestProxyEndsWithItsContext(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	ctx, stop := context.WithCancel(t.Context())
	p, err := Start(ctx, &rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	deadline := time.Now().Add(2 * time.Minute)
	for time.Now().Before(deadline) {
		if _, err := send(t, p, http.MethodGet, "/", ""); err != nil {
			return
		}
	}
	t.Error("it still answers")
}
