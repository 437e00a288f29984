package kubectl

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/preflight"
	"belay.dev/belay/internal/testing/apiserver"
)

// kubelets answers for the kubelets behind the API server, by the name of the node.
func kubelets(answers map[string]string) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) {
		for node, config := range answers {
			if r.Method == http.MethodGet && r.URL.Path == "/api/v1/nodes/"+node+"/proxy/configz" {
				body := io.NopCloser(strings.NewReader(fmt.Sprintf(`{"kubeletconfig":{%s}}`, config)))
				return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: body, Request: r}, nil
			}
		}
		return status(http.StatusServiceUnavailable, "ServiceUnavailable")(r)
	}
}

// TestCheckKubeletConfig reads what the API server passes on, compares the text with a stored one, and needs a permission that few have.
func TestCheckKubeletConfig(t *testing.T) {
	server.Start(t)
	for _, name := range []string{"tick-a", "tick-b", "tick-c", "tick-d"} {
		create(t, node(name))
	}
	const usual = `"nodeStatusUpdateFrequency":"10s","nodeStatusReportFrequency":"5m0s","nodeLeaseDurationSeconds":40`
	const follows = `"nodeStatusUpdateFrequency":"1s","nodeStatusReportFrequency":"1s","nodeLeaseDurationSeconds":40`
	answers := kubelets(map[string]string{"tick-a": usual, "tick-b": usual, "tick-c": follows}) //nolint:bodyclose // the client closes it
	front := through(t, broken{resource: "proxy", fail: answers})
	got := run(t, front, "check", "--kubelet-config", "--ascii")
	_, section, _ := strings.Cut(got.out, preflight.CategoryKubelets+"\n")
	section, _, _ = strings.Cut(section, "\n\n")
	want, err := os.ReadFile(filepath.Join("testdata", "check-kubelets.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if section+"\n" != string(want) || got.status == StatusClear {
		t.Errorf("exit status %d, got:\n%s\nwant:\n%s\n%s", got.status, section, want, got.err)
	}
	if plain := run(t, front, "check", "--ascii"); strings.Contains(plain.out, "nodeStatusUpdateFrequency") {
		t.Errorf("without the flag:\n%s", plain.out)
	}
	var report preflight.ClusterHealth
	if got := run(t, front, "check", "--kubelet-config", "-o", "json"); json.Unmarshal([]byte(got.out), &report) != nil {
		t.Fatal(got.out, got.err)
	}
	i := slices.IndexFunc(report.Checks, func(c preflight.Check) bool { return c.Category == "kubelets" && c.Name == "nodeStatusReportFrequency" })
	if i < 0 || report.Checks[i].Result != preflight.Warning || !slices.Equal(report.Checks[i].Objects, []string{"node tick-c: 1s, nodeStatusUpdateFrequency 1s"}) {
		t.Errorf("%+v", report.Checks)
	}

	server.Grant(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "lister"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list"}}}}, "lister")
	lister := apiserver.Kubeconfig(t, server.User(t, "lister"))
	lacks := run(t, lister, "check", "--kubelet-config", "--ascii")
	if lacks.status == StatusClear || !strings.Contains(lacks.out, "configuration: unknown: not read: needs the permission to get nodes/proxy") || !strings.Contains(lacks.out, "    get nodes/proxy\n") {
		t.Errorf("without the permission, exit status %d:\n%s%s", lacks.status, lacks.out, lacks.err)
	}
	// Here the API server itself finds no kubelet: the Nodes have no address.
	none := run(t, apiserver.Kubeconfig(t, server.Config()), "check", "--kubelet-config", "--ascii")
	if none.status == StatusClear || !strings.Contains(none.out, "configuration: unknown: read from 0 of 4 kubelets") || !strings.Contains(none.out, "node tick-a: could not be asked: HTTP status 5") {
		t.Errorf("without kubelets, exit status %d:\n%s%s", none.status, none.out, none.err)
	}
}
