package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryModuleIsThere: each module that a program links has a folder with at least one file, and so has Go.
func TestEveryModuleIsThere(t *testing.T) {
	t.Chdir("../..")
	found := map[string]string{}
	for _, platform := range []string{"linux/amd64", "windows/amd64"} {
		if err := collect("kubectl-belay", platform, found); err != nil {
			t.Fatal(err)
		}
	}
	out := t.TempDir()
	if err := write(out, found); err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}@{{.Version}}{{end}}{{end}}", "./cmd/kubectl-belay")
	modules, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for module := range strings.FieldsSeq(string(modules) + " go@*") {
		files, _ := filepath.Glob(filepath.Join(out, module, "[LCNP]*"))
		if seen[module] = len(files) > 0; !seen[module] {
			t.Errorf("%s: no licence", module)
		}
	}
	if len(seen) < 20 {
		t.Errorf("%d modules", len(seen))
	}
}

// TestModuleWithoutALicence: it is not left out silently. A notice below the root of the module is found.
func TestModuleWithoutALicence(t *testing.T) {
	root := t.TempDir()
	inner := filepath.Join(root, "third_party", "x")
	if err := os.MkdirAll(inner, 0o750); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	if err := os.WriteFile(filepath.Join(inner, "license.go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ofPackage(inner, root, "example.com/m@v1", found); err == nil || len(found) > 0 {
		t.Errorf("%v, %v", err, found)
	}
	if err := os.WriteFile(filepath.Join(inner, "LICENSE.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ofPackage(inner, root, "example.com/m@v1", found); err != nil || found["example.com/m@v1/third_party/x/LICENSE.txt"] == "" {
		t.Errorf("%v, %v", err, found)
	}
}
