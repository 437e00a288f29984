package kubectl

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"belay.dev/belay/docs"
	"belay.dev/belay/docs/runbooks"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/printable"
	"belay.dev/belay/internal/usage"
)

const runbookLong = `Print the runbook of a reason: the cause, how to verify it, what is safe and what is not, and what happens by itself. A reason is the
word in parentheses after "Why" in the output of "explain", the last column of "stuck", and the label "reason" of metrics and alerts.

The hints of "kubectl belay check" name sections of other pages in the same way. Without a reason, list all reasons with what they mean.
No cluster is needed.

In the commands, replace words in capitals.`

const runbookExample = `  # What can be done about a node that is not Ready and has a volume?
  kubectl belay runbook NodeNotReady

  # Which reasons are there?
  kubectl belay runbook`

func (p *plugin) runbookCommand() *cobra.Command {
	return &cobra.Command{
		Use: "runbook [REASON]", Short: "Print what is safe to do about a reason", Long: runbookLong, Example: runbookExample,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage.Errorf("name one reason; \"kubectl belay runbook\" lists them")
			}
			return nil
		},
		ValidArgsFunction: completeReason,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return p.listReasons()
			}
			return p.runbook(args[0])
		},
	}
}

// completeReason completes the name of a reason.
func completeReason(_ *cobra.Command, args []string, typed string) (offered []string, _ cobra.ShellCompDirective) {
	for _, r := range explain.Guides() {
		if len(args) == 0 && strings.HasPrefix(strings.ToLower(string(r)), strings.ToLower(typed)) {
			offered = append(offered, string(r)+"\t"+explain.GuideTo(r).Title)
		}
	}
	return offered, cobra.ShellCompDirectiveNoFileComp
}

// listReasons prints all reasons by page, in the order of the pages.
func (p *plugin) listReasons() error {
	out := &page{style: p.style}
	for i, name := range explain.Pages() {
		about, err := runbooks.Read(string(name))
		if err != nil {
			return err
		}
		if i > 0 {
			out.raw(0, "")
		}
		out.raw(0, out.paint(printable.Bold, about.Title))
		for _, s := range about.Sections {
			out.raw(2, fmt.Sprintf("%-26s %s", s.Reason, explain.GuideTo(decision.Reason(s.Reason)).Title))
		}
	}
	_, err := fmt.Fprint(p.Out, out.text.String())
	return err
}

// runbook prints the section of a reason, and what its page says about all of its reasons.
func (p *plugin) runbook(name string) error {
	if strings.ContainsAny(name, "#/") {
		return p.section(name)
	}
	r, err := reasonNamed(name)
	if err != nil {
		return err
	}
	about, err := runbooks.Read(string(explain.GuideTo(r).Page))
	if err != nil {
		return err
	}
	out := &page{style: p.style}
	if out.width == 0 || out.width > longestText {
		out.width = longestText
	}
	out.markdown("**" + string(r) + ":** " + strings.Replace(about.Section(string(r)), "**", "", 2))
	out.raw(0, "")
	out.raw(0, out.paint(printable.Bold, about.Title))
	out.markdown(about.Intro)
	_, err = fmt.Fprint(p.Out, out.text.String())
	return err
}

// section prints a section of another page.
func (p *plugin) section(name string) error {
	heading, text, err := docs.Section(name)
	if err != nil {
		return usage.Errorf("%v", err)
	}
	out := &page{style: p.style}
	if out.width == 0 || out.width > longestText {
		out.width = longestText
	}
	out.raw(0, out.paint(printable.Bold, heading))
	out.raw(0, "")
	out.markdown(text)
	_, err = fmt.Fprint(p.Out, out.text.String())
	return err
}

// longestText is the width of a text that is easy to read.
const longestText = 100

// reasonNamed finds a reason, in any case of its letters.
func reasonNamed(name string) (decision.Reason, error) {
	names := &cobra.Command{SuggestionsMinimumDistance: 4}
	for _, r := range explain.Guides() {
		if strings.EqualFold(string(r), name) {
			return r, nil
		}
		names.AddCommand(&cobra.Command{Use: string(r), Run: func(*cobra.Command, []string) {}})
	}
	if near := names.SuggestionsFor(name); len(near) > 0 {
		return "", usage.Errorf("there is no reason %q; similar: %s", name, strings.Join(near, ", "))
	}
	return "", usage.Errorf("there is no reason %q; \"kubectl belay runbook\" lists them", name)
}

var (
	comment = regexp.MustCompile(`<!--[^>]*-->`)
	strong  = regexp.MustCompile(`\*\*[^*]+\*\*`)
	// aside is a link in parentheses to a page that a reader of the terminal may not have.
	aside = regexp.MustCompile(`\s*\(\[[^\]]*\]\(\.\./[^)]*\)\)`)
	link  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	item  = regexp.MustCompile(`^(- |\d+\. )`)
	// rule is what stands under the head of a table, and heading before the title of a section.
	rule    = regexp.MustCompile(`^\|[-| :]+\|$`)
	heading = regexp.MustCompile(`^#+ (.*)$`)
)

// markdown prints a text of the runbooks: headings, paragraphs, lists and commands are all that they have. What follows a heading is not set apart
// from it.
func (p *page) markdown(text string) {
	var block []string
	apart, code := false, false
	flush := func() {
		if len(block) > 0 {
			text := strings.Join(block, " ")
			p.block(text)
			apart = apart && strong.FindString(text) != text
		}
		block = nil
	}
	for line := range strings.SplitSeq(comment.ReplaceAllString(text, ""), "\n") {
		trimmed := strings.TrimSpace(line)
		fence := strings.HasPrefix(trimmed, "```")
		apart = apart || trimmed == ""
		row := !code && strings.HasPrefix(trimmed, "|")
		if trimmed == "" || fence || row || item.MatchString(line) {
			flush()
		}
		switch {
		case rule.MatchString(trimmed):
		case fence:
			code = !code
		case trimmed == "":
		case code:
			p.apart(&apart)
			p.raw(4, trimmed)
		case row:
			p.apart(&apart)
			p.block("- " + strings.Join(strings.FieldsFunc(trimmed, func(r rune) bool { return r == '|' }), ";"))
		default:
			p.apart(&apart)
			block = append(block, heading.ReplaceAllString(trimmed, "**$1**"))
		}
	}
	flush()
}

// apart prints an empty line if one is due.
func (p *page) apart(due *bool) {
	if *due {
		p.raw(0, "")
	}
	*due = false
}

// block prints a heading, a paragraph or an item of a list.
func (p *page) block(text string) {
	indent := len(item.FindString(text))
	text = p.wrap(link.ReplaceAllString(aside.ReplaceAllString(text, ""), "$1"), indent)
	fmt.Fprintf(&p.text, "%s\n", strong.ReplaceAllStringFunc(text, func(words string) string { return p.paint(printable.Bold, strings.Trim(words, "*")) }))
}
