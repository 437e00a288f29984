package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/preflight"
	"belay.dev/belay/internal/usage"
)

const aboutPreflight = `Checks whether the next step of a migration may be taken. It only reads. docs/migrate.md has the steps.

  prepare    kube-controller-manager attaches. May its attach/detach controller be disabled?
             Reports everything that would keep belay-controller from starting afterwards.
  take-over  its controller is disabled. May belay-controller start? This is the default.
  roll-back  belay-controller is gone. May the controller of kube-controller-manager be
             enabled again?

It needs list and watch on nodes, volumeattachments and events, and list on pods and
persistentvolumes. With get on nodes and on the lease kube-system/kube-controller-manager
it finds more. The phase roll-back needs list on pods, leases and deployments, and where a lease
of belay-controller is neither in kube-system nor in belay-system, also on clusterroles and
clusterrolebindings: they show whether it counts.

In the phase take-over it refuses while a kube-controller-manager pod has its attach/detach
controller enabled, while another component creates VolumeAttachments, or has created some
since the present kube-controller-manager leader took over, and where FlexVolumes may need
an attach, which belay does not do. What it cannot determine counts against the takeover.

Where kube-controller-manager does not run as a pod in kube-system (k3s, OpenShift, systemd),
its flags cannot be read. Then it is not ready until you confirm with
--confirm-upstream-disabled that the controller is disabled in every one of them. To check,
run this on the host of the leader, which the output names; an enabled controller is listed:

  curl -sk "https://127.0.0.1:10257/healthz?verbose" | grep attach-detach

Exit status:
  0  the next step may be taken: the last line names it
  1  it must not, or that could not be determined
  2  wrong usage`

var errNotReady = errors.New("preflight: not ready for the next step")

// preflightCommand returns the command belay-controller preflight.
func preflightCommand() *cobra.Command {
	var kubeconfig, output, phase string
	c := preflight.Config{}
	cmd := &cobra.Command{
		Use:   "preflight [flags]",
		Short: "Check whether belay-controller may take over, or hand back",
		Long:  aboutPreflight,
		Args:  usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return usage.Errorf("--output must be text or json, not %q", output)
			}
			if !slices.Contains(preflight.Phases(), phase) {
				return usage.Errorf("--phase must be %s, not %q", strings.Join(preflight.Phases(), ", "), phase)
			}
			c.Phase = preflight.Phase(phase)
			if c.Observe < 0 {
				return usage.Errorf("--observe is %v, but must not be below 0", c.Observe)
			}
			config, cluster, err := personConfig(cmd.Context(), kubeconfig)
			if err != nil {
				return err
			}
			c.Clock = &kube.ServerClock{}
			clients, err := readers(c.Clock.Follow(config))
			if err != nil {
				return err
			}
			c.Clients, c.Cluster = clients, cluster
			report := preflight.Run(cmd.Context(), c)
			write := report.Text
			if output == "json" {
				write = report.JSON
			}
			err = write(cmd.OutOrStdout())
			if err == nil && !report.Ready {
				err = errNotReady
			}
			return err
		},
	}
	var sets cliflag.NamedFlagSets
	f := sets.FlagSet("Preflight")
	f.StringVar(&kubeconfig, "kubeconfig", "", "Kubeconfig file. By default $KUBECONFIG, then ~/.kube/config, then the cluster that this runs in, as for kubectl.")
	f.StringVar(&phase, "phase", string(preflight.TakeOver), "Which step is next: prepare, take-over or roll-back.")
	f.StringVarP(&output, "output", "o", "text", "text or json.")
	f.DurationVar(&c.Observe, "observe", 10*time.Second,
		"How long to watch for writes by another controller; 0 to disable. Where nothing is attached or detached meanwhile, there is nothing to see.")
	f.BoolVar(&c.Confirmed, preflight.ConfirmFlag, false,
		"Confirm that persistentvolume-attach-detach-controller is disabled in every kube-controller-manager. Needed where its flags cannot be read because it does not run as a pod in kube-system. It does not override what is refused.")
	f.StringSliceVar(&c.NonAttachableFlex, "non-attachable-flex-drivers", nil,
		"FlexVolume drivers (\"vendor/driver\") that need no attach. The API does not show this, so any other FlexVolume refuses.")
	f.BoolP("help", "h", false, "Print this help.")
	group(cmd, sets)
	return cmd
}

// mayLead checks, before the first write, whether upstream's controller is disabled.
func (o *options) mayLead(clients kubernetes.Interface) func(context.Context) (refusal, err error) {
	return func(ctx context.Context) (refusal, err error) {
		refusal, err = preflight.MayLead(ctx, clients)
		if refusal != nil && o.foreignWriter == foreignWriterWarn {
			klog.FromContext(ctx).Error(refusal, "Leading beside another attach/detach controller because of --on-foreign-writer=warn")
			return nil, nil // may lead
		}
		return refusal, err
	}
}
