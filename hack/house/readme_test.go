package house

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	// longestReadme is the most lines of README.md: more is not read before deciding.
	longestReadme = 120
	// longestCode is the most characters of a line of code in it: GitHub shows a scroll bar for longer ones.
	longestCode = 110
)

// parts are what a user can install, each by itself. README.md has a row of a table for each.
var parts = []string{"kubectl belay", "recovery", "belay-attacher", "belay-controller", "belay-node", "belay-lab"}

// TestReadme checks the form of README.md, and that its figures are those of their sources.
func TestReadme(t *testing.T) {
	text := read(t, filepath.Join(root, "README.md"))
	problems := formProblems(text)
	problems = append(problems, figureProblems(text, figures, func(file string) (string, error) {
		source, err := os.ReadFile(filepath.Join(root, file))
		return string(source), err
	})...)
	for _, problem := range problems {
		t.Error("README.md: " + problem)
	}
}

// formProblems are what is wrong with the length and the tables of README.md.
func formProblems(text string) (problems []string) {
	if lines := strings.Count(strings.TrimRight(text, "\n"), "\n") + 1; lines > longestReadme {
		problems = append(problems, fmt.Sprintf("it has %d lines, more than %d", lines, longestReadme))
	}
	for _, code := range fenced.FindAllString(text, -1) {
		for line := range strings.Lines(code) {
			if length := utf8.RuneCountInString(strings.TrimRight(line, "\n")); length > longestCode {
				problems = append(problems, fmt.Sprintf("a line of code has %d characters, more than %d: %.40s...", length, longestCode, line))
			}
		}
	}
	rows := ""
	for line := range strings.Lines(fenced.ReplaceAllString(text, "")) {
		if strings.HasPrefix(line, "|") {
			rows += target.ReplaceAllString(line, "]()")
		}
	}
	for _, part := range parts {
		if !strings.Contains(rows, "["+part+"]") && !strings.Contains(rows, "`"+part+"`") && !strings.Contains(rows, "**"+part+"**") {
			problems = append(problems, "no row of a table links "+part+", or has it in bold or as code")
		}
	}
	return problems
}

// measured is a number with a unit.
var measured = regexp.MustCompile(`(\d[\d,]*(?:\.\d+)?)\s?(?:s|ms|µs|min|minutes?|seconds?|hours?|KiB|MiB|GiB|%|x|times|calls)(?:[^\pL\d]|$)`)

// compared is a number that another one is compared with.
var compared = regexp.MustCompile(`\b(?:not|beside|instead of) (\d[\d,]*(?:\.\d+)?)(\s?\S*)`)

// figureProblems are the figures of a text that no source has.
func figureProblems(text string, figures []figure, open func(file string) (string, error)) (problems []string) {
	text = prose(strings.ReplaceAll(text, "**", ""))
	text = strings.Join(strings.Fields(text), " ")
	rest := []byte(text)
	for _, found := range compared.FindAllString(text, -1) { // both sides of a comparison have a unit, and so a source
		if !measured.MatchString(found + " ") {
			problems = append(problems, fmt.Sprintf("%q has no unit: both sides of a comparison need a source", strings.TrimSpace(found)))
		}
	}
	for _, f := range figures {
		if !strings.Contains(text, f.readme) {
			problems = append(problems, fmt.Sprintf("it has no %q: remove its row from figures_test.go", f.readme))
			continue
		}
		if err := f.check(open); err != nil {
			problems = append(problems, fmt.Sprintf("%q: %v", f.readme, err))
		}
		digits := measured.FindStringSubmatchIndex(f.readme)
		for from := 0; digits != nil; { // only that number has this source
			at := strings.Index(text[from:], f.readme)
			if at < 0 {
				break
			}
			from += at + len(f.readme)
			for i := digits[2]; i < digits[3]; i++ {
				rest[from-len(f.readme)+i] = '-'
			}
		}
	}
	for _, found := range measured.FindAllIndex(rest, -1) {
		from, to := max(0, found[0]-30), min(len(text), found[1]+10)
		problems = append(problems, fmt.Sprintf("figures_test.go has no source of %q, in %q", strings.TrimSpace(text[found[0]:found[1]]), text[from:to]))
	}
	return problems
}

// check returns an error unless the source has the figure.
func (f figure) check(open func(file string) (string, error)) error {
	figure := measured.FindStringSubmatch(f.readme)
	if figure == nil {
		return errors.New("it has no number with a unit")
	}
	source, err := open(f.file)
	if err != nil {
		return err
	}
	found := regexp.MustCompile(f.source).FindAllStringSubmatch(source, -1)
	if len(found) != 1 || len(found[0]) != 2 {
		return fmt.Errorf("%s matches %q %d times, want once, with one group", f.file, f.source, len(found))
	}
	want, err := number(found[0][1])
	if err != nil {
		return err
	}
	got, err := number(figure[1])
	if err != nil {
		return err
	}
	_, decimals, _ := strings.Cut(figure[1], ".")
	if unit := math.Pow(10, float64(-len(decimals))); math.Abs(got-want) > unit/2+1e-9 {
		return fmt.Errorf("%s has %s", f.file, found[0][1])
	}
	return nil
}

func number(text string) (float64, error) {
	return strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64)
}

// TestReadmeProblemsAreFound shows that the checks can fail.
func TestReadmeProblemsAreFound(t *testing.T) {
	rows := ""
	for _, part := range parts {
		rows += "| [" + part + "](b.md) | gives |\n"
	}
	for name, tc := range map[string]struct {
		text string
		want int
	}{
		"good":          {rows, 0},
		"120 lines":     {rows + strings.Repeat("\n", longestReadme-len(parts)-1) + "end\n", 0},
		"121 lines":     {rows + strings.Repeat("\n", longestReadme-len(parts)) + "end\n", 1},
		"long code":     {rows + "```\n" + strings.Repeat("a", longestCode+1) + "\n```\n", 1},
		"a missing row": {strings.Replace(rows, "[recovery]", "[rescue]", 1), 1},
		"a row in code": {strings.Replace(rows, "| [recovery]", "```\n| [recovery]", 1) + "```\n", 5},
	} {
		if got := formProblems(tc.text); len(got) != tc.want {
			t.Errorf("%s: found %q, want %d", name, got, tc.want)
		}
	}
	open := func(string) (string, error) { return "| fast | 31.04 s |\n| slow | 1,207 ms |\n", nil }
	fast, slow := `fast \| ([\d.]+) s`, `slow \| ([\d.,]+) ms`
	for name, tc := range map[string]struct {
		text    string
		figures []figure
		want    int
	}{
		"no figure":        {"three parts, Kubernetes 1.36", nil, 0},
		"rounded":          {"it takes **31 s** here", []figure{{"takes 31 s", "f", fast}}, 0},
		"two":              {"it takes 31 s, not 1207 ms", []figure{{"takes 31 s, not 1207 ms", "f", fast}, {"s, not 1207 ms", "f", slow}}, 0},
		"digits":           {"it takes 31.0 s", []figure{{"takes 31.0 s", "f", fast}}, 0},
		"across lines":     {"it\ntakes 31 s", []figure{{"it takes 31 s", "f", fast}}, 0},
		"thousands":        {"1207 ms.", []figure{{"1207 ms", "f", slow}}, 0},
		"another number":   {"it takes 32 s", []figure{{"takes 32 s", "f", fast}}, 1},
		"another digit":    {"it takes 31.1 s", []figure{{"takes 31.1 s", "f", fast}}, 1},
		"no source":        {"it takes 31 s, not 44 s", []figure{{"takes 31 s, not 44 s", "f", fast}}, 1},
		"no unit":          {"31 s, not 44", []figure{{"31 s", "f", fast}}, 1},
		"each unit":        {"5 ms 3% 4x, 7 MiB 1 min (2 s)", nil, 6},
		"gone":             {"it is fast", []figure{{"takes 31 s", "f", fast}}, 1},
		"no match":         {"it takes 31 s", []figure{{"takes 31 s", "f", `other ([\d.]+)`}}, 1},
		"ambiguous":        {"it takes 31 s", []figure{{"takes 31 s", "f", `\| ([\d.,]+) m?s`}}, 1},
		"code is not read": {"`sleep 5 s` and\n```\n5 s\n```\n", nil, 0},
	} {
		if got := figureProblems(tc.text, tc.figures, open); len(got) != tc.want {
			t.Errorf("%s: found %q, want %d", name, got, tc.want)
		}
	}
}
