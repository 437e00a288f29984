package kubectl

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/inspect"
	"belay.dev/belay/internal/printable"
	"belay.dev/belay/internal/usage"
)

const explainLong = `Explain what an object waits for: the verdict, the cause, the next step, and what happens by itself. With -o wide also the
volume, who holds it, and what each component said last.

The object is pod/NAME, pvc/NAME, pv/NAME, node/NAME or va/NAME (a VolumeAttachment). Of sts/NAME, deploy/NAME, rs/NAME, ds/NAME or
job/NAME, the answer is what its pods wait for, and why one cannot be created.`

const explainExample = `  # Why does this pod not start?
  kubectl belay explain pod/db-0 -n prod

  # Who has this volume?
  kubectl belay explain pvc data-db-0

  # What do the pods of this StatefulSet wait for?
  kubectl belay explain sts/db -n prod

  # Redraw until nothing is blocked
  kubectl belay explain pod/db-0 --watch

  # For a script: the exit status is 0, 2 (blocked) or 3 (blocked, and force may corrupt data)
  kubectl belay explain pod/db-0 -o json`

// aliases are the names of the kinds, as kubectl knows them.
var aliases = map[string]diagnosis.Resource{
	"pod": diagnosis.Pods, "pods": diagnosis.Pods, "po": diagnosis.Pods,
	"pvc": diagnosis.Claims, "persistentvolumeclaim": diagnosis.Claims, "persistentvolumeclaims": diagnosis.Claims,
	"pv": diagnosis.Volumes, "persistentvolume": diagnosis.Volumes, "persistentvolumes": diagnosis.Volumes,
	"va": diagnosis.Attachments, "volumeattachment": diagnosis.Attachments, "volumeattachments": diagnosis.Attachments,
	"node": diagnosis.Nodes, "nodes": diagnosis.Nodes, "no": diagnosis.Nodes,
	"sts": diagnosis.StatefulSets, "statefulset": diagnosis.StatefulSets, "statefulsets": diagnosis.StatefulSets,
	"deploy": diagnosis.Deployments, "deployment": diagnosis.Deployments, "deployments": diagnosis.Deployments,
	"rs": diagnosis.ReplicaSets, "replicaset": diagnosis.ReplicaSets, "replicasets": diagnosis.ReplicaSets,
	"ds": diagnosis.DaemonSets, "daemonset": diagnosis.DaemonSets, "daemonsets": diagnosis.DaemonSets,
	"job": diagnosis.Jobs, "jobs": diagnosis.Jobs,
}

// namespaced are the kinds of objects that have a namespace.
var namespaced = []diagnosis.Resource{
	diagnosis.Pods, diagnosis.Claims, diagnosis.StatefulSets, diagnosis.Deployments, diagnosis.ReplicaSets, diagnosis.DaemonSets, diagnosis.Jobs,
}

// subject reads "KIND/NAME" or "KIND NAME".
func (p *plugin) subject(args []string) (diagnosis.Ref, error) {
	if len(args) == 1 {
		args = strings.SplitN(args[0], "/", 2)
	}
	if len(args) != 2 || args[0] == "" || args[1] == "" {
		return diagnosis.Ref{}, usage.Errorf("name one object, such as pod/NAME, pvc/NAME, pv/NAME, node/NAME, va/NAME or sts/NAME")
	}
	resource, ok := aliases[strings.ToLower(args[0])]
	if !ok {
		return diagnosis.Ref{}, usage.Errorf("unknown kind %q: use pod, pvc, pv, node or va, or with explain sts, deploy, rs, ds or job", args[0])
	}
	ref := diagnosis.Ref{Resource: resource, Name: args[1]}
	if slices.Contains(namespaced, resource) {
		namespace, err := p.namespace()
		if err != nil {
			return ref, err
		}
		ref.Namespace = namespace
	}
	return ref, nil
}

func (p *plugin) explainCommand() *cobra.Command {
	var format output
	var watch bool
	var dumped string
	c := &cobra.Command{
		Use: "explain (KIND/NAME | KIND NAME)", Short: "Explain what a pod, claim, volume, node, VolumeAttachment or owner of pods waits for",
		Long: explainLong, Example: explainExample,
		Args: oneObject("pod/NAME, pvc/NAME, pv/NAME, node/NAME, va/NAME, sts/NAME, deploy/NAME, rs/NAME, ds/NAME or job/NAME"), ValidArgsFunction: p.completeObject(kinds...),
		RunE: func(c *cobra.Command, args []string) error {
			ref, err := p.subject(args)
			if err != nil {
				return err
			}
			return p.explain(c.Context(), ref, format, watch, dumped)
		},
	}
	format.addTo(c, "text", "wide (also the volume, who has it, and what each component said last)")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "read and print again every 2 seconds until nothing is blocked or in progress")
	c.Flags().StringVar(&dumped, "dump-snapshot", "", "write what was read into this file, as JSON")
	_ = c.Flags().MarkHidden("dump-snapshot") // it exists
	return c
}

// explainNow reads and explains once. gone: the object does not exist.
func (p *plugin) explainNow(ctx context.Context, reader *inspect.Reader, ref diagnosis.Ref, dumped string) (e diagnosis.Explanation, gone bool, err error) {
	answered := p.waitsForServer()
	snapshot := reader.About(ctx, ref)
	answered()
	if err := dump(dumped, snapshot); err != nil {
		return e, false, err
	}
	e, err = diagnosis.Explain(snapshot, ref)
	if ctx.Err() != nil {
		return e, false, interrupted(ctx, ctx.Err())
	}
	p.address(e.Findings)
	return e, err != nil && snapshot.Gone(ref), err
}

// watchInterval is how often --watch reads again.
const watchInterval = 2 * time.Second

func (p *plugin) explain(ctx context.Context, ref diagnosis.Ref, format output, watch bool, dumped string) error {
	reader, err := p.reader()
	if err != nil {
		return err
	}
	for seen := false; ; seen = true {
		e, gone, err := p.explainNow(ctx, reader, ref, dumped)
		if gone && seen {
			_, _ = fmt.Fprintf(p.ErrOut, "%s is gone.\n", ref)
			return nil
		}
		if err != nil {
			return err
		}
		if watch && p.style.color {
			_, _ = fmt.Fprint(p.Out, printable.Clear)
		}
		if err := format.print(p.Out, e, func() error { return p.explanation(e, format) }); err != nil {
			return err
		}
		if !watch || e.Verdict == diagnosis.Clear {
			return statusOf(e.Verdict)
		}
		timer := time.NewTimer(watchInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return interrupted(ctx, ctx.Err())
		case <-timer.C:
		}
	}
}
