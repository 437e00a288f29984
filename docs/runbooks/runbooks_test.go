package runbooks

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
)

var update = flag.Bool("update", false, "write what is generated from the table of reasons")

// labels are the parts of a section, in this order. "What is not safe" may be left to the page, where it is the same for all.
var labels = []string{"How to verify", "What is safe", "What is not safe", "What belay does by itself"}

// TestEachReasonHasASection: each reason of the table has a section on its page, and each section is about such a reason.
func TestEachReasonHasASection(t *testing.T) {
	if *update {
		t.Skip("what is being written is part of the next build")
	}
	missing := map[decision.Reason]bool{}
	for _, r := range explain.Guides() {
		missing[r] = true
	}
	for _, name := range explain.Pages() {
		page, err := Read(string(name))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range page.Sections {
			r := decision.Reason(s.Reason)
			if g := explain.GuideTo(r); !missing[r] || g.Page != name {
				t.Errorf("%s: the section %s is about no reason of this page, or a second one", name, s.Reason)
			} else if problems := sectionProblems(s.Text, g.Title, strings.Contains(page.Intro, "**What is not safe")); len(problems) > 0 {
				t.Errorf("%s: %s: %s", name, s.Reason, strings.Join(problems, "; "))
			}
			delete(missing, r)
		}
	}
	for r := range missing {
		t.Errorf("%s has no section %s", explain.GuideTo(r).Page.Path(), r)
	}
	files, err := filepath.Glob("*.md")
	if err != nil || len(files) != len(explain.Pages())+1 {
		t.Errorf("%d pages (%v), want the index and %d", len(files), err, len(explain.Pages()))
	}
}

var (
	label  = regexp.MustCompile(`(?m)^\*\*([^*.]+)\*\*$`)
	code   = regexp.MustCompile("(?ms)^\\s*```.*?^\\s*```")
	marker = regexp.MustCompile(`<!--[^>]*-->`)
)

// sectionProblems are what is wrong with the form of a section. common: its page says what is not safe for all of its reasons.
func sectionProblems(text, title string, common bool) (problems []string) {
	rest, ok := strings.CutPrefix(text, "**"+title+".**\n\n")
	switch {
	case !ok:
		problems = append(problems, "it does not begin with the title")
	case strings.HasPrefix(rest, "**"):
		problems = append(problems, "no cause")
	}
	var found []string
	bare := code.ReplaceAllString(marker.ReplaceAllString(rest, ""), "code")
	matches := label.FindAllStringSubmatchIndex(bare, -1)
	for i, m := range matches {
		end := len(bare)
		if i+1 < len(matches) {
			end = matches[i+1][0]
		}
		found = append(found, bare[m[2]:m[3]])
		if strings.TrimSpace(bare[m[1]:end]) == "" {
			problems = append(problems, "nothing after "+bare[m[2]:m[3]])
		}
	}
	want := labels
	if common && !slices.Contains(found, labels[2]) {
		want = slices.Delete(slices.Clone(labels), 2, 3)
	}
	if !slices.Equal(found, want) {
		problems = append(problems, fmt.Sprintf("its parts are %q, want %q", found, want))
	}
	if _, verify, _ := strings.Cut(rest, "**How to verify**"); !strings.Contains(strings.Split(verify, "\n**")[0], "```") {
		problems = append(problems, "no command to verify it with")
	}
	return problems
}

// TestSectionProblemsAreFound shows that the checks can fail.
func TestSectionProblemsAreFound(t *testing.T) {
	good := "**Nothing waits.**\n\nAll is attached.\n"
	for _, name := range labels {
		good += "\n**" + name + "**\n\n```\nkubectl get pods\n```\n"
	}
	good += "\nSee also: [x](#x).\n"
	unsafe := "\n**What is not safe**\n\n```\nkubectl get pods\n```\n"
	for name, tc := range map[string]struct {
		text   string
		common bool
		want   int
	}{
		"good":                   {good, false, 0},
		"another title":          {strings.Replace(good, "Nothing waits", "All is well", 1), false, 1},
		"no cause":               {strings.Replace(good, "All is attached.\n\n", "", 1), false, 1},
		"a part is missing":      {strings.Replace(good, unsafe, "", 1), false, 1},
		"the page has that part": {strings.Replace(good, unsafe, "", 1), true, 0},
		"another part":           {strings.Replace(good, "**What is safe**", "**Safe**", 1), false, 1},
		"an empty part":          {strings.Replace(good, unsafe, "\n**What is not safe**\n<!-- x -->\n", 1), false, 1},
		"no command":             {strings.Replace(good, "```\nkubectl get pods\n```", "Look.", 1), false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := sectionProblems(tc.text, "Nothing waits", tc.common); len(got) != tc.want {
				t.Errorf("got %q, want %d", got, tc.want)
			}
		})
	}
}

const generatedIndex = "<!-- What follows is written by make generate. -->\n"

// TestIndexIsCurrent: the index has each reason with its title and verdict, and an anchor for those who know only the reason, as alerts do.
func TestIndexIsCurrent(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	head, _, found := strings.Cut(string(text), generatedIndex)
	if !found {
		t.Fatal("README.md has no line " + generatedIndex)
	}
	var b strings.Builder
	b.WriteString(head + generatedIndex)
	for _, name := range explain.Pages() {
		page, err := Read(string(name))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "\n## %s\n\n| reason | | verdict |\n|---|---|---|\n", page.Title)
		for _, s := range page.Sections {
			r := decision.Reason(s.Reason)
			g := explain.GuideTo(r)
			fmt.Fprintf(&b, "| <a id=%q></a>[%s](%s.md#%[1]s) | %[4]s | %[5]s |\n", explain.Anchor(r), r, name, g.Title, cmp.Or(g.Verdict, explain.Blocked))
		}
	}
	if b.String() == string(text) {
		return
	}
	if !*update {
		t.Fatal("README.md is not current: run make generate")
	}
	if err := os.WriteFile("README.md", []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

const (
	stepsBegin   = "<!-- Written by make generate, up to the next empty line: the steps of kubectl belay explain. -->\n"
	dangersBegin = "<!-- Written by make generate, up to the next empty line: the dangers of these steps. -->\n"
)

// names stand in place of the real ones.
var names = explain.Situation{
	Pod: "POD", Namespace: "NAMESPACE", Claim: "CLAIM", Volume: "PV", Driver: "DRIVER", Node: "NODE", Wanted: "NODE", Attachment: "VA", NodeID: "ID",
	HolderName: "HOLDER", HolderNamespace: "NAMESPACE", HolderOwner: "Deployment/NAME", LeaseNamespace: "NAMESPACE", AttacherPod: "ATTACHER-POD",
}

// TestStepsAreCurrent: what is safe begins with the steps that explain prints, and what is not safe with their dangers. The pages have what the
// steps do not.
func TestStepsAreCurrent(t *testing.T) {
	for _, name := range explain.Pages() {
		file := string(name) + ".md"
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sections := strings.Split(string(text), "\n## ")
		for i, section := range sections[1:] {
			reason, _, _ := strings.Cut(section, "\n")
			sections[i+1] = withSteps(section, explain.GuideTo(decision.Reason(reason)).Steps(names))
		}
		switch current := strings.Join(sections, "\n## "); {
		case current == string(text):
		case !*update:
			t.Errorf("%s is not current: run make generate", file)
		default:
			if err := os.WriteFile(file, []byte(current), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// withSteps puts the steps into a section, in place of those that it has. How to verify a lost node has the step that shows all of it already.
func withSteps(section string, steps []explain.Step) string {
	section = generated.ReplaceAllString(section, "")
	steps = slices.DeleteFunc(slices.Clone(steps), func(s explain.Step) bool {
		return s == explain.EvidenceOf(names.Node) && strings.Contains(section, s.Command)
	})
	var safe, unsafe strings.Builder
	for i, s := range steps {
		safe.WriteString(wrapped(fmt.Sprintf("%d. ", i+1), s.Text))
		if s.Command != "" {
			fmt.Fprintf(&safe, "   ```\n   %s\n   ```\n", s.Command)
		}
		if s.Danger != "" {
			unsafe.WriteString(wrapped("- ", fmt.Sprintf("Step %d, too early: %s.", i+1, s.Danger)))
		}
	}
	for _, part := range []struct{ label, begin, text string }{{labels[1], stepsBegin, safe.String()}, {labels[2], dangersBegin, unsafe.String()}} {
		if part.text != "" {
			heading := "**" + part.label + "**\n\n"
			section = strings.Replace(section, heading, heading+part.begin+part.text+"\n", 1)
		}
	}
	return section
}

var generated = regexp.MustCompile("(?s)(" + regexp.QuoteMeta(stepsBegin) + "|" + regexp.QuoteMeta(dangersBegin) + ").*?\n\n")

// wrapped is an item of a list in lines that are not too long.
func wrapped(mark, text string) string {
	var b strings.Builder
	line := mark
	for word := range strings.FieldsSeq(text) {
		if len(line)+len(word) > 150 {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = strings.Repeat(" ", len(mark))
		}
		line += word + " "
	}
	return b.String() + strings.TrimRight(line, " ") + "\n"
}

// TestStepsReplaceThoseBefore: a step that is gone from the guide goes from the page, and what is written by hand stays.
func TestStepsReplaceThoseBefore(t *testing.T) {
	bare := "X\n\n**What is safe**\n\n- By hand.\n\n**What is not safe**\n\n- Never.\n"
	once := withSteps(bare, []explain.Step{{Text: "Look.", Command: "kubectl get pods"}, {Text: "Act.", Danger: "it breaks"}})
	for _, want := range []string{"1. Look.\n   ```\n   kubectl get pods\n   ```\n2. Act.\n", "- Step 2, too early: it breaks.\n", "- By hand.", "- Never."} {
		if !strings.Contains(once, want) {
			t.Errorf("no %q in\n%s", want, once)
		}
	}
	if again := withSteps(once, []explain.Step{{Text: "Wait."}}); strings.Contains(again, "Look") || strings.Contains(again, "Step 2") || strings.Count(again, "1. Wait.") != 1 {
		t.Errorf("steps that are gone stay:\n%s", again)
	}
	if none := withSteps(once, nil); none != bare {
		t.Errorf("without steps it is\n%s", none)
	}
}
