package mutants

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../../"

// mutant is a program without one of its rules.
type mutant struct {
	file          string // from the root of the module
	with, without string // the rule, which occurs once in the file, and what is there instead
	pkg           string // the package of the tests
}

// source is the file without the rule.
func (m mutant) source() (string, error) {
	source, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(source), m.with); n != 1 {
		return "", fmt.Errorf("%s has the rule %d times, want once: %s", m.file, n, m.with)
	}
	return strings.Replace(string(source), m.with, m.without, 1), nil
}

// tests are the built tests of a package.
type tests struct {
	pkg, binary string
	// flags are what they were built with; tests that build programs build these with them too.
	flags string
}

// build builds the tests of the package with the mutant, in an overlay: the source stays as it is.
func (m mutant) build(t *testing.T) tests {
	t.Helper()
	changed, err := m.source()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "changed.go")
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Abs(filepath.Join(root, m.file))
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: file}})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	return build(t, m.pkg, "-overlay="+list)
}

func build(t *testing.T, pkg string, flags ...string) tests {
	t.Helper()
	b := tests{pkg: pkg, binary: filepath.Join(t.TempDir(), "test"), flags: strings.Join(append(flags, os.Getenv("GOFLAGS")), " ")}
	c := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-ldflags=-s -w", "-c", "-o", b.binary, "./"+pkg)
	c.Dir, c.Env = root, append(os.Environ(), "GOFLAGS="+b.flags)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build the tests of %s: %v\n%s", pkg, err, out)
	}
	return b
}

// limit is how long a test may take.
const limit = "10m"

// run runs one test, "TestName/subtest".
func (b tests) run(t *testing.T, test string) (string, error) {
	t.Helper()
	var pattern []string
	for name := range strings.SplitSeq(test, "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(name)+"$")
	}
	c := exec.CommandContext(t.Context(), b.binary, "-test.count=1", "-test.short", "-test.timeout="+limit, "-test.run", strings.Join(pattern, "/"))
	c.Dir, c.Env = filepath.Join(root, b.pkg), append(os.Environ(), "GOFLAGS="+b.flags)
	out, err := c.CombinedOutput()
	return string(out), err
}

// passes checks that a test runs and passes without a mutant: one that fails anyway shows nothing.
func (b tests) passes(t *testing.T, test string) {
	t.Helper()
	switch out, err := b.run(t, test); {
	case err != nil:
		t.Errorf("%s of %s: %v\n%s", test, b.pkg, err, out)
	case strings.Contains(out, "no tests to run"):
		t.Errorf("%s of %s does not exist", test, b.pkg)
	}
}

// fails checks that a test fails with the mutant.
func (b tests) fails(t *testing.T, test string) {
	t.Helper()
	switch out, err := b.run(t, test); {
	case err == nil:
		t.Errorf("survived: %s of %s passes", test, b.pkg)
	case strings.Contains(out, "panic: test timed out"):
		t.Errorf("%s of %s took longer than %s, which a busy machine explains as well", test, b.pkg, limit)
	case !strings.Contains(out, "--- FAIL: Test") && !strings.Contains(out, "panic: "):
		t.Errorf("%s of %s does not run: %v\n%s", test, b.pkg, err, out)
	}
}
