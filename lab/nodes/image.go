package nodes

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// Image is the lab's container image: the program /ledger. Its tag is not "latest",
	// so that kubelet does not try to pull it each time.
	Image = "lab.belay.dev/ledger:v1"
	// pauseImage is the sandbox of a pod; the same file, another entry point.
	pauseImage = "lab.belay.dev/pause:v1"

	// ledgerPath is the program's path in the image.
	ledgerPath = "/ledger"

	// imageNameAnnotation is where containerd's importer finds the whole name of an image.
	imageNameAnnotation = "io.containerd.image.name"
)

// imageEntrypoint is what a container runs that names no command.
var imageEntrypoint = []string{ledgerPath}

// layout collects the blobs of an OCI image layout.
type layout struct {
	tar   *tar.Writer
	index ocispec.Index
	seen  map[digest.Digest]bool
}

// named is an image of an archive, and what it runs.
type named struct {
	name       string
	entrypoint []string
}

// WriteImages writes an OCI image layout, as a tar, that holds the lab's image and
// the sandbox image, made from the static program ledger. It is the same, byte for
// byte, for the same program.
func WriteImages(out io.Writer, ledger string) error {
	return writeLayout(out, ledger, filepath.Base(ledgerPath), named{Image, imageEntrypoint}, named{pauseImage, []string{ledgerPath, "pause"}})
}

// PackProgram is WriteImages with one image of the given name, which has nothing but a static program and runs it.
func PackProgram(out io.Writer, name, path string) error {
	file := filepath.Base(path)
	return writeLayout(out, path, file, named{name, []string{"/" + file}})
}

// CheckArchive returns an error unless a file is an archive of images: a tar, which may be compressed with gzip, with the index of an OCI
// image layout or the manifest of `docker save`.
func CheckArchive(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	defer func() { _ = file.Close() }()
	archive := tar.NewReader(file)
	if unpacked, err := gzip.NewReader(file); err == nil {
		archive = tar.NewReader(unpacked)
	} else if _, err := file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	for {
		header, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			return fmt.Errorf("%s is no archive of images: it has neither index.json (an OCI image layout) nor manifest.json (`docker save`)", path)
		case err != nil:
			return fmt.Errorf("%s is no archive of images: %w", path, err)
		}
		if name := filepath.Clean(header.Name); name == ocispec.ImageIndexFile || name == "manifest.json" {
			return nil
		}
	}
}

// writeLayout writes images that all have one program in their root directory.
func writeLayout(out io.Writer, path, file string, images ...named) error {
	program, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the program of an image: %w", err)
	}
	if err := checkStatic(program); err != nil {
		return fmt.Errorf("program %s of an image: %w", path, err)
	}
	archive := layout{
		tar: tar.NewWriter(out), seen: map[digest.Digest]bool{},
		index: ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex},
	}
	layer, err := tarFile(file, program)
	if err != nil {
		return err
	}
	for _, image := range images {
		if err := archive.addImage(image.name, layer, image.entrypoint); err != nil {
			return fmt.Errorf("write image %s: %w", image.name, err)
		}
	}
	if err := archive.close(); err != nil {
		return fmt.Errorf("write the images of %s: %w", path, err)
	}
	return nil
}

// checkStatic refuses a program that needs a loader: the image has none, and all that
// a container would say is "no such file".
func checkStatic(program []byte) error {
	file, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return fmt.Errorf("read as an executable: %w", err)
	}
	for _, part := range file.Progs {
		if part.Type == elf.PT_INTERP {
			return errors.New("it is linked dynamically: build it with CGO_ENABLED=0")
		}
	}
	return nil
}

// tarFile is a layer with one program in its root directory.
func tarFile(name string, content []byte) ([]byte, error) {
	var layer bytes.Buffer
	writer := tar.NewWriter(&layer)
	for _, header := range []*tar.Header{
		{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777},
		{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(content))},
	} {
		if err := writer.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("write layer: %w", err)
		}
	}
	if _, err := writer.Write(content); err != nil {
		return nil, fmt.Errorf("write layer: %w", err)
	}
	if err := writer.Close(); err != nil {
		return nil, fmt.Errorf("write layer: %w", err)
	}
	return layer.Bytes(), nil
}

func (l *layout) addImage(name string, layer []byte, entrypoint []string) error {
	layerBlob, err := l.blob(ocispec.MediaTypeImageLayer, layer)
	if err != nil {
		return err
	}
	config := ocispec.Image{
		Platform: ocispec.Platform{Architecture: runtime.GOARCH, OS: "linux"},
		Config:   ocispec.ImageConfig{Entrypoint: entrypoint, Env: []string{"PATH=/"}, WorkingDir: "/"},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{layerBlob.Digest}},
	}
	configBlob, err := l.jsonBlob(ocispec.MediaTypeImageConfig, config)
	if err != nil {
		return err
	}
	manifest, err := l.jsonBlob(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: configBlob, Layers: []ocispec.Descriptor{layerBlob},
	})
	if err != nil {
		return err
	}
	manifest.Annotations = map[string]string{imageNameAnnotation: name}
	l.index.Manifests = append(l.index.Manifests, manifest)
	return nil
}

func (l *layout) jsonBlob(mediaType string, value any) (ocispec.Descriptor, error) {
	raw, err := json.Marshal(value)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("encode %s: %w", mediaType, err)
	}
	return l.blob(mediaType, raw)
}

func (l *layout) blob(mediaType string, content []byte) (ocispec.Descriptor, error) {
	descriptor := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}
	if l.seen[descriptor.Digest] {
		return descriptor, nil
	}
	l.seen[descriptor.Digest] = true
	return descriptor, l.file("blobs/sha256/"+descriptor.Digest.Encoded(), content)
}

func (l *layout) file(name string, content []byte) error {
	if err := l.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := l.tar.Write(content)
	return err
}

func (l *layout) close() error {
	marker, err := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil {
		return err
	}
	index, err := json.Marshal(l.index)
	if err != nil {
		return err
	}
	if err := l.file(ocispec.ImageLayoutFile, marker); err != nil {
		return err
	}
	if err := l.file(ocispec.ImageIndexFile, index); err != nil {
		return err
	}
	return l.tar.Close()
}
