package kubectl

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/inspect"
	"belay.dev/belay/internal/usage"
)

const goneLong = `State that a machine is gone, and its attachments at the storage with it, where the driver cannot confirm that: it answers NOT_FOUND,
or the VolumeAttachment was restored from a backup. Your word takes the place of the driver's. By default this only shows what
would be written, what has to be true before that, and what is not.

First ask the cloud or the storage whether a machine with the recorded node ID exists, in any cluster, and whether the volumes are
attached to it. A Node that was deleted says nothing about its machine: it may still run and write, and then two machines write to
one file system.

Only VolumeAttachments that are being deleted can be declared, and only while no Node and no CSINode has the ID. With a node, all
of its VolumeAttachments are taken that are being deleted and have the node ID. With --confirm the statement is written as an
annotation, with your name. It counts for a day, for this object and this node ID. Only belay-attacher knows it.`

const goneExample = `  # What is needed?
  kubectl belay declare-gone va/csi-0123

  # The machine is not in the cloud's console: check the statement
  kubectl belay declare-gone va/csi-0123 --node-id i-0abc --reason "terminated on Monday"

  # Write it, for all VolumeAttachments of the node
  kubectl belay declare-gone node/node-1 --node-id i-0abc --reason "terminated on Monday" --confirm`

type goneOptions struct {
	request diagnosis.GoneRequest
	confirm bool
	format  output
}

func (p *plugin) goneCommand() *cobra.Command {
	var o goneOptions
	c := &cobra.Command{
		Use: "declare-gone (va/NAME | node/NAME)", Short: "State that a machine and its attachments are gone (dry run by default)",
		Long: goneLong, Example: goneExample, Args: oneObject("va/NAME or node/NAME"),
		ValidArgsFunction: p.completeObject("va", "node"),
		RunE: func(c *cobra.Command, args []string) error {
			ref, err := p.subject(args)
			if err == nil && ref.Resource != diagnosis.Attachments && ref.Resource != diagnosis.Nodes {
				err = usage.Errorf("name a VolumeAttachment or a node: va/NAME or node/NAME")
			}
			if err != nil {
				return err
			}
			return p.declareGone(c.Context(), ref, &o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.request.NodeID, "node-id", "", "the CSI node ID of the machine that you have looked for")
	f.StringVar(&o.request.Reason, "reason", "", "how you know that the machine and its attachments are gone")
	o.format.addTo(c, "text")
	addConfirm(c, &o.confirm)
	return c
}

// declareGone shows a plan, and carries it out if that is confirmed.
func (p *plugin) declareGone(ctx context.Context, ref diagnosis.Ref, o *goneOptions) error {
	reader, err := p.reader()
	if err != nil {
		return err
	}
	answered := p.waitsForServer()
	snapshot, author := reader.Gone(ctx), reader.Declarer(ctx)
	answered()
	plan, err := diagnosis.PlanDeclareGone(snapshot, ref, o.request, author)
	if err != nil || ctx.Err() != nil {
		return interrupted(ctx, errors.Join(err, ctx.Err()))
	}
	if plan.Refusal == "" && !o.confirm {
		rehearseGone(ctx, reader, &plan, snapshot)
	}
	p.commands(plan.Next)
	if err := o.format.print(p.Out, plan, func() error {
		_, err := fmt.Fprint(p.Out, gonePlanText(p.style, &plan, snapshot))
		return err
	}); err != nil {
		return err
	}
	switch {
	case plan.Refusal != "":
		_, _ = fmt.Fprintln(p.ErrOut, "Nothing was changed.")
		return found{StatusBlocked}
	case !o.confirm:
		_, _ = fmt.Fprintln(p.ErrOut, "Nothing was changed. To do it, add --confirm.")
		return nil
	}
	declared, err := reader.DeclareGone(ctx, &plan, snapshot.Now, false)
	if err != nil {
		return errors.Join(err, fmt.Errorf("%d of %d VolumeAttachments were declared; look at the others again", declared, len(plan.Attachments)))
	}
	_, _ = fmt.Fprintf(p.ErrOut, "Declared. To see it through: %s\n", p.command("kubectl wait --for=delete volumeattachment/"+plan.Attachments[0].Name+" --timeout=2m"))
	return nil
}

// rehearseGone asks the API server, with its admission policies, whether it would accept the writes.
func rehearseGone(ctx context.Context, reader *inspect.Reader, plan *diagnosis.GonePlan, read *diagnosis.Snapshot) {
	accepted := diagnosis.Precondition{Name: "API server", Met: true, Message: "the API server accepts the requests"}
	if _, err := reader.DeclareGone(ctx, plan, read.Now, true); err != nil {
		accepted.Met, accepted.Message = false, err.Error()
		plan.Refusal = "the API server refuses a request"
	}
	plan.Preconditions = append(plan.Preconditions, accepted)
}

func gonePlanText(s style, plan *diagnosis.GonePlan, read *diagnosis.Snapshot) string {
	out := &page{style: s, now: read.Now, wide: true}
	verdict, title := diagnosis.Unsafe, "YOUR WORD COUNTS"
	if plan.Refusal != "" {
		verdict, title = diagnosis.Blocked, "REFUSED"
	}
	what := fmt.Sprintf("state that the machine of %s and its attachments are gone", plan.Subject)
	fmt.Fprintf(&out.text, "%s: %s\n", out.verdict(verdict, title), out.wrap(what, 0))
	if plan.Refusal != "" {
		out.line("Why", "%s", plan.Refusal)
	}
	for i := range plan.Attachments {
		a := &plan.Attachments[i]
		out.line(first(i, "Attachment"), "%s of node %s, driver %s", a.Name, a.Node, a.Driver)
		out.line("", "volume %s, handle %s, recorded node ID %s", a.PersistentVolume, a.Handle, a.NodeID)
		if a.Deleting != nil {
			out.line("", "deleting%s", out.lasting(a.Deleting))
		}
		if a.DetachError != "" {
			out.line("", "%s", a.DetachError)
		}
	}
	for i, c := range plan.Preconditions {
		mark := "met"
		if !c.Met {
			mark = "NOT MET"
		}
		out.line(first(i, "Needs"), "%s, %s: %s", c.Name, mark, c.Message)
	}
	if plan.Refusal == "" {
		out.line("Writes", "by: %s", plan.By)
		out.line("", "reason: %s", plan.Reason)
		out.line("", "nodeID: %s", plan.NodeID)
	}
	out.consequences(plan.Does, plan.Risks)
	out.steps(plan.Next)
	out.unread(plan.Unread)
	return out.text.String()
}
