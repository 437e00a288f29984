package apiserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/testing/wait"
)

// Manifests reads the objects of YAML files.
func Manifests(tb testing.TB, paths ...string) (objects []*unstructured.Unstructured) {
	tb.Helper()
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			tb.Fatal(err)
		}
		for documents := yaml.NewYAMLOrJSONDecoder(bufio.NewReader(bytes.NewReader(content)), 4096); ; {
			object := &unstructured.Unstructured{}
			if err := documents.Decode(object); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				tb.Fatalf("%s: %v", path, err)
			}
			objects = append(objects, object)
		}
	}
	return objects
}

// Decode returns the objects of a kind as their type.
func Decode[T any](tb testing.TB, objects []*unstructured.Unstructured, kinds ...string) (decoded []T) {
	tb.Helper()
	for _, object := range objects {
		for _, kind := range kinds {
			if object.GetKind() != kind {
				continue
			}
			var one T
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &one); err != nil {
				tb.Fatalf("%s %s: %v", kind, object.GetName(), err)
			}
			decoded = append(decoded, one)
		}
	}
	return decoded
}

// Apply creates the objects of YAML files, unless they exist. A field that the API does not know fails the test.
func (s *Server) Apply(tb testing.TB, paths ...string) {
	tb.Helper()
	for _, object := range Manifests(tb, paths...) {
		if err := s.Client.Create(tb.Context(), object, client.FieldValidation(metav1.FieldValidationStrict)); err != nil && !apierrors.IsAlreadyExists(err) {
			tb.Fatalf("create %s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
}

// ServiceAccount is the configuration of a client with the credential of a service account, once the API server grants it
// what the YAML files grant: the API server learns of RBAC rules by a watch.
func (s *Server) ServiceAccount(tb testing.TB, namespace, name string, paths ...string) *rest.Config {
	tb.Helper()
	s.Apply(tb, paths...)
	user, groups := ServiceAccountName(namespace, name), []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}
	s.AwaitRights(tb, roles(tb, paths...), user, groups...)
	return s.User(tb, user, groups...)
}

// AwaitRights waits until the API server grants a user what the roles grant; a Role has the fields of a ClusterRole.
func (s *Server) AwaitRights(tb testing.TB, roles []rbacv1.ClusterRole, user string, groups ...string) {
	tb.Helper()
	for _, role := range roles {
		for right, object := range rights(role) {
			verb, what, _ := strings.Cut(right, " ")
			parts := append(strings.Split(what, "/"), "")
			wait.Until(tb, right+" is granted to "+user, func() bool {
				review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
					User: user, Groups: groups, ResourceAttributes: &authorizationv1.ResourceAttributes{
						Namespace: role.Namespace, Verb: verb, Group: parts[0], Resource: parts[1], Subresource: parts[2], Name: object,
					},
				}}
				return s.Client.Create(tb.Context(), review) == nil && review.Status.Allowed
			})
		}
	}
}

// ServiceAccountName is the user name of a service account.
func ServiceAccountName(namespace, name string) string {
	return "system:serviceaccount:" + namespace + ":" + name
}

// Grant binds a role to a user, and returns once the API server grants the role's rights. Both names are the role's.
func (s *Server) Grant(tb testing.TB, role *rbacv1.ClusterRole, user string) {
	tb.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
	}
	for _, object := range []client.Object{role, binding} {
		if err := s.Client.Create(tb.Context(), object); err != nil {
			tb.Fatal(err)
		}
	}
	s.AwaitRights(tb, []rbacv1.ClusterRole{*role}, user)
}

// Granted are the rights that the roles of YAML files grant, such as "patch storage.k8s.io/volumeattachments/status" and
// "get /nodes". A wildcard fails the test.
func Granted(tb testing.TB, paths ...string) map[string]bool {
	tb.Helper()
	granted := map[string]bool{}
	for _, role := range roles(tb, paths...) {
		for right := range rights(role) {
			granted[right] = true
		}
	}
	if len(granted) == 0 {
		tb.Fatal("no rules in ", paths)
	}
	return granted
}

// roles are the ClusterRoles and Roles of YAML files; a Role has the fields of a ClusterRole. A wildcard fails the test.
func roles(tb testing.TB, paths ...string) []rbacv1.ClusterRole {
	tb.Helper()
	found := Decode[rbacv1.ClusterRole](tb, Manifests(tb, paths...), "ClusterRole", "Role")
	for _, role := range found {
		for right := range rights(role) {
			if strings.Contains(right, "*") {
				tb.Errorf("role %s grants %q", role.Name, right)
			}
		}
	}
	return found
}

// rights are those of a role, each with an object for which it is granted, if it is not for all.
func rights(role rbacv1.ClusterRole) map[string]string {
	found := map[string]string{}
	for _, rule := range role.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					found[verb+" "+group+"/"+resource] = strings.Join(rule.ResourceNames[:min(1, len(rule.ResourceNames))], "")
				}
			}
		}
	}
	return found
}

// Request is a request as the audit log has it.
type Request struct {
	Verb      string
	User      struct{ Username string }
	ObjectRef struct{ APIGroup, Resource, Subresource, Name string }
	At        metav1.MicroTime   `json:"requestReceivedTimestamp"`
	Status    struct{ Code int } `json:"responseStatus"`
}

// Right is what RBAC has to grant for the request, written as by Granted.
func (r Request) Right() string {
	return r.Verb + " " + r.ObjectRef.APIGroup + "/" + strings.TrimSuffix(r.ObjectRef.Resource+"/"+r.ObjectRef.Subresource, "/")
}

// Refused reports whether the user had no right to the request.
func (r Request) Refused() bool { return r.Status.Code == http.StatusForbidden }

func (s *Server) auditLog() string { return filepath.Join(s.dir, "audit.log") }

// Requests are the requests of a user for objects so far, as far as the policy Audit selects them.
func (s *Server) Requests(user string) (requests []Request, err error) {
	content, err := os.ReadFile(s.auditLog())
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(content) {
		var r Request
		if json.Unmarshal(line, &r) != nil || r.User.Username != user || r.ObjectRef.Resource == "" {
			continue // the last line may still be incomplete
		}
		requests = append(requests, r)
	}
	return requests, nil
}
