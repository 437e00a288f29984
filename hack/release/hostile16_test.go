package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestHostileVersionOfATag: a commit that is tagged as RELEASING.md says, vX.Y.Z and lab/vX.Y.Z, is built as vX.Y.Z: also as actions/checkout leaves
// the tag (lightweight), and if the commit was a release candidate before.
func TestHostileVersionOfATag(t *testing.T) {
	makefile, err := filepath.Abs("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for name, tags := range map[string][][]string{
		"as RELEASING.md says":           {{"-a", "-m", "x", "v0.1.0"}, {"-a", "-m", "x", "lab/v0.1.0"}},
		"as actions/checkout leaves it":  {{"v0.1.0"}, {"-a", "-m", "x", "lab/v0.1.0"}},
		"a candidate became the release": {{"v0.1.0"}, {"-a", "-m", "x", "v0.1.0-rc.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			git := func(args ...string) {
				cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@b", "-c", "tag.gpgsign=false"}, args...)...)
				cmd.Dir = dir
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("git %v: %v\n%s", args, err, out)
				}
			}
			git("init", "-q")
			git("commit", "-q", "--allow-empty", "-m", "x")
			for _, tag := range tags {
				git(append([]string{"tag"}, tag...)...)
			}
			// the Makefile's own VERSION
			cmd := exec.Command("make", "-s", "-f", "-", "print")
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "MAKEFLAGS=")
			cmd.Stdin = strings.NewReader("include " + makefile + "\nprint:\n\t@echo '$(VERSION)'\n")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			v := version(strings.TrimSpace(string(out)))
			if v != "v0.1.0" {
				t.Errorf("make release builds version %q (chart, deb and krew: %s)", v, v.semantic())
			}
		})
	}
}

// TestHostileVersionAfterATag: what git describe prints between two releases sorts after the earlier one, or before every release as version.semantic says.
func TestHostileVersionAfterATag(t *testing.T) {
	if got := version("v1.2.3-5-g0123456").semantic(); !strings.HasPrefix(got, "0.0.0-") && !strings.HasPrefix(got, "1.2.4-") {
		t.Errorf("five commits after v1.2.3 is %s, which is older than 1.2.3 and newer than 1.2.2", got)
	}
	if got := version("v1.2.3-dirty").semantic(); !strings.HasPrefix(got, "0.0.0-") {
		t.Errorf("uncommitted changes on v1.2.3 are the release candidate %s", got)
	}
}

// TestHostileDirtyProvenance: provenance that names a commit is not made of files that are not that commit's.
func TestHostileDirtyProvenance(t *testing.T) {
	p, err := options{version: "v1.2.3-dirty", revision: strings.Repeat("a", 40), builder: "https://b.example/x"}.predicate()
	if err == nil {
		t.Errorf("the provenance of uncommitted files names the commit: %v", p.GetFields()["buildDefinition"].GetStructValue().GetFields()["resolvedDependencies"])
	}
}

// TestHostileChecksumsOfDownloads: RELEASING.md's commands check every file that release.yml uploads. GitHub keeps the last element of a path only.
func TestHostileChecksumsOfDownloads(t *testing.T) {
	dist, downloads := t.TempDir(), t.TempDir()
	for _, name := range []string{"belay.tgz", "krew/belay.yaml", "sboms/belay-node_linux_amd64.spdx.json", "images/digests.txt"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dist, name)), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dist, name), []byte("true"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := checksums(t.Context(), options{dist: dist}); err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(dist, sumsFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(downloads, sumsFile), sums, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(downloads, "belay.tgz"), []byte("true"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"belay.yaml", "belay-node_linux_amd64.spdx.json", "digests.txt"} { // as gh uploads them, and changed by somebody
		if err := os.WriteFile(filepath.Join(downloads, name), []byte("tampered"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sha256sum", "--check", "--ignore-missing", sumsFile)
	cmd.Dir = downloads
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("krew's manifest, the SBOM and the images' digests were tampered with, and the check passes:\n%s", out)
	}
}

// TestHostilePackageOracle: what a script of a package unmounts on the "empty machine" is noticed by mounted.
func TestHostilePackageOracle(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: needs root")
	}
	root := t.TempDir()
	mounted(t, root)
	folder := filepath.Join(root, "var/lib/kubelet/pods/uid/volumes/data")
	// as in() runs a maintainer script, without the chroot
	if out, err := exec.Command("unshare", "--mount", "--pid", "--fork", "--net", "umount", folder).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if raw, err := os.ReadFile(filepath.Join(folder, "record")); err == nil {
		t.Errorf("a script unmounted the volume, and the test still finds %q: TestPackages cannot fail", raw)
	}
}
