// Package hostile is for tests of what others may write: a text that a terminal could obey, and an API server whose errors have it.
package hostile

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Text has a control sequence of each kind (C0 with OSC and CSI, C1, DEL), what turns a line around, and what begins one.
const Text = "\x1b]0;title\a\x1b[2J\u009b2J\u202e\u2066\x7f\r\nFORGED\t\u2028"

// Shown is a part of Text as programs print it.
const Shown = `\u202e`

// Check fails a test for the first rune of an output that a terminal could obey.
func Check(tb testing.TB, what, output string) {
	tb.Helper()
	for i, r := range output {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			tb.Errorf("%s has %U: %q", what, r, output[max(0, i-60):min(len(output), i+20)])
			return
		}
	}
}

// Refuse answers with an error of an API server, with the text in each of its fields.
func Refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Add("Warning", "299 - \"\u009b2J\u202e\"")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(&metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: Text,
		Details: &metav1.StatusDetails{Name: Text, Group: Text, Kind: Text, Causes: []metav1.StatusCause{{Type: Text, Message: Text, Field: Text}}},
	})
}

// Server is an API server that refuses everything. With the configuration of another one it says what that one serves: programs that map
// kinds to resources do not start without.
func Server(tb testing.TB, serves *rest.Config) *httptest.Server {
	tb.Helper()
	discovery := http.NotFoundHandler()
	if serves != nil {
		transport, err := rest.TransportFor(serves)
		if err != nil {
			tb.Fatal(err)
		}
		target, err := url.Parse(serves.Host)
		if err != nil {
			tb.Fatal(err)
		}
		discovery = &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// /api, /api/VERSION, /apis, /apis/GROUP and /apis/GROUP/VERSION
		parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
		if serves != nil && (parts[0] == "api" && len(parts) <= 2 || parts[0] == "apis" && len(parts) <= 3) {
			discovery.ServeHTTP(w, r)
			return
		}
		Refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	}))
	tb.Cleanup(server.Close)
	return server
}
