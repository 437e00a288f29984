package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // the format
)

const agent = "belay-node"

// zshFolder is where each distribution's zsh looks.
var zshFolder = map[string]string{"deb": "/usr/share/zsh/vendor-completions/", "rpm": "/usr/share/zsh/site-functions/"}

// packages makes the deb and the rpm of belay-node.
func packages(_ context.Context, o options) error {
	for _, format := range []string{"deb", "rpm"} {
		for _, p := range linux {
			if err := o.makePackage(format, p); err != nil {
				return fmt.Errorf("%s of %s: %w", format, p, err)
			}
		}
	}
	return nil
}

func (o options) makePackage(format string, p platform) error {
	contents, err := o.packaged(format, p)
	if err != nil {
		return err
	}
	number, suffix, _ := strings.Cut(o.version.semantic(), "-")
	info := &nfpm.Info{
		Name: agent, Arch: p.arch, Platform: p.system, Version: number, Prerelease: strings.ReplaceAll(suffix, "-", "."), VersionSchema: "none",
		Section: "admin", Priority: "optional", Maintainer: "The belay authors <maintainers@belay.dev>", Vendor: "belay", Homepage: "https://" + module, License: "Apache-2.0",
		Description: "CSI volumes for a node without a kubelet\nbelay-node mounts and unmounts the CSI volumes of the pods of one node.", MTime: o.created,
		Overridables: nfpm.Overridables{
			Contents: contents,
			Depends:  map[string][]string{"deb": {"mount", "util-linux"}, "rpm": {"util-linux"}}[format],
			Scripts: nfpm.Scripts{
				PostInstall: "deploy/belay-node/package/postinstall", PreRemove: "deploy/belay-node/package/preremove", PostRemove: "deploy/belay-node/package/postremove",
			},
			RPM: nfpm.RPM{BuildHost: "belay.dev", Summary: "CSI volumes for a node without a kubelet"},
		},
	}
	info = nfpm.WithDefaults(info)
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	name := o.path(agent + "_" + p.String() + "." + format)
	return writeFile(name, func(out io.Writer) error { return packager.Package(info, out) })
}

// packaged lists the files of a package.
func (o options) packaged(format string, p platform) (files.Contents, error) {
	unit, err := o.unit()
	if err != nil {
		return nil, err
	}
	page, err := o.prepare("belay-node.8.gz", func() ([]byte, error) { return gzipped(filepath.Join(o.docs(agent), "man", "man8", "belay-node.8")) })
	if err != nil {
		return nil, err
	}
	scripts := filepath.Join(o.docs(agent), "completions")
	list := files.Contents{
		{Source: filepath.Join(o.built(p), agent), Destination: "/usr/bin/belay-node", FileInfo: &files.ContentFileInfo{Mode: 0o755}},
		{Source: unit, Destination: "/usr/lib/systemd/system/belay-node.service"},
		{Source: page, Destination: "/usr/share/man/man8/belay-node.8.gz"},
		{Source: filepath.Join(scripts, "belay-node.bash"), Destination: "/usr/share/bash-completion/completions/belay-node"},
		{Source: filepath.Join(scripts, "_belay-node"), Destination: zshFolder[format] + "_belay-node"},
		{Source: filepath.Join(scripts, "belay-node.fish"), Destination: "/usr/share/fish/vendor_completions.d/belay-node.fish"},
		{Source: "LICENSE", Destination: map[string]string{"deb": "/usr/share/doc/belay-node/copyright", "rpm": "/usr/share/licenses/belay-node/LICENSE"}[format]},
	}
	inside, err := filesIn(o.licences(agent))
	if err != nil {
		return nil, err
	}
	for _, file := range inside {
		list = append(list, &files.Content{
			Source:      filepath.Join(o.licences(agent), file),
			Destination: map[string]string{"deb": "/usr/share/doc/belay-node/licences/", "rpm": "/usr/share/licenses/belay-node/"}[format] + file,
		})
	}
	for _, c := range list {
		if c.FileInfo == nil {
			c.FileInfo = &files.ContentFileInfo{Mode: 0o644}
		}
		c.FileInfo.MTime = o.created
	}
	return list, nil
}

// unit is the unit of deploy/ with the path at which a package has the program.
func (o options) unit() (string, error) {
	return o.prepare("belay-node.service", func() ([]byte, error) {
		raw, err := os.ReadFile("deploy/belay-node/belay-node.service")
		if err != nil {
			return nil, err
		}
		const by, of = "ExecStart=/usr/local/bin/belay-node ", "ExecStart=/usr/bin/belay-node "
		if bytes.Count(raw, []byte(by)) != 1 {
			return nil, fmt.Errorf("the unit has no line %q", by)
		}
		return bytes.Replace(raw, []byte(by), []byte(of), 1), nil
	})
}

// prepare writes a file that only a package has.
func (o options) prepare(name string, content func() ([]byte, error)) (string, error) {
	raw, err := content()
	if err != nil {
		return "", err
	}
	name = filepath.Join(o.work(), "package", name)
	return name, writeFile(name, func(out io.Writer) error { _, err := out.Write(raw); return err })
}
