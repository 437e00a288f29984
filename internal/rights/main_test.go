// Package rights has the attacks of those with few rights, each with the credential that the attacker has, against the code that ships: on
// a real API server with the node authorizer, RBAC and NodeRestriction. SECURITY.md says what each of them can still do.
package rights

import (
	"context"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/testing/apiserver"
)

var server apiserver.Server

func TestMain(m *testing.M) {
	log.SetLogger(klog.Background())
	os.Exit(server.Main(m))
}

// ended are the tests that had the API server.
var ended = map[string]bool{}

// start starts the API server for the first test that needs it. A test that runs again, as with -count=2, has a new one: what it left behind, such as a
// claim that no controller here takes the finalizer from, would be in its way.
func start(tb testing.TB) {
	tb.Helper()
	name := tb.Name()
	if ended[name] {
		must(tb, server.Renew())
		clear(ended)
	}
	tb.Cleanup(func() { ended[name] = true })
	server.Start(tb)
}

// kubelet starts the API server, makes the Node, and returns the configuration of a client with its credential.
func kubelet(tb testing.TB, node string) *rest.Config {
	tb.Helper()
	start(tb)
	create(tb, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	return server.Node(tb, node)
}

// tenant starts the API server, makes the namespace, and returns the configuration of a client that has the role edit in it. The role is an
// aggregated one, and no controller fills it here: these two are what it is made of.
func tenant(tb testing.TB, namespace string) *rest.Config {
	tb.Helper()
	start(tb)
	create(tb, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	for _, role := range []string{"system:aggregate-to-edit", "system:aggregate-to-view"} {
		create(tb, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "tenant-"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "tenant-of-" + namespace}},
		})
	}
	return server.User(tb, "tenant-of-"+namespace)
}

// create makes an object with all rights, and deletes it after the test, but for namespaces: nothing here would end one.
func create(tb testing.TB, object client.Object) {
	tb.Helper()
	_, isNamespace := object.(*corev1.Namespace)
	if err := server.Client.Create(tb.Context(), object); err != nil && (!isNamespace || !apierrors.IsAlreadyExists(err)) {
		tb.Fatal(err)
	}
	if !isNamespace {
		tb.Cleanup(func() { _ = server.Client.Delete(context.WithoutCancel(tb.Context()), object) })
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
