package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Masterminds/semver/v3"
)

// TestVersions: a build without a tag sorts before every release, and each is a version for helm, dpkg and krew.
func TestVersions(t *testing.T) {
	for given, want := range map[version]string{
		"v1.2.3": "1.2.3", "v1.2.3-rc.1": "1.2.3-rc.1", "1.2.3": "0.0.0-g1.2.3", "0123456": "0.0.0-g0123456", "032aa61-dirty": "0.0.0-g032aa61-dirty", "v1": "0.0.0-gv1",
		"v1.2.3-5-g0123456": "0.0.0-gv1.2.3-5-g0123456", "v1.2.3-rc.1-5-g0123456-dirty": "0.0.0-gv1.2.3-rc.1-5-g0123456-dirty", "v1.2.3-dirty": "0.0.0-gv1.2.3-dirty",
	} {
		got := given.semantic()
		if got != want {
			t.Errorf("%s is %s, want %s", given, got, want)
		}
		if _, err := semver.StrictNewVersion(got); err != nil {
			t.Errorf("%s: %v", got, err)
		}
	}
}

// TestKrewManifestIsFilled: nothing in capitals is left of the manifest in deploy/, and a platform without an archive is an error, as is the reverse.
func TestKrewManifestIsFilled(t *testing.T) {
	raw, err := os.ReadFile("../../deploy/krew/belay.yaml")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]string{"VERSION": "v1.2.3", "RELEASE_URL": "https://releases.example"}
	for _, p := range products[1].platforms {
		known[strings.ToUpper("SHA256_"+p.String())] = strings.Repeat("a", 64)
	}
	filled, err := fill(string(raw), known)
	if err != nil || placeholder.MatchString(filled) || !strings.Contains(filled, "uri: https://releases.example/kubectl-belay_windows_amd64.zip\n") {
		t.Errorf("filled in: %v\n%s", err, filled)
	}
	known["SHA256_PLAN9_AMD64"] = "b"
	if _, err := fill(string(raw), known); err == nil {
		t.Error("an archive that the manifest does not name is no error")
	}
	delete(known, "SHA256_PLAN9_AMD64")
	delete(known, "SHA256_DARWIN_ARM64")
	if _, err := fill(string(raw), known); err == nil {
		t.Error("a platform without an archive is no error")
	}
}

// TestArchivesAreReproducible: other times and rights of the sources change nothing, another content does.
func TestArchivesAreReproducible(t *testing.T) {
	source := filepath.Join(t.TempDir(), "belay-node")
	at := time.Unix(1700000000, 0)
	pack := func(content string, mode os.FileMode, touched time.Time) string {
		if err := os.WriteFile(source, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(source, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(source, touched, touched); err != nil {
			t.Fatal(err)
		}
		var packed, zipped bytes.Buffer
		files := map[string]entry{"b": {source, 0o755}, "a": {source, 0o644}}
		if err := packTar(&packed, files, at); err != nil {
			t.Fatal(err)
		}
		if err := packZip(&zipped, files, at); err != nil {
			t.Fatal(err)
		}
		return packed.String() + zipped.String()
	}
	first := pack("one", 0o600, at)
	if pack("one", 0o755, at.Add(time.Hour)) != first {
		t.Error("the time or the rights of a source are in the archive")
	}
	if pack("two", 0o600, at) == first {
		t.Error("the content is not in the archive")
	}
}

// TestChecksumsCoverEveryFile: a file that is changed, added or missing is found, also a blob of an image.
func TestChecksumsCoverEveryFile(t *testing.T) {
	dist := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(dist, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const blob = "images/belay-node/blobs/sha256/2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
	write("belay.tar.gz", "archive")
	write(blob, "foo")
	if err := checksums(t.Context(), options{dist: dist}); err != nil {
		t.Fatal(err)
	}
	if err := checkSums(dist); err != nil {
		t.Fatalf("the files as they were: %v", err)
	}
	for name, content := range map[string]string{"belay.tar.gz": "other", blob: "fop", "added": ""} {
		was, err := os.ReadFile(filepath.Join(dist, name)) //nolint:gosec // the test's
		write(name, content)
		if checkSums(dist) == nil {
			t.Errorf("%s was changed or added, and is accepted", name)
		}
		if err := os.Remove(filepath.Join(dist, name)); err != nil {
			t.Fatal(err)
		}
		if err == nil {
			if name != blob && checkSums(dist) == nil {
				t.Errorf("%s is missing, and that is accepted", name)
			}
			write(name, string(was))
		}
	}
}

// TestChartNamesDigests: a chart of a release runs the images that the release was signed with, whatever the registry's tags are; a person's tag or
// digest wins.
func TestChartNamesDigests(t *testing.T) {
	dist, folder := t.TempDir(), filepath.Join(t.TempDir(), "belay")
	if err := os.CopyFS(folder, os.DirFS("../../charts/belay")); err != nil {
		t.Fatal(err)
	}
	of := map[string]string{"belay-controller": "sha256:" + strings.Repeat("a", 64), "belay-controller-fencer": "sha256:" + strings.Repeat("b", 64)}
	list := fmt.Sprintf("belay-controller %s\nbelay-controller-fencer %s\n", of["belay-controller"], of["belay-controller-fencer"])
	if err := os.WriteFile(filepath.Join(dist, imagesFile), []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (options{dist: dist, version: "v1.2.3"}).stampChart(filepath.Join(folder, "Chart.yaml")); err != nil {
		t.Fatal(err)
	}
	helm, err := filepath.Abs("../../bin/helm")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(helm); err != nil {
		t.Skip("NOT RUN: needs bin/helm")
	}
	other := "sha256:" + strings.Repeat("c", 64)
	for values, want := range map[string][]string{
		"":                           {"belay.dev/belay-controller@" + of["belay-controller"], "belay.dev/belay-controller-fencer@" + of["belay-controller-fencer"]},
		"imageTag=v1":                {"belay.dev/belay-controller:v1", "belay.dev/belay-controller-fencer:v1"},
		"controller.digest=" + other: {"belay.dev/belay-controller@" + other, "belay.dev/belay-controller-fencer@" + of["belay-controller-fencer"]},
	} {
		out, err := exec.CommandContext(t.Context(), helm, "template", "belay", folder, "--set", "controller.upstreamDisabled=true,recovery.enabled=true", "--set", values).CombinedOutput() //nolint:gosec // of the test
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		images := map[string]bool{}
		for line := range strings.Lines(string(out)) {
			if image, ok := strings.CutPrefix(strings.TrimSpace(line), "image: "); ok {
				images[image] = true
			}
		}
		if got := slices.Sorted(maps.Keys(images)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Errorf("with %q the images are %q, want %q", values, got, want)
		}
	}
}
