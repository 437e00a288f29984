package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// platform is what a program is built for.
type platform struct{ system, arch string }

func (p platform) String() string { return p.system + "_" + p.arch }

// program returns the name of a program's file.
func (p platform) program(name string) string {
	if p.system == "windows" {
		return name + ".exe"
	}
	return name
}

var (
	linux   = []platform{{"linux", "amd64"}, {"linux", "arm64"}}
	desktop = []platform{{"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}}
)

// product is one archive for each platform.
type product struct {
	name      string
	programs  []string
	platforms []platform
}

// plugin is what krew installs.
const plugin = "kubectl-belay"

var products = []product{
	{name: "belay", programs: []string{"belay-controller", "belay-attacher", "belay-node"}, platforms: linux},
	{name: plugin, programs: []string{plugin}, platforms: append(linux[:len(linux):len(linux)], desktop...)},
}

// compile builds the programs of all platforms. The flags are those of hack/images: an archive has the same program as an image.
func compile(ctx context.Context, o options) error {
	linking := fmt.Sprintf("-s -w -buildid= -X main.version=%s -X %s/internal/usage.Commit=%s", o.version, module, o.revision)
	for _, product := range products {
		for _, p := range product.platforms {
			args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", linking, "-o", o.built(p) + "/"}
			for _, name := range product.programs {
				args = append(args, "./cmd/"+name)
			}
			if err := command(ctx, []string{"GOFLAGS=", "CGO_ENABLED=0", "GOOS=" + p.system, "GOARCH=" + p.arch}, "go", args...); err != nil {
				return err
			}
		}
	}
	return nil
}

// built is the folder of the programs of a platform.
func (o options) built(p platform) string { return filepath.Join(o.work(), "programs", p.String()) }

// docs is the folder of the man pages and completion scripts of a program.
func (o options) docs(program string) string { return filepath.Join(o.work(), "docs", program) }

// licences copies those of the modules that the programs link (hack/licences). A program has the same ones on all of its platforms.
func licences(ctx context.Context, o options) error {
	for _, product := range products {
		var platforms []string
		for _, p := range product.platforms {
			platforms = append(platforms, p.system+"/"+p.arch)
		}
		args := append([]string{"run", "-trimpath", "-buildvcs=false", "./hack/licences", "-out", o.licences(), "-platforms", strings.Join(platforms, ",")}, product.programs...)
		if err := command(ctx, []string{"GOFLAGS=", "CGO_ENABLED=0"}, "go", args...); err != nil {
			return err
		}
	}
	return nil
}

// licences is the folder of the licences of a program, or of all.
func (o options) licences(program ...string) string {
	return filepath.Join(append([]string{o.work(), "licences"}, program...)...)
}

// manual lets each program write its man pages and completion scripts (internal/manpage). -trimpath, as for the release: else every package is compiled again.
func manual(ctx context.Context, o options) error {
	for _, product := range products {
		for _, name := range product.programs {
			writer := filepath.Join(o.work(), "writers", name)
			if err := command(ctx, []string{"GOFLAGS=", "CGO_ENABLED=0"}, "go", "build", "-trimpath", "-buildvcs=false", "-tags", "manpage", "-o", writer, "./cmd/"+name); err != nil {
				return err
			}
			writer, err := filepath.Abs(writer)
			if err != nil {
				return err
			}
			// HOME: defaults below the home directory are printed as that.
			if err := command(ctx, []string{"HOME=$HOME"}, writer, o.docs(name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// chart packs the chart with the version of the release. helm takes the times of the files.
func chart(ctx context.Context, o options) error {
	folder := filepath.Join(o.work(), "chart", "belay")
	if err := os.CopyFS(folder, os.DirFS("charts/belay")); err != nil {
		return err
	}
	err := filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if entry.Name() == "Chart.yaml" && filepath.Dir(path) == folder {
			if err := o.stampChart(path); err != nil {
				return err
			}
		}
		return os.Chtimes(path, o.created, o.created)
	})
	if err != nil {
		return err
	}
	return command(ctx, nil, "bin/helm", "package", folder, "--destination", o.dist)
}

// stampChart writes both versions of a Chart.yaml: helm would write the time of now with them. The images' tag is the version as it is, and their
// digests, which the chart prefers, are annotations: a tag in a registry can be moved to another image after the release was signed.
func (o options) stampChart(path string) error {
	raw, err := os.ReadFile(path) //nolint:gosec // of the repository
	if err != nil {
		return err
	}
	digests, err := readImages(o.dist)
	if err != nil {
		return err
	}
	var lines []string
	stamped := 0
	for line := range strings.Lines(string(raw)) {
		switch {
		case strings.HasPrefix(line, "version:"):
			line, stamped = "version: "+o.version.semantic()+"\n", stamped+1
		case strings.HasPrefix(line, "appVersion:"):
			line, stamped = fmt.Sprintf("appVersion: %q\n", o.version), stamped+1
		}
		lines = append(lines, line)
	}
	if stamped != 2 {
		return fmt.Errorf("%s has %d lines of versions, want 2", path, stamped)
	}
	lines = append(lines, "annotations:\n")
	for _, image := range slices.Sorted(maps.Keys(digests)) {
		lines = append(lines, fmt.Sprintf("  digest.belay.dev/%s: %q\n", image, digests[image]))
	}
	return os.WriteFile(path, []byte(strings.Join(lines, "")), 0o644) //nolint:gosec // for everyone
}

// images builds the container images with hack/images, and keeps the list of their digests.
func images(ctx context.Context, o options) (err error) {
	args := []string{"-out", o.path("images"), "-licences", o.licences(), "-version", string(o.version), "-revision", o.revision, "-digests", o.path(imagesFile)}
	if o.rootfs != "" {
		args = append(args, "-fencer-rootfs", o.rootfs)
	}
	return command(ctx, []string{"GOFLAGS="}, "bin/images", args...)
}

func copyFile(to io.Writer, path string) error {
	from, err := os.Open(path) //nolint:gosec // of the release
	if err != nil {
		return err
	}
	defer from.Close() //nolint:errcheck // only read
	_, err = io.Copy(to, from)
	return err
}
