package kubectl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/preflight"
	"belay.dev/belay/internal/printable"
	"belay.dev/belay/internal/usage"
)

const checkLong = `Check whether the cluster is healthy for volumes and ready for belay: which controller attaches and detaches, versions,
permissions, leases, API priority, the attachers of the drivers, nodes, VolumeAttachments that are blocked, and, where it is
installed, recovery: whether it runs, and which nodes it could fence.

Each line begins with √ (ok), ‼ (a warning, or something could not be determined) or × (broken), or with "ok", "!!" and "xx" where
the terminal has no UTF-8. Whatever is not ok has a hint: the command that prints what to do.

With --take-over it also checks whether belay-controller may take over, as "belay-controller preflight" does: only then, because on
a cluster that kube-controller-manager serves the answer is no.

With --kubelet-config it also asks the kubelet of each node, through the API server, for its configuration: how often it publishes which
volumes are in use (nodeStatusUpdateFrequency), what it sends the API server without need (nodeStatusReportFrequency), and whether its lease
is what recovery's profile assumes (nodeLeaseDurationSeconds). This needs the permission to get nodes/proxy, which allows much more than
this: with WebSockets, also to run commands in the containers of a node. No role of belay has it, and none should get it for this check.

Exit status 0: no ×. 1: an error, or no × but something could not be read. 2: some ×.`

const checkExample = `  # Is the cluster healthy for volumes?
  kubectl belay check

  # After an upgrade: wait until nothing is broken; print only what is not ok
  kubectl belay check --wait --timeout 10m -o short

  # How often do the kubelets publish their status?
  kubectl belay check --kubelet-config

  # May belay-controller take over?
  kubectl belay check --take-over`

// checkOptions are the flags of the command.
type checkOptions struct {
	config   preflight.Config
	takeOver bool
	kubelets bool
	wait     bool
	timeout  time.Duration
	ascii    bool
	format   output
}

func (o *checkOptions) validate() error {
	switch {
	case o.timeout < 0:
		return usage.Errorf("--timeout is %v, but must not be negative; 0 waits without an end", o.timeout)
	case o.timeout > 0 && !o.wait:
		return usage.Errorf("--timeout needs --wait")
	case o.config.Observe < 0:
		return usage.Errorf("--observe is %v, but must not be negative", o.config.Observe)
	}
	return nil
}

func (p *plugin) checkCommand() *cobra.Command {
	var o checkOptions
	c := &cobra.Command{
		Use: "check", Short: "Check whether the cluster is healthy for volumes and ready for belay", Long: checkLong, Example: checkExample, Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			for _, flag := range []string{"observe", preflight.ConfirmFlag, "non-attachable-flex-drivers"} {
				if c.Flags().Changed(flag) && !o.takeOver {
					return usage.Errorf("--%s needs --take-over", flag)
				}
			}
			return p.check(c.Context(), &o)
		},
	}
	f := c.Flags()
	o.format.addTo(c, "text", "short (only what is not ok)")
	f.BoolVar(&o.ascii, "ascii", false, "print no characters beyond ASCII, as in a locale without UTF-8")
	f.BoolVar(&o.wait, "wait", false, "check again until nothing is broken, then print the result")
	f.DurationVar(&o.timeout, "timeout", 0, "with --wait: how long; 0: no limit")
	f.BoolVar(&o.kubelets, "kubelet-config", false, "also read the configuration of each kubelet; needs the permission to get nodes/proxy")
	f.BoolVar(&o.takeOver, "take-over", false, "also check whether belay-controller may take over attach and detach")
	f.DurationVar(&o.config.Observe, "observe", 10*time.Second, "with --take-over: how long to watch for writes by another controller; 0 to disable")
	f.BoolVar(&o.config.Confirmed, preflight.ConfirmFlag, false, "with --take-over: confirm that persistentvolume-attach-detach-controller is disabled in every kube-controller-manager")
	f.StringSliceVar(&o.config.NonAttachableFlex, "non-attachable-flex-drivers", nil, "with --take-over: FlexVolume drivers (\"vendor/driver\") that need no attach")
	return c
}

func (p *plugin) check(ctx context.Context, o *checkOptions) error {
	report, err := p.readHealth(ctx, o)
	if err != nil {
		return err
	}
	for i := range report.Checks {
		report.Checks[i].Message = p.command(report.Checks[i].Message)
	}
	if err := o.format.print(p.Out, report, func() error { return p.healthText(&report, o) }); err != nil {
		return err
	}
	switch {
	case report.Result.Fails():
		return found{StatusBlocked}
	case report.Result == preflight.Unknown:
		return found{StatusError}
	}
	return nil
}

// health checks once.
func (p *plugin) health(ctx context.Context, o *checkOptions) (preflight.ClusterHealth, error) {
	config, err := p.flags.ToRESTConfig()
	if err != nil {
		return preflight.ClusterHealth{}, fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS = -1
	o.config.Clock = &kube.ServerClock{}
	if o.config.Clients, err = kubernetes.NewForConfig(o.config.Clock.Follow(config)); err != nil {
		return preflight.ClusterHealth{}, fmt.Errorf("make a client: %w", err)
	}
	if o.kubelets {
		if o.config.Kubelets, err = preflight.NewKubeletReader(config); err != nil {
			return preflight.ClusterHealth{}, err
		}
	}
	s, err := p.clusterWith(ctx, "", true)
	if err != nil {
		return preflight.ClusterHealth{}, err
	}
	if o.takeOver && o.config.Observe > 0 {
		_, _ = fmt.Fprintf(p.ErrOut, "Watching for writes of another controller for %v ...\n", o.config.Observe)
	}
	report := preflight.Health(ctx, o.config, s, o.takeOver)
	if ctx.Err() != nil {
		return report, interrupted(ctx, ctx.Err())
	}
	return report, nil
}

// readHealth checks once, or until nothing is broken or the time is over. An API server that restarts is not the end of the wait.
func (p *plugin) readHealth(ctx context.Context, o *checkOptions) (preflight.ClusterHealth, error) {
	var deadline <-chan time.Time
	if o.timeout > 0 {
		timer := time.NewTimer(o.timeout)
		defer timer.Stop()
		deadline = timer.C
	}
	for {
		began := time.Now()
		report, err := p.health(ctx, o)
		if !o.wait || ctx.Err() != nil || err == nil && settled(&report) {
			return report, err
		}
		said := fmt.Sprintf("checks that fail: %d", count(&report, preflight.Result.Fails))
		if err != nil {
			said = err.Error()
		}
		_, _ = fmt.Fprintln(p.ErrOut, said)
		pause := time.NewTimer(max(stuckPause, 4*time.Since(began)))
		select {
		case <-ctx.Done():
			pause.Stop()
			return report, interrupted(ctx, ctx.Err())
		case <-deadline:
			pause.Stop()
			_, _ = fmt.Fprintf(p.ErrOut, "Stopped waiting after %v.\n", o.timeout)
			return report, err
		case <-pause.C:
		}
	}
}

// settled reports whether to wait no longer: nothing is broken, and nothing is unknown but for a permission.
func settled(report *preflight.ClusterHealth) bool {
	for _, u := range report.Unread {
		if !u.Forbidden {
			return false
		}
	}
	return !report.Result.Fails()
}

func count(report *preflight.ClusterHealth, which func(preflight.Result) bool) (n int) {
	for i := range report.Checks {
		if which(report.Checks[i].Result) {
			n++
		}
	}
	return n
}

// objectsShown limits the text; JSON has all objects.
const objectsShown = 5

func (p *plugin) healthText(report *preflight.ClusterHealth, o *checkOptions) error {
	marks := [...]string{"√", "‼", "×"}
	if o.ascii || !utf8Locale() {
		marks = [...]string{"ok", "!!", "xx"}
	}
	out := &page{style: p.style, now: report.Time}
	category := ""
	for i := range report.Checks {
		c := &report.Checks[i]
		if o.format == formatShort && c.Result == preflight.OK {
			continue
		}
		if c.Category != category {
			if category != "" {
				out.text.WriteString("\n")
			}
			category = c.Category
			out.text.WriteString(out.paint(printable.Bold, category) + "\n")
		}
		out.check(c, marks)
	}
	if category != "" {
		out.text.WriteString("\n")
	}
	out.raw(0, healthSummary(report))
	if _, err := fmt.Fprint(p.Out, out.text.String()); err != nil {
		return errors.New("print the checks: " + err.Error())
	}
	return nil
}

// check prints one line, and the objects and the hint of what is not ok.
func (p *page) check(c *preflight.Check, marks [3]string) {
	mark, color := marks[1], printable.Yellow
	switch {
	case c.Result == preflight.OK:
		mark, color = marks[0], printable.Green
	case c.Result.Fails():
		mark, color = marks[2], printable.Red
	}
	text := c.Name + ": " + c.Message
	if c.Result == preflight.Unknown || c.Result == preflight.Unconfirmed {
		text = c.Name + ": " + string(c.Result) + ": " + c.Message
	}
	indent := len([]rune(mark)) + 1
	fmt.Fprintf(&p.text, "%s %s\n", p.paint(color, mark), p.wrap(text, indent))
	if c.Result == preflight.OK {
		return
	}
	for i, object := range c.Objects {
		if i == objectsShown {
			p.raw(4, fmt.Sprintf("and %d more (-o json lists them)", len(c.Objects)-i))
			break
		}
		fmt.Fprintf(&p.text, "    %s\n", p.wrap(object, len("      ")))
	}
	if c.Hint != "" {
		p.raw(4, "see "+c.Hint)
	}
}

func healthSummary(report *preflight.ClusterHealth) string {
	failed := count(report, preflight.Result.Fails)
	warnings := count(report, func(r preflight.Result) bool { return r == preflight.Warning })
	unknown := count(report, func(r preflight.Result) bool { return r == preflight.Unknown })
	var parts []string
	for _, part := range []struct {
		n         int
		one, many string
	}{{failed, "failed", "failed"}, {warnings, "warning", "warnings"}, {unknown, "unknown", "unknown"}} {
		switch part.n {
		case 0:
		case 1:
			parts = append(parts, "1 "+part.one)
		default:
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.many))
		}
	}
	if len(parts) == 0 {
		return fmt.Sprintf("All %d checks are ok.", len(report.Checks))
	}
	return fmt.Sprintf("%d checks: %s.", len(report.Checks), strings.Join(parts, ", "))
}
