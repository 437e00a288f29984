package attachdetach

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// serviceAccount is who the controller runs as in a cluster.
const serviceAccount = "system:serviceaccount:belay-system:belay-controller"

// cluster is the API server that all tests of this package share.
var cluster struct {
	admin      *rest.Config
	controller *rest.Config // as the shipped ServiceAccount, with the shipped rules
	client     client.Client
	auditLog   string
	done       chan struct{} // closed after the last test
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(withCluster(m.Run))
}

func withCluster(run func() int) int {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return run()
	}
	handler := slog.NewTextHandler(testLog(), &slog.HandlerOptions{Level: slog.Level(-1)})
	log.SetLogger(logr.FromSlogHandler(handler))
	klog.SetSlogLogger(slog.New(handler))
	dir, err := os.MkdirTemp("", "belay-attachdetach-")
	if err != nil {
		return fail(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	env := &envtest.Environment{}
	if err := audited(env, dir); err != nil {
		return fail(err)
	}
	cluster.admin, err = env.Start()
	defer func() { _ = env.Stop() }()
	if err != nil {
		return fail(err)
	}
	if err := install(env); err != nil {
		return fail(err)
	}
	cluster.done = make(chan struct{})
	code := run()
	close(cluster.done) // the API server waits for those who watch
	if code == 0 && flag.Lookup("test.run").Value.String() == "" {
		if err := checkRules(); err != nil {
			return fail(err)
		}
	}
	return code
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "attachdetach tests:", err)
	return 1
}

// testLog is where the controller's own log goes: nowhere, unless asked for.
func testLog() io.Writer {
	if os.Getenv("BELAY_TEST_LOG") != "" {
		return os.Stderr
	}
	return io.Discard
}

// audited makes the API server write down every request of the controller.
func audited(env *envtest.Environment, dir string) error {
	policy := fmt.Sprintf(`{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
		"rules": [{"level": "Metadata", "users": [%q]}, {"level": "None"}]}`, serviceAccount)
	file := filepath.Join(dir, "policy.json")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		return err
	}
	cluster.auditLog = filepath.Join(dir, "audit.log")
	args := env.ControlPlane.GetAPIServer().Configure()
	args.Set("audit-policy-file", file).Set("audit-log-path", cluster.auditLog)
	return nil
}

// install applies the shipped manifest, but for the Deployment: nothing runs pods.
func install(env *envtest.Environment) error {
	admin := rest.CopyConfig(cluster.admin)
	admin.QPS = -1
	c, err := client.New(admin, client.Options{Scheme: clientscheme.Scheme})
	if err != nil {
		return err
	}
	cluster.client = c
	objects, err := manifest()
	if err != nil {
		return err
	}
	for _, object := range objects {
		if object.GetObjectKind().GroupVersionKind().Kind == "Deployment" {
			continue
		}
		if err := c.Create(context.Background(), object); err != nil {
			return fmt.Errorf("install %s %s: %w", object.GetObjectKind().GroupVersionKind().Kind, object.GetName(), err)
		}
	}
	// The groups are those that the API server gives to a ServiceAccount's token.
	user, err := env.AddUser(envtest.User{
		Name:   serviceAccount,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:belay-system"},
	}, nil)
	if err != nil {
		return err
	}
	cluster.controller = user.Config()
	return c.Create(context.Background(), &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: "local.test"},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: new(false)},
	})
}

// manifest reads the shipped objects.
func manifest() ([]client.Object, error) {
	content, err := os.ReadFile("../../deploy/belay-controller/belay-controller.yaml")
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientscheme.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := utilyaml.NewYAMLReader(newReader(content))
	var objects []client.Object
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("decode %q: %w", bytes.SplitN(document, []byte("\n"), 2)[0], err)
		}
		objects = append(objects, object.(client.Object))
	}
}
