package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
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

// in runs a program in a root of its own, with nothing of this machine in its environment.
func in(t *testing.T, root string, args ...string) (string, error) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: needs root")
	}
	cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "--pid", "--fork", "--net", "chroot", root}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin:/", "HOME=/", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"}
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

// debian makes a root with dpkg, rpm and systemd, and without Go.
func debian(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: needs root")
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Fatalf("install Debian's package mmdebstrap: %v", err)
	}
	root := filepath.Join(t.TempDir(), "root")
	cmd := exec.CommandContext(t.Context(), "mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", "--include=rpm,systemd",
		"--aptopt=APT::Install-Recommends false", "bookworm", root)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("mmdebstrap: %v\n%s", err, out)
	}
	if out, err := in(t, root, "go", "version"); err == nil {
		t.Fatalf("the empty machine has Go: %s", out)
	}
	return root
}

// mounted puts a mount below kubelet's root, as a volume is, and returns a check that it is there with its content.
func mounted(t *testing.T, root string) func(after string) {
	t.Helper()
	folder := filepath.Join(root, "var/lib/kubelet/pods/uid/volumes/data")
	if err := os.MkdirAll(folder, 0o750); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "mount", "-t", "tmpfs", "volume", folder).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "umount", folder).CombinedOutput(); err != nil {
			t.Errorf("umount: %v\n%s", err, out)
		}
	})
	record := filepath.Join(folder, "record")
	if err := os.WriteFile(record, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(after string) {
		t.Helper()
		if raw, err := os.ReadFile(record); err != nil || string(raw) != "kept" { //nolint:gosec // the test's
			t.Errorf("after %s the volume is not mounted: %q, %v", after, raw, err)
		}
	}
}

// give copies a package into a root.
func give(t *testing.T, dist, root, extension string) string {
	t.Helper()
	name := agent + "_linux_" + runtime.GOARCH + extension
	if err := writeFile(filepath.Join(root, name), func(out io.Writer) error { return copyFile(out, filepath.Join(dist, name)) }); err != nil {
		t.Fatal(err)
	}
	return "/" + name
}

// TestPackages installs, upgrades and removes the packages on a Debian without Go. Nothing starts by itself, and mounts stay.
func TestPackages(t *testing.T) {
	dist := released(t)
	root := debian(t)
	stays := mounted(t, root)
	const unit = "/usr/lib/systemd/system/belay-node.service"

	deb := give(t, dist, root, ".deb")
	must(t, root, "dpkg", "-i", deb)
	if out := must(t, root, "belay-node", "--version"); !strings.Contains(out, printed()) {
		t.Errorf("belay-node --version prints %q, want %q in it", out, printed())
	}
	if out, err := in(t, root, "systemd-analyze", "verify", unit); err != nil || strings.Contains(out, "belay-node") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	if out, err := in(t, root, "systemctl", "is-enabled", "belay-node"); err == nil || strings.TrimSpace(out) != "disabled" {
		t.Errorf("the service is %s (%v) after the installation, want disabled", out, err)
	}
	if out := must(t, root, "dpkg", "--verify", agent); out != "" {
		t.Errorf("dpkg --verify: %s", out)
	}
	must(t, root, "dpkg", "-i", deb)
	stays("the upgrade of the deb")
	must(t, root, "dpkg", "--purge", agent)
	stays("the removal of the deb")
	if _, err := os.Stat(filepath.Join(root, unit)); err == nil {
		t.Error("dpkg --purge leaves the unit")
	}

	rpm := give(t, dist, root, ".rpm")
	if out := must(t, root, "rpm", "-qpl", rpm); !strings.Contains(out, "/usr/bin/belay-node\n") || !strings.Contains(out, unit) {
		t.Errorf("rpm -qpl lists %s", out)
	}
	install := []string{"rpm", "--nodeps", "-U", "--force", rpm} // rpm knows nothing of Debian's packages
	must(t, root, install...)
	if out := must(t, root, "belay-node", "--version"); !strings.Contains(out, printed()) {
		t.Errorf("belay-node --version prints %q, want %q in it", out, printed())
	}
	if out, err := in(t, root, "systemd-analyze", "verify", unit); err != nil || strings.Contains(out, "belay-node") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	must(t, root, install...)
	stays("the upgrade of the rpm")
	must(t, root, "rpm", "-e", agent)
	stays("the removal of the rpm")
	if _, err := os.Stat(filepath.Join(root, unit)); err == nil {
		t.Error("rpm -e leaves the unit")
	}
}
