package kubectl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/inspect"
	"belay.dev/belay/internal/usage"
)

const fenceLong = `State that the machine of a node is off, where no power switch can prove it: your word takes its place. By default this only
shows what would be written, what has to be true before that, and what is not.

First make sure that the machine is off: at its BMC, its hypervisor, or by its plugs. A node that does not answer may still run and
write, and then two machines write to one file system. Read the system UUID of the machine there too: it must be that of the fence.

Only recovery creates NodeFences, for nodes that it has found silent: there is nothing to state about another node. A power switch
that says On is believed, and so is a node that renews its lease. You need the permission "confirm" (ClusterRole
belay-fence-confirm). With --confirm the statement is written into the NodeFence, which is the record of it, with your name.

With --power-off you ask for the opposite: that recovery switches the machine of a silent node off now, although it gives some sign
of life or has no volume to move. Whatever still runs on it ends. Nothing is taken from the node before its power switch says Off. It is
refused for a node that is Ready or renews its lease. You need the permission "power-off" (ClusterRole belay-fence-power-off).
With --reason, --machine and --confirm it creates the NodeFence, which is the record of it, with your name. kubectl belay unfence withdraws it.`

const fenceExample = `  # What is needed?
  kubectl belay fence node-1

  # The machine is off: check the statement
  kubectl belay fence node-1 --confirm-powered-off --machine 4c4c4544-0042-3510-8052-b4c04f4d3332 --reason "pulled both plugs"

  # Write it
  kubectl belay fence node-1 --confirm-powered-off --machine 4c4c4544-0042-3510-8052-b4c04f4d3332 --reason "pulled both plugs" --confirm

  # The kubelet is dead and its machine runs: what would a power-off do?
  kubectl belay fence node-1 --power-off --reason "kubelet does not start"

  # Ask for it
  kubectl belay fence node-1 --power-off --reason "kubelet does not start" --machine 4c4c4544-0042-3510-8052-b4c04f4d3332 --confirm`

const unfenceLong = `Ask recovery to end the fence of a node, or to release a node whose release is Manual. By default this only shows what would
be done.

With --confirm it deletes the NodeFence. Recovery then removes its own taints, and its finalizer last; this command never does. As
long as no command was sent and no pod was deleted, that cancels the fence. After that it cannot be cancelled: the node is
released once its machine runs another boot. The command refuses where the deletion would change nothing. Where several machines of
the name are fenced, it means the one that the Node shows, or that --machine names.`

const unfenceExample = `  # What would happen?
  kubectl belay unfence node-1

  # Do it
  kubectl belay unfence node-1 --confirm`

// fenceOptions are the flags of both commands.
type fenceOptions struct {
	statement diagnosis.StatementRequest
	powerOff  bool
	confirm   bool
	format    output
}

// The permissions on a NodeFence that the commands need.
const verbConfirm, verbPowerOff, verbDelete = "confirm", "power-off", "delete"

// defaultExpiry is how long a statement counts.
const defaultExpiry = time.Hour

func (p *plugin) fenceCommand() *cobra.Command {
	var o fenceOptions
	c := &cobra.Command{
		Use: "fence (NAME | node/NAME)", Short: "State that the machine of a node is off, or have it switched off (dry run by default)",
		Long: fenceLong, Example: fenceExample, Args: oneObject("NAME or node/NAME"),
		ValidArgsFunction: p.completeNode,
		RunE: func(c *cobra.Command, args []string) error {
			node, err := p.nodeOf(args)
			if err != nil {
				return err
			}
			if o.powerOff {
				return p.requestPowerOff(c, node, &o)
			}
			if o.statement.Expires <= 0 || o.statement.Expires > diagnosis.StatementAtMost {
				return usage.Errorf("--expires is %v, but must be more than 0 and at most %v", o.statement.Expires, diagnosis.StatementAtMost)
			}
			return p.fence(c.Context(), node, verbConfirm, &o, func(s *diagnosis.Snapshot, a diagnosis.Author) (diagnosis.FencePlan, error) {
				return diagnosis.PlanStatement(s, node, o.statement, a)
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&o.statement.PoweredOff, "confirm-powered-off", false, "you have looked at the machine, and it is off")
	f.BoolVar(&o.powerOff, "power-off", false, "ask recovery to switch the machine of a silent node off")
	f.StringVar(&o.statement.Machine, "machine", "", "the system UUID that you read at the machine, or that of the machine to switch off")
	f.StringVar(&o.statement.Reason, "reason", "", "how you know that it is off, or why it is to be switched off")
	f.DurationVar(&o.statement.Expires, "expires", defaultExpiry, "for how long the statement counts, at most 24h")
	o.addTo(c)
	return c
}

// requestPowerOff has the machine of a node switched off, if that is confirmed.
func (p *plugin) requestPowerOff(c *cobra.Command, node string, o *fenceOptions) error {
	if o.statement.PoweredOff || c.Flags().Changed("expires") {
		return usage.Errorf("--power-off asks for a power-off: --confirm-powered-off and --expires are of a statement that the machine is off already")
	}
	request := diagnosis.PowerOffRequest{Machine: o.statement.Machine, Reason: o.statement.Reason, Confirmed: o.confirm}
	return p.fence(c.Context(), node, verbPowerOff, o, func(s *diagnosis.Snapshot, a diagnosis.Author) (diagnosis.FencePlan, error) {
		return diagnosis.PlanPowerOff(s, node, request, a)
	})
}

func (p *plugin) unfenceCommand() *cobra.Command {
	var o fenceOptions
	c := &cobra.Command{
		Use: "unfence (NAME | node/NAME)", Short: "Ask recovery to end a fence, or to release a node (dry run by default)",
		Long: unfenceLong, Example: unfenceExample, Args: oneObject("NAME or node/NAME"),
		ValidArgsFunction: p.completeFence,
		RunE: func(c *cobra.Command, args []string) error {
			node, err := p.nodeOf(args)
			if err != nil {
				return err
			}
			return p.fence(c.Context(), node, verbDelete, &o, func(s *diagnosis.Snapshot, a diagnosis.Author) (diagnosis.FencePlan, error) {
				return diagnosis.PlanUnfence(s, node, o.statement.Machine, a)
			})
		},
	}
	c.Flags().StringVar(&o.statement.Machine, "machine", "", "the system UUID of the machine, if several machines of this name are fenced")
	o.addTo(c)
	return c
}

func (o *fenceOptions) addTo(c *cobra.Command) {
	o.format.addTo(c, "text")
	addConfirm(c, &o.confirm)
}

// fence shows a plan, and carries it out if that is confirmed.
func (p *plugin) fence(ctx context.Context, node, verb string, o *fenceOptions, plan func(*diagnosis.Snapshot, diagnosis.Author) (diagnosis.FencePlan, error)) error {
	reader, err := p.reader()
	if err != nil {
		return err
	}
	answered := p.waitsForServer()
	read := reader.Fenced
	if verb == verbPowerOff {
		read = reader.PoweredOff
	}
	snapshot, author := read(ctx, node), reader.Author(ctx, verb, node)
	answered()
	made, err := plan(snapshot, author)
	if ctx.Err() != nil {
		return interrupted(ctx, ctx.Err())
	}
	if err != nil {
		return err
	}
	if made.Action != "" && !o.confirm {
		rehearse(ctx, reader, &made)
	}
	p.commands(made.Next)
	if err := o.format.print(p.Out, made, func() error {
		_, err := fmt.Fprint(p.Out, fencePlanText(p.style, &made, verb, snapshot))
		return err
	}); err != nil {
		return err
	}
	switch {
	case made.Refusal != "":
		_, _ = fmt.Fprintln(p.ErrOut, "Nothing was changed.")
		return found{StatusBlocked}
	case !o.confirm:
		_, _ = fmt.Fprintln(p.ErrOut, "Nothing was changed. To do it, add "+typed(&made, o)+"--confirm.")
		return nil
	}
	if err := reader.Fence(ctx, made, false); err != nil {
		return errors.Join(err, errors.New("nothing was changed; look at it again with "+p.command("kubectl belay evidence node/"+node)))
	}
	_, _ = fmt.Fprintf(p.ErrOut, "Requested. To see it through: %s\n", p.command("kubectl get nodefence "+made.FenceName()+" --watch"))
	return nil
}

// typed is what a person has to type besides --confirm.
func typed(plan *diagnosis.FencePlan, o *fenceOptions) string {
	if plan.Request == nil {
		return ""
	}
	var words []string
	if plan.Request.Reason == "" {
		words = append(words, `--reason "..."`)
	}
	if o.statement.Machine == "" {
		words = append(words, "--machine "+plan.Request.Boot.MachineID)
	}
	if len(words) == 0 {
		return ""
	}
	return strings.Join(words, ", ") + " and "
}

// rehearse asks the API server, with its admission policies, whether it would accept the write.
func rehearse(ctx context.Context, reader *inspect.Reader, plan *diagnosis.FencePlan) {
	accepted := diagnosis.Precondition{Name: "API server", Met: true, Message: "the API server accepts the request"}
	asked := *plan
	if r := asked.Request; r != nil && r.Reason == "" { // the person types it with --confirm
		with := *r
		with.Reason = "a dry run"
		asked.Request = &with
	}
	if err := reader.Fence(ctx, asked, true); err != nil {
		accepted.Met, accepted.Message = false, err.Error()
		plan.Action, plan.Refusal = "", "the API server refuses the request"
	}
	plan.Preconditions = append(plan.Preconditions, accepted)
}

func fencePlanText(s style, plan *diagnosis.FencePlan, verb string, read *diagnosis.Snapshot) string {
	out := &page{style: s, now: read.Now, wide: true}
	verdict, title := diagnosis.Clear, "READY"
	switch {
	case plan.Refusal != "":
		verdict, title = diagnosis.Blocked, "REFUSED"
	case len(plan.Risks) > 0 && plan.Action != diagnosis.DeleteFence:
		verdict = diagnosis.Unsafe
	}
	what := map[string]string{
		verbConfirm: "state that the machine of node " + plan.Node + " is off", verbPowerOff: "switch the machine of node " + plan.Node + " off", verbDelete: "end the fence of node " + plan.Node,
	}[verb]
	fmt.Fprintf(&out.text, "%s: %s\n", out.verdict(verdict, title), out.wrap(what, 0))
	if plan.Refusal != "" {
		out.line("Why", "%s", plan.Refusal)
	}
	if plan.Phase != "" {
		out.line("Fence", "phase %s", plan.Phase)
	}
	for i, c := range plan.Preconditions {
		mark := "met"
		if !c.Met {
			mark = "NOT MET"
		}
		out.line(first(i, "Needs"), "%s, %s: %s", c.Name, mark, c.Message)
	}
	if w := plan.Statement; w != nil {
		out.line("Writes", "by: %s", w.By)
		out.line("", "reason: %s", w.Reason)
		out.line("", "machineID: %s", w.MachineID)
		out.line("", "expires: %s", w.Expires.UTC().Format(time.RFC3339))
	}
	if r := plan.Request; r != nil {
		out.line("Writes", "by: %s", r.By)
		out.line("", "reason: %s", cmp.Or(r.Reason, "what you type with --reason"))
		out.line("", "boot: %s", bootText(&r.Boot))
	}
	out.consequences(plan.Does, plan.Risks)
	out.steps(plan.Next)
	out.unread(plan.Unread)
	return out.text.String()
}
