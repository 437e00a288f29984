package kubectl

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/usage"
)

const stuckLong = `List what is blocked, longest first: what "kubectl belay explain" says of each pod, claim, volume and VolumeAttachment, once: pods that
wait for a volume or stay Terminating because of one, VolumeAttachments whose attach or detach fails or does not end or that nothing needs,
and claims whose volume cannot be provisioned or does not exist.

NODE is where the volume is wanted; HOLDER is the node that has it, with the pod that uses it there, and never what waits. CAUSE is which of
several causes of the reason it is. A narrow terminal lacks columns, the least important ones first: -o wide has all. "kubectl belay runbook
REASON" says what is safe; "kubectl belay explain" says more about one object, and what to do.

Exit status 0: nothing is blocked. 2: something is. 3: something is, and to end that by force now may corrupt data.`

const stuckExample = `  # What is blocked, anywhere?
  kubectl belay stuck -A

  # After an upgrade: wait until nothing is blocked in the namespace
  kubectl belay stuck -n prod --wait --timeout 10m

  # Only what has waited for more than five minutes, with the cause in a sentence
  kubectl belay stuck -A --older-than 5m -o wide`

// stuckOptions are the flags of the command.
type stuckOptions struct {
	all       bool
	olderThan time.Duration
	wait      bool
	timeout   time.Duration
	format    output
}

func (o *stuckOptions) validate() error {
	switch {
	case o.olderThan < 0:
		return usage.Errorf("--older-than is %v, but must not be negative", o.olderThan)
	case o.timeout < 0:
		return usage.Errorf("--timeout is %v, but must not be negative; 0 waits without an end", o.timeout)
	case o.timeout > 0 && !o.wait:
		return usage.Errorf("--timeout needs --wait")
	}
	return nil
}

func (p *plugin) stuckCommand() *cobra.Command {
	var o stuckOptions
	c := &cobra.Command{
		Use: "stuck", Short: "List what is blocked, longest first", Long: stuckLong, Example: stuckExample, Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			namespace := ""
			if !o.all {
				var err error
				if namespace, err = p.namespace(); err != nil {
					return err
				}
			}
			return p.stuck(c.Context(), namespace, &o)
		},
	}
	o.format.addToList(c)
	c.Flags().BoolVarP(&o.all, "all-namespaces", "A", false, "list all namespaces, all VolumeAttachments, and the nodes whose fence is contradicted")
	c.Flags().DurationVar(&o.olderThan, "older-than", 0, "list only what has waited for at least this long, such as 5m")
	c.Flags().BoolVar(&o.wait, "wait", false, "read again until nothing is listed, then print the result")
	c.Flags().DurationVar(&o.timeout, "timeout", 0, "with --wait: how long; 0: no limit")
	return c
}

func (p *plugin) stuck(ctx context.Context, namespace string, o *stuckOptions) error {
	list, err := p.readStuck(ctx, namespace, o)
	if err != nil {
		return err
	}
	if err := o.format.printList(p.Out, list, stuckNames(&list), func() error { return p.stuckTable(&list, o.format) }); err != nil {
		return err
	}
	p.unread(list.Unread, o.format)
	return statusOf(list.Verdict)
}

// readStuck reads once, or until nothing is blocked or the time is over.
func (p *plugin) readStuck(ctx context.Context, namespace string, o *stuckOptions) (diagnosis.StuckList, error) {
	var deadline <-chan time.Time
	if o.timeout > 0 {
		timer := time.NewTimer(o.timeout)
		defer timer.Stop()
		deadline = timer.C
	}
	for {
		began := time.Now()
		s, err := p.cluster(ctx, namespace)
		if err != nil {
			return diagnosis.StuckList{}, err
		}
		list := diagnosis.Stuck(s, namespace, o.olderThan)
		if len(list.Items) == 0 {
			if err := p.missingNamespace(ctx, namespace); err != nil {
				return list, err
			}
		}
		p.address(list.Items)
		if !o.wait || list.Verdict == diagnosis.Clear {
			return list, nil
		}
		_, _ = fmt.Fprintf(p.ErrOut, "%s\n", stuckSummary(&list))
		pause := time.NewTimer(max(stuckPause, 4*time.Since(began)))
		select {
		case <-ctx.Done():
			pause.Stop()
			return list, interrupted(ctx, ctx.Err())
		case <-deadline:
			pause.Stop()
			_, _ = fmt.Fprintf(p.ErrOut, "Stopped waiting after %v: what is listed is still blocked.\n", o.timeout)
			return list, nil
		case <-pause.C:
		}
	}
}

// stuckPause is how long --wait waits at least until it reads again. A large cluster is read less often, to spare its API server.
const stuckPause = 5 * time.Second

// stuckSummary is the list in a line.
func stuckSummary(list *diagnosis.StuckList) string {
	if len(list.Items) == 0 {
		return "Too little could be read to say that nothing is blocked."
	}
	first := &list.Items[0]
	return fmt.Sprintf("%d blocked; the longest is %s (%s)%s", len(list.Items), kindAndName(first.Subject), first.Reason, lasted(list.Time, first.Since, " for "))
}

func lasted(now time.Time, at *time.Time, before string) string {
	if at == nil {
		return ""
	}
	return before + duration.HumanDuration(now.Sub(*at))
}

// kindAndName is an object as it is typed after kubectl get, or kubectl belay explain.
func kindAndName(r diagnosis.Ref) string {
	kind := map[diagnosis.Resource]string{
		diagnosis.Pods: "pod", diagnosis.Claims: "pvc", diagnosis.Volumes: "pv", diagnosis.Attachments: "volumeattachment", diagnosis.Nodes: "node",
		diagnosis.StatefulSets: "statefulset", diagnosis.Deployments: "deployment", diagnosis.ReplicaSets: "replicaset", diagnosis.DaemonSets: "daemonset", diagnosis.Jobs: "job",
	}[r.Resource]
	if r.Namespace != "" {
		return kind + "/" + r.Name + " -n " + r.Namespace
	}
	return kind + "/" + r.Name
}

func stuckNames(list *diagnosis.StuckList) []string {
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, nameOf(list.Items[i].Subject))
	}
	return names
}

func (p *plugin) stuckTable(list *diagnosis.StuckList, format output) error {
	if len(list.Items) == 0 {
		text := "Nothing is blocked" + inNamespace(list.Namespace) + "."
		if list.Verdict != diagnosis.Clear {
			text = "Too little could be read to say that nothing is blocked" + inNamespace(list.Namespace) + "."
		}
		_, err := fmt.Fprintln(p.ErrOut, text)
		return err
	}
	t := p.findings(format, "SINCE", "VERDICT", "OBJECT", "VOLUME", "NODE", "HOLDER", "REASON", "CAUSE")
	for i := range list.Items {
		f := &list.Items[i]
		subject := f.Subject
		if subject.Namespace == list.Namespace { // who has asked for it need not read it in each line
			subject.Namespace = ""
		}
		t.add(withSummary(format, f.Summary, lasted(list.Time, f.Since, ""), string(f.Verdict), kindAndName(subject), volumeName(f.Volume),
			wantedOn(f), holderName(f), string(f.Reason), string(f.Why))...)
	}
	t.withoutEmpty("CAUSE")
	return t.print(p.Out, p.style)
}

func inNamespace(namespace string) string {
	if namespace == "" {
		return ""
	}
	return " in namespace " + namespace
}

// findings is a table of findings.
func (p *plugin) findings(format output, columns ...string) *table {
	t := &table{columns: columns, whole: "OBJECT", flexible: []string{"VOLUME", "NODE", "HOLDER"}, spare: []string{"KIND", "NODE", "VOLUME", "HOLDER", "CAUSE"}}
	if format == formatWide {
		t.columns, t.overflow, t.whole, t.flexible, t.spare = append(t.columns, "SUMMARY"), "SUMMARY", "", nil, nil // whole names: the lines do not fit anyway
	}
	t.painted = map[string]func(string) string{"VERDICT": func(text string) string { return p.style.verdict(diagnosis.Verdict(text), text) }}
	return t
}

func withSummary(format output, summary string, cells ...string) []string {
	if format == formatWide {
		cells = append(cells, summary)
	}
	return cells
}

// volumeName is the PersistentVolume, or what else is known of the volume.
func volumeName(v *diagnosis.Volume) string {
	switch {
	case v == nil:
		return ""
	case v.PersistentVolume != "":
		return v.PersistentVolume
	case v.Handle != "":
		return v.Handle
	case v.Claim != "":
		return "pvc " + v.Claim
	}
	return v.Name
}

// wantedOn is the node where the volume, or the pod, is wanted.
func wantedOn(f *diagnosis.Finding) string {
	if f.Volume != nil && f.Volume.WantedOn != "" {
		return f.Volume.WantedOn
	}
	if f.Subject.Resource == diagnosis.Nodes {
		return f.Subject.Name
	}
	if f.Volume == nil && len(f.Holders) > 0 { // the pod itself stays
		return f.Holders[0].Node.Name
	}
	return ""
}

// holderName is the node that has the volume and a pod that uses it there, and how many more there are of each.
func holderName(f *diagnosis.Finding) string {
	var nodes []string
	holders := f.Having()
	for i := range holders {
		h := &holders[i]
		text := h.Node.Name
		switch others := len(h.Pods) + h.HiddenPods - 1; {
		case len(h.Pods) > 0 && others > 0:
			text += fmt.Sprintf(" (%s +%d)", h.Pods[0].Name, others)
		case len(h.Pods) > 0:
			text += fmt.Sprintf(" (%s)", h.Pods[0].Name)
		case h.HiddenPods > 0:
			text += fmt.Sprintf(" (%d pods)", h.HiddenPods)
		}
		nodes = append(nodes, text)
	}
	if len(nodes) > 2 {
		nodes = append(nodes[:2], fmt.Sprintf("+%d", len(nodes)-2))
	}
	return strings.Join(nodes, ", ")
}
