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

var (
	described = regexp.MustCompile("(?m)^###? --(\\S+)\n\n.*?(?:default `([^`]*)`|empty by default)\\.((?:.|\n[^\n])*)")
	stated    = regexp.MustCompile("whose\\s+default\\s+is\\s+`([^`]*)`")
	helped    = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z][a-z0-9-]*)`)
	defaultOf = regexp.MustCompile(`\(default ([^)]*)\)`)
)

// TestDefaultsOfUpstream compares the defaults that the pages give for upstream's programs with those that these print. Those of csi-attacher are
// in docs/adopt-attacher.md, which a test of the attacher compares.
func TestDefaultsOfUpstream(t *testing.T) {
	upstream := os.Getenv("BELAY_UPSTREAM_BIN")
	if upstream == "" {
		t.Skip("NOT RUN: needs upstream's programs in BELAY_UPSTREAM_BIN, as make test has them")
	}
	for page, program := range map[string]string{"belay-controller": "kube-controller-manager", "belay-node": "kubelet"} {
		help, err := exec.CommandContext(t.Context(), filepath.Join(upstream, program), "--help").Output()
		if err != nil {
			t.Fatalf("%s --help: %v", program, err)
		}
		theirs := defaults(string(help))
		text, err := os.ReadFile(filepath.Join("..", "..", folder, page+".md"))
		if err != nil {
			t.Fatal(err)
		}
		compared := 0
		for _, flag := range described.FindAllStringSubmatch(string(text), -1) {
			name, want := flag[1], flag[2]
			if !regexp.MustCompile(`Also\s+a\s+flag`).MatchString(flag[3]) {
				continue
			}
			if other := stated.FindStringSubmatch(flag[3]); other != nil {
				want = other[1]
			}
			compared++
			if got, ok := theirs[name]; !ok || got != plain(want) {
				t.Errorf("%s: --%s of %s has the default %q by the page, and %q by its help (listed there: %v)", page, name, program, want, got, ok)
			}
		}
		if compared < 5 {
			t.Errorf("%s: only %d flags were compared", page, compared)
		}
	}
}

// defaults are those of a help, by flag: the text of a flag ends where the next one begins.
func defaults(help string) map[string]string {
	found := map[string]string{}
	at := helped.FindAllStringSubmatchIndex(help, -1)
	for i, m := range at {
		end := len(help)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		value := ""
		if match := defaultOf.FindStringSubmatch(help[m[1]:end]); match != nil {
			value = match[1]
		}
		found[help[m[2]:m[3]]] = plain(value)
	}
	return found
}

// plain is a default without its quotes or brackets; a help leaves out those that are zero.
func plain(value string) string {
	switch value = strings.Trim(value, `"[]`); value {
	case "false", "0":
		return ""
	}
	return value
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
