package main

import (
	"bytes"
	"context"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
)

// keys makes a key pair of cosign, and returns its folder.
func keys(t *testing.T) string {
	t.Helper()
	program, err := filepath.Abs("../../bin/cosign")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("COSIGN", program)
	t.Setenv("COSIGN_PASSWORD", "")
	folder := t.TempDir()
	t.Setenv("HOME", folder)
	cmd := exec.CommandContext(t.Context(), program, "generate-key-pair")
	cmd.Dir = folder
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cosign generate-key-pair: %v\n%s", err, out)
	}
	return folder
}

// TestVerificationRefusesChanges signs a copy of the release, and changes it in every way that verify must refuse.
func TestVerificationRefusesChanges(t *testing.T) {
	dist, pair := released(t), keys(t)
	o := options{dist: t.TempDir(), allowDirty: true, key: filepath.Join(pair, "cosign.key")}
	if err := os.CopyFS(o.dist, os.DirFS(dist)); err != nil {
		t.Fatal(err)
	}
	if err := sign(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	o.key = filepath.Join(pair, "cosign.pub")
	if err := verify(t.Context(), o); err != nil {
		t.Fatalf("the release as it was signed is refused: %v", err)
	}
	blobs, err := filepath.Glob(o.path("images", "belay-node", "blobs", "sha256", "*"))
	if err != nil || len(blobs) == 0 {
		t.Fatalf("no blob: %v", err)
	}
	for what, path := range map[string]string{
		"an archive": o.path("belay_linux_amd64.tar.gz"), "the checksums": o.path(sumsFile), "a blob of an image": blobs[0],
		"the list of images": o.path(imagesFile), "a signed statement": o.bundle(statementOf("belay_linux_amd64.tar.gz")),
	} {
		was, err := os.ReadFile(path) //nolint:gosec // the test's
		if err != nil {
			t.Fatal(err)
		}
		changed := append(bytes.Clone(was), '\n', '0')
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := verify(t.Context(), o); err == nil {
			t.Errorf("%s was changed, and verify accepts it", what)
		}
		if err := os.WriteFile(path, was, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	added := o.path("belay_linux_riscv64.tar.gz")
	if err := os.WriteFile(added, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := verify(t.Context(), o); err == nil {
		t.Error("a file was added, and verify accepts it")
	}
	if err := os.Remove(added); err != nil {
		t.Fatal(err)
	}
	o.key = filepath.Join(keys(t), "cosign.pub")
	if err := verify(t.Context(), o); err == nil {
		t.Error("verify accepts the key of another")
	}
}

// TestPushedImagesAreSigned pushes the images to a registry and signs them; an image that was not signed is refused.
func TestPushedImagesAreSigned(t *testing.T) {
	dist, pair := released(t), keys(t)
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true)))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/belay"
	o := options{dist: dist, allowDirty: true, key: filepath.Join(pair, "cosign.key"), version: "v0.0.1", to: repository, insecure: true}
	if err := push(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	pushed, err := readImages(dist)
	if err != nil || len(pushed) < 4 {
		t.Fatalf("%d images: %v", len(pushed), err)
	}
	check := func(ctx context.Context, key, image string) error {
		return cosign(ctx, "verify", "--key", filepath.Join(key, "cosign.pub"), "--insecure-ignore-tlog", "--allow-http-registry", repository+"/"+image)
	}
	for image, of := range pushed {
		if err := check(t.Context(), pair, image+"@"+of); err != nil {
			t.Errorf("%s: %v", image, err)
		}
	}
	if err := check(t.Context(), keys(t), "belay-node@"+pushed["belay-node"]); err == nil {
		t.Error("the signature of another key is accepted")
	}
	o.dist = t.TempDir()
	if err := os.CopyFS(o.dist, os.DirFS(dist)); err != nil {
		t.Fatal(err)
	}
	if _, err := o.pushImage(t.Context(), "belay-attacher", pushed["belay-node"]); err == nil {
		t.Error("an image is pushed under the digest of another")
	}
}
