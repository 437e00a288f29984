package kubectl

import (
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
--timeout; it is listed with its cause.`

const waitExample = `  kubectl drain node-1 --ignore-daemonsets && kubectl belay wait-detached node/node-1 --timeout 5m && reboot-the-machine`

func (p *plugin) waitCommand() *cobra.Command {
	var timeout time.Duration
	var format output
	c := &cobra.Command{
		Use: "wait-detached (node/NAME | NAME)", Short: "Wait until no volume is attached to a node",
		Long: waitLong, Example: waitExample, Args: cobra.RangeArgs(1, 2),
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
	format.addTo(c)
	c.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait; 0 for without an end")
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
	answer := Detached{TypeMeta: metav1.TypeMeta{APIVersion: diagnosis.APIVersion, Kind: "Detached"}, Node: ref.Name}
	err = reader.WaitDetached(limited, ref.Name, func(r inspect.Remaining) {
		answer.Remaining = r
		_, _ = fmt.Fprintf(p.ErrOut, "node %s: %d VolumeAttachments, %d volumes in use, %d reported as attached\n", ref.Name, len(r.Attachments), len(r.InUse), len(r.Reported))
	})
	switch {
	case ctx.Err() != nil:
		return interrupted(ctx, ctx.Err())
	case err != nil && !errors.Is(err, context.DeadlineExceeded):
		return err
	case err == nil:
		answer.Detached = true
		return format.print(p.Out, answer, func() error {
			_, err := fmt.Fprintf(p.Out, "Nothing is attached to node %s%s.\n", ref.Name, missing(answer.NodeMissing))
			return err
		})
	}
	e, err := diagnosis.Explain(reader.About(ctx, ref), ref)
	if err != nil {
		return fmt.Errorf("volumes are still attached to node %s after %v, and why could not be read: %w", ref.Name, timeout, err)
	}
	answer.Explanation = &e
	if err := format.print(p.Out, answer, func() error {
		_, _ = fmt.Fprintf(p.Out, "Still attached to node %s after %v: %d VolumeAttachments, %d volumes in use.\n", ref.Name, timeout, len(answer.Attachments), len(answer.InUse))
		if e.Verdict == diagnosis.Clear {
			_, err := fmt.Fprintf(p.Out, "Pods on the node use them: drain it.\n  kubectl drain %s --ignore-daemonsets\n", ref.Name)
			return err
		}
		_, _ = fmt.Fprintln(p.Out)
		return p.explanation(e)
	}); err != nil {
		return err
	}
	return found{StatusBlocked}
}

func missing(is bool) string {
	if is {
		return ", which has no Node object"
	}
	return ""
}
