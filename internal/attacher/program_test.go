package attacher

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// builtVersion is the version that the program under test reports.
const builtVersion = "v0.0.0-test"

// built is the real program, linked once for all tests of the package.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// programPath is the real program. Its folder may be read by every user.
func programPath(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "belay-attacher-"); built.err != nil { //nolint:usetesting // shared by the package's tests
			return
		}
		if built.err = os.Chmod(built.dir, 0o755); built.err != nil {
			return
		}
		build := exec.Command("go", "build", "-ldflags", "-X main.version="+builtVersion, "-o", built.dir+"/", "belay.dev/belay/cmd/belay-attacher")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if output, err := build.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("%w: %s", err, output)
		}
	})
	if built.err != nil {
		t.Fatal("build belay-attacher: ", built.err)
	}
	return filepath.Join(built.dir, "belay-attacher")
}

// upstreamPath is csi-attacher v4.12.0, which is in the folder of the API server that the tests run. The test is
// skipped only if there are no upstream programs at all.
func upstreamPath(t *testing.T) string {
	t.Helper()
	path := os.Getenv("BELAY_CSI_ATTACHER")
	if path == "" {
		if os.Getenv("KUBEBUILDER_ASSETS") == "" {
			t.Skip("needs csi-attacher v4.12.0: set BELAY_CSI_ATTACHER, or KUBEBUILDER_ASSETS to the folder that `make upstream` fills")
		}
		path = filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "csi-attacher")
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("csi-attacher is missing beside the other upstream programs: %v", err)
	}
	return path
}
