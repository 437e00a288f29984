package rights

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/wait"
)

// What the tokens of belay's parts and of CSI drivers can do. Each has the rights and the policies that deploy/ has for it.

const (
	controllerFiles = "../../deploy/belay-controller/"
	attacherFiles   = "../../deploy/belay-attacher/"
)

// Who refuses an attempt, beside a policy of belay by its name.
const (
	byNone  = ""
	byRBAC  = "cannot "
	byRules = "is immutable" // of the API server, for an object
)

// attempt is one request with a token.
type attempt struct {
	what    string
	verb    string // get, create, delete, patch, status (a patch of it), token
	object  client.Object
	patch   string // a merge patch
	refused string // by whom; with several policies by what their names begin with, because which one the API server names is chance
}

func (a attempt) send(ctx context.Context, c client.Client, dryRun ...string) error {
	object := a.object.DeepCopyObject().(client.Object)
	raw := &client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{DryRun: dryRun}}
	switch body := client.RawPatch(types.MergePatchType, []byte(a.patch)); a.verb {
	case "get":
		return c.Get(ctx, client.ObjectKeyFromObject(object), object)
	case "create":
		return c.Create(ctx, object, &client.CreateOptions{DryRun: dryRun})
	case "delete":
		return c.Delete(ctx, object, &client.DeleteOptions{DryRun: dryRun})
	case "patch":
		return c.Patch(ctx, object, body, &client.PatchOptions{DryRun: dryRun})
	case "status":
		return c.Status().Patch(ctx, object, body, raw)
	case "token":
		return c.SubResource("token").Create(ctx, object, &authenticationv1.TokenRequest{})
	case "log":
		return c.SubResource("log").Get(ctx, object, object)
	}
	return fmt.Errorf("no such verb: %s", a.verb)
}

// attempts makes each attempt with a token. One that a policy refuses is tried as a dry run until the API server knows the policy.
func attempts(t *testing.T, token client.Client, all ...attempt) {
	t.Helper()
	for _, a := range all {
		policy := strings.HasPrefix(a.refused, "belay-")
		if policy {
			wait.Until(t, a.refused+" refuses: "+a.what, func() bool {
				err := a.send(t.Context(), token, "All")
				return err != nil && strings.Contains(err.Error(), "'"+a.refused)
			})
		}
		err := a.send(t.Context(), token)
		switch {
		case a.refused == byNone && err != nil:
			t.Errorf("%s: %v", a.what, err)
		case a.refused != byNone && (err == nil || !strings.Contains(err.Error(), a.refused)):
			t.Errorf("%s: not refused by %q: %v", a.what, a.refused, err)
		case a.refused == byRBAC && !apierrors.IsForbidden(err):
			t.Errorf("%s: %v", a.what, err)
		}
	}
}

// tokenOf applies files of deploy/, and returns the configuration and a client of a ServiceAccount in belay-system.
func tokenOf(tb testing.TB, account string, files ...string) (*rest.Config, client.Client) {
	tb.Helper()
	start(tb)
	create(tb, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "belay-system"}}) // not all files have it
	config := server.ServiceAccount(tb, "belay-system", account, files...)
	return config, withFences(tb, config)
}

// bound returns a client of a user with a ClusterRole of a file.
func bound(tb testing.TB, user, file, role string) client.Client {
	tb.Helper()
	start(tb)
	for _, r := range apiserver.Decode[rbacv1.ClusterRole](tb, apiserver.Manifests(tb, file), "ClusterRole") {
		if r.Name == role {
			r.Name = user
			server.Grant(tb, &r, user)
			return withFences(tb, server.User(tb, user))
		}
	}
	tb.Fatalf("%s has no ClusterRole %s", file, role)
	return nil
}

// policies applies the policies of a file under other names, with other words in the place of some: the API server has those of the file already.
func policies(t *testing.T, prefix, file string, words ...string) {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	changed := strings.NewReplacer(append(words, "name: belay-", "name: belay-"+prefix+"-", "policyName: belay-", "policyName: belay-"+prefix+"-")...).Replace(string(text))
	copied := filepath.Join(t.TempDir(), filepath.Base(file))
	must(t, os.WriteFile(copied, []byte(changed), 0o600))
	start(t)
	server.Apply(t, copied)
}

// fencingServed has the API server know the kinds of recovery, and the policy that guards statements.
func fencingServed(t *testing.T) {
	t.Helper()
	start(t)
	installCRDs(t, deployed+"fencing.belay.dev_nodefences.yaml", deployed+"fencing.belay.dev_fencesources.yaml")
	server.Apply(t, deployed+"admission.yaml")
}
