package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// facts are the readings of objects that internal/kube does for all programs: what a second place reads, it reads differently one day.
var facts = map[string]string{
	`\bSpec\.AttachRequired\b`:                       "kube.AttachRequired",
	`\battachment\.AllowsSeveralNodes\(`:             "kube.Exclusive, kube.Sharing",
	`attachment\.Node\{\s*Exists:\s*attachment\.Yes`: "kube.NodeFacts",
	`attachment\.Attachment\{\s*Ref:`:                "kube.AttachmentFacts",
}

// TestFactsAreReadOnce: no program reads these from an object but through internal/kube.
func TestFactsAreReadOnce(t *testing.T) {
	read := map[string]bool{}
	for _, root := range []string{"../../internal", "../../cmd", "../../node"} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && (strings.HasSuffix(path, "internal/testing") || entry.Name() == "testdata"):
				return filepath.SkipDir
			case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for pattern, instead := range facts {
				if !regexp.MustCompile(pattern).Match(text) {
					continue
				}
				if read[pattern] = true; !strings.Contains(path, "internal/kube/") {
					t.Errorf("%s: %s is read by %s", path, pattern, instead)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for pattern := range facts {
		if !read[pattern] {
			t.Errorf("%s occurs nowhere", pattern)
		}
	}
}
