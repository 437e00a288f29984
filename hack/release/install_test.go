package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// released returns the folder of the release that `make release-test` names.
func released(t *testing.T) string {
	t.Helper()
	dist := os.Getenv("BELAY_DIST")
	if dist == "" {
		t.Skip("NOT RUN: BELAY_DIST is not set (make release-test)")
	}
	return dist
}

// printed is what every program must print of itself.
func printed() string {
	return fmt.Sprintf("%s (commit %s, go", os.Getenv("BELAY_VERSION"), os.Getenv("BELAY_REVISION"))
}

// emptyEnvironment has nothing of this machine.
var emptyEnvironment = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin:/", "HOME=/", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"}

// in runs a program in a root of its own.
func in(t *testing.T, root string, args ...string) (string, error) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: needs root")
	}
	cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "--pid", "--fork", "--net", "chroot", root}, args...)...)
	cmd.Env = emptyEnvironment
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// must is in without an error.
func must(t *testing.T, root string, args ...string) string {
	t.Helper()
	out, err := in(t, root, args...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// unpack writes the files of an archive, and returns their names.
func unpack(t *testing.T, archive, to string) []string {
	t.Helper()
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // only read
	packed, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for reader := tar.NewReader(packed); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name)
		path := filepath.Join(to, filepath.Clean("/"+header.Name))
		if err := writeFile(path, func(out io.Writer) error { _, err := io.Copy(out, reader); return err }); err != nil { //nolint:gosec // made by this release
			t.Fatal(err)
		}
		if err := os.Chmod(path, header.FileInfo().Mode()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestArchivesOnAnEmptyMachine: with the files of the archives and nothing else, each program runs and prints its version.
func TestArchivesOnAnEmptyMachine(t *testing.T) {
	dist, root := released(t), t.TempDir()
	names := map[string]bool{}
	for _, product := range []string{"belay", plugin} {
		for _, name := range unpack(t, filepath.Join(dist, product+"_linux_"+runtime.GOARCH+".tar.gz"), root) {
			names[name] = true
		}
	}
	for _, want := range []string{
		"LICENSE", "README.md", "belay-node.service", "kubectl_complete-belay", "man/man8/belay-controller.8", "man/man8/belay-attacher.8", "man/man8/belay-node.8",
		"man/man1/kubectl-belay-explain.1", "completions/belay-attacher.bash", "completions/_belay-node", "completions/belay-controller.fish", "completions/kubectl-belay.ps1",
	} {
		if !names[want] {
			t.Errorf("the archives have no %s", want)
		}
	}
	for _, program := range []string{"belay-controller", "belay-attacher", "belay-node", plugin} {
		if out := must(t, root, "/"+program, "--version"); !strings.Contains(out, printed()) {
			t.Errorf("%s --version prints %q, want %q in it", program, out, printed())
		}
	}
	kubectl := filepath.Join(os.Getenv("BELAY_UPSTREAM_BIN"), "kubectl")
	if _, err := os.Stat(kubectl); err != nil {
		t.Logf("NOT RUN: kubectl belay, without kubectl (BELAY_UPSTREAM_BIN)")
		return
	}
	raw, err := os.ReadFile(kubectl) //nolint:gosec // of the lab
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "kubectl"), raw, 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	if out := must(t, root, "/kubectl", "belay", "version"); !strings.Contains(out, printed()) {
		t.Errorf("kubectl belay version prints %q, want %q in it", out, printed())
	}
}
