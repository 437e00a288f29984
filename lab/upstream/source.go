package upstream

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"go/version"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"

	"belay.dev/belay/internal/usage"
)

// sourceDir may be set at link time to the folder of the lab's module, with
// -X belay.dev/belay/lab/upstream.sourceDir=/path/to/lab.
var sourceDir string

// program is one `tool` directive of a go.mod.
type program struct {
	name    string // of the file, such as "etcd"
	pkg     string // import path
	module  string // folder of the go.mod
	version string // of the module that holds it
	stamps  string // linker flags that put the version into it
}

// source is the lab's module: what to build, from which versions.
type source struct {
	dir       string
	goVersion string // the least Go that builds it, such as "1.26.0"
	programs  []program
	sum       []byte // go.sum, of all modules that programs are built from
}

// findSource looks for the lab's go.mod: where BELAY_LAB_SRC says, in ../lab of this program's
// folder (bin/belay-lab of a checkout), at the path given at link time.
func findSource() (string, error) {
	var candidates []string
	if dir := os.Getenv("BELAY_LAB_SRC"); dir != "" {
		candidates = append(candidates, dir)
	} else {
		if self, err := os.Executable(); err == nil {
			candidates = append(candidates, filepath.Join(filepath.Dir(self), "..", "lab"))
		}
		if sourceDir != "" {
			candidates = append(candidates, sourceDir)
		}
	}
	for _, dir := range candidates {
		if isLab(dir) {
			return filepath.Abs(dir)
		}
	}
	return "", fmt.Errorf("the upstream programs are built from the lab's go.mod, which is not in %s: set BELAY_LAB_SRC to the lab folder of a checkout of belay, "+
		"or BELAY_UPSTREAM_BIN to a folder that has the programs", strings.Join(candidates, " or "))
}

func isLab(dir string) bool {
	content, err := os.ReadFile(filepath.Join(dir, "go.mod")) //nolint:gosec // the user names the folder
	return err == nil && modfile.ModulePath(content) == "belay.dev/belay/lab"
}

// findMinor reads what to build for a minor version of Kubernetes: the programs of the lab's module, those of Kubernetes replaced by
// what upstream/<minor>/go.mod pins. The lab's own minor, and "", is the lab's module.
func findMinor(dir, minor string) (source, error) {
	s, err := readSource(dir)
	if err != nil || minor == "" || semver.MajorMinor(s.kubernetes()) == "v"+minor {
		return s, err
	}
	other, err := readSource(filepath.Join(dir, "upstream", minor))
	if errors.Is(err, fs.ErrNotExist) || semver.MajorMinor("v"+minor) != "v"+minor {
		return source{}, usage.Errorf("no module pins Kubernetes %s: lab/go.mod has %s, the folders in lab/upstream other minor versions", minor, s.kubernetes())
	}
	if err != nil {
		return source{}, err
	}
	for i, p := range s.programs {
		if at := slices.IndexFunc(other.programs, func(o program) bool { return o.name == p.name }); at >= 0 {
			s.programs[i] = other.programs[at]
		}
	}
	s.sum = append(s.sum, other.sum...)
	return s, nil
}

func readSource(dir string) (source, error) {
	file := filepath.Join(dir, "go.mod")
	content, err := os.ReadFile(file)
	if err != nil {
		return source{}, fmt.Errorf("reading what to build: %w", err)
	}
	module, err := modfile.Parse(file, content, nil)
	if err != nil {
		return source{}, fmt.Errorf("reading what to build: %w", err)
	}
	s := source{dir: dir}
	if module.Go != nil {
		s.goVersion = module.Go.Version
	}
	for _, tool := range module.Tool {
		p, err := newProgram(dir, tool.Path, module.Require)
		if err != nil {
			return source{}, err
		}
		s.programs = append(s.programs, p)
	}
	s.sum, err = os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return source{}, fmt.Errorf("reading what to build: %w", err)
	}
	return s, nil
}

// newProgram finds the module of a tool, the longest path that holds it, and from it the version.
func newProgram(dir, pkg string, required []*modfile.Require) (program, error) {
	p := program{name: programName(pkg), pkg: pkg, module: dir}
	module := ""
	for _, r := range required {
		if (pkg == r.Mod.Path || strings.HasPrefix(pkg, r.Mod.Path+"/")) && len(r.Mod.Path) > len(module) {
			module, p.version = r.Mod.Path, r.Mod.Version
		}
	}
	switch {
	case module == "":
		return p, fmt.Errorf("go.mod names the tool %s but requires no module that holds it", pkg)
	case module == "k8s.io/kubernetes":
		p.stamps = "-X k8s.io/component-base/version.gitVersion=" + p.version
	case strings.HasPrefix(module, "github.com/kubernetes-csi/"):
		p.stamps = "-X main.version=" + p.version
	}
	return p, nil
}

// programName is what a program is called: as go calls it, but etcd's main package is its server module's root.
func programName(pkg string) string {
	if strings.HasPrefix(pkg, "go.etcd.io/etcd/server") {
		return "etcd"
	}
	return executable(pkg)
}

// executable is the name that go build gives to a program: the last element of the import path that is not a major version.
func executable(pkg string) string {
	name := path.Base(pkg)
	if len(name) > 1 && name[0] == 'v' && strings.Trim(name[1:], "0123456789") == "" {
		name = path.Base(path.Dir(pkg))
	}
	return name
}

// key names the folder of the built programs: whatever could change them changes it.
func (s source) key(goVersion, platform string) string {
	hash := sha256.New()
	programs := slices.Clone(s.programs)
	slices.SortFunc(programs, func(a, b program) int { return strings.Compare(a.pkg, b.pkg) })
	for _, p := range programs {
		_, _ = fmt.Fprintln(hash, p.pkg, p.version, p.stamps) // a hash never fails
	}
	_, _ = fmt.Fprintln(hash, goVersion, platform, buildFlag, linkFlags)
	hash.Write(s.sum)
	return s.kubernetes() + "-" + hex.EncodeToString(hash.Sum(nil))[:12]
}

// kubernetes is the version for a reader of the cache folder; the hash alone identifies.
func (s source) kubernetes() string {
	for _, p := range s.programs {
		if p.name == "kube-apiserver" {
			return p.version
		}
	}
	return "upstream"
}

// checkGo refuses a Go that is older than go.mod asks for.
func (s source) checkGo(have string) error {
	if version.Compare(have, "go"+s.goVersion) < 0 {
		return fmt.Errorf("the Go here is %s, the lab needs go%s or newer: get it from https://go.dev/dl", have, s.goVersion)
	}
	return nil
}
