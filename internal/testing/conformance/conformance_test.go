package conformance

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the pages of docs/conformance")

func load(t *testing.T, file string) *Table {
	t.Helper()
	table, err := Load(filepath.Join(moduleRoot(), file))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// TestLinksToUpstream checks each row's link in the source of the version that the lab builds.
func TestLinksToUpstream(t *testing.T) {
	for name, module := range Modules {
		t.Run(name, func(t *testing.T) {
			command := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}} {{.Dir}}", module.Path)
			command.Dir = filepath.Join(moduleRoot(), "lab")
			out, err := command.Output()
			version, dir, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
			if err != nil || dir == "" {
				t.Skipf("the source of %s is not in the module cache, so no link is checked: run 'go mod download' in lab (%v)", module.Path, err)
			}
			if version != module.Version {
				t.Fatalf("lab/go.mod has %s %s, and the tables are about %s: update the links", module.Path, version, module.Version)
			}
			checked := 0
			for _, file := range Tables {
				for _, row := range load(t, file).Rows() {
					if row.Module != name {
						continue
					}
					checked++
					if err := row.CheckLink(dir); err != nil {
						t.Errorf("%s: %v", file, err)
					}
				}
			}
			if checked == 0 {
				t.Error("no row links this module")
			}
		})
	}
}

// TestPagesAreCurrent compares docs/conformance with the tables; with -update it writes the pages.
func TestPagesAreCurrent(t *testing.T) {
	for name, file := range Tables {
		table := load(t, file)
		sources := &Sources{Home: filepath.Join(moduleRoot(), filepath.Dir(filepath.Dir(file)))}
		for _, row := range table.Rows() { // the package of each table checks its subtests
			for _, test := range row.Tests {
				if function, subtest, nested := strings.Cut(test, "/"); nested && strings.HasPrefix(test, "Test") {
					if sources.Played == nil {
						sources.Played = map[string][]string{}
					}
					sources.Played[function] = append(sources.Played[function], subtest)
				}
			}
		}
		want, err := table.Page(file, sources)
		if err != nil {
			t.Fatal(err)
		}
		page := filepath.Join(moduleRoot(), "docs/conformance", name+".md")
		if *update {
			if err := os.WriteFile(page, []byte(want), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is not current: run 'make conformance'", page)
		}
	}
}

// TestLinksThatLeadNowhere shows that the check of links can fail.
func TestLinksThatLeadNowhere(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.go"), []byte("package a\nfunc f() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, want := range map[string]bool{"a.go#L2": true, "a.go#L1": false, "a.go#L9": false, "b.go#L1": false, "a.go": false, "a.go#Lf": false} {
		if err := (Row{Upstream: link, Name: "func f("}).CheckLink(dir); (err == nil) != want {
			t.Errorf("%s: error %v, want a link that leads somewhere: %v", link, err, want)
		}
	}
}

// TestTablesAreReadStrictly shows that a misspelled or missing field is an error.
func TestTablesAreReadStrictly(t *testing.T) {
	const good = "component: c\nmodule: kubernetes\ngroups:\n- name: g\n  rows:\n  - {id: a, upstream: a.go#L1, name: n, about: It is.}\n"
	for name, c := range map[string]struct {
		text string
		want bool
	}{
		"complete":         {good, true},
		"unknown field":    {strings.Replace(good, "about:", "abuot:", 1), false},
		"field is missing": {strings.Replace(good, "name: n, ", "", 1), false},
		"unknown module":   {strings.Replace(good, "module: kubernetes", "module: k8s", 1), false},
	} {
		file := filepath.Join(t.TempDir(), "table.yaml")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(file); (err == nil) != c.want {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
