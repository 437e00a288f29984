package house

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	madeTarget   = regexp.MustCompile(`\bmake ([a-z-]+(?: [a-z-]+)*)`)
	definedAs    = regexp.MustCompile(`(?m)^([a-z-]+):`)
	goOfMatrix   = regexp.MustCompile(`(?m)^\s*go: \[(.*)\]`)
	goOfSetup    = regexp.MustCompile(`(?m)^\s*go-version: "([0-9.]+)"`)
	goOfModule   = regexp.MustCompile(`(?m)^go (\d+\.\d+)`)
	usesAnAction = regexp.MustCompile(`(?m)^\s*-? *uses: (\S+)`)
	pinned       = regexp.MustCompile(`^[\w./-]+@(v\d+\.\d+\.\d+|[0-9a-f]{40})$`)
)

// TestWorkflows checks that workflows call make targets that exist, with the Go version of go.mod, and actions that are pinned.
func TestWorkflows(t *testing.T) {
	root := filepath.Join("..", "..")
	targets := map[string]bool{}
	for _, match := range definedAs.FindAllStringSubmatch(read(t, filepath.Join(root, "Makefile")), -1) {
		targets[match[1]] = true
	}
	line := goOfModule.FindStringSubmatch(read(t, filepath.Join(root, "go.mod")))[1] + "."
	files, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*.yml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no workflow was found: %v", err)
	}
	called := 0
	for _, file := range files {
		text := read(t, file)
		for _, match := range madeTarget.FindAllStringSubmatch(uncommented(text), -1) {
			for target := range strings.FieldsSeq(match[1]) {
				called++
				if !targets[target] {
					t.Errorf("%s calls make %s, which the Makefile does not have", file, target)
				}
			}
		}
		var versions []string
		for _, match := range goOfMatrix.FindAllStringSubmatch(text, -1) {
			for version := range strings.SplitSeq(match[1], ",") {
				versions = append(versions, strings.Trim(version, ` "`))
			}
		}
		for _, match := range goOfSetup.FindAllStringSubmatch(text, -1) {
			versions = append(versions, match[1])
		}
		for _, version := range versions {
			if !strings.HasPrefix(version, line) {
				t.Errorf("%s uses Go %s, and go.mod says %sx", file, version, line)
			}
		}
		for _, match := range usesAnAction.FindAllStringSubmatch(text, -1) {
			if !pinned.MatchString(match[1]) {
				t.Errorf("%s uses %s, which names no version", file, match[1])
			}
		}
	}
	if called == 0 {
		t.Error("no workflow calls make: the test looks at nothing")
	}
}

// uncommented drops the comments of a workflow, which are whole lines.
func uncommented(text string) string {
	return regexp.MustCompile(`(?m)^\s*#.*$`).ReplaceAllString(text, "")
}
