package kubectl

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/drivers"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/printable"
)

// words are the verdicts as the first words of the output.
var words = map[diagnosis.Verdict]string{
	diagnosis.Clear: "CLEAR", diagnosis.InProgress: "IN PROGRESS", diagnosis.Blocked: "BLOCKED", diagnosis.Unsafe: "BLOCKED, UNSAFE TO FORCE", diagnosis.Unknown: "UNKNOWN",
	diagnosis.NotVolume: "NOT A VOLUME",
}

// label is the width of the first column.
const label = 10

// page collects the lines of an output.
type page struct {
	style
	now  time.Time
	wide bool // with what the answer rests on
	text strings.Builder
}

func (p *page) line(name, format string, args ...any) {
	fmt.Fprintf(&p.text, "%s %s\n", p.paint(printable.Bold, fmt.Sprintf("%-*s", label-1, name)), p.wrap(fmt.Sprintf(format, args...), label))
}

// raw is a line that is not wrapped, so that it can be copied.
func (p *page) raw(indent int, text string) {
	fmt.Fprintf(&p.text, "%s%s\n", strings.Repeat(" ", indent), printable.Line(text))
}

// ago is how long ago something was.
func (p *page) ago(t *time.Time) string {
	if t == nil {
		return "at an unknown time"
	}
	return duration.HumanDuration(p.now.Sub(*t)) + " ago"
}

func (p *page) lasting(t *time.Time) string {
	if t == nil {
		return ""
	}
	return " for " + duration.HumanDuration(p.now.Sub(*t))
}

// explanation prints an explanation as text.
func (p *plugin) explanation(e diagnosis.Explanation, format output) error {
	return writeText(p.Out, &page{style: p.style, now: e.Time, wide: format == formatWide}, e)
}

// finding prints what a person needs who has to act: the verdict, the cause, the first step, and what not to do. What it rests on follows if
// the page is wide. others are findings with the same cause.
func (p *page) finding(f *diagnosis.Finding, others []*diagnosis.Finding) {
	if f.Verdict == diagnosis.NotVolume {
		p.heading(f.Verdict, ": "+waits(f)+alsoWait(f, others)+after(" has waited", p.lasting(f.Since)))
	} else {
		p.heading(f.Verdict, p.lasting(f.Since)+": "+waits(f)+alsoWait(f, others))
	}
	p.line("Why", "%s (%s)", p.fits(f.Summary, f.Quote, len(f.Reason)), f.Reason)
	p.steps(f.Next)
	for i, text := range f.Clock {
		p.line(first(i, "By itself"), "%s", text)
	}
	if p.wide {
		p.details(f)
		for _, other := range others {
			p.line("Also", "%s%s", waits(other), p.lasting(other.Since))
			p.details(other)
		}
	}
	if f.Verdict != diagnosis.Clear && f.Runbook != "" {
		p.commandLine("More", explain.RunbookCommand(f.Reason))
	}
}

// after puts words before a text, if there is one.
func after(words, text string) string {
	if text == "" {
		return ""
	}
	return words + text
}

// heading prints a verdict, and what it is about.
func (p *page) heading(v diagnosis.Verdict, text string) {
	p.text.WriteString(p.verdict(v, words[v]) + strings.TrimPrefix(p.wrap(words[v]+text, 0), words[v]) + "\n")
}

// fits leaves out the middle of what a sentence quotes, if it has no place in two lines, or in five of a narrow terminal: an error that another
// component wrote ends with the innermost one. The whole is in the other formats.
func (p *page) fits(sentence, quote string, reason int) string {
	const narrow, parentheses, broken, least = 120, 3, 18, 40 // broken: what the end of a line lacks
	if p.width == 0 || p.wide {
		return sentence
	}
	lines := 2
	if p.width < narrow {
		lines = 5
	}
	excess := len(sentence) + reason + parentheses - lines*(p.width-label-broken)
	if excess <= 0 || !strings.Contains(quote, " ") { // a name is not broken
		return sentence
	}
	return strings.Replace(sentence, quote, drivers.Shorten(quote, max(least, len(quote)-excess)), 1)
}

// details prints the volume, where it is, and what each component did last.
func (p *page) details(f *diagnosis.Finding) {
	if f.Volume != nil {
		p.volume(f.Volume)
	}
	for i := range f.Holders {
		name := "Holder"
		if f.Volume != nil && f.Volume.WantedOn == f.Holders[i].Node.Name {
			name = "Target" // the pod that waits is there
		}
		p.holder(name, &f.Holders[i])
	}
	p.facts(f.Facts)
}

// facts prints what the components did last.
func (p *page) facts(facts []diagnosis.Fact) {
	for i, fact := range facts {
		at := ""
		if fact.At != nil {
			at = " (" + p.ago(fact.At) + ")"
		}
		p.line(first(i, "Last"), "%s: %s%s", fact.Component, fact.Message, at)
	}
}

// waits names what waits, and for which volume.
func waits(f *diagnosis.Finding) string {
	text := kindAndName(f.Subject)
	if f.Subject.Resource == diagnosis.Pods && f.Volume != nil && cmp.Or(f.Volume.PersistentVolume, f.Volume.Name) != "" {
		verb := " waits for volume "
		switch {
		case uses(f):
			verb = " uses volume "
		case f.Reason == explain.UnmountFailing && f.Volume.WantedOn == "": // the pod is being deleted
			verb = " has volume "
		}
		text += verb + cmp.Or(f.Volume.PersistentVolume, f.Volume.Name)
	}
	return text
}

// alsoWait counts the findings beside the first one that have its cause: other objects, or other volumes of the same one.
func alsoWait(f *diagnosis.Finding, others []*diagnosis.Finding) string {
	objects := map[diagnosis.Ref]bool{f.Subject: true}
	for _, o := range others {
		objects[o.Subject] = true
	}
	switch more := len(objects) - 1; {
	case more > 0:
		return " (and " + several(more, "more object") + " with the same cause)"
	case len(others) > 0:
		return " (and " + several(len(others), "more volume") + ")"
	}
	return ""
}

// sameCause puts the findings of one cause together.
func sameCause(findings []diagnosis.Finding) (groups [][]*diagnosis.Finding) {
	at := map[string]int{}
	for i := range findings {
		f := &findings[i]
		if n, ok := at[f.Cause()]; ok {
			groups[n] = append(groups[n], f)
			continue
		}
		at[f.Cause()] = len(groups)
		groups = append(groups, []*diagnosis.Finding{f})
	}
	return groups
}

// first is the label of the first line of several.
func first(i int, name string) string {
	if i == 0 {
		return name
	}
	return ""
}

func (p *page) volume(v *diagnosis.Volume) {
	var parts []string
	if v.Claim != "" {
		parts = append(parts, kindAndName(diagnosis.Ref{Resource: diagnosis.Claims, Namespace: v.Namespace, Name: v.Claim}))
	}
	if v.PersistentVolume != "" {
		parts = append(parts, "volume "+v.PersistentVolume)
	}
	if v.Name != "" && v.Claim == "" && v.PersistentVolume == "" {
		parts = append(parts, v.Name+" ("+v.Kind+")")
	}
	if v.Driver != "" {
		driver := v.Driver
		if v.InTree {
			driver += " (migrated from an in-tree plugin)"
		}
		parts = append(parts, driver)
	}
	if len(v.AccessModes) > 0 {
		parts = append(parts, strings.Join(v.AccessModes, ", "))
	}
	if v.WantedOn != "" {
		parts = append(parts, "wanted on node "+v.WantedOn)
	}
	p.line("Volume", "%s", strings.Join(parts, ", "))
}

func (p *page) holder(name string, h *diagnosis.Holder) {
	node := fmt.Sprintf("node %s is %s%s", h.Node.Name, h.Node.State, p.lasting(h.Node.Since))
	if h.Node.State == diagnosis.NodeDeleted {
		node = "the Node of " + h.Node.Name + " was deleted"
	}
	if beat := h.Node.LastHeartbeat; beat != nil && (h.Node.State != diagnosis.NodeReady || p.now.Sub(*beat) > 20*time.Second) {
		node += ", last heartbeat " + p.ago(h.Node.LastHeartbeat)
	}
	if h.Node.OutOfService {
		node += ", has the out-of-service taint"
	}
	p.line(name, "%s; volumesInUse: %s, volumesAttached: %s", node, h.InUse, h.Reported)
	if h.Attachment != "" {
		state := "not attached"
		if h.Attached {
			state = "attached"
		}
		if h.Deleting != nil {
			state += ", being deleted" + p.lasting(h.Deleting)
		}
		p.line("", "%s, %s, created %s", kindAndName(diagnosis.Ref{Resource: diagnosis.Attachments, Name: h.Attachment}), state, p.ago(h.Since))
	}
	for _, pod := range h.Pods {
		owner := ""
		if pod.Owner != "" {
			owner = " of " + pod.Owner
		}
		p.line("", "%s%s, %s%s", kindAndName(diagnosis.Ref{Resource: diagnosis.Pods, Namespace: pod.Namespace, Name: pod.Name}), owner, pod.State, p.lasting(pod.Since))
	}
	if h.HiddenPods > 0 {
		p.line("", "%d pods in namespaces that you may not read", h.HiddenPods)
	}
	if h.PodsUnknown {
		p.line("", "the pods there could not be read")
	}
}

// steps prints what to do: of each step its first sentence, the danger, the command, and then what else is to know about it.
func (p *page) steps(steps []explain.Step) {
	for i, s := range steps {
		do, more := s.Text, ""
		if s.Command != "" || s.Danger != "" {
			do, more = firstSentence(s.Text)
		}
		fmt.Fprintf(&p.text, "%s %s\n", p.paint(printable.Bold, fmt.Sprintf("%-*s", label-1, first(i, "Next"))), p.wrap(fmt.Sprintf("%d. %s", i+1, do), ofStep))
		if s.Danger != "" {
			p.beside("Danger: " + s.Danger)
		}
		if s.Command != "" {
			p.command(ofStep, s.Command)
		}
		if more != "" {
			p.beside(more)
		}
	}
}

// ofStep is the indent of what belongs to a step.
const ofStep = label + len("1. ")

// beside prints a text about a step.
func (p *page) beside(text string) {
	lines := p.wrap(text, ofStep)
	if rest, ok := strings.CutPrefix(lines, "Danger:"); ok {
		lines = p.paint(printable.Red, "Danger:") + rest
	}
	fmt.Fprintf(&p.text, "%s%s\n", strings.Repeat(" ", ofStep), lines)
}

// firstSentence splits a text behind its first sentence.
func firstSentence(text string) (first, rest string) {
	if at := strings.Index(text, ". "); at >= 0 {
		return text[:at+1], text[at+2:]
	}
	return text, ""
}

// commandLine is a line with a command, which continues as a shell has it.
func (p *page) commandLine(name, text string) {
	var b page
	b.style = p.style
	b.command(label, text)
	fmt.Fprintf(&p.text, "%s %s", p.paint(printable.Bold, fmt.Sprintf("%-*s", label-1, name)), strings.TrimPrefix(b.text.String(), strings.Repeat(" ", label)))
}

// command is a line that can be copied to a shell. Where it is longer than the terminal is wide, it continues on the next line as a shell
// has it: no name is broken.
func (p *page) command(indent int, text string) {
	line := ""
	words := shellWords(text)
	for i, word := range words {
		ends := indent + len(line) + len(" ") + len(word)
		if i < len(words)-1 {
			ends += len(` \`)
		}
		switch {
		case line == "":
			line = word
		case p.width > 0 && ends > p.width:
			p.raw(indent, line+` \`)
			line = "  " + word
		default:
			line += " " + word
		}
	}
	p.raw(indent, line)
}

// shellWords splits a command where it may be continued on another line: at spaces that are not quoted.
func shellWords(text string) (words []string) {
	var quote rune
	start := 0
	for i, r := range text {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote = r
		case quote == 0 && r == ' ':
			words, start = append(words, text[start:i]), i+1
		}
	}
	return append(words, text[start:])
}

// unread prints what could not be read. Missing permissions are one line, unless the page is wide.
func (p *page) unread(unread []diagnosis.Unread) {
	var forbidden, failed []diagnosis.Unread
	for _, u := range unread {
		if u.Forbidden && !p.wide {
			forbidden = append(forbidden, u)
		} else {
			failed = append(failed, u)
		}
	}
	if len(forbidden) > 0 {
		fmt.Fprintf(&p.text, "\n%s\n", p.wrap("You lack permission to "+rules(forbidden)+": the answer may lack what these would show.", 0))
	}
	if len(failed) > 0 {
		fmt.Fprintf(&p.text, "\n%s\n", p.wrap("Not all could be read; the answer may lack what these would show:", 0))
	}
	for _, u := range failed {
		p.raw(2, u.Rule()+": "+u.Message)
	}
}

// rules are permissions in a sentence: "list nodes, persistentvolumes; get nodes/a".
func rules(unread []diagnosis.Unread) string {
	of := map[string][]string{}
	var verbs []string
	for _, u := range unread {
		if of[u.Verb] == nil {
			verbs = append(verbs, u.Verb)
		}
		if object := strings.TrimPrefix(u.Rule(), u.Verb+" "); !slices.Contains(of[u.Verb], object) {
			of[u.Verb] = append(of[u.Verb], object)
		}
	}
	for i, verb := range verbs {
		verbs[i] = verb + " " + strings.Join(of[verb], ", ")
	}
	return strings.Join(verbs, "; ")
}

// uses reports whether the pod of a finding has the volume, and does not wait for it.
func uses(f *diagnosis.Finding) bool {
	return slices.ContainsFunc(f.Holders, func(h diagnosis.Holder) bool {
		return h.Node.Name != f.Volume.WantedOn && slices.ContainsFunc(h.Pods, func(p diagnosis.PodState) bool {
			return p.Namespace == f.Subject.Namespace && p.Name == f.Subject.Name
		})
	})
}
