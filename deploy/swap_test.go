package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"belay.dev/belay/internal/testing/apiserver"
)

// TestSwapChangesTheImageAlone builds a driver's manifests with the component for kustomize, and compares them with those without.
func TestSwapChangesTheImageAlone(t *testing.T) {
	if !apiserver.Available() {
		t.Skip("NOT RUN: needs the programs that `make test` builds")
	}
	with, without := build(t, "testdata/driver"), build(t, "testdata/driver/plain")
	want := strings.Replace(without, "registry.example.com/csi-attacher:v4.12.0", "registry.example.com/belay/belay-attacher:v0.1.0", 1)
	if want == without || with != want {
		t.Errorf("with the component:\n%s\nwant:\n%s", with, want)
	}
}

func build(t *testing.T, folder string) string {
	t.Helper()
	kubectl := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl")
	out, err := exec.CommandContext(t.Context(), kubectl, "kustomize", "--load-restrictor=LoadRestrictionsNone", folder).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}
