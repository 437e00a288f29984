package nodes

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestImagesContainProgram(t *testing.T) {
	ledger := ledgerProgram(t, t.TempDir())
	var archive, again bytes.Buffer
	if err := errors.Join(WriteImages(&archive, ledger), WriteImages(&again, ledger)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(archive.Bytes(), again.Bytes()) {
		t.Error("the same program makes two different images")
	}
	files := map[string][]byte{}
	for reader := tar.NewReader(&archive); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(reader); err != nil {
			t.Fatal(err)
		}
	}
	read := func(descriptor ocispec.Descriptor, into any) {
		if err := json.Unmarshal(files["blobs/sha256/"+descriptor.Digest.Encoded()], into); err != nil {
			t.Fatalf("%s: %v", descriptor.Digest, err)
		}
	}
	var index ocispec.Index
	if err := json.Unmarshal(files[ocispec.ImageIndexFile], &index); err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, descriptor := range index.Manifests {
		var manifest ocispec.Manifest
		var image ocispec.Image
		read(descriptor, &manifest)
		read(manifest.Config, &image)
		got[descriptor.Annotations[imageNameAnnotation]] = image.Config.Entrypoint
		if layer := files["blobs/sha256/"+manifest.Layers[0].Digest.Encoded()]; int64(len(layer)) != manifest.Layers[0].Size {
			t.Errorf("layer of %d bytes, want %d", len(layer), manifest.Layers[0].Size)
		}
	}
	want := map[string][]string{Image: {"/ledger"}, pauseImage: {"/ledger", "pause"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// What is no archive of images gets an error that says so, before a node is asked.
func TestCheckArchive(t *testing.T) {
	var images, other, packed bytes.Buffer
	if err := WriteImages(&images, ledgerProgram(t, t.TempDir())); err != nil {
		t.Fatal(err)
	}
	compressed := gzip.NewWriter(&packed)
	_, err := compressed.Write(images.Bytes())
	files := tar.NewWriter(&other)
	if err := errors.Join(err, compressed.Close(), files.WriteHeader(&tar.Header{Name: "README.md", Mode: 0o644}), files.Close()); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		content []byte
		says    string
	}{
		"images":       {images.Bytes(), ""},
		"compressed":   {packed.Bytes(), ""},
		"text":         {[]byte(strings.Repeat("no archive\n", 200)), "is no archive of images: archive/tar: invalid tar header"},
		"a short text": {[]byte("no archive\n"), "is no archive of images"},
		"empty":        {nil, "neither index.json"},
		"other files":  {other.Bytes(), "neither index.json"},
		"cut off":      {images.Bytes()[:700], "is no archive of images"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "archive")
			if err := os.WriteFile(path, test.content, 0o600); err != nil {
				t.Fatal(err)
			}
			err := CheckArchive(path)
			if said := fmt.Sprint(err); (err != nil) != (test.says != "") || !strings.Contains(said, test.says) {
				t.Errorf("%v, want %q", err, test.says)
			}
		})
	}
}

func TestDynamicallyLinkedProgramIsRefused(t *testing.T) {
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no program at hand that is linked dynamically")
	}
	if err := WriteImages(io.Discard, shell); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("got %v", err)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteImages(io.Discard, text); err == nil {
		t.Error("a text became an image")
	}
}
