package kubectl

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/usage"
)

const evidenceLong = `Show what is known about the machine of a node: whether recovery could prove that it is off, or what its NodeFence waits for.

The first line is the verdict. Then come the boot that the Node shows, the health of the node, its power switch (FenceSource) and
whether that is known to belong to this boot, the NodeFence with a person's statement, and what the power switch answered last.
It only reads. Secrets are not read, and named only in the command that binds one to its power switch.

Exit status 0: the node could be fenced, is being fenced, or is proven off. 1: an error, or recovery is not installed. 2: it could
not be fenced, or the fence does not continue by itself. 3: the evidence is contradicted.`

const evidenceExample = `  # Could this node be fenced if it were lost now?
  kubectl belay evidence node/node-1

  # All answers that are recorded
  kubectl belay evidence node-1 -o wide`

func (p *plugin) evidenceCommand() *cobra.Command {
	var format output
	c := &cobra.Command{
		Use: "evidence (node/NAME | NAME)", Short: "Show whether a node could be fenced, or what its fence waits for",
		Long: evidenceLong, Example: evidenceExample, Args: oneObject("node/NAME or NAME"),
		ValidArgsFunction: p.completeNode,
		RunE: func(c *cobra.Command, args []string) error {
			node, err := p.nodeOf(args)
			if err != nil {
				return err
			}
			return p.evidence(c.Context(), node, format)
		},
	}
	format.addTo(c, "text", "wide (all answers)")
	return c
}

// nodeOf reads "node/NAME", "node NAME" or "NAME".
func (p *plugin) nodeOf(args []string) (string, error) {
	if len(args) == 1 && !strings.Contains(args[0], "/") {
		args = []string{"node", args[0]}
	}
	ref, err := p.subject(args)
	if err == nil && ref.Resource != diagnosis.Nodes {
		err = usage.Errorf("name a node: node/NAME")
	}
	return ref.Name, err
}

func (p *plugin) evidence(ctx context.Context, node string, format output) error {
	reader, err := p.reader()
	if err != nil {
		return err
	}
	answered := p.waitsForServer()
	snapshot := reader.Evidence(ctx, node)
	answered()
	e, err := diagnosis.Evidence(snapshot, node)
	if ctx.Err() != nil {
		return interrupted(ctx, ctx.Err())
	}
	if err != nil {
		return err
	}
	p.commands(e.Next)
	err = format.print(p.Out, e, func() error {
		_, err := fmt.Fprint(p.Out, evidenceText(p.style, &e, format == formatWide))
		return err
	})
	if err != nil {
		return err
	}
	return statusOf(e.Verdict)
}

// states are the first words of the output.
var states = map[diagnosis.EvidenceState]string{
	diagnosis.Fenceable: "COULD BE FENCED", diagnosis.NotFenceable: "COULD NOT BE FENCED", diagnosis.EvidenceUnknown: "UNKNOWN", diagnosis.Held: "HELD", diagnosis.BeingFenced: "BEING FENCED",
	diagnosis.ProvenOff: "PROVEN OFF", diagnosis.BeingReleased: "BEING RELEASED", diagnosis.Contradicted: "CONTRADICTED",
}

// fewAnswers limits the answers in the text; wide shows all.
const fewAnswers = 3

func evidenceText(s style, e *diagnosis.NodeEvidence, wide bool) string {
	out := &page{style: s, now: e.Time, wide: true}
	fmt.Fprintf(&out.text, "%s%s: %s\n", out.verdict(e.Verdict, states[e.State]), out.lasting(e.Since), out.wrap("node "+e.Node, 0))
	out.line("Why", "%s (%s)", e.Summary, e.Reason)
	out.health(e)
	if e.Source != nil {
		out.source(e.Source)
	}
	if e.Fence != nil {
		out.fence(e.Fence)
	}
	for i := range e.Answers {
		if i == fewAnswers && !wide {
			out.line("", "and %d more (-o wide shows them)", len(e.Answers)-i)
			break
		}
		out.answer(i, &e.Answers[i])
	}
	var parts []string
	for _, part := range e.Parts {
		parts = append(parts, part.Name+" "+map[string]string{"yes": "runs", "no": "does not run", "unknown": "unknown"}[part.Runs])
	}
	out.line("Recovery", "%s", strings.Join(parts, ", "))
	out.facts(e.Facts)
	for i, text := range e.Clock {
		out.line(first(i, "By itself"), "%s", text)
	}
	out.steps(e.Next)
	if (e.Verdict != diagnosis.Clear || e.State == diagnosis.ProvenOff) && e.Runbook != "" { // a machine that was fenced has to be started
		out.line("More", "%s", explain.RunbookCommand(e.Reason))
	}
	out.unread(e.Unread)
	return out.text.String()
}

// health prints the node, and the boot that it shows.
func (p *page) health(e *diagnosis.NodeEvidence) {
	text := fmt.Sprintf("%s%s", e.Health.State, p.lasting(e.Health.Since))
	if e.Health.LastHeartbeat != nil {
		text += ", lease renewed " + p.ago(e.Health.LastHeartbeat)
	} else {
		text += ", its lease is unknown"
	}
	if e.Health.OutOfService {
		text += ", has the out-of-service taint"
	}
	p.line("Node", "%s", text)
	for _, note := range e.Notes {
		p.line("", "%s", note)
	}
	if e.Boot != nil {
		p.line("Boot", "%s", bootText(e.Boot))
	}
}

func bootText(b *diagnosis.BootIdentity) string {
	return fmt.Sprintf("machine %s, boot %s, Node UID %s", cmp.Or(b.MachineID, "unknown"), cmp.Or(b.BootID, "unknown"), cmp.Or(b.NodeUID, "unknown"))
}

func (p *page) source(s *diagnosis.SourceRecord) {
	p.line("Switch", "%s", s.Switches())
	ready := "FenceReady " + s.Ready + " since " + p.ago(s.Since) // of the state: reason and message may be younger
	if s.Reason != "" {
		ready += " (" + s.Reason + ")"
	}
	if s.Message != "" {
		ready += ": " + s.Message
	}
	p.line("", "%s", ready)
	switch {
	case s.Bound == nil:
		p.line("", "no On of it while the node lived is recorded since the FenceSource was last changed")
	case s.Current:
		p.line("", "it said On during this boot (%s)", p.ago(s.BoundAt))
	default:
		p.line("", "it said On during another boot (%s): %s", p.ago(s.BoundAt), bootText(s.Bound))
	}
	switch n := s.FailedLogins; {
	case n == 1:
		p.line("", "it refused the login once")
	case n > 1:
		p.line("", "it refused the login %d times in a row", n)
	}
}

func (p *page) fence(f *diagnosis.FenceRecord) {
	text := fmt.Sprintf("phase %s, epoch %d, created %s", f.Phase, f.Epoch, p.ago(f.Created))
	if f.Over {
		p.line("Fence", "none; the last one ended: %s", text)
		return
	}
	if f.Evidence != "" {
		text += ", evidence " + f.Evidence
	}
	if f.Deleting {
		text += ", being deleted"
	}
	p.line("Fence", "%s", text)
	relation := map[string]string{
		"SameBoot": "the Node shows this boot", "Rebooted": "the machine runs another boot since", "OtherMachine": "another machine uses the name",
	}[f.Relation]
	p.line("", "about %s; %s", bootText(&f.Boot), cmp.Or(relation, "which boot the Node shows is unknown"))
	if f.CommandUntil != nil {
		p.line("", "a command to switch off was stored, which may be carried out until %s", f.CommandUntil.UTC().Format("2006-01-02T15:04:05Z"))
	}
	if f.RequestedBy != "" {
		p.line("Request", "%s", explain.RequestedBy(f.RequestedBy, f.RequestReason))
	}
	if w := f.Statement; w != nil {
		state := "counts until"
		switch {
		case f.StatementTooLong:
			state = "expires too late: no evidence. It would count until"
		case f.StatementExpired:
			state = "expired at"
		}
		p.line("Statement", "by %s: %s; machine %s; %s %s", w.By, w.Reason, w.MachineID, state, w.Expires.UTC().Format("2006-01-02T15:04:05Z"))
	}
	if f.ManualRelease {
		p.line("", "a person releases the node (release: Manual)")
	}
	for i, m := range f.Missing {
		p.line(first(i, "Missing"), "%s", m)
	}
	if f.Advice != "" {
		p.line("Advice", "%s", f.Advice)
	}
}

func (p *page) answer(i int, a *diagnosis.PowerAnswer) {
	said := cmp.Or(a.Power, a.Class)
	if a.Raw != "" {
		said += ": " + a.Raw
	}
	p.line(first(i, "Answers"), "%s (%s, machine %s)", said, p.ago(&a.At), cmp.Or(a.MachineID, "unknown"))
}

// EvidenceText is what the command prints to a file: without colors, and not wrapped.
func EvidenceText(e *diagnosis.NodeEvidence) string { return evidenceText(style{}, e, false) }
