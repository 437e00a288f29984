package kubectl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/inspect"
	"belay.dev/belay/internal/usage"
)

const waitLong = `Wait until no volume is attached to a node: no VolumeAttachment refers to it, and its lists of attached volumes and volumes
in use are empty. Use it after a drain, before the node is rebooted, upgraded or deleted.

Exit status 0: nothing is attached. 1: there is no such node, or it could not be read. 2: something still is at the end of
--timeout; it is listed with its cause, if that can be read.`

const waitExample = `  kubectl drain node-1 --ignore-daemonsets && kubectl belay wait-detached node/node-1 --timeout 5m && reboot-the-machine`

func (p *plugin) waitCommand() *cobra.Command {
	var timeout time.Duration
	var format output
	c := &cobra.Command{
		Use: "wait-detached (node/NAME | NAME)", Short: "Wait until no volume is attached to a node",
		Long: waitLong, Example: waitExample, Args: oneObject("node/NAME or NAME"),
		ValidArgsFunction: p.completeObject("node"),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 && !strings.Contains(args[0], "/") {
				args = []string{"node", args[0]}
			}
			ref, err := p.subject(args)
			switch {
			case err == nil && ref.Resource != diagnosis.Nodes:
				err = usage.Errorf("name a node: node/NAME")
			case err == nil && timeout < 0:
				err = usage.Errorf("--timeout is %v, but must not be negative; 0 waits without an end", timeout)
			}
			if err != nil {
				return err
			}
			return p.wait(c.Context(), ref, timeout, format)
		},
	}
	format.addTo(c, "text")
	c.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait; 0: no limit")
	return c
}

// Detached is the answer of wait-detached.
type Detached struct {
	metav1.TypeMeta `json:",inline"`

	Node string `json:"node"`
	// Detached is set when nothing remains.
	Detached          bool `json:"detached"`
	inspect.Remaining `json:",inline"`
	// Explanation is why the rest remains.
	Explanation *diagnosis.Explanation `json:"explanation,omitempty"`
}

func (p *plugin) wait(ctx context.Context, ref diagnosis.Ref, timeout time.Duration, format output) error {
	reader, err := p.reader()
	if err != nil {
		return err
	}
	limited, cancel := context.WithCancel(ctx)
	if timeout > 0 {
		limited, cancel = context.WithTimeout(ctx, timeout)
	}
	defer cancel()
	told, last := false, ""
	answer := Detached{TypeMeta: metav1.TypeMeta{APIVersion: diagnosis.APIVersion, Kind: "Detached"}, Node: ref.Name}
	answered := p.waitsForServer()
	err = reader.WaitDetached(limited, ref.Name, func(r inspect.Remaining) {
		answer.Remaining = r
		answered()
		told = true
		_, _ = fmt.Fprintf(p.ErrOut, "node %s: %s, %s in use, %d reported as attached\n", ref.Name, several(len(r.Attachments), "VolumeAttachment"), several(len(r.InUse), "volume"), len(r.Reported))
	}, func(trouble error) {
		if text := trouble.Error(); text != last {
			last = text
			_, _ = fmt.Fprintf(p.ErrOut, "Cannot read what is attached to node %s, trying again: %v\n", ref.Name, trouble)
		}
	})
	answered()
	switch {
	case ctx.Err() != nil:
		return interrupted(ctx, ctx.Err())
	case err != nil && !errors.Is(err, context.DeadlineExceeded):
		return err
	case err != nil && !told:
		return fmt.Errorf("what is attached to node %s could not be read within %v: %s", ref.Name, timeout, cmp.Or(last, p.whyNot(ctx)))
	case err == nil:
		answer.Detached = true
		return format.print(p.Out, answer, func() error {
			_, err := fmt.Fprintf(p.Out, "Nothing is attached to node %s%s.\n", ref.Name, missing(answer.NodeMissing))
			return err
		})
	}
	return p.remains(ctx, reader, ref, answer, timeout, format)
}

// remains prints what is attached at the end of timeout, and why if that can be read.
func (p *plugin) remains(ctx context.Context, reader *inspect.Reader, ref diagnosis.Ref, answer Detached, timeout time.Duration, format output) error {
	explaining, stop := context.WithTimeout(ctx, explainWithin)
	defer stop()
	e, unread := diagnosis.Explain(reader.About(explaining, ref), ref)
	switch {
	case ctx.Err() != nil:
		return interrupted(ctx, ctx.Err())
	case unread != nil:
		_, _ = fmt.Fprintf(p.ErrOut, "Why volumes are still attached to node %s could not be read: %v\n", ref.Name, unread)
	default:
		p.address(e.Findings)
		answer.Explanation = &e
	}
	if err := format.print(p.Out, answer, func() error { return p.printRemains(&answer, timeout) }); err != nil {
		return err
	}
	return found{StatusBlocked}
}

func (p *plugin) printRemains(answer *Detached, timeout time.Duration) error {
	_, _ = fmt.Fprintf(p.Out, "Still attached to node %s after %v: %s, %s in use.\n", answer.Node, timeout, several(len(answer.Attachments), "VolumeAttachment"), several(len(answer.InUse), "volume"))
	e := answer.Explanation
	switch {
	case e == nil:
		return nil
	case e.Verdict == diagnosis.Clear && len(answer.Attachments) > 0:
		_, err := fmt.Fprintf(p.Out, "Pods on the node use them: drain it.\n  %s\n", p.command("kubectl drain "+answer.Node+" --ignore-daemonsets"))
		return err
	}
	_, _ = fmt.Fprintln(p.Out) // Clear without a VolumeAttachment: recovery took the volumes, and the node lists them until it is back
	return p.explanation(*e, "")
}

// explainWithin bounds the explanation of what remains after --timeout. A variable for the tests.
var explainWithin = 10 * time.Second

// several is "1 volume" or "2 volumes".
func several(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func missing(is bool) string {
	if is {
		return ", which has no Node object"
	}
	return ""
}
