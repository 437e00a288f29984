// Command images builds belay's container images with ko, without a container engine, and writes each as an OCI layout, or pushes it. Two builds of
// one commit give the same digests.
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/ko/pkg/build"
)

const module = "belay.dev/belay"

// picture is one image: a program, on a base.
type picture struct {
	name, program, title string
	// fences: on the files of Debian with the fence agents. Others have nothing but their program.
	fences bool
	user   string
}

var pictures = []picture{
	{name: "belay-controller", program: "belay-controller", title: "Attach/detach controller and recovery of belay", user: "65532:65532"},
	{name: "belay-controller-fencer", program: "belay-controller", title: "Recovery of belay with the fence agents", fences: true, user: "65532:65532"},
	{name: "belay-attacher", program: "belay-attacher", title: "CSI external attacher of belay", user: "0:0"}, // as csi-attacher: the socket of most drivers is root's
	{name: "belay-node", program: "belay-node", title: "Node agent of belay", user: "0:0"},                    // it mounts
	{name: "kubectl-belay", program: "kubectl-belay", title: "kubectl belay as a toolbox", user: "65532:65532"},
}

type options struct {
	out, push, version, revision, rootfs, licences, sboms, archives, digests string
	platforms, only                                                          []string
	insecure                                                                 bool
	created                                                                  time.Time
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	var platforms, only, created string
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	flags.StringVar(&o.out, "out", "dist/images", "folder for the OCI layouts, one for each image; existing layouts are replaced")
	flags.StringVar(&o.push, "push", "", "repository to push to, such as registry.example.com/belay; nothing is pushed if empty")
	flags.BoolVar(&o.insecure, "insecure", false, "push over plain HTTP")
	flags.StringVar(&o.version, "version", "unknown", "version, which is the tag too")
	flags.StringVar(&o.revision, "revision", "", "commit")
	flags.StringVar(&created, "created", os.Getenv("SOURCE_DATE_EPOCH"), "time of creation in seconds since 1970, the time of the commit; default SOURCE_DATE_EPOCH")
	flags.StringVar(&platforms, "platforms", "linux/amd64,linux/arm64", "platforms, separated by commas")
	flags.StringVar(&only, "only", "", "images to build, separated by commas; all if empty")
	flags.StringVar(&o.rootfs, "fencer-rootfs", "", "folder with ARCH.tar, the files of Debian with the fence agents (hack/fencer-rootfs); without it belay-controller-fencer is left out")
	flags.StringVar(&o.licences, "licences", "", "folder with the licences of what each program links (hack/licences), which the images have in /usr/share/doc; none if empty")
	flags.StringVar(&o.archives, "archives", "", "folder for NAME.tar of each image, which containerd imports; none if empty")
	flags.StringVar(&o.digests, "digests", "", "file for the name and digest of each image; none if empty")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.platforms = strings.Split(platforms, ",")
	if only != "" {
		o.only = strings.Split(only, ",")
	}
	for _, n := range o.only {
		if !slices.ContainsFunc(pictures, func(p picture) bool { return p.name == n }) {
			return o, fmt.Errorf("there is no image %s", n)
		}
	}
	if created != "" {
		seconds, err := strconv.ParseInt(created, 10, 64)
		if err != nil {
			return o, fmt.Errorf("--created: %w", err)
		}
		o.created = time.Unix(seconds, 0).UTC()
	}
	return o, nil
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	o.sboms = filepath.Join(o.out, "sboms")
	if err := os.MkdirAll(o.sboms, 0o755); err != nil {
		return fmt.Errorf("make the folder of the SBOMs: %w", err)
	}
	var digests strings.Builder
	for _, p := range pictures {
		switch {
		case len(o.only) > 0 && !slices.Contains(o.only, p.name):
			continue
		case p.fences && o.rootfs == "":
			fmt.Fprintf(os.Stderr, "images: %s is left out: --fencer-rootfs is not set\n", p.name)
			continue
		}
		result, err := p.build(ctx, o)
		if err != nil {
			return fmt.Errorf("build %s: %w", p.name, err)
		}
		if err := p.write(ctx, result, o); err != nil {
			return fmt.Errorf("write %s: %w", p.name, err)
		}
		digest, err := result.Digest()
		if err != nil {
			return fmt.Errorf("digest of %s: %w", p.name, err)
		}
		fmt.Printf("%s %s\n", p.name, digest)
		fmt.Fprintf(&digests, "%s %s\n", p.name, digest)
	}
	if o.digests == "" {
		return nil
	}
	return os.WriteFile(o.digests, []byte(digests.String()), 0o644) //nolint:gosec // it is public
}

// build compiles the program for each platform and puts it on its base.
func (p picture) build(ctx context.Context, o options) (build.Result, error) {
	base, err := p.base(o)
	if err != nil {
		return nil, err
	}
	reference, err := name.ParseReference("belay.dev/base:" + o.version)
	if err != nil {
		return nil, fmt.Errorf("name the base: %w", err)
	}
	importPath := build.StrictScheme + module + "/cmd/" + p.program
	builder, err := build.NewGo(ctx, ".",
		build.WithBaseImages(func(context.Context, string) (name.Reference, build.Result, error) { return reference, base, nil }),
		build.WithPlatforms(o.platforms...),
		build.WithTrimpath(true),
		build.WithDefaultEnv([]string{"CGO_ENABLED=0"}),
		build.WithDefaultFlags([]string{"-buildvcs=false"}),
		build.WithDefaultLdflags([]string{"-s", "-w", "-buildid=", "-X", "main.version=" + o.version, "-X", module + "/internal/usage.Commit=" + o.revision}),
		build.WithCreationTime(v1.Time{Time: o.created}),
		build.WithUser(p.user),
		build.WithSPDX("ko"), build.WithSBOMDir(o.sboms),
		build.WithLabel("org.opencontainers.image.title", p.title),
		build.WithLabel("org.opencontainers.image.version", o.version),
		build.WithLabel("org.opencontainers.image.revision", o.revision),
		build.WithLabel("org.opencontainers.image.licenses", "Apache-2.0"),
		build.WithLabel("org.opencontainers.image.url", "https://"+module),
	)
	if err != nil {
		return nil, fmt.Errorf("prepare ko: %w", err)
	}
	return builder.Build(ctx, importPath)
}

// base is an index with an image for each platform.
func (p picture) base(o options) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, platform := range o.platforms {
		of, err := v1.ParsePlatform(platform)
		if err != nil {
			return nil, fmt.Errorf("platform %s: %w", platform, err)
		}
		image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
		config := &v1.ConfigFile{OS: of.OS, Architecture: of.Architecture, RootFS: v1.RootFS{Type: "layers"}, Created: v1.Time{Time: o.created}}
		if p.fences { // the agents run tools that they find in it; ko adds its own folder
			config.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
		}
		if image, err = mutate.ConfigFile(image, config); err != nil {
			return nil, fmt.Errorf("base of %s: %w", platform, err)
		}
		if p.fences {
			if image, err = withFiles(image, filepath.Join(o.rootfs, of.Architecture+".tar")); err != nil {
				return nil, err
			}
		}
		if image, err = p.withLicences(image, o); err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: of}})
	}
	return index, nil
}

// withFiles adds a tar archive as a layer.
func withFiles(image v1.Image, archive string) (v1.Image, error) {
	layer, err := tarball.LayerFromFile(archive, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", archive, err)
	}
	return mutate.AppendLayers(image, layer)
}

// withLicences adds the licences of what the program links as a layer.
func (p picture) withLicences(image v1.Image, o options) (v1.Image, error) {
	if o.licences == "" {
		return image, nil
	}
	var packed bytes.Buffer
	out, root := tar.NewWriter(&packed), filepath.Join(o.licences, p.program)
	add := func(path, inside string) error {
		content, err := os.ReadFile(path) //nolint:gosec // of the module cache
		if err != nil {
			return err
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: "usr/share/doc/" + p.program + "/" + inside, Mode: 0o644, Size: int64(len(content)), ModTime: o.created}
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		_, err = out.Write(content)
		return err
	}
	err := add("LICENSE", "LICENSE")
	if err == nil {
		err = filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			inside, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			return add(path, "licences/"+filepath.ToSlash(inside))
		})
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return nil, fmt.Errorf("pack the licences of %s: %w", p.program, err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed.Bytes())), nil }, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("the layer with the licences of %s: %w", p.program, err)
	}
	return mutate.AppendLayers(image, layer)
}

// write makes the OCI layout, the archive if one is wanted, and pushes.
func (p picture) write(ctx context.Context, result build.Result, o options) error {
	folder := filepath.Join(o.out, p.name)
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	if err := save(folder, result); err != nil {
		return err
	}
	if err := tag(folder, p.name, o); err != nil {
		return err
	}
	if o.archives != "" {
		if err := archive(folder, filepath.Join(o.archives, p.name+".tar")); err != nil {
			return err
		}
	}
	if o.push == "" {
		return nil
	}
	var naming []name.Option
	if o.insecure {
		naming = append(naming, name.Insecure)
	}
	reference, err := name.NewTag(o.push+"/"+p.name+":"+o.version, naming...)
	if err != nil {
		return err
	}
	index, ok := result.(v1.ImageIndex)
	if !ok {
		return remote.Write(reference, result.(v1.Image), remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	}
	return remote.WriteIndex(reference, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
}

// save makes the OCI layout.
func save(folder string, result build.Result) error {
	path, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	if index, ok := result.(v1.ImageIndex); ok {
		return path.AppendIndex(index)
	}
	return path.AppendImage(result.(v1.Image))
}

// tag names the image in the layout, as containerd reads it.
func tag(folder, image string, o options) error {
	path, err := layout.FromPath(folder)
	if err != nil {
		return err
	}
	index, err := path.ImageIndex()
	if err != nil {
		return err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	manifest = manifest.DeepCopy()
	for i := range manifest.Manifests {
		manifest.Manifests[i].Annotations = map[string]string{
			"io.containerd.image.name":          "belay.dev/" + image + ":" + o.version,
			"org.opencontainers.image.ref.name": o.version,
		}
	}
	raw, err := json.MarshalIndent(manifest, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "index.json"), raw, 0o644) //nolint:gosec // it is public
}

// archive packs a layout into one file.
func archive(folder, to string) (err error) {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() {
		if e := file.Close(); err == nil {
			err = e
		}
	}()
	out := tar.NewWriter(file)
	err = filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		if err := out.WriteHeader(&tar.Header{Name: inside, Mode: 0o644, Size: info.Size(), Typeflag: tar.TypeReg, ModTime: time.Unix(0, 0)}); err != nil {
			return err
		}
		content, err := os.Open(path)
		if err != nil {
			return err
		}
		defer content.Close() //nolint:errcheck // only read
		_, err = io.Copy(out, content)
		return err
	})
	if err != nil {
		return err
	}
	return out.Close()
}
