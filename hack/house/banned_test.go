package house

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// phrase is a turn of phrase that no text for users may contain.
type phrase struct {
	pattern *regexp.Regexp
	// instead is what to write.
	instead string
}

// banned are the phrases, as regular expressions without regard to case, in which a space is any white space. Add a row
// where a sentence had to be read twice. The documents, what the programs print, comments and the names of tests are checked.
var banned = sync.OnceValue(func() []phrase {
	var all []phrase
	for _, row := range [][2]string{
		{`told`, "reports, logs, emits an event, gets an event"},
		{`tells? (whether|that|of|what|which|so)`, "reports whether, returns"},
		{`(is|are|was|were) said`, "reports, logs"},
		{`speaks? of`, "refers to"},
		{`without a word`, "silently"},
		{`nobody|no one`, "no component, no pod, no client"},
		{`somebody|someone`, "another client, a person"},
		{`whoever|whichever it is|whatever it is`, "the component that, the caller"},
		{`anew`, "again, recreated"},
		{`once more`, "again"},
		{`at last`, "finally"},
		{`for ever`, "forever"},
		{`as ever`, "as before"},
		{`hand(s|ed|ing)?[ -]over`, "failover (after a crash), handoff (planned)"},
		{`(take|takes|taken|taking|took) (it |them )?(in|up again)`, "install, adopt, accept"},
		{`(put|puts|putting) (it |them )?back`, "roll back, restore"},
		{`(on|by) the way of|the way of (a|the) volume`, "volume lifecycle"},
		{`way back|way in|way out`, "unmount, roll back, mount"},
		{`on (its|the|their) way`, "in flight, in progress"},
		{`the house('s)?`, "layout, rules"},
		{`(let|lets|letting) (\w+ )?go`, "releases"},
		{`(give|gives|gave|given|giving) up`, "abandons, releases"},
		{`(hold|holds|held|holding) up`, "blocks, delays"},
		{`(go|goes|going|went) on`, "continues"},
		{`(has|have|had) landed|(may|can|could) (still )?land`, "is committed, may be carried out"},
		{`for want of`, "without"},
		{`without effect`, "deprecated: ignored"},
		{`unattached`, "without a VolumeAttachment"},
		{`(of which )?nothing is known`, "unknown"},
		{`ends? with (code )?[12]`, "exits with status 1"},
		{`hinders?`, "blocks"},
		{`shelf|bell`, "string interner, lease watch"},
		{`strays?`, "orphans"},
		{`chores?`, "periodic tasks"},
		{`mend(s|ed|ing)?`, "repairs"},
		{`hears? of|heard of`, "gets an event, sees"},
		{`in the hands of`, "held by"},
		{`whims?`, "changes"},
		{`(give|gives|gave|given|giving) (it |them )?back`, "releases"},
		{`worth a look`, "name what to look at"},
		{`stands? there (twice|already)`, "is listed twice"},
		{`in the words of|in (\w+'s|new|other) words`, "the message of"},
	} {
		pattern := `(?i)\b(?:` + strings.ReplaceAll(row[0], " ", `\s+`) + `)\b`
		all = append(all, phrase{regexp.MustCompile(pattern), row[1]})
	}
	return all
})

// bannedIn lists the phrases of a text, each with its line.
func bannedIn(text string) (found []string) {
	for _, p := range banned() {
		for _, at := range p.pattern.FindAllStringIndex(text, -1) {
			line := 1 + strings.Count(text[:at[0]], "\n")
			found = append(found, fmt.Sprintf("line %d: %q: write %s", line, strings.Join(strings.Fields(text[at[0]:at[1]]), " "), p.instead))
		}
	}
	return found
}

// TestDocumentsUsePlainWords checks the prose of all documents but the texts of the ADRs, which are records of their time.
// Code and links are not prose.
func TestDocumentsUsePlainWords(t *testing.T) {
	record := regexp.MustCompile(`^\d{4}-`)
	flags := filepath.Join(root, "docs", "flags") // has texts of upstream's libraries; belay's own are in the code that is checked below
	for _, page := range documents(t) {
		if record.MatchString(filepath.Base(page)) || filepath.Dir(page) == flags {
			continue
		}
		for _, found := range bannedIn(prose(read(t, page))) {
			t.Errorf("%s, %s", strings.TrimPrefix(page, root+"/"), found)
		}
	}
}

// TestBannedPhrasesAreFound shows that the search can fail, across lines too.
func TestBannedPhrasesAreFound(t *testing.T) {
	for text, want := range map[string]int{
		"The pod is told so.":                1,
		"a disk must be let\ngo by a node":   1,
		"It waits on its way\n  and goes on": 2,
		"The volume is untold, ongoing.":     0,
		"`nobody` and\n```\nnobody\n```\n":   0,
	} {
		if got := bannedIn(prose(text)); len(got) != want {
			t.Errorf("%q: found %q, want %d", text, got, want)
		}
	}
}

// prose is a text without code and targets of links, with its lines where they were.
func prose(text string) string {
	for _, code := range []*regexp.Regexp{fenced, inline, linked} {
		text = code.ReplaceAllStringFunc(text, func(found string) string { return strings.Repeat("\n", strings.Count(found, "\n")) + " " })
	}
	return text
}

// TestProgramsUsePlainWords checks what the programs print: the string literals of their code that hold more than one word.
func TestProgramsUsePlainWords(t *testing.T) {
	files := 0
	for _, folder := range []string{"internal", "cmd", "node", "lab"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files++
			return literals(path, func(text, at string) {
				if !strings.Contains(text, " ") {
					return
				}
				for _, found := range bannedIn(text) {
					t.Errorf("%s, %s", strings.TrimPrefix(at, root+"/"), found)
				}
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files == 0 {
		t.Fatal("no file was read")
	}
}
