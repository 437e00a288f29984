package main

import (
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/wait"
)

// TestMetricsNeedRights: unless the flag says otherwise, only those who may get /metrics read them, over TLS, from the leader as from a standby,
// which writes nothing else. Probes stay anonymous.
func TestMetricsNeedRights(t *testing.T) {
	cluster.Start(t)
	for _, name := range []string{"some", "no"} {
		must(t, cluster.Client.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name + "-rights"}}))
	}
	reads, _ := cluster.Token(t, "default", "some-rights")
	other, _ := cluster.Token(t, "default", "no-rights")
	manifests := apiserver.Manifests(t, "../../deploy/belay-metrics/reader.yaml")
	for _, role := range apiserver.Decode[rbacv1.ClusterRole](t, manifests, "ClusterRole") {
		cluster.Grant(t, &role, apiserver.ServiceAccountName("default", "some-rights"))
	}
	leader := start(t, "leader", "--metrics-secure=true")
	leader.leads()
	standby := start(t, "standby", "--metrics-secure=true")
	standby.ready()
	for _, p := range []*controller{leader, standby} {
		mayReview(t, p.user)
		wait.Until(t, p.user+" serves metrics", func() bool { code, _ := secure(t, p.metrics, ""); return code != 0 }) // it makes a key first
		for token, want := range map[string]int{
			"":                http.StatusUnauthorized,
			"wrong":           http.StatusInternalServerError, // controller-runtime's answer to a token that the API server refuses
			other.BearerToken: http.StatusForbidden,
			reads.BearerToken: http.StatusOK,
		} {
			code, body := secure(t, p.metrics, token)
			if code != want {
				t.Errorf("%s: /metrics answers %d, want %d: %s", p.user, code, want, body)
			}
			if has := strings.Contains(body, "attachdetach_halted"); has != (want == http.StatusOK) {
				t.Errorf("%s: with status %d, it serves metrics: %v", p.user, code, has)
			}
		}
		if code, body := p.ask(p.metrics, "/metrics"); code == http.StatusOK {
			t.Errorf("%s: it serves metrics over HTTP: %s", p.user, body)
		}
		for _, path := range []string{"/healthz", "/readyz"} {
			if code, body := p.ask(p.health, path); code != http.StatusOK {
				t.Errorf("%s: %s answers %d without a token: %s", p.user, path, code, body)
			}
		}
	}
}

// mayReview grants what the chart binds to each part that serves metrics.
func mayReview(t *testing.T, user string) {
	t.Helper()
	bound := 0
	for _, binding := range apiserver.Decode[rbacv1.ClusterRoleBinding](t, apiserver.Manifests(t, manifest), "ClusterRoleBinding") {
		if binding.RoleRef.Name != "system:auth-delegator" {
			continue
		}
		bound++
		binding.Name = user + "-metrics"
		binding.Subjects = []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}}
		must(t, cluster.Client.Create(t.Context(), &binding))
	}
	if bound != 1 {
		t.Fatalf("%d bindings of system:auth-delegator in %s", bound, manifest)
	}
	reviews := rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}},
		{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}},
	}}
	cluster.AwaitRights(t, []rbacv1.ClusterRole{reviews}, user)
}

// secure gets /metrics over TLS, with a token unless it is empty. The certificate is the process's own.
func secure(t *testing.T, address, token string) (int, string) {
	t.Helper()
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
	}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/metrics", nil)
	must(t, err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	must(t, err)
	return response.StatusCode, string(body)
}
