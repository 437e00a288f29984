package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// Table maps what one component of upstream does to the tests of the component of belay that replaces it.
type Table struct {
	// Component is the program of belay.
	Component string `json:"component"`
	// Module is where the rows' links lead, a key of [Modules].
	Module string  `json:"module"`
	Groups []Group `json:"groups"`
}

// Group is a section of a table.
type Group struct {
	Name string `json:"name"`
	Rows []Row  `json:"rows"`
}

// Row maps one behavior of upstream, one of its test cases, or one of its faults.
type Row struct {
	ID string `json:"id"`
	// Module overrides the module of the table.
	Module string `json:"module,omitempty"`
	// Upstream is a file and a line of it ("pkg/volume/csi/csi_attacher.go#L63"), and Name the function, the test or the text there.
	Upstream string `json:"upstream"`
	Name     string `json:"name"`
	// About says in a sentence what upstream does.
	About string `json:"about"`
	// Tests show that belay does the same: "TestName/subtest" of the package that holds the table, or "path/of/package.TestName".
	Tests []string `json:"tests,omitempty"`
	// Differs begins the rows of docs/differences that document what belay does otherwise.
	Differs []string `json:"differs,omitempty"`
	// Safety is set for what S1 to S10 rest on. Such a row needs a test, and mutants that its tests fail for.
	Safety  bool     `json:"safety,omitempty"`
	Mutants []Mutant `json:"mutants,omitempty"`
}

// Mutant takes out of belay what a row rests on.
type Mutant struct {
	// Test is the test of the row that fails then.
	Test string `json:"test"`
	// File has the rule, from the root of the module.
	File string `json:"file"`
	// Rule occurs once in the file, and Without is there instead.
	Rule    string `json:"rule"`
	Without string `json:"without"`
}

// Module is a module of upstream at the version that belay is compared with.
type Module struct{ Path, Version, Source string }

// Modules are the modules that rows may link, by the names that tables have for them.
var Modules = map[string]Module{
	"kubernetes": {"k8s.io/kubernetes", "v1.36.3", "https://github.com/kubernetes/kubernetes/blob/v1.36.3/"},
	"external-attacher": {
		"github.com/kubernetes-csi/external-attacher/v4", "v4.12.0", "https://github.com/kubernetes-csi/external-attacher/blob/v4.12.0/",
	},
}

// Tables are the files of the tables, by the names of their pages in docs/conformance.
var Tables = map[string]string{
	"controller": "internal/attachdetach/testdata/conformance.yaml",
	"attacher":   "internal/attacher/testdata/conformance.yaml",
	"node":       "internal/nodeagent/testdata/conformance.yaml",
}

// Load reads a table and checks that each row is complete.
func Load(path string) (*Table, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read conformance table: %w", err)
	}
	var t Table
	if err := yaml.UnmarshalStrict(raw, &t); err != nil {
		return nil, fmt.Errorf("read conformance table %s: %w", path, err)
	}
	var errs []error
	for _, g := range t.Groups {
		for i, r := range g.Rows {
			if g.Rows[i].Module == "" {
				g.Rows[i].Module = t.Module
			}
			if _, known := Modules[g.Rows[i].Module]; !known || r.ID == "" || r.Upstream == "" || r.Name == "" || r.About == "" {
				errs = append(errs, fmt.Errorf("%s, group %q, row %q: id, upstream, name, about and a known module are required", path, g.Name, r.ID))
			}
		}
	}
	return &t, errors.Join(errs...)
}

// Rows are those of all groups.
func (t *Table) Rows() (rows []Row) {
	for _, g := range t.Groups {
		rows = append(rows, g.Rows...)
	}
	return rows
}

// CheckLink returns an error unless the row's line, of the module's source in a directory, holds the row's name.
func (r Row) CheckLink(dir string) error {
	name, line, ok := strings.Cut(r.Upstream, "#L")
	number, err := strconv.Atoi(line)
	if !ok || err != nil {
		return fmt.Errorf("row %s: %q is not of the form file#Lline", r.ID, r.Upstream)
	}
	raw, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return fmt.Errorf("row %s: %w", r.ID, err)
	}
	lines := bytes.Split(raw, []byte("\n"))
	if number < 1 || number > len(lines) || !bytes.Contains(lines[number-1], []byte(r.Name)) {
		return fmt.Errorf("row %s: line %d of %s does not hold %q", r.ID, number, name, r.Name)
	}
	return nil
}

// moduleRoot is the folder of go.mod, above the folder that the test runs in.
func moduleRoot() string {
	root := "."
	for range 8 {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			return root
		}
		root = filepath.Join("..", root)
	}
	return "."
}

// Differences returns the text of docs/differences.
func Differences() (string, error) {
	pages, err := filepath.Glob(filepath.Join(moduleRoot(), "docs", "differences", "*.md"))
	if err == nil && len(pages) == 0 {
		err = os.ErrNotExist
	}
	var text strings.Builder
	for _, page := range pages {
		raw, readErr := os.ReadFile(page)
		err = errors.Join(err, readErr)
		text.WriteByte('\n')
		text.Write(raw)
	}
	if err != nil {
		return "", fmt.Errorf("read docs/differences: %w", err)
	}
	return text.String(), nil
}
