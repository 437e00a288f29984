package kubectl

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/usage"
)

const forceLong = `Detach a volume from a node that cannot be asked: the last resort. By default this only shows what would be done, what could
be corrupted, and what to do instead.

With --confirm it deletes the VolumeAttachment, and the attacher detaches the volume. While the node may run, that also
needs --i-accept-data-loss. A finalizer is removed only for a driver that is not installed any more; while a driver may
hold the volume, it is never removed.

Prefer the taint node.kubernetes.io/out-of-service on a machine that is known to be off: it also deletes the pods.`

const forceExample = `  # Show what a forced detach would do
  kubectl belay force-detach va/csi-0123

  # Do it: the node is known to be off
  kubectl belay force-detach va/csi-0123 --confirm --i-accept-data-loss`

type forceOptions struct {
	format          output
	confirm, accept bool
}

func (p *plugin) forceCommand() *cobra.Command {
	var o forceOptions
	c := &cobra.Command{
		Use: "force-detach (va/NAME | va NAME)", Short: "Detach a volume from a node that cannot be asked (dry run by default)",
		Long: forceLong, Example: forceExample, Args: oneObject("va/NAME"),
		ValidArgsFunction: p.completeObject("va"),
		RunE: func(c *cobra.Command, args []string) error {
			ref, err := p.subject(args)
			if err == nil && ref.Resource != diagnosis.Attachments {
				err = usage.Errorf("name a VolumeAttachment, va/NAME: %s shows which", p.command("kubectl belay explain "+ref.String()))
			}
			if err != nil {
				return err
			}
			return p.force(c.Context(), ref, o)
		},
	}
	o.format.addTo(c, "text")
	addConfirm(c, &o.confirm)
	c.Flags().BoolVar(&o.accept, "i-accept-data-loss", false, "do it although the node may still run and write, or the volume may stay attached at the storage")
	return c
}

func (p *plugin) force(ctx context.Context, ref diagnosis.Ref, o forceOptions) error {
	reader, err := p.reader()
	if err != nil {
		return err
	}
	answered := p.waitsForServer()
	snapshot := reader.About(ctx, ref)
	answered()
	plan, err := diagnosis.PlanForceDetach(snapshot, ref.Name)
	if err != nil {
		return interrupted(ctx, err)
	}
	p.commands(plan.Next)
	if err := o.format.print(p.Out, plan, func() error {
		_, err := fmt.Fprint(p.Out, planText(p.style, &plan, snapshot))
		return err
	}); err != nil {
		return err
	}
	switch {
	case plan.Refusal != "":
		return found{StatusBlocked}
	case !o.confirm:
		_, _ = fmt.Fprintln(p.ErrOut, "Nothing was changed. To do it, add --confirm"+acceptWords(plan)+".")
		return nil
	case len(plan.Risks) > 0 && !o.accept:
		_, _ = fmt.Fprintln(p.ErrOut, "Nothing was changed: this may lose data. To do it all the same, add --i-accept-data-loss.")
		return found{StatusUnsafe}
	}
	if err := reader.Force(ctx, plan, false); err != nil {
		return errors.Join(err, errors.New("nothing was changed; look at it again with "+p.command("kubectl belay explain va/"+ref.Name)))
	}
	_, _ = fmt.Fprintf(p.ErrOut, "Requested. To see it through: %s\n", p.command("kubectl wait --for=delete volumeattachment/"+ref.Name+" --timeout=2m"))
	return nil
}

func acceptWords(plan diagnosis.ForcePlan) string {
	if len(plan.Risks) > 0 {
		return " and --i-accept-data-loss"
	}
	return ""
}

func planText(s style, plan *diagnosis.ForcePlan, read *diagnosis.Snapshot) string {
	out := &page{style: s, now: read.Now, wide: true}
	verdict, title := diagnosis.Clear, "SAFE TO DETACH"
	switch {
	case plan.Refusal != "":
		verdict, title = diagnosis.Blocked, "REFUSED"
	case len(plan.Risks) > 0:
		verdict, title = diagnosis.Unsafe, "MAY CORRUPT DATA"
	}
	what := fmt.Sprintf("detach VolumeAttachment %s from node %s by force", plan.Subject.Name, plan.Holder.Node.Name)
	fmt.Fprintf(&out.text, "%s: %s\n", out.verdict(verdict, title), out.wrap(what, 0))
	if plan.Refusal != "" {
		out.line("Why", "%s", plan.Refusal)
	}
	if plan.Recovery != "" {
		out.line("Recovery", "%s", plan.Recovery)
	}
	out.volume(plan.Volume)
	out.holder("Holder", &plan.Holder)
	out.consequences(plan.Does, plan.Risks)
	out.steps(plan.Next)
	out.unread(read.Unread)
	return out.text.String()
}

// consequences prints what a plan does, and what may be lost.
func (p *page) consequences(does, risks []string) {
	for i, text := range does {
		p.line(first(i, "Does"), "%s", text)
	}
	for i, text := range risks {
		p.line(first(i, "Risk"), "%s", text)
	}
}
