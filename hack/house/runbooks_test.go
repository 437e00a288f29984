package house

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/nodeagent"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/publication"
)

// runbookSections are the headings that each page of docs/runbooks has, in this order.
var runbookSections = []string{"Cause", "How to verify", "What is safe", "What is not safe", "What belay does by itself", "See also"}

// documentedReasons are all reasons that a command, an event, a metric or a log line can show.
func documentedReasons() []decision.Reason {
	all := slices.Concat(explain.Guides(), attachment.Reasons(), publication.Reasons(), nodevolume.Reasons(), fencing.Reasons(),
		[]decision.Reason{nodeagent.ClaimNotReady})
	slices.Sort(all)
	return slices.Compact(all)
}

// TestEachReasonHasARunbook: explain links to the page of a reason, so a reason without a page is a link that leads nowhere.
func TestEachReasonHasARunbook(t *testing.T) {
	found, err := filepath.Glob(filepath.Join(root, filepath.Dir(explain.Runbook("any")), "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]bool{}
	for _, page := range found {
		pages[page] = filepath.Base(page) != "README.md"
	}
	for _, reason := range documentedReasons() {
		page := filepath.Join(root, explain.Runbook(reason))
		if !pages[page] {
			t.Errorf("reason %s has no page %s", reason, explain.Runbook(reason))
			continue
		}
		delete(pages, page)
		title := ""
		if slices.Contains(explain.Guides(), reason) {
			title = explain.GuideTo(reason).Title
		}
		for _, problem := range runbookProblems(read(t, page), reason, title) {
			t.Errorf("%s: %s", explain.Runbook(reason), problem)
		}
	}
	for page, unknown := range pages {
		if unknown {
			t.Errorf("%s is about no reason", strings.TrimPrefix(page, root+"/"))
		}
	}
}

// runbookProblems are what is wrong with the page of a reason. title is that of its guide, empty for a reason without one.
func runbookProblems(page string, reason decision.Reason, title string) (problems []string) {
	switch heading := headingOf(page); {
	case title != "" && heading != title:
		problems = append(problems, "the heading is not the title of the guide: "+title)
	case heading == "" || heading == string(reason):
		problems = append(problems, "there is no heading in words")
	}
	if !strings.Contains(page, "\n\nReason: `"+string(reason)+"`\n\n") {
		problems = append(problems, "there is no line with the reason")
	}
	text := fenced.ReplaceAllString(page, "code")
	var sections []string
	for _, match := range section.FindAllStringSubmatchIndex(text, -1) {
		sections = append(sections, text[match[2]:match[3]])
		if rest := strings.TrimSpace(text[match[1]:]); rest == "" || strings.HasPrefix(rest, "#") {
			problems = append(problems, "an empty section: "+text[match[2]:match[3]])
		}
	}
	if !slices.Equal(sections, runbookSections) {
		problems = append(problems, "the sections are not "+strings.Join(runbookSections, ", "))
	}
	if verify := strings.Split(page, "\n## "); len(verify) > 2 && !strings.Contains(verify[2], "```") {
		problems = append(problems, "there is no command to verify it with")
	}
	return problems
}

var section = regexp.MustCompile(`(?m)^## (.+)$`)

func headingOf(page string) string {
	first, _, _ := strings.Cut(page, "\n")
	heading, _ := strings.CutPrefix(first, "# ")
	return heading
}

// TestRunbooksAreIndexed checks that the index has one row for each page, with its heading.
func TestRunbooksAreIndexed(t *testing.T) {
	index := read(t, filepath.Join(root, "docs", "runbooks", "README.md"))
	for _, reason := range documentedReasons() {
		page := read(t, filepath.Join(root, explain.Runbook(reason)))
		row := "\n| [" + string(reason) + "](" + string(reason) + ".md) | " + headingOf(page) + " |\n"
		if n := strings.Count(index, row); n != 1 {
			t.Errorf("docs/runbooks/README.md has %d rows, want 1:%s", n, row)
		}
	}
}

// TestRunbookProblemsAreFound shows that the checks can fail.
func TestRunbookProblemsAreFound(t *testing.T) {
	good := "# Nothing waits\n\nReason: `Settled`\n"
	for _, name := range runbookSections {
		good += "\n## " + name + "\n\n```\nkubectl get pods\n```\n"
	}
	for name, tc := range map[string]struct {
		page string
		want int
	}{
		"good":            {good, 0},
		"other heading":   {strings.Replace(good, "Nothing waits", "All is well", 1), 1},
		"no reason":       {strings.Replace(good, "`Settled`", "Settled", 1), 1},
		"no section":      {strings.Replace(good, "## What is safe\n", "\n", 1), 1},
		"another section": {strings.Replace(good, "## What is safe\n", "## Safe\n", 1), 1},
		"empty section":   {strings.Replace(good, "## Cause\n\n```\nkubectl get pods\n```\n", "## Cause\n\n", 1), 1},
		"no command":      {strings.Replace(good, "## How to verify\n\n```\nkubectl get pods\n```\n", "## How to verify\n\nLook.\n", 1), 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := runbookProblems(tc.page, attachment.Settled, "Nothing waits"); len(got) != tc.want {
				t.Errorf("got %d problems %q, want %d", len(got), got, tc.want)
			}
		})
	}
	if got := runbookProblems(good, attachment.Settled, ""); len(got) != 0 {
		t.Errorf("a page without a guide: %q", got)
	}
}

// TestReasonsOfFenceReadyAreDocumented: `kubectl belay evidence` shows the reason of the condition of a FenceSource, and docs/recovery/power-switches.md
// what it means. Where a person can do something about it, the command says what.
func TestReasonsOfFenceReadyAreDocumented(t *testing.T) {
	const file = "internal/recovery/fencer.go"
	page, found := read(t, filepath.Join(root, "docs", "recovery", "power-switches.md")), 0
	constant := regexp.MustCompile(`(?m)^\treason\w+\s+= "(\w+)"$`)
	for _, match := range constant.FindAllStringSubmatch(read(t, filepath.Join(root, file)), -1) {
		found++
		if !strings.Contains(page, "\n| `"+match[1]+"` |") {
			t.Errorf("docs/recovery/power-switches.md has no row for %s", match[1])
		}
		if other := explain.SourceNext("another reason", "n"); match[1] != "SaidOn" && slices.Equal(explain.SourceNext(match[1], "n"), other) {
			t.Errorf("%s has no step of its own", match[1])
		}
	}
	if found < 8 {
		t.Errorf("%s has only %d reasons: the test looks at too little", file, found)
	}
}
