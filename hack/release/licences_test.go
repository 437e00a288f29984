package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goreleaser/nfpm/v2/files"
)

// TestLicencesAreInEverything: each archive and each package has the licences of what its programs link, and is not made without.
func TestLicencesAreInEverything(t *testing.T) {
	t.Chdir("../..")
	o := options{dist: filepath.Join(t.TempDir(), "dist"), created: time.Unix(1, 0)}
	put := func(path string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, product := range products {
		for _, name := range product.programs {
			put(filepath.Join(o.docs(name), "man", "man8", name+".8"))
			if _, err := o.contents(product, product.platforms[0]); err == nil {
				t.Errorf("%s: an archive without the licences of %s", product.name, name)
			}
			put(filepath.Join(o.licences(name), "example.com", name+"@v1", "LICENSE"))
		}
		for _, p := range product.platforms {
			contents, err := o.contents(product, p)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range product.programs {
				if inside := "licences/example.com/" + name + "@v1/LICENSE"; contents[inside].source == "" {
					t.Errorf("%s of %s has no %s", product.name, p, inside)
				}
			}
		}
	}
	for format, at := range map[string]string{"deb": "/usr/share/doc/belay-node/licences/", "rpm": "/usr/share/licenses/belay-node/"} {
		list, err := o.packaged(format, linux[0])
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(list, func(c *files.Content) bool { return c.Destination == at+"example.com/belay-node@v1/LICENSE" }) {
			t.Errorf("the %s has no licences: %v", format, list)
		}
	}
}

// TestDebianCopyright: the files of the fencer's image keep the copyright of each package, which is in the folder that is else left out.
func TestDebianCopyright(t *testing.T) {
	raw, err := os.ReadFile("../fencer-rootfs")
	if err != nil {
		t.Fatal(err)
	}
	left, kept, _ := strings.Cut(string(raw), "--dpkgopt='path-exclude=/usr/share/doc/*'")
	if strings.Contains(left, "path-include") || !strings.Contains(kept, "--dpkgopt='path-include=/usr/share/doc/*/copyright'") || !strings.Contains(kept, "usr/share/doc/ipmitool/copyright") {
		t.Error("hack/fencer-rootfs leaves the copyright files out, or does not look for them")
	}
}

// TestDebianPackagesAreListed: the list of the packages in the fencer's image is an input of a release, beside the files.
func TestDebianPackagesAreListed(t *testing.T) {
	raw, err := os.ReadFile("../fencer-rootfs")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(raw), `PACKAGES=$(realpath "$out")/$arch.packages`) || !strings.Contains(string(raw), `>"$PACKAGES"`) {
		t.Error("hack/fencer-rootfs writes no list of packages")
	}
	dir := t.TempDir()
	for _, name := range []string{"amd64.tar", "amd64.packages", "commit"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	inputs, err := rootfsInputs(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range inputs {
		names = append(names, i.GetName())
	}
	if !slices.Equal(names, []string{"fencer-rootfs/amd64.tar", "fencer-rootfs/amd64.packages"}) {
		t.Errorf("the inputs are %v", names)
	}
}
