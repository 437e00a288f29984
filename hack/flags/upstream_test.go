package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var entry = regexp.MustCompile(`(?m)^###? --(\S+)\n\n(?:.*\n)*?.*(Also|Not) a\s+flag of`)

// TestFlagsOfUpstream compares what the pages say of upstream's programs with their source, at the version of lab/go.mod.
func TestFlagsOfUpstream(t *testing.T) {
	for page, sources := range map[string][]string{
		"belay-controller": {
			"k8s.io/kubernetes/cmd/kube-controller-manager/app/options", "k8s.io/controller-manager/options", "k8s.io/component-base/config/options",
			"k8s.io/component-base/logs/api/v1", "k8s.io/component-base/version/verflag",
		},
		"belay-node": {"k8s.io/kubernetes/cmd/kubelet/app/options", "k8s.io/component-base/logs/api/v1"},
	} {
		var source strings.Builder
		for _, folder := range sources {
			source.WriteString(code(t, folder))
		}
		text, err := os.ReadFile(filepath.Join("..", "..", folder, page+".md"))
		if err != nil {
			t.Fatal(err)
		}
		found := entry.FindAllStringSubmatch(string(text), -1)
		if flags := strings.Count(string(text), "# --"); len(found) != flags || flags < 8 {
			t.Fatalf("%s: %d of %d flags say whether upstream has them", page, len(found), flags)
		}
		for _, flag := range found {
			has := strings.Contains(source.String(), `"`+flag[1]+`"`)
			if listed := flag[2] == "Also"; has != listed {
				t.Errorf("%s: --%s is listed as upstream's: %v, and is in its source: %v", page, flag[1], listed, has)
			}
		}
	}
}

// code is the source of a package that the lab's module depends on, without its tests.
func code(t *testing.T, importPath string) string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", importPath)
	list.Dir = filepath.Join("..", "..", "lab")
	list.Env = append(os.Environ(), "GOPROXY=off")
	dir, err := list.Output()
	if err != nil {
		t.Skipf("the source of %s is not in the module cache: %v", importPath, err)
	}
	files, err := filepath.Glob(filepath.Join(string(bytes.TrimSpace(dir)), "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no source: %v", importPath, err)
	}
	var all strings.Builder
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
