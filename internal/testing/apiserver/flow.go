package apiserver

import (
	"net/http"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Token is the configuration of a client with a token of a service account, and a function that returns the FlowSchema and
// the priority level of the client's last request.
func (s *Server) Token(tb testing.TB, namespace, name string) (config *rest.Config, flow func() string) {
	tb.Helper()
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	names := map[string]string{} // by UID
	schemas, levels := &flowcontrolv1.FlowSchemaList{}, &flowcontrolv1.PriorityLevelConfigurationList{}
	must(s.Client.List(tb.Context(), schemas))
	must(s.Client.List(tb.Context(), levels))
	for i := range schemas.Items {
		names[string(schemas.Items[i].UID)] = schemas.Items[i].Name
	}
	for i := range levels.Items {
		names[string(levels.Items[i].UID)] = levels.Items[i].Name
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	token := &authenticationv1.TokenRequest{}
	must(s.Client.SubResource("token").Create(tb.Context(), account, token))
	config = rest.AnonymousClientConfig(s.config)
	config.BearerToken = token.Status.Token
	var header http.Header
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			reply, err := next.RoundTrip(r)
			if err == nil {
				header = reply.Header
			}
			return reply, err
		})
	})
	return config, func() string {
		return names[header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)] + " " +
			names[header.Get(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)]
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
