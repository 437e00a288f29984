package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
		"and a tag of the lab alone":     {{"v0.1.0"}, {"lab/v0.1.0"}, {"-a", "-m", "x", "lab/v0.2.0"}},
		"a candidate became the release": {{"v0.1.0"}, {"-a", "-m", "x", "v0.1.0-rc.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			git(t, dir, "init", "-q")
			git(t, dir, "commit", "-q", "--allow-empty", "-m", "x")
			for _, tag := range tags {
				git(t, dir, append([]string{"tag"}, tag...)...)
			}
			// the Makefile's own VERSION
			cmd := exec.CommandContext(t.Context(), "make", "-s", "-f", "-", "print")
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

// TestHostileDirtyProvenance: provenance that names a commit is not made of files that are not that commit's, and what names none is not signed.
func TestHostileDirtyProvenance(t *testing.T) {
	o := options{version: "v1.2.3-dirty", revision: strings.Repeat("a", 40), builder: "https://b.example/x", dist: t.TempDir()}
	if p, err := o.predicate(); err == nil {
		t.Errorf("the provenance of uncommitted files names the commit: %v", p.GetFields()["buildDefinition"].GetStructValue().GetFields()["resolvedDependencies"])
	}
	if err := o.refuseDirty(); err == nil {
		t.Error("files without provenance are signed")
	}
	for name, content := range map[string]string{"belay.tgz": "true", imagesFile: "belay-node sha256:" + strings.Repeat("b", 64) + "\n"} {
		if err := os.WriteFile(o.path(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := checksums(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	allowed, clean := o, o
	allowed.allowDirty, clean.version = true, "v1.2.3"
	if err := provenance(t.Context(), allowed); err != nil {
		t.Fatal(err)
	}
	if err := allowed.refuseDirty(); err != nil {
		t.Errorf("a rehearsal is not signed: %v", err)
	}
	for name, do := range map[string]func(context.Context, options) error{"sign": sign, "push": push} {
		o.to = "registry.example/belay"
		if err := do(t.Context(), o); !errors.Is(err, errDirty) {
			t.Errorf("%s of files that no commit has: %v", name, err)
		}
	}
	if err := provenance(t.Context(), clean); err != nil {
		t.Fatal(err)
	}
	if err := clean.refuseDirty(); err != nil {
		t.Errorf("files of a commit are not signed: %v", err)
	}
}

// TestUncommittedFilesAreNoRelease: a version that is given says nothing of the files, so that git is asked. A new file counts as a changed one.
func TestUncommittedFilesAreNoRelease(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("main.go", "package main\n")
	git(t, dir, "init", "-q")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-q", "-m", "x")
	head, err := gitOutput(t.Context(), dir, "rev-parse", "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	o := options{version: "v1.2.3", revision: head}
	if dirty, err := o.uncommitted(t.Context(), dir); err != nil || dirty {
		t.Errorf("the files of a commit: %v, %v", dirty, err)
	}
	if _, err := (options{version: "v1.2.3", revision: strings.Repeat("a", 40)}).uncommitted(t.Context(), dir); err == nil {
		t.Error("the provenance would name a commit that is not checked out")
	}
	for name, content := range map[string]string{"main.go": "package main // changed\n", "new.go": "package main\n"} {
		write(name, content)
		if _, err := o.uncommitted(t.Context(), dir); !errors.Is(err, errDirty) {
			t.Errorf("%s: %v", name, err)
		}
		allowed := o
		allowed.allowDirty = true
		if dirty, err := allowed.uncommitted(t.Context(), dir); err != nil || !dirty {
			t.Errorf("%s, allowed: %v, %v", name, dirty, err)
		}
		git(t, dir, "clean", "-q", "-f")
		git(t, dir, "checkout", "-q", ".")
	}
}

// TestHostileChecksumsOfDownloads: RELEASING.md's commands check every file that release.yml uploads. GitHub keeps the last element of a path only, so that
// what is uploaded is in dist/ itself.
func TestHostileChecksumsOfDownloads(t *testing.T) {
	workflow, err := os.ReadFile("../../.github/workflows/release.yml")
	if err != nil {
		t.Fatal(err)
	}
	_, upload, found := strings.Cut(string(workflow), "gh release create")
	if !found {
		t.Fatal("release.yml makes no release")
	}
	dist, downloads := filepath.Join(t.TempDir(), "dist"), t.TempDir()
	if err := writeUploaded(dist); err != nil {
		t.Fatal(err)
	}
	if err := checksums(t.Context(), options{dist: dist}); err != nil {
		t.Fatal(err)
	}
	uploaded := 0
	for _, pattern := range regexp.MustCompile(`dist/\S+`).FindAllString(upload, -1) {
		paths, err := filepath.Glob(filepath.Join(filepath.Dir(dist), pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			content := []byte("tampered")
			if filepath.Base(path) == sumsFile {
				if content, err = os.ReadFile(path); err != nil { //nolint:gosec // the test's
					t.Fatal(err)
				}
			} else {
				uploaded++
			}
			if err := os.WriteFile(filepath.Join(downloads, filepath.Base(path)), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	cmd := exec.CommandContext(t.Context(), "sha256sum", "--check", "--ignore-missing", sumsFile)
	cmd.Dir = downloads
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if failed := strings.Count(string(out), ": FAILED\n"); err == nil || uploaded < 7 || failed != uploaded {
		t.Errorf("%d files were uploaded and changed, and the check finds %d (%v):\n%s", uploaded, failed, err, out)
	}
}

// writeUploaded writes a file of each kind where the steps of a release write it.
func writeUploaded(dist string) error {
	for _, name := range []string{
		"belay_linux_amd64.tar.gz", "kubectl-belay_windows_amd64.zip", "belay-0.1.0.tgz", "belay-node_linux_amd64.deb", "belay-node_linux_amd64.rpm",
		krewFile, sbomFile("belay-node_linux_amd64"), imagesFile, "images/belay-node/index.json",
	} {
		if err := writeFile(filepath.Join(dist, name), func(out io.Writer) error { _, err := io.WriteString(out, "true"); return err }); err != nil {
			return err
		}
	}
	return nil
}

// git runs git in a repository of a test.
func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=a", "-c", "user.email=a@b", "-c", "tag.gpgsign=false", "-c", "commit.gpgsign=false"}, args...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}
