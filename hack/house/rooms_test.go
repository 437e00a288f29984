package house

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The limits of a room: the methods of a type, promoted ones included, and the lines of files that all use each other.
const (
	maxMethods     = 60
	maxCircleLines = 2500
)

// roomed are the packages that keep the limits.
var roomed = []string{"internal/nodeagent", "internal/nodeagent/plugins", "internal/nodeagent/nodestatus", "internal/nodeagent/worker"}

// TestTypesAndCirclesAreSmall: no type of these packages has more than 60 methods, and no circle of files more than 2,500 lines. A circle is
// a set of files each of which uses, through others or not, identifiers that each other one declares.
func TestTypesAndCirclesAreSmall(t *testing.T) {
	for _, dir := range roomed {
		p := load(t, dir)
		for name, count := range p.methods() {
			if count > maxMethods {
				t.Errorf("%s: type %s has %d methods, at most %d", dir, name, count, maxMethods)
			}
		}
		for _, circle := range p.circles() {
			lines := 0
			for _, file := range circle {
				lines += p.lines[file]
			}
			if lines > maxCircleLines {
				t.Errorf("%s: the files %v use each other and have %d lines, at most %d", dir, circle, lines, maxCircleLines)
			}
			if len(circle) > 1 {
				t.Logf("%s: a circle of %d files and %d lines: %v", dir, len(circle), lines, circle)
			}
		}
		most := slices.MaxFunc(slices.Collect(maps.Keys(p.methods())), func(a, b string) int { return cmp.Compare(p.methods()[a], p.methods()[b]) })
		t.Logf("%s: most methods has %s: %d", dir, most, p.methods()[most])
	}
}

// The picture of the node agent in ARCHITECTURE.md: rooms with their files, and arrows between them.
var (
	picture = regexp.MustCompile("(?s)```mermaid\n(flowchart.*?)```")
	room    = regexp.MustCompile(`(?m)^\s*(\w+)\["<b>[^"<]*</b><br/>([^"]*)"\]$`)
	arrow   = regexp.MustCompile(`(?m)^\s*(\w+) --> (.+)$`)
)

// TestPictureShowsWhoMayKnowWhom holds the node agent to its picture in ARCHITECTURE.md: a room uses what its arrows lead to, through other
// rooms or not, and nothing else. No arrow is without a use, and none leads back.
func TestPictureShowsWhoMayKnowWhom(t *testing.T) {
	drawn := picture.FindStringSubmatch(read(t, filepath.Join(root, "ARCHITECTURE.md")))
	if drawn == nil {
		t.Fatal("ARCHITECTURE.md has no picture of the node agent")
	}
	roomOf, arrows := map[string]string{}, map[string][]string{}
	for _, match := range room.FindAllStringSubmatch(drawn[1], -1) {
		for file := range strings.FieldsSeq(match[2]) {
			roomOf[file] = match[1]
		}
		arrows[match[1]] = nil
	}
	for _, match := range arrow.FindAllStringSubmatch(drawn[1], -1) {
		for to := range strings.SplitSeq(match[2], " & ") {
			if _, drawn := arrows[to]; !drawn {
				t.Errorf("an arrow leads from %s to %s, which is no room", match[1], to)
			}
			arrows[match[1]] = append(arrows[match[1]], to)
		}
	}
	uses := roomUses(t, roomOf)
	for from, reached := range reachable(arrows) {
		if reached[from] {
			t.Errorf("arrows lead from %s back to it", from)
		}
		for to, why := range uses[from] {
			if !reached[to] {
				t.Errorf("%s may not know %s, and uses %s", from, to, why)
			}
		}
		for _, to := range arrows[from] {
			if uses[from][to] == "" {
				t.Errorf("an arrow leads from %s to %s, which it does not use", from, to)
			}
		}
	}
}

// roomUses are the rooms that each room uses, with an example.
func roomUses(t *testing.T, roomOf map[string]string) map[string]map[string]string {
	t.Helper()
	const dir = "internal/nodeagent"
	p, uses, placed := load(t, dir), map[string]map[string]string{}, map[string]bool{}
	use := func(from, to, why string) {
		if uses[from] == nil {
			uses[from] = map[string]string{}
		}
		if from != to {
			uses[from][to] = cmp.Or(uses[from][to], why)
		}
	}
	for file := range p.lines {
		name := strings.TrimSuffix(file, ".go")
		if name == "doc" {
			continue
		}
		if roomOf[name] == "" {
			t.Errorf("the picture in ARCHITECTURE.md has no room for %s/%s", dir, file)
		}
		placed[name] = true
		for to, why := range p.uses[file] {
			use(roomOf[name], roomOf[strings.TrimSuffix(to, ".go")], file+": "+why)
		}
		for _, path := range p.imports[file] {
			if to, below := strings.CutPrefix(path, module+dir+"/"); below {
				use(roomOf[name], roomOf[to], file+": package "+to)
				placed[to] = true
			}
		}
	}
	for _, below := range roomed[1:] {
		from := strings.TrimPrefix(below, dir+"/")
		for _, imports := range load(t, below).imports {
			for _, path := range imports {
				if to, other := strings.CutPrefix(path, module+dir+"/"); other {
					use(roomOf[from], roomOf[to], "package "+to)
				}
			}
		}
	}
	for name := range roomOf {
		if !placed[name] {
			t.Errorf("the picture in ARCHITECTURE.md has %s, which is neither a file nor a package of %s", name, dir)
		}
	}
	return uses
}

// reachable are the rooms to which arrows lead from each room.
func reachable(arrows map[string][]string) map[string]map[string]bool {
	all := map[string]map[string]bool{}
	for from := range arrows {
		all[from] = map[string]bool{}
		for open := slices.Clone(arrows[from]); len(open) > 0; open = open[1:] {
			if to := open[0]; !all[from][to] {
				all[from][to] = true
				open = append(open, arrows[to]...)
			}
		}
	}
	return all
}

const module = "belay.dev/belay/"

// loaded is one package without its tests.
type loaded struct {
	types *types.Package
	// lines are those of each file, imports the packages that it imports, uses the other files whose identifiers it uses, with an example.
	lines   map[string]int
	imports map[string][]string
	uses    map[string]map[string]string
}

// packages are those that load has loaded, by their folder.
var packages = map[string]loaded{}

// load type-checks a package, once, against the export data of what it imports.
func load(t *testing.T, dir string) loaded {
	t.Helper()
	if p, done := packages[dir]; done {
		return p
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Export,GoFiles", "./"+dir)
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatalf("list the packages that %s imports: %v", dir, err)
	}
	type entry struct {
		ImportPath, Export string
		GoFiles            []string
	}
	exports, own := map[string]string{}, entry{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var e entry
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[e.ImportPath], own = e.Export, e // the package itself is the last
	}
	p := loaded{lines: map[string]int{}, imports: map[string][]string{}, uses: map[string]map[string]string{}}
	positions := token.NewFileSet()
	var files []*ast.File
	for _, name := range own.GoFiles {
		path := filepath.Join(root, dir, name)
		p.lines[name] = strings.Count(read(t, path), "\n")
		file, err := parser.ParseFile(positions, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			p.imports[name] = append(p.imports[name], strings.Trim(spec.Path.Value, `"`))
		}
		files = append(files, file)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(positions, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
	if p.types, err = config.Check(own.ImportPath, positions, files, info); err != nil {
		t.Fatalf("check the types of %s: %v", dir, err)
	}
	for ident, object := range info.Uses {
		if object.Pkg() != p.types {
			continue
		}
		from, to := filepath.Base(positions.Position(ident.Pos()).Filename), filepath.Base(positions.Position(object.Pos()).Filename)
		if from == to {
			continue
		}
		if p.uses[from] == nil {
			p.uses[from] = map[string]string{}
		}
		if other := p.uses[from][to]; other == "" || object.Name() < other {
			p.uses[from][to] = object.Name()
		}
	}
	packages[dir] = p
	return p
}

// methods counts the methods of each type, with those that embedded fields promote.
func (p loaded) methods() map[string]int {
	counts := map[string]int{}
	for _, name := range p.types.Scope().Names() {
		object, ok := p.types.Scope().Lookup(name).(*types.TypeName)
		if !ok || object.IsAlias() || types.IsInterface(object.Type()) {
			continue
		}
		counts[name] = types.NewMethodSet(types.NewPointer(object.Type())).Len()
	}
	return counts
}

// circles are the strongly connected components of the files.
func (p loaded) circles() [][]string {
	edges := map[string][]string{}
	for file := range p.lines {
		edges[file] = slices.Collect(maps.Keys(p.uses[file]))
	}
	reached, placed := reachable(edges), map[string]bool{}
	var circles [][]string
	for _, file := range slices.Sorted(maps.Keys(p.lines)) {
		if placed[file] {
			continue
		}
		circle := []string{file}
		for other := range reached[file] {
			if other != file && reached[other][file] {
				circle = append(circle, other)
				placed[other] = true
			}
		}
		slices.Sort(circle)
		circles = append(circles, circle)
	}
	return circles
}
