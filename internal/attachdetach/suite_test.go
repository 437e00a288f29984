package attachdetach

import (
	"flag"
	"io"
	"log/slog"
	"os"
	"testing"

	"github.com/go-logr/logr"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/testing/apiserver"
)

const (
	// controllerUser is the user of the controller in a cluster.
	controllerUser   = "system:serviceaccount:belay-system:belay-controller"
	shippedManifests = "../../deploy/belay-controller/belay-controller.yaml"
)

// cluster is the API server of the package's tests. It records the controller's requests.
var (
	cluster          = apiserver.Server{Audit: `{"level": "Metadata", "users": ["` + controllerUser + `"]}`}
	controllerConfig *rest.Config // with the rights that are shipped
	granted          map[string]bool
)

func TestMain(m *testing.M) {
	flag.Parse()
	if apiserver.Available() {
		handler := slog.NewTextHandler(testLog(), &slog.HandlerOptions{Level: slog.Level(-1)})
		log.SetLogger(logr.FromSlogHandler(handler))
		klog.SetSlogLogger(slog.New(handler))
	}
	if flag.Lookup("test.run").Value.String() == "" {
		cluster.Check = checkRights
	}
	cluster.Prepare = func(tb testing.TB) {
		tb.Helper()
		controllerConfig = cluster.ServiceAccount(tb, "belay-system", "belay-controller", shippedManifests)
		granted = apiserver.Granted(tb, shippedManifests)
		err := cluster.Client.Create(tb.Context(), &storagev1.CSIDriver{
			ObjectMeta: metav1.ObjectMeta{Name: "local.test"}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)},
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
	os.Exit(cluster.Main(m))
}

// testLog is where the controller's own log goes: nowhere, unless asked for.
func testLog() io.Writer {
	if os.Getenv("BELAY_TEST_LOG") != "" {
		return os.Stderr
	}
	return io.Discard
}
