package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testName = regexp.MustCompile(`^(Test|Fuzz|Benchmark)[A-Z]`)
	wordEnd  = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	article  = regexp.MustCompile(`^(?:Test|Fuzz|Benchmark) ?(?:A|An|The)(?:[A-Z]| )`)
)

// TestCommentsUsePlainWords checks the comments, and the names of tests, against the phrases of the documents. A test is named after
// what it tests, without an article.
func TestCommentsUsePlainWords(t *testing.T) {
	files := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".")) {
			return fs.SkipDir
		}
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		files++
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		for _, comment := range file.Comments {
			for _, found := range bannedIn(prose(comment.Text())) {
				t.Errorf("%s, comment: %s", set.Position(comment.Pos()), found)
			}
		}
		for _, declaration := range file.Decls {
			if f, ok := declaration.(*ast.FuncDecl); ok && f.Recv == nil && testName.MatchString(f.Name.Name) {
				for _, found := range bannedName(f.Name.Name) {
					t.Errorf("%s, %s: %s", set.Position(f.Pos()), f.Name.Name, found)
				}
			}
		}
		return nil
	})
	if err != nil || files < 100 {
		t.Fatalf("%d files were read, error %v", files, err)
	}
}

// bannedName lists what is wrong with the name of a test.
func bannedName(name string) []string {
	found := bannedIn(strings.TrimSpace(wordEnd.ReplaceAllString(name, "$1 $2")))
	if article.MatchString(name) {
		found = append(found, "it begins with an article")
	}
	return found
}

// TestBannedNamesAreFound shows that the check of names can fail.
func TestBannedNamesAreFound(t *testing.T) {
	for name, want := range map[string]int{
		"TestAttachIsRetried": 0, "TestTheme": 0, "TestADriverThatIsNotThere": 1, "TestTheWayBack": 2, "TestNobodyIsTold": 2,
	} {
		if got := bannedName(name); len(got) != want {
			t.Errorf("%s: found %q, want %d", name, got, want)
		}
	}
}
