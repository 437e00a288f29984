package house

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestImportRules reads `go list` of the whole module and fails on each import
// that the house does not allow.
func TestImportRules(t *testing.T) {
	standard := standardLibrary(t)
	packages := list(t, "./...")
	if len(packages) == 0 {
		t.Fatal("go list found no package: the test looks at nothing")
	}
	for _, p := range packages {
		for _, breach := range breaches(p, func(path string) bool { return standard[path] }) {
			t.Error(breach)
		}
	}
}

// TestRulesCatch shows that each rule refuses what it is there for.
func TestRulesCatch(t *testing.T) {
	tests := map[string]struct {
		from, imports string
		wantBreach    bool
	}{
		"pure package, standard library":      {"internal/attachment", "time", false},
		"pure package, library":               {"internal/attachment", "k8s.io/api/core/v1", true},
		"pure package, adapter":               {"internal/nodevolume", module + "/internal/csi", true},
		"attachment may know of fencing":      {"internal/attachment", module + "/internal/fencing", false},
		"publication may not know of fencing": {"internal/publication", module + "/internal/fencing", true},
		"adapter, its library":                {"internal/csi", "google.golang.org/grpc/codes", false},
		"adapter, another's library":          {"internal/mount", "google.golang.org/grpc", true},
		"adapter, another adapter":            {"internal/csi", module + "/internal/kube", true},
		"adapter, a shell":                    {"internal/kube", module + "/internal/attacher", true},
		"adapter, pure package":               {"internal/csi", module + "/internal/publication", false},
		"shell, another shell":                {"internal/attachdetach", module + "/internal/attacher", true},
		"shell, adapter":                      {"internal/attachdetach", module + "/internal/kube", false},
		"explain, library":                    {"internal/explain", "k8s.io/api/core/v1", true},
		"explain, shell":                      {"internal/explain", module + "/internal/attacher", true},
		"a package named util":                {"internal/util", "time", true},
		"main, the lab":                       {"cmd/belay-node", labModule + "/labdisk", true},
	}
	standard := standardLibrary(t)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := pkg{ImportPath: module + "/" + tt.from, Imports: []string{tt.imports}}
			got := breaches(p, func(path string) bool { return standard[path] })
			if (len(got) > 0) != tt.wantBreach {
				t.Errorf("breaches = %v, want a breach: %v", got, tt.wantBreach)
			}
		})
	}
}

func standardLibrary(t *testing.T) map[string]bool {
	t.Helper()
	standard := map[string]bool{"C": true}
	for _, p := range list(t, "std") {
		standard[p.ImportPath] = true
	}
	return standard
}

func list(t *testing.T, pattern string) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", pattern)
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %s: %v", pattern, err)
	}
	var packages []pkg
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		switch err := decoder.Decode(&p); {
		case errors.Is(err, io.EOF):
			return packages
		case err != nil:
			t.Fatalf("read go list %s: %v", pattern, err)
		}
		packages = append(packages, p)
	}
}
