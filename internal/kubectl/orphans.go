package kubectl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/printable"
	"belay.dev/belay/internal/usage"
)

const orphansLong = `List what attaches volumes without need, or without a record: VolumeAttachments for nodes on which no pod needs the volume, volumes
that a node uses or reports without a VolumeAttachment, and volumes for one node that have VolumeAttachments for several. For each it
says why it is still there, and the next step.

Several VolumeAttachments of a volume that allows several nodes are legal. They, and what is about to end by itself, are listed
with --all only.

The pods, claims, volumes and VolumeAttachments of the whole cluster have to be read: a pod that cannot be seen may be what needs a
volume. Without the permissions nothing is called an orphan.

Exit status 0: there is none. 1: too little could be read. 2: there are some. 3: there are some, and to remove them by force
now may corrupt data.`

const orphansExample = `  # What takes slots on nodes without need?
  kubectl belay orphans

  # The names, for a script
  kubectl belay orphans -o name`

func (p *plugin) orphansCommand() *cobra.Command {
	var all bool
	var format output
	c := &cobra.Command{
		Use: "orphans", Short: "List VolumeAttachments that no pod needs, and volumes without one", Long: orphansLong, Example: orphansExample, Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return p.orphans(c.Context(), all, format) },
	}
	format.addToList(c)
	c.Flags().BoolVar(&all, "all", false, "list also what is legal and what is about to end by itself")
	return c
}

func (p *plugin) orphans(ctx context.Context, all bool, format output) error {
	s, err := p.cluster(ctx, "")
	if err != nil {
		return err
	}
	list := diagnosis.Orphans(s, all)
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, nameOf(list.Items[i].Subject))
	}
	for i := range list.Items {
		p.commands(list.Items[i].Next)
	}
	if err := format.printList(p.Out, list, names, func() error { return p.orphansTable(&list, format) }); err != nil {
		return err
	}
	if len(list.Missing) > 0 {
		_, _ = fmt.Fprintln(p.ErrOut, "Nothing may be called an orphan: a pod that cannot be seen may need the volume.")
	}
	p.unread(list.Unread, format)
	return statusOf(list.Verdict)
}

func (p *plugin) orphansTable(list *diagnosis.OrphanList, format output) error {
	if len(list.Items) == 0 {
		if len(list.Missing) == 0 {
			_, _ = fmt.Fprintln(p.ErrOut, "There are no orphans.")
		}
		return nil
	}
	t := p.findings(format, "SINCE", "VERDICT", "KIND", "OBJECT", "VOLUME", "HOLDER", "REASON")
	for i := range list.Items {
		f := &list.Items[i]
		t.add(withSummary(format, f.Summary, lasted(list.Time, f.Since, ""), string(f.Verdict), f.Kind, kindAndName(f.Subject), volumeName(f.Volume),
			holderName(&f.Finding), string(f.Reason))...)
	}
	if err := t.print(p.Out, p.style); err != nil {
		return err
	}
	_, err := fmt.Fprint(p.Out, p.reasons(list))
	return err
}

// reasons says for each reason of the list why those are still there, and what to do next about the first.
func (p *plugin) reasons(list *diagnosis.OrphanList) string {
	out := &page{style: p.style}
	of := map[decision.Reason][]*diagnosis.Orphan{}
	var order []decision.Reason
	for i := range list.Items {
		o := &list.Items[i]
		if of[o.Reason] == nil {
			order = append(order, o.Reason)
		}
		of[o.Reason] = append(of[o.Reason], o)
	}
	for _, reason := range order {
		first := of[reason][0]
		fmt.Fprintf(&out.text, "\n%s (%d): %s\n", out.paint(printable.Bold, string(reason)), len(of[reason]), out.wrap(explain.GuideTo(reason).Title, 0))
		switch first.Verdict {
		case diagnosis.Clear:
			out.line("", "This is legal, and nothing has to be done.")
		case diagnosis.InProgress:
			out.line("", "Wait: this usually ends by itself within a minute.")
		default:
			out.steps(first.Next)
			out.commandLine("More", p.command("kubectl belay explain "+kindAndName(first.Subject)))
		}
	}
	return out.text.String()
}
